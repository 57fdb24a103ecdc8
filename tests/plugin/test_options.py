"""Flags: each once, with fairseq's own behaviour as default; wrong combinations refused; the
signature says what differs; plain dataclasses of flags mean what fairseq's kind of them means."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from dataclasses import dataclass, field, fields, make_dataclass
from fractions import Fraction
from pathlib import Path
from typing import List, Literal, Optional  # noqa: UP035

import pytest
import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.dataclass.configs import GenerationConfig
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from models import batch, build, generators, run, task

from fairseq_ext import UsageError
from fairseq_ext.plugin import options
from fairseq_ext.plugin.flags_dataclass import fairseq_fields, flags_dataclass
from fairseq_ext.plugin.options import read_settings
from fairseq_ext.plugin.tasks import Flags
from fairseq_ext.search import checks, registry
from fairseq_ext.search.registry import CAPABILITIES, POINTS, PRUNERS, STRATEGIES
from fairseq_ext.search.settings import Generation, Settings

NEUTRAL = dict(select="topk", stop="count", schedule="batch", softmax="full", decoding="beam")


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


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, None),
        ({"stop": "patient"}, None),
        ({"stop": "patient", "patient_steps": 5}, None),
        ({"trim_below": 0.5}, None),
        ({"match_source_len": True}, None),  # stock's searches alone
        ({"diversity_rate": 0.5}, None),
        (
            {"stop": "patient", "match_source_len": True},
            "--match-source-len replaces beam search, so --stop patient cannot work with it",
        ),
        (
            {"trim_below": 0.1, "diversity_rate": 0.5},
            "--diversity-rate replaces beam search, so --prune-trim cannot",
        ),
        (
            {"patient_steps": 5},
            "--patient-steps belongs to --stop patient, which is not switched on: add it or leave",
        ),
        ({"stop": "patient", "beam": 1}, "--stop patient needs --beam 2 or more"),
        (
            {"stop": "patient", "patient_steps": 0},
            "--patient-steps (number of steps) must be 1 to 50, not 0",
        ),
        (
            {"trim_list": ""},
            "--trim-list is given without a name: name a file, or leave it out",
        ),
    ],
    ids=str,
)
def test_what_works_is_let_through_and_what_cannot_is_refused_in_a_sentence(
    made_up, given, sentence
):
    if sentence is None:
        checks.validate(Settings(given))
        return
    with pytest.raises(UsageError, match=re.escape(sentence)):
        checks.validate(Settings(given))


def test_signature_says_every_plug_point_and_what_differs(made_up):
    plain = options.signature(Settings(), "fairseq")
    assert plain == (
        f"fairseq_ext:{options.VERSION}|select:topk|stop:count|schedule:batch|softmax:full|"
        "backend:fairseq"
    )
    changed = Settings({"stop": "patient", "patient_steps": 5, "trim_below": 0.1})
    names = [each.name for each in registry.non_default_strategies(changed)]
    assert names == ["patient", "trim"]
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
    by_models = {"one model", "output layer", "no constraints", "source sentence"}
    by_models |= {"source tokens", "divisible batches"}
    assert needed - by_models == denied - by_models == set(CAPABILITIES) - by_models


# ---- Plain dataclasses of flags, which plugin/flags_dataclass.py makes fairseq's kind of


@dataclass
class Common:
    """Under the future import, as this whole file is."""

    shape: Literal["flat", "deep"] = field(
        default="flat", metadata={"help": "the shape (default: flat)"}
    )
    loud: bool = field(default=False, metadata={"help": "loud or not (default: off)"})


@dataclass
class Special(Common):
    limit: float | None = field(
        default=None, metadata={"help": "a limit (default: none)", "range": (0, 1, "share")}
    )
    mode: Optional[Literal["one", "two"]] = None  # noqa: UP045
    sizes: list[int] = field(default_factory=lambda: [1, 2])
    names: list[str] | None = None


@dataclass
class SpecialOfFairseq(FairseqDataclass):
    """The same in fairseq's own words."""

    shape: ChoiceEnum(["flat", "deep"]) = field(  # type: ignore[valid-type]
        default="flat", metadata={"help": "the shape (default: flat)"}
    )
    loud: bool = field(default=False, metadata={"help": "loud or not (default: off)"})
    limit: Optional[float] = field(  # noqa: UP045
        default=None, metadata={"help": "a limit (default: none)", "range": (0, 1, "share")}
    )
    mode: Optional[ChoiceEnum(["one", "two"])] = None  # type: ignore[valid-type]  # noqa: UP045
    sizes: List[int] = field(default_factory=lambda: [1, 2])  # noqa: UP006
    names: Optional[List[str]] = None  # noqa: UP006, UP045


TYPES = {  # what fairseq reads there, as the annotations above are postponed
    "shape": ChoiceEnum(["flat", "deep"]),
    "loud": bool,
    "limit": Optional[float],  # noqa: UP045
    "mode": Optional[ChoiceEnum(["one", "two"])],  # noqa: UP045
    "sizes": List[int],  # noqa: UP006
    "names": Optional[List[str]],  # noqa: UP006, UP045
}


def fairseq_dataclass(kind: type) -> type:
    """fairseq's kind of a dataclass of flags, as `flags_dataclass` makes it of all of them."""
    return make_dataclass(kind.__name__, fairseq_fields(kind).values(), bases=(FairseqDataclass,))


def parser_of(kind: type) -> ArgumentParser:
    parser = ArgumentParser(prog="command", add_help=False)
    gen_parser_from_dataclass(parser, kind())
    return parser


def actions_of(kind: type) -> list[tuple]:
    """Everything that a command takes in."""
    names = "option_strings dest default choices help nargs".split()
    return [
        (type(a), *(getattr(a, name) for name in names), getattr(a.type, "__name__", None))
        for a in parser_of(kind)._actions
    ]


def test_plain_flags_are_read_as_fairseqs_own_are():
    ours, own = fairseq_dataclass(Special), fairseq_dataclass(SpecialOfFairseq)
    for kind in (ours, own):
        assert [each.name for each in fields(kind)] == ["_name", *TYPES]
        assert [str(each.type) for each in fields(kind)[1:]] == [*map(str, TYPES.values())]
    assert actions_of(ours) == actions_of(own)
    assert parser_of(ours).format_help() == parser_of(own).format_help()
    assert [each.metadata for each in fields(ours)[1:]] == [
        each.metadata for each in fields(Special)
    ]


@dataclass
class TwoKinds:
    size: int | str = 1


@dataclass
class Numbers:
    size: Literal[1, 2] = 1


@dataclass
class NotThere:
    size: Absent = 1  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("kind", [TwoKinds, Numbers, NotThere], ids=lambda kind: kind.__name__)
def test_a_type_that_fairseq_has_no_form_for_is_reported(kind):
    reported = f"test_options.py: fairseq cannot read a type of {kind.__name__} .*: use int, float"
    with pytest.raises(UsageError, match=reported):
        fairseq_dataclass(kind)


def test_the_flags_of_this_package_are_plain():
    kinds = {s.flags for s in registry.all_strategies()}
    inside = [kind for kind in kinds if kind.__module__.startswith("fairseq_ext.")]
    assert inside and not [kind for kind in inside if issubclass(kind, FairseqDataclass)]
    assert issubclass(flags_dataclass(), FairseqDataclass)
