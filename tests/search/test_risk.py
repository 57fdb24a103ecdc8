"""--mbr: expected utilities against brute force over pairs, by the commands, and refusals."""

import math
import os
import re
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import forked
import numpy as np
import pytest
import torch
from models import batch, build, dictionary, generators, run, separated
from sacrebleu.metrics import BLEU, CHRF, TER
from test_cli import EXT, interactive

from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.mbr import BayesRisk, CandidateFlags, sacrebleu_utility, utility_of

TEXTS = [
    "a dog runs over the grass .",
    "a dog is running on the grass .",
    "the dog runs .",
    "a cat sleeps",
    "",
]
TEXTS += TEXTS[:1]
SCORES = [-0.5, -0.7, -0.9, -1.4, -2.0, -2.5]
METRICS = {"chrf": CHRF(), "bleu": BLEU(effective_order=True), "ter": TER()}


def risk(utility: str = "chrf", **flags) -> BayesRisk:
    return BayesRisk(
        CandidateFlags(mbr=utility, **{"mbr_weights": "uniform"} | flags),
        lambda tokens: TEXTS[int(tokens[0])],
    )


def hypotheses(unmet=()) -> list[Hypothesis]:
    lacks = (("phrase", "reason"),)
    return [
        Hypothesis(torch.tensor([i, 2]), s / 2, torch.full((2,), s / 2), unmet=lacks * (i in unmet))
        for i, s in enumerate(SCORES)
    ]


def expected(utility: str, weights=(1.0,) * 6, among=range(6)) -> list[float]:
    """The expected utility of each text, pair by pair, by sacrebleu. among: the references."""
    sign = -1 if utility == "ter" else 1
    score, whole = METRICS[utility].sentence_score, sum(weights[i] for i in among)
    return [
        sum(sign * weights[r] / whole * score(text, [TEXTS[r]]).score for r in among)
        for text in TEXTS
    ]


PROBABILITIES = [math.exp(score) for score in SCORES]


@pytest.mark.parametrize("unmet", [(), (0, 5)])
@pytest.mark.parametrize("weights", ["uniform", "prob"])
@pytest.mark.parametrize("utility", METRICS)
def test_expected_utilities_are_those_of_all_pairs(utility, weights, unmet, monkeypatch):
    """Of hypotheses that meet the most constraints: the others follow."""
    given = ()
    if weights == "prob":  # and without fastchrf
        monkeypatch.setitem(sys.modules, "fastchrf", None)
        given = (PROBABILITIES,)
    found = risk(utility, mbr_weights=weights)(hypotheses(unmet), "")
    brute = expected(utility, *given, among=[i for i in range(6) if i not in unmet])
    numbers, count = [int(h.tokens[0]) for h in found], 6 - len(unmet)
    values = [h.utility for h in found[:count]]
    assert values == pytest.approx([brute[i] for i in numbers[:count]], abs=1e-4)
    assert values == sorted(values, reverse=True) and sorted(numbers) == [*range(6)]
    assert numbers[count:] == [*unmet] and not any(h.utility for h in found[count:])
    assert [h.score for h in found] == [pytest.approx(SCORES[i] / 2) for i in numbers]


def known(found: list[Hypothesis]) -> dict[int, float]:
    return {int(h.tokens[0]): h.utility for h in found if h.utility is not None}


def test_fewer_candidates_and_references_are_the_best_of_the_list_and_spread_over_it():
    found = risk(mbr_candidates=2, mbr_references=3)(hypotheses(), "")
    brute = expected("chrf", among=(0, 2, 4))
    # the last text is the first one
    assert known(found) == pytest.approx({i: brute[i] for i in (0, 1, 5)}, abs=1e-4)


def test_weights_go_with_their_references_in_whatever_order_hypotheses_come():
    """A list by normalised score is in another order than one by probability."""
    shuffled = [hypotheses()[i] for i in np.random.default_rng(2).permutation(6)]
    # compared with the two most probable ones, by their probabilities
    found = risk(mbr_weights="prob", mbr_references=2)(shuffled, "")
    brute = expected("chrf", PROBABILITIES, (0, 1))
    assert known(found) == pytest.approx(dict(enumerate(brute)), abs=1e-4)


@pytest.mark.parametrize("is_installed", [True, False])
def test_a_forked_process_never_waits_for_the_threads_of_fastchrf(is_installed, monkeypatch):
    if is_installed:
        pytest.importorskip("fastchrf")
    else:  # a stand-in, as it would be in this process

        def pairwise_chrf(candidates, references):
            assert os.getpid() == own
            return [sacrebleu_utility("chrf")(candidates[0], references[0], "")]

        own, module = os.getpid(), ModuleType("fastchrf")
        module.__spec__ = ModuleSpec("fastchrf", None)
        vars(module)["pairwise_chrf"] = pairwise_chrf
        monkeypatch.setitem(sys.modules, "fastchrf", module)
    full = TEXTS[:4]
    pairs = utility_of(CandidateFlags(mbr="chrf"))
    before = pairs(full, full, "")

    def in_child() -> None:
        assert np.asarray(pairs(full, full, "")) == pytest.approx(np.asarray(before), abs=1e-3)

    assert os.waitpid(forked.in_fork(in_child), 0)[1] == 0


# ---- by a generator and the commands


def tokens_alike(candidates, references, source):
    """A utility: the share of the candidate's words that the reference has."""
    return [
        [sum(w in r.split() for w in c.split()) / (1 + len(c.split())) for r in references]
        for c in candidates
    ]


@pytest.mark.parametrize(
    "flags",
    [{}, {"sampling": True}, {"stop": "optimal", "unnormalized": True}, {"schedule": "stream"}],
    ids=str,
)
def test_a_generator_answers_with_the_best_on_average(flags):
    ours, stock = separated(flags)
    stock |= {"beam": 6, "max_len_b": 12}
    models, sample = [build("transformer", 2)], batch([5, 3, 7])
    every = run(generators(models, ours, nbest=6, **stock).ours, sample)
    ours |= {"mbr": f"{__name__}:tokens_alike", "mbr_weights": "uniform"}
    chosen = run(generators(models, ours, nbest=1, **stock).ours, sample)
    for nbest, found in zip(every, chosen, strict=True):
        texts = [dictionary().string(h["tokens"]) for h in nbest]
        means = [sum(row) / len(texts) for row in tokens_alike(texts, texts, "")]
        assert found[0]["utility"] == pytest.approx(max(means))
        best = nbest[means.index(max(means))]
        assert float(found[0]["score"]) == float(best["score"])
        tokens, others = ([h["tokens"].tolist() for h in each] for each in (found, nbest))
        assert tokens[0] == best["tokens"].tolist() and sorted(tokens) == sorted(others)


def no_number_for_four(candidates, references, source):
    """A utility that fails for one sentence."""
    return [[1 / (source != "de4") for _ in references] for _ in candidates]


def test_a_utility_that_fails_costs_its_own_sentence(tiny):
    flags = (*EXT, "--mbr", f"{__name__}:no_number_for_four")
    typed = interactive(tiny, *flags, stdin="de1\nde4\nde3\n", run=forked.command, check=False)
    found = dict(re.findall(r"^H-(\d)\t.*\t(.*)$", typed.stdout, re.MULTILINE))
    assert typed.returncode == 3 and found["0"] and found["2"] and not found["1"]
    said = f"--mbr {__name__}:no_number_for_four raises ZeroDivisionError"
    assert "E-1" in typed.stderr and said in typed.stderr
