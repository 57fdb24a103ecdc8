"""--mbr: expected utilities against brute force over pairs, by the commands, and refusals."""

import math
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import forked
import numpy as np
import pytest
import torch
from models import batch, build, dictionary, generators, run, separated
from sacrebleu.metrics import BLEU, CHRF, TER
from test_cli import EXT, interactive

from fairseq_ext import UsageError
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


def expected(utility: str, weights: list[float], among=range(6)) -> dict[str, float]:
    """The expected utility of each text, pair by pair, by sacrebleu."""
    sign = -1 if utility == "ter" else 1
    whole = sum(weights[i] for i in among)
    return {
        TEXTS[h]: sum(
            sign * weights[r] / whole * METRICS[utility].sentence_score(TEXTS[h], [TEXTS[r]]).score
            for r in among
        )
        for h in among
    }


@pytest.mark.parametrize("weights", ["uniform", "prob"])
@pytest.mark.parametrize("utility", METRICS)
def test_expected_utilities_are_those_of_all_pairs(utility, weights, monkeypatch):
    if weights == "prob":  # and without fastchrf
        monkeypatch.setitem(sys.modules, "fastchrf", None)
    found = risk(utility, mbr_weights=weights)(hypotheses(), "")
    brute = expected(utility, [1.0] * 6 if weights == "uniform" else [math.exp(s) for s in SCORES])
    assert [h.utility for h in found] == pytest.approx(
        [brute[TEXTS[int(h.tokens[0])]] for h in found], abs=1e-4
    )
    assert [h.utility for h in found] == sorted((h.utility for h in found), reverse=True) and len(
        found
    ) == 6
    assert {int(h.tokens[0]): h.score for h in found} == {
        i: pytest.approx(s / 2) for i, s in enumerate(SCORES)
    }


def test_only_hypotheses_that_meet_the_most_constraints_are_compared_and_chosen():
    found = risk()(hypotheses(unmet=(0, 5)), "")
    brute = expected("chrf", [1.0] * 6, among=(1, 2, 3, 4))
    assert [h.utility for h in found[:4]] == pytest.approx(
        sorted(brute.values(), reverse=True), abs=1e-4
    )
    assert [int(h.tokens[0]) for h in found[4:]] == [0, 5] and all(
        h.utility is None for h in found[4:]
    )


def test_fewer_candidates_and_references_are_the_best_of_the_list_and_spread_over_it():
    found = risk(mbr_candidates=2, mbr_references=3)(hypotheses(), "")
    value = METRICS["chrf"].sentence_score
    brute = [sum(value(TEXTS[h], [TEXTS[r]]).score for r in (0, 2, 4)) / 3 for h in (0, 1)]
    known = {int(h.tokens[0]): h.utility for h in found if h.utility is not None}
    assert (
        known[0] == known[5] == pytest.approx(brute[0], abs=1e-4)
        and known[1] == pytest.approx(brute[1], abs=1e-4)
        and len(known) == 3
    )


def test_weights_go_with_their_references_in_whatever_order_hypotheses_come():
    """A list by normalised score is in another order than one by probability; references that
    are drawn for pruning are in a third."""
    chance = np.random.default_rng(2)
    order, value = chance.permutation(6), METRICS["chrf"].sentence_score
    shuffled = [hypotheses()[i] for i in order]
    brute = expected("chrf", [math.exp(s) for s in SCORES])
    for flags in ({}, {"mbr_prune": 0.999999}):
        found = risk(mbr_weights="prob", **flags)(shuffled, "")
        known = [h for h in found if h.utility is not None]
        assert [h.utility for h in known] == pytest.approx(
            [brute[TEXTS[int(h.tokens[0])]] for h in known], abs=1e-4
        )
    # the two most probable ones, by their probabilities
    found = risk(mbr_weights="prob", mbr_references=2)(shuffled, "")
    first, second = (math.exp(s) for s in SCORES[:2])
    assert {int(h.tokens[0]): h.utility for h in found} == {
        i: pytest.approx(
            sum(
                p * value(text, [TEXTS[r]]).score / (first + second)
                for r, p in ((0, first), (1, second))
            ),
            abs=1e-4,
        )
        for i, text in enumerate(TEXTS)
    }


def test_weights_of_many_references_are_those_of_the_drawn_ones():
    """Pruning reads references in parts, in an order of its own."""
    chance = np.random.default_rng(3)
    utilities, weights = chance.random((4, 40)), chance.random(40)
    weights /= weights.sum()

    def metric(candidates, references, source):
        return utilities[[*map(int, candidates)]][:, [*map(int, references)]]

    made = risk(mbr_prune=0.999999)
    made.utility = metric
    names = [str(i) for i in range(40)]
    found = made.expected_utilities(names[:4], names, weights, "")
    kept = found > -np.inf
    assert kept.any() and found[kept] == pytest.approx((utilities @ weights)[kept])


@pytest.mark.parametrize("seed", range(5))
def test_candidates_are_dropped_by_the_weights_of_the_drawn_references(seed):
    """The first candidate is the better one of the references that have weight, and only of them:
    it alone is left."""
    heavy = np.random.default_rng(seed).permutation(40) < 20
    utilities = np.stack([np.where(heavy, 1.0, 0.0), np.where(heavy, 0.0, 1.0)])
    made = risk(mbr_prune=0.9)
    made.utility = lambda candidates, references, source: utilities[[*map(int, candidates)]][
        :, [*map(int, references)]
    ]
    weights = np.where(heavy, 1.0, 1e-9)
    found = made.expected_utilities(["0", "1"], [str(i) for i in range(40)], weights, "")
    assert found.tolist() == [pytest.approx(1.0), -np.inf]


def test_aggregated_references_are_scored_as_their_authors_do():
    """Vamvas and Sennrich 2024: precision and recall against the mean counts of n-grams,
    here by counting them."""
    pytest.importorskip("fastchrf")

    def grams(text: str, n: int) -> dict[str, float]:
        text = text.replace(" ", "")
        out: dict[str, float] = {}
        for i in range(len(text) - n + 1):
            out[text[i : i + n]] = out.get(text[i : i + n], 0) + 1
        return out

    def score(hypothesis: str, references: list[str]) -> float:
        precisions, recalls = [], []
        for n in range(1, 7):
            own, mean = grams(hypothesis, n), {}
            for r in references:
                for gram, count in grams(r, n).items():
                    mean[gram] = mean.get(gram, 0) + count / len(references)
            if own and mean:
                both = sum(min(count, mean.get(gram, 0)) for gram, count in own.items())
                precisions.append(both / sum(own.values()))
                recalls.append(both / sum(mean.values()))
        p, r = (sum(x) / len(x) for x in (precisions, recalls))
        return 100 * 5 * p * r / (4 * p + r)

    full = TEXTS[:4]
    utility = utility_of(CandidateFlags(mbr="chrf", mbr_aggregate=True))
    assert utility(full, full, "")[:, 0].tolist() == pytest.approx(
        [score(text, full) for text in full], abs=1e-3
    )
    # a text that was drawn three times counts three times
    drawn = [full[0]] * 3 + full[1:2] + full[2:3] * 2
    found = [SimpleNamespace(tokens=text) for text in drawn]
    risk = BayesRisk(CandidateFlags(mbr="chrf", mbr_aggregate=True), str)
    expected = risk.expected_utilities(full, *risk.reference_texts(found, drawn), "")
    assert expected == pytest.approx([score(text, drawn) for text in full], abs=1e-3)


@pytest.mark.parametrize("is_installed", [True, False])
def test_a_forked_process_never_waits_for_the_threads_of_fastchrf(is_installed, monkeypatch):
    if is_installed:
        pytest.importorskip("fastchrf")
    else:  # a stand-in, as it would be in this process

        def pairwise_chrf(candidates, references):
            assert os.getpid() == own
            return [sacrebleu_utility("chrf")(candidates[0], references[0], "")]

        def aggregate_chrf(candidates, references):
            return [[0.0] * len(candidates[0])]

        own, module = os.getpid(), ModuleType("fastchrf")
        module.__spec__ = ModuleSpec("fastchrf", None)
        vars(module).update(pairwise_chrf=pairwise_chrf, aggregate_chrf=aggregate_chrf)
        monkeypatch.setitem(sys.modules, "fastchrf", module)
    full = TEXTS[:4]
    pairs = utility_of(CandidateFlags(mbr="chrf"))
    together = utility_of(CandidateFlags(mbr="chrf", mbr_aggregate=True))
    before = pairs(full, full, "")
    together(full, full, "")

    def in_child() -> None:
        assert np.asarray(pairs(full, full, "")) == pytest.approx(np.asarray(before), abs=1e-3)
        with pytest.raises(UsageError, match="spawn"):
            together(full, full, "")

    assert os.waitpid(forked.in_fork(in_child), 0)[1] == 0


def test_pruning_drops_the_hopeless_and_keeps_the_best(monkeypatch):
    rng, requested = np.random.default_rng(1), []
    quality, noise = np.linspace(0, 1, 20), rng.normal(0, 0.3, (20, 64))
    texts = [f"t{i}" for i in range(64)]

    def metric(candidates, references, source):
        requested.append((len(candidates), len(references)))
        rows, columns = ([int(text[1:]) for text in texts] for texts in (candidates, references))
        return quality[rows, None] + noise[rows][:, columns]

    monkeypatch.setitem(sys.modules, "metric_of_test", SimpleNamespace(metric=metric))
    pruned = BayesRisk(CandidateFlags(mbr="metric_of_test:metric", mbr_prune=0.99), str)
    found = pruned.expected_utilities(texts[:20], texts, np.full(64, 1 / 64), "")
    exact = (quality[:, None] + noise).mean(1)
    kept = found > -np.inf
    assert found[kept] == pytest.approx(exact[kept]) and np.argmax(found) == np.argmax(exact)
    assert sum(c * r for c, r in requested) < 20 * 64 / 2 and requested[0] == (20, 8)


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
        assert found[0]["tokens"].tolist() == best["tokens"].tolist()
        assert float(found[0]["score"]) == float(best["score"])
        assert sorted(h["tokens"].tolist() for h in found) == sorted(
            h["tokens"].tolist() for h in nbest
        )


def no_number_for_four(candidates, references, source):
    """A utility that fails for one sentence."""
    return [[1 / (source != "de4") for _ in references] for _ in candidates]


def test_a_utility_that_fails_costs_its_own_sentence(tiny):
    flags = (*EXT, "--mbr", f"{__name__}:no_number_for_four")
    typed = interactive(tiny, *flags, stdin="de1\nde4\nde3\n", run=forked.command, check=False)
    found = dict(
        line.split("\t")[::2] for line in typed.stdout.splitlines() if line.startswith("H-")
    )
    assert typed.returncode == 3 and found["H-0"] and found["H-2"] and not found["H-1"]
    assert (
        "E-1" in typed.stderr
        and f"--mbr {__name__}:no_number_for_four raises ZeroDivisionError" in typed.stderr
    )
