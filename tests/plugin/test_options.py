"""Flags: each once, with fairseq's own behaviour as default; wrong combinations refused; the
signature says what differs."""

import re
from argparse import ArgumentParser
from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from typing import Optional

import pytest
import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.configs import GenerationConfig
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from models import batch, build, generators, run, task

from fairseq_ext import UsageError
from fairseq_ext.plugin import options
from fairseq_ext.plugin.options import read_settings
from fairseq_ext.plugin.tasks import Flags
from fairseq_ext.search import checks, registry
from fairseq_ext.search.registry import CAPABILITIES, POINTS, PRUNERS, STRATEGIES
from fairseq_ext.search.settings import Generation, Settings

NEUTRAL = {
    "select": "topk",
    "stop": "count",
    "schedule": "batch",
    "softmax": "full",
    "decoding": "beam",
}


@dataclass
class PatientFlags(FairseqDataclass):
    patient_steps: int = field(default=3, metadata={"range": (1, 50, "number of steps")})


@dataclass
class TrimFlags(FairseqDataclass):
    trim_below: float = 0.0
    trim_list: Optional[str] = field(default=None, metadata={"file": True})  # noqa: UP045


def made(point, name, flags, check=None) -> registry.Strategy:
    return registry.Strategy(
        point, name, lambda *a: None, flags, check, needs=frozenset({"search loop"})
    )


@pytest.fixture
def made_up(monkeypatch):
    """A strategy by name (--stop patient) and one that its flag switches on (--trim-below)."""

    def check(flags, generation):
        if generation.beam < 2:
            raise UsageError("--stop patient needs --beam 2 or more")

    monkeypatch.setitem(STRATEGIES["stop"], "patient", made("stop", "patient", PatientFlags, check))
    monkeypatch.setitem(PRUNERS, "trim", made("prune", "trim", TrimFlags))


def test_a_strategy_is_a_python_file(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    for file in (tmp_path / "notes.txt", tmp_path / "none.py", tmp_path):
        with pytest.raises(
            UsageError,
            match=r"FAIRSEQ_EXT_STRATEGIES names .*, which is not a Python file \(.py\): "
            r"correct the path",
        ):
            registry.load_outside(file)


def test_defaults_are_fairseqs_own_behaviour():
    assert set(NEUTRAL) == set(POINTS)
    for point, name in NEUTRAL.items():
        assert registry.names_of(point)[0] == name
        assert read_settings(task("translation_ext").cfg).choice(point) == name
    assert registry.non_default_strategies(Settings()) == []


def test_every_flag_of_stock_is_kept_with_its_default():
    stock, ours = (TASK_DATACLASS_REGISTRY[name] for name in ("translation", "translation_ext"))
    defaults = {f.name: f.default for f in fields(ours)}
    assert {f.name: f.default for f in fields(stock)}.items() <= defaults.items()


def test_the_settings_of_a_search_have_fairseqs_names_and_defaults():
    stock = {f.name: f.default for f in fields(GenerationConfig)}
    for each in fields(Generation):
        assert stock[each.name] == each.default, each.name


def test_every_flag_of_ours_says_its_default():
    """As argparse shows it: "(default: x)", or "default x: what that is"."""
    parser = ArgumentParser(add_help=False)
    gen_parser_from_dataclass(parser, Flags())
    assert len(parser._actions) > 40
    for action in parser._actions:
        reported = re.findall(r"\bdefault:? ([^;)]*)", action.help)
        assert reported, action.dest
        if action.default in (None, False):  # off, or none, or what stands in for it
            continue
        values = {word for text in reported for word in re.split(r"[\s,:]+", text)}
        # fairseq's own flag of that name has the default -1, which no one may type
        if action.dest == "patience":
            assert action.default == -1 and "1" in values
            continue
        numbers = {
            float(Fraction(word)) for word in values if re.fullmatch(r"-?[\d.]+(/\d+)?", word)
        }
        assert str(action.default) in values or action.default in numbers, (
            action.dest,
            action.default,
            reported,
        )


def test_chosen_names_what_is_switched_on(made_up):
    assert [
        s.name
        for s in registry.non_default_strategies(Settings({"stop": "patient", "trim_below": 0.1}))
    ] == ["patient", "trim"]


@pytest.mark.parametrize(
    "ours, stock, sentence",
    [
        (
            {"stop": "patient"},
            {"match_source_len": True},
            "--match-source-len replaces beam search, so --stop patient cannot work with it",
        ),
        (
            {"trim_below": 0.1},
            {"diversity_rate": 0.5},
            "--diversity-rate replaces beam search, so --prune-trim cannot",
        ),
        (
            {"patient_steps": 5},
            {},
            "--patient-steps belongs to --stop patient, which is not switched on: add it or leave",
        ),
        ({"stop": "patient"}, {"beam": 1}, "--stop patient needs --beam 2 or more"),
        (
            {"stop": "patient", "patient_steps": 0},
            {},
            "--patient-steps (number of steps) must be 1 to 50, not 0",
        ),
        (
            {"trim_list": ""},
            {},
            "--trim-list is given without a name: name a file, or leave it out",
        ),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_in_a_sentence(made_up, ours, stock, sentence):
    with pytest.raises(UsageError, match=re.escape(sentence)):
        checks.validate(Settings({**ours, **stock}))


@pytest.mark.parametrize(
    "ours",
    [{}, {"stop": "patient"}, {"stop": "patient", "patient_steps": 5}, {"trim_below": 0.5}],
    ids=str,
)
def test_what_works_is_let_through(made_up, ours):
    checks.validate(Settings(ours))


@pytest.mark.parametrize("stock", [{"match_source_len": True}, {"diversity_rate": 0.5}], ids=str)
def test_stock_searches_alone_are_let_through(stock):
    checks.validate(Settings(stock))


def test_signature_says_every_plug_point_and_what_differs(made_up):
    plain = options.signature(Settings(), "fairseq")
    assert plain == (
        f"fairseq_ext:{options.VERSION}|select:topk|stop:count|schedule:batch|softmax:full|"
        "backend:fairseq"
    )
    changed = Settings({"stop": "patient", "patient_steps": 5, "trim_below": 0.1})
    reported = options.signature(changed, "fairseq")
    assert "|stop:patient,patient_steps=5|" in reported and "|prune:trim_below=0.1|" in reported


@dataclass
class WordFlags:
    word_file: str | None = field(
        default=None,
        metadata={
            "file": True,
            "gives": "required phrases",
            "needs": ("source sentence",),
            "engine": "is for the lines of a file",
            "corpus": "is for one process",
        },
    )
    word_size: int = field(
        default=1, metadata={"range": (1, 5, "number of words"), "applies_to": "required phrases"}
    )


def test_a_source_of_constraints_is_one_file(monkeypatch):
    """What it registers is all that refusals, the signature and the other commands need."""
    word = registry.Feature(
        "constraints: word",
        WordFlags,
        constrains=True,
        signature=lambda settings: f"words:{settings.get(WordFlags).word_size}",
    )
    monkeypatch.setitem(registry.FEATURES, word.name, word)
    given = Settings({"word_file": "w.txt", "word_size": 2, "select": "dba"})
    assert registry.constraint_flag(given) == "--word-file"
    assert checks.refused_by_engine()["word_file"] == "is for the lines of a file"
    assert checks.refused_by_corpus()["word_file"] == "is for one process"
    found = options.signature(given, "fairseq")
    assert "|select:dba,word_file=w.txt,word_size=2|" in found
    assert "|constraints:unordered|words:2|" in found
    checks.validate(given)
    speech = registry.Part("--task speech", denies=frozenset({"source sentence"}))
    for wrong, more, sentence in (
        (given, speech, "--word-file works from the words of a source sentence, and --task speech"),
        (Settings({"word_file": ""}), None, "--word-file is given without a name"),
        (
            Settings({"word_size": 9, "word_file": "w"}),
            None,
            "--word-size (number of words) must be 1 to 5",
        ),
        (Settings({"word_size": 2}), None, "--constraints-file, --glossary or --word-file"),
    ):
        with pytest.raises(UsageError, match=re.escape(sentence)):
            checks.validate(wrong, *([more] if more else []))


def test_signature_says_when_fairseqs_own_loop_runs():
    ours = generators([build("transformer")], beam=4, match_source_len=True).ours
    assert "|search:fairseq --match-source-len|backend:stock|" in ours.stats.signature


def test_signature_names_beam_length_penalty_model_and_versions():
    model = build("transformer")
    ends = [
        generators([each], beam=4, lenpen=1.5)
        .ours.stats.signature.rpartition("|backend:")[2]
        .partition("|")[2]
        for each in (model, model, build("transformer", 7))
    ]
    version = re.escape(torch.__version__)
    assert re.fullmatch(
        rf"beam:4\|lenpen:1.5\|model:[0-9a-f]{{8}}\|fairseq:0.12.2\|torch:{version}", ends[0]
    )
    assert ends[0] == ends[1] != ends[2]


def test_min_len_above_the_limit_is_refused():
    with pytest.raises(UsageError, match="--min-len 9 is above the length limit 4"):
        run(generators([build("transformer")], beam=2, min_len=9, max_len_b=4).ours, batch([3]))


def test_a_batch_without_source_tokens_is_refused():
    """Nor does it go to fairseq's own loop, where it would run without the strategies."""
    sample = batch([3, 5])
    sample["net_input"]["source"] = sample["net_input"].pop("src_tokens")
    with pytest.raises(
        UsageError,
        match=r"reads source tokens \(src_tokens\), and the batch has src_lengths, source: "
        r"use fairseq's task",
    ):
        run(generators([build("transformer")], beam=2).ours, sample)


def test_a_name_is_registered_once():
    """A second strategy of the same name would silently replace the first."""
    for point, name in [*NEUTRAL.items(), ("prune", "finished")]:
        with pytest.raises(
            UsageError,
            match=f"--{point} {name} is registered twice, by search/strategies/{point}\\b",
        ):
            registry.register(point, name)(lambda flags, context: None)


def test_what_is_registered_is_known():
    with pytest.raises(UsageError, match="needs or denies 'beams': use words of the table"):
        registry.register("stop", "never", needs=("beams",))
    assert "never" not in STRATEGIES["stop"]


def test_every_strategy_lies_in_the_file_of_its_name():
    """--softmax lsh is search/strategies/softmax/lsh.py."""
    for strategy in registry.all_strategies():
        if Path(strategy.file).is_absolute():
            continue  # of another test, which lies outside of the package
        one_file = strategy.point in ("prune", "schedule")  # these have a file for all of them
        name = "" if one_file else f"/{strategy.name.replace('-', '_')}"
        assert strategy.file == f"search/strategies/{strategy.point}{name}.py"
        assert strategy.paper


def test_every_capability_is_needed_and_denied():
    """A sentence that no pair can reach is a promise without a test."""
    everything = [*registry.all_strategies(), *checks.options(Settings())]
    needed, denied = (
        {c for s in everything for c in kind(s)} for kind in (lambda s: s.needs, lambda s: s.denies)
    )
    # denied by models, by constraints and by tasks (plugin/stock.py), not by a flag
    by_models = {
        "one model",
        "output layer",
        "no constraints",
        "source sentence",
        "source tokens",
        "divisible batches",
    }
    assert needed - by_models == denied - by_models == set(CAPABILITIES) - by_models
