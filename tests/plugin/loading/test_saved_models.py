"""Checkpoints of every architecture that fairseq translates with, loaded as its commands load them,
give stock's n-best lists.

`prepare_for_inference_` changes models (weight normalisation, BeamableMM of convolutional decoders,
attention that no one requested), and models that a test builds in Python have not been through it.
Models here have: see saved_models.py.
"""

import logging
import os
import re
from argparse import Namespace
from dataclasses import replace
from typing import Any

import pytest
import torch
from architecture_table import log_lines
from conftest import command
from fairseq.models import ARCH_MODEL_REGISTRY
from forked import generate, succeeded
from models import ENSEMBLES, RECIPES, is_search_of_fairseqs, recipe, same, separated, settings
from saved_models import Loaded, Saved, lines
from sizes import ALL, drawn
from test_cli import EXT, same_lines, sentence

from fairseq_ext import UsageError
from fairseq_ext.model.choose import refusal_reason
from fairseq_ext.search.registry import STRATEGIES

BEAMS = (1, 3, 5)
NEUTRAL = settings("neutral") | {"fairseq's modules": {"decoder_backend": "fairseq"}}
# decoders whose features can be had before their output layer, which is linear and nothing else
HAVE_FEATURES = "transformer marian_transformer transformer_align bart_base mbart_base lstm".split()


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Saved:
    return Saved(tmp_path_factory.mktemp("saved"))


@pytest.fixture(autouse=True)
def quiet():
    """Half of the time would go into formatting what fairseq logs of its configuration."""
    logging.disable(logging.INFO)
    yield
    logging.disable(logging.NOTSET)


class Both:
    """fairseq's generator and ours over the same checkpoints, each over models of its own."""

    def __init__(self, saved: Saved, names: list[str], **generation: Any):
        self.saved, self.names, self.generation = saved, names, generation
        self.data = saved.data(names[0])
        self.models = saved.models(names, **generation)
        self.stock = saved.ready(
            saved.models(names, **generation), self.data, "translation", **generation
        )
        self.expected: dict[tuple, list] = {}
        # fairseq masks some of their attention in float32, whatever the model
        self.tolerance = 1e-5 if any(name.startswith(("lstm", "fconv")) for name in names) else 1e-9

    def ours(self, **strategy: Any) -> Loaded:
        loaded = self.saved.ready(
            self.models, self.data, "translation_ext", strategy, **self.generation
        )
        # as in a command with --constraints, none of whose lines names a phrase
        session = loaded.task.session
        session.settings = replace(session.settings, has_typed=True)
        return loaded

    def compare(self, ours: Loaded, count: int, equal: bool) -> None:
        if (count, equal) not in self.expected:
            self.expected[count, equal] = self.stock.translate(lines(count, equal))
        same(self.expected[count, equal], ours.translate(lines(count, equal)), self.tolerance)

    def is_refused(self, strategy: dict) -> bool:
        """Whether these models cannot have a strategy."""
        if strategy.get("schedule") == "stream":
            # it attends to padding, so its batch decides its output
            return any("self_att" in name for name in self.names)
        needs = STRATEGIES["softmax"][strategy.get("softmax", "full")].needs
        plain = all(recipe(n).arch in HAVE_FEATURES and "adaptive" not in n for n in self.names)
        is_one = len(self.names) == 1
        return ("output layer" in needs and not plain) or ("one model" in needs and not is_one)

    def compare_strategies(self, beam: int, whole: bool = True) -> None:
        """Every neutral setting, each on one batch; or a third of them, another
        one at each beam."""
        for i, setting in enumerate(NEUTRAL.values()):
            flags, stock = separated(
                {name: self.saved.file(value) for name, value in setting.items()}
            )
            if stock.get("beam", beam) != beam or is_search_of_fairseqs(stock):
                continue  # greedy decoding by blocks; other searches of fairseq's
            if self.is_refused(flags):
                with pytest.raises(
                    UsageError, match="fconv_self_att|features|one index|one output layer|ensemble"
                ):
                    self.ours(**flags)
            elif whole or stock or i % 3 == beam // 2:
                self.compare(self.ours(**flags), count=1 + (4 * i + beam) % 9, equal=i % 3 == 0)


@drawn(4)
@pytest.mark.parametrize("beam", BEAMS)
@pytest.mark.parametrize("name", RECIPES)
def test_every_architecture_equals_stock(saved, name, beam):
    """1 to 9 lines of equal and of mixed lengths.

    With --all the first recipe of an architecture runs with every setting at every beam; the others
    have each at one of the beams, odd numbers of lines at beam 1 and 5, and even ones at beam 3.
    """
    first = next(other for other in RECIPES if RECIPES[other].arch == RECIPES[name].arch)
    whole = name == first and bool(os.environ.get(ALL))
    both = Both(saved, [name], beam=beam)
    ours = both.ours()
    for count in range(1, 10) if whole else range(1 + beam // 2 % 2, 10, 2):
        both.compare(ours, count, equal=(count // 2 + beam // 3) % 2 == 0)
    both.compare_strategies(beam, whole)


@drawn(1)
@pytest.mark.parametrize("beam", BEAMS)
@pytest.mark.parametrize("names", ENSEMBLES, ids=" + ".join)
def test_ensembles_of_two_architectures_equal_stock(saved, names, beam):
    both = Both(saved, list(names), beam=beam)
    ours = both.ours()
    for count in (1, 3, 8):
        both.compare(ours, count, equal=count == 3)
    both.compare_strategies(beam, whole=False)


REGISTERED = [
    name
    for name in ARCH_MODEL_REGISTRY
    if ARCH_MODEL_REGISTRY[name].__module__.startswith("fairseq.")
]


@drawn(20)
@pytest.mark.parametrize("name", REGISTERED)
def test_every_registered_name_equals_stock_or_is_refused(saved, name):
    """Whatever fairseq registers: with its own settings, and small sizes."""
    if refusal_reason(name, saved.task("translation_ext", saved.data("transformer"))) is not None:
        path = saved.renamed("transformer", name)
        with pytest.raises(UsageError, match=f"architecture {name} "):
            saved.ensemble("translation_ext", "transformer", path)
        return
    both = Both(saved, [name], beam=4)
    ours = both.ours()
    both.compare(ours, 5, equal=False)
    both.compare(ours, 3, equal=True)


@drawn(10)
@pytest.mark.parametrize("name", RECIPES)
def test_alignments_equal_stock(saved, name):
    """The command makes models keep their attention."""
    both = Both(saved, [name], beam=2, print_alignment="hard")
    ours = both.ours()
    if name in ("transformer, cross-self-attention", "lstm, no attention"):
        with pytest.raises(IndexError):  # stock's own end
            both.stock.translate(lines(2, True))
        with pytest.raises(UsageError, match="--print-alignment .* has none"):
            ours.translate(lines(2, True))
        return
    for count in (2, 5):
        text = lines(count, equal=count == 2)
        expected, got = both.stock.translate(text), ours.translate(text)
        same(expected, got, both.tolerance)
        pairs = [
            [[list(map(int, pair)) for pair in h["alignment"]] for h in found]
            for found in (*expected, *got)
        ]
        assert pairs[:count] == pairs[count:]


@drawn(3)
@pytest.mark.parametrize(
    "name",
    [
        *("transformer", "transformer, layernorm_embedding", "bart", "lstm", "fconv"),
        *("lightconv", "dynamicconv"),
    ],
)
def test_half_precision_equals_stock_but_for_near_ties(saved, name, device):
    """--fp16. Rounding orders some pairs of hypotheses that are as good as equal
    the other way round."""
    stock, ours = (
        saved.ready(saved.models([name], torch.float16, device), saved.data(name), task)
        for task in ("translation", "translation_ext")
    )
    alike = total = 0
    for count in (5, 7, 8):
        for theirs, best in zip(
            *(loaded.translate(lines(count, count == 5)) for loaded in (stock, ours)), strict=True
        ):
            total += 1
            if theirs[0]["tokens"].tolist() == best[0]["tokens"].tolist():
                alike += 1
                assert abs(float(theirs[0]["score"]) - float(best[0]["score"])) < 2e-2
    assert alike >= 0.9 * total


@pytest.mark.parametrize("name", ["fconv", "lstm, bidirectional"])
def test_processes_that_share_a_batch_equal_stock(saved, name):
    both = Both(saved, [name], beam=5)
    ours = both.ours(cpu_workers=2)
    for count in (1, 5):
        both.compare(ours, count, equal=False)
    ours.task.session.command.workers.stop()


@pytest.mark.parametrize("strategy", [{"cpu_workers": 2}, {"schedule": "stream"}], ids=str)
def test_a_model_that_attends_to_padding_is_not_put_into_other_batches(saved, strategy):
    """Stock's own translation of a line depends on the lines next to it."""
    both = Both(saved, ["fconv_self_att"], beam=5)
    text = lines(5, False)
    together = both.stock.translate(text)
    assert any(
        both.stock.translate([line])[0][0]["score"] != found[0]["score"]
        for line, found in zip(text, together, strict=True)
    )
    with pytest.raises(UsageError, match="attends to padding"):
        both.ours(**strategy)


@pytest.mark.parametrize("name", ["fconv", "transformer, all tied", "lstm, bidirectional"])
def test_checkpoints_that_hold_a_namespace_equal_stock(saved, name):
    """As fairseq saved them up to 0.9, which is how most published convolutional models are."""
    path = saved.old_style(name)
    cfg = saved.settings("translation", saved.data(name), {})

    def loaded(task: str) -> Loaded:
        models = saved.ensemble(task, name, path)
        models[0].double().prepare_for_inference_(cfg)
        return saved.ready(models, saved.data(name), task)

    stock, ours = loaded("translation"), loaded("translation_ext")
    same(stock.translate(lines(8, False)), ours.translate(lines(8, False)), 1e-5)


def test_dropout_that_is_kept_on_runs_in_fairseqs_modules(saved):
    models = saved.models(["transformer"], retain_dropout=True)
    with log_lines() as said:
        ours = saved.ready(
            models, saved.data("transformer"), "translation_ext", retain_dropout=True
        )
    assert ours.generator.decoder.name == "fairseq"
    assert re.search("^decoder backend: fairseq, because.*--retain-dropout", "\n".join(said), re.M)
    several = {tuple(ours.translate(lines(1, True))[0][0]["tokens"].tolist()) for _ in range(9)}
    assert len(several) > 1


# ---- the commands themselves


def test_interactive_equals_stock_on_a_convolutional_model(saved):
    """Eight lines, then three: with five rows a sentence the first were an error once,
    and the last were wrong."""
    search = "-s de -t en --cpu --beam 5 --max-len-b 20 --buffer-size 8 --batch-size 8".split()
    model = (saved.data("fconv"), "--path", saved.checkpoint("fconv"))
    text = "\n".join(lines(11, False)) + "\n"
    stock, ours = (
        command("fairseq-interactive", *model, *search, *flags, stdin=text) for flags in ((), EXT)
    )
    same_lines(stock, ours)


def test_a_non_autoregressive_checkpoint_is_refused_by_the_command(saved):
    path = saved.renamed("transformer", "levenshtein_transformer")
    flags = ("-s", "de", "-t", "en", "--path", path, "--cpu", *EXT)
    said = sentence(
        command(
            "fairseq-interactive", saved.data("transformer"), *flags, stdin="de1\n", check=False
        )
    )
    assert "levenshtein_transformer" in said and "use the stock task" in said


# ---- A checkpoint under an architecture's name that no one knows here


def test_an_unknown_architecture_takes_its_user_directory_or_another_name(tiny, tmp_path):
    state = torch.load(tiny / "model.pt", weights_only=False)
    settings = Namespace(**vars(state["cfg"]["model"]) | {"arch": "somebodys_sizes"})
    del settings._name
    torch.save(state | {"args": settings, "cfg": None}, tmp_path / "model.pt")
    flags = "--task translation_ext --cpu --beam 3 --max-len-b 12 -s de -t en".split()
    refused = generate(tiny / "data", "--path", tmp_path / "model.pt", *flags)
    assert (
        refused.status
        and "somebodys_sizes is not registered here: name its --user-dir" in refused.stderr
    )
    more = ["--model-overrides", "{'arch': 'transformer'}"]
    found, known = (
        sorted(re.findall(r"^[HP]-.*", succeeded(done).stdout, re.M))
        for done in (
            generate(tiny / "data", "--path", tmp_path / "model.pt", *flags, *more),
            generate(tiny / "data", "--path", tiny / "model.pt", *flags),
        )
    )
    assert found == known and len(found) == 22
