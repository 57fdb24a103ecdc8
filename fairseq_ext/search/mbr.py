"""Minimum Bayes risk (`--mbr`): the choice of a candidate, the utilities, and the flags.

It chooses the hypothesis with the highest expected utility, if each of the others may be right.

    S. Kumar and W. Byrne. Minimum Bayes-Risk Decoding for Statistical Machine Translation.
    NAACL 2004.
    B. Eikema and W. Aziz. Sampling-Based Approximations to Minimum Bayes Risk Decoding for NMT.
    EMNLP 2022.

Shapes: C candidates, R references of one sentence.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from fairseq_ext.core.errors import SentenceError, UsageError, cut
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.registry import changed_fields, register_feature, samples, typed
from fairseq_ext.search.settings import Settings


class BayesRisk:
    """Sorts hypotheses by expected utility.

    text: returns a hypothesis' tokens as text.
    """

    def __init__(self, flags: CandidateFlags, text: Callable[[Tensor], str]):
        self.flags, self.text, self.utility = flags, text, utility_of(flags)

    def __call__(self, found: list[Hypothesis], source: str) -> list[Hypothesis]:
        """Return the hypotheses, best expected utility first. found: the hypotheses, by score.

        Only hypotheses with the fewest unmet constraints are compared; the others follow.
        """
        fewest = min(len(h.unmet) for h in found)
        eligible = [h for h in found if len(h.unmet) == fewest and h.score > -np.inf]
        if not eligible:
            return found
        texts = [self.text(h.tokens) for h in eligible]
        candidates = list(dict.fromkeys(texts))[: self.flags.mbr_candidates or None]
        references, weights = self.reference_texts(eligible, texts)
        utilities = np.asarray(self.utility(candidates, references, source), dtype=float)
        expected = utilities @ (weights / weights.sum())
        known = dict(zip(candidates, expected.tolist(), strict=True))
        judged = {
            id(h): replace(h, utility=known[text])
            for h, text in zip(eligible, texts, strict=True)
            if text in known
        }
        best = sorted(judged.values(), key=lambda h: -h.utility)  # type: ignore[operator]
        return best + [h for h in found if id(h) not in judged]

    def reference_texts(
        self, eligible: Sequence[Hypothesis], texts: Sequence[str]
    ) -> tuple[list[str], np.ndarray]:
        """Return the different texts that candidates are compared with, and their weights (R,):
        probabilities, or numbers of occurrences."""
        n = self.flags.mbr_references or len(eligible)
        if self.flags.mbr_weights == "prob":  # of different hypotheses
            distinct = {tuple(h.tokens.tolist()): i for i, h in [*enumerate(eligible)][::-1]}
            total = {
                i: float(eligible[i].positional_scores.double().sum()) for i in distinct.values()
            }
            taken = sorted(total, key=lambda i: -total[i])[:n]
            weights = np.exp([total[i] - total[taken[0]] for i in taken])
        else:  # evenly spread over the list, since the best ones would be a biased sample
            taken = sorted({len(eligible) * i // n for i in range(n)})
            weights = np.ones(len(taken))
        of_text: dict[str, float] = {}
        for i, weight in zip(taken, weights, strict=True):
            of_text[texts[i]] = of_text.get(texts[i], 0.0) + weight
        return list(of_text), np.array(list(of_text.values()))


# ---- Utilities: the quality of a translation, given another one as the reference
#
# Metrics of sacrebleu and fastchrf, or a function of the user's.
#
# Shapes: C candidates, R references of one sentence.


# candidates, references, source -> (C, R), higher is better
Utility = Callable[[Sequence[str], Sequence[str], str], ArrayLike]


def utility_of(flags: CandidateFlags) -> Utility:
    """Return the utility that --mbr names. Errors: UsageError if it cannot be loaded."""
    name = flags.mbr or ""
    if name == "chrf" and importlib.util.find_spec("fastchrf") is not None:
        return fast_chrf()
    if name in ("chrf", "bleu", "ter"):
        return sacrebleu_utility(name)
    return user_utility(name)


def sacrebleu_utility(name: str) -> Utility:
    """Return a sentence metric of sacrebleu; TER counts errors, so its sign is changed."""
    from sacrebleu.metrics import BLEU, CHRF, TER

    metric = {"chrf": CHRF(), "bleu": BLEU(effective_order=True), "ter": TER()}[name]
    sign = -1 if name == "ter" else 1

    def utility(candidates: Sequence[str], references: Sequence[str], source: str) -> ArrayLike:
        return [
            [sign * metric.sentence_score(candidate, [reference]).score for reference in references]
            for candidate in candidates
        ]

    return utility


process_of_fastchrf = functools.cache(os.getpid)  # of its first call; a fork has its parent's


def fastchrf_can_run() -> bool:
    """Say whether fastchrf can run in this process, and note that it will.

    It starts threads at its first call. A process that was forked from there lacks them, and
    fastchrf would wait for them forever.
    """
    return process_of_fastchrf() == os.getpid()


def fast_chrf() -> Utility:
    """Return chrF by fastchrf; by sacrebleu in a process that was forked after fastchrf's start."""
    from fastchrf import pairwise_chrf

    slow = sacrebleu_utility("chrf")
    return lambda candidates, references, source: (
        pairwise_chrf([list(candidates)], [list(references)])[0]
        if fastchrf_can_run()
        else slow(candidates, references, source)
    )


def user_utility(name: str) -> Utility:
    """Return a user's function `module:function` of candidates, references and the source, which
    returns (C, R) (raises UsageError)."""
    module, _, function = name.partition(":")
    if not function:
        raise UsageError(f"--mbr must be chrf, bleu, ter or module:function, not {name}")
    sys.path.insert(0, os.getcwd())
    try:
        if not callable(found := getattr(importlib.import_module(module), function)):
            raise AttributeError(f"{function} cannot be called")
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"--mbr {name} cannot be loaded ({error}): name a module that Python finds, "
            "and a function of it"
        ) from None
    finally:
        sys.path.remove(os.getcwd())

    def utility(candidates: Sequence[str], references: Sequence[str], source: str) -> ArrayLike:
        try:
            out = np.asarray(found(list(candidates), list(references), source), dtype=float)
        except Exception as error:
            raise SentenceError(
                f"--mbr {name} raises {type(error).__name__} ({error}): fix it for this sentence"
            ) from error
        if out.shape != (len(candidates), len(references)) or not np.isfinite(out).all():
            raise UsageError(
                f"--mbr {name} must give a number for each of {len(candidates)} candidates and "
                f"{len(references)} references"
            )
        return out

    return utility


# ---- The flags, and the checks of their values


@dataclass
class CandidateFlags:
    mbr: str | None = field(
        default=None,
        metadata={
            "help": "answer with the hypothesis of the highest expected chrf, bleu, ter or "
            "module:function (default: of the highest score)",
            "needs": ("search loop",),
        },
    )
    mbr_candidates: int = field(
        default=0,
        metadata={
            "help": "number of best-scoring hypotheses that may be the answer (default: 0, all)",
            "range": (0, math.inf, "number of hypotheses"),
        },
    )
    mbr_references: int = field(
        default=0,
        metadata={
            "help": "number of hypotheses that the candidates are compared with (default: 0, all)",
            "range": (0, math.inf, "number of hypotheses"),
        },
    )
    mbr_weights: Literal["uniform", "prob"] = field(
        default="uniform",
        metadata={"help": "weight of a hypothesis: uniform, or its probability (default: uniform)"},
    )
    print_utility: bool = field(
        default=False,
        metadata={
            "help": "print each answer's expected utility as a line U-<number> (default: off)"
        },
    )


def check_seed(seed: object, settings: Settings) -> None:
    """Refuse a seed of a request or a call that is invalid, or that the search does not use (raises
    UsageError)."""
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**32):
        raise UsageError(f"seed is {cut(repr(seed))}: give a whole number from 0 to 4294967295")
    if seed is not None and not samples(settings):
        raise UsageError(
            "seed needs a search that draws samples: leave it out, or use --select sampling"
        )


def check(settings: Settings) -> None:
    """Refuse invalid values and combinations of --mbr, and its flags without it (raises
    UsageError)."""
    flags = settings.get(CandidateFlags)
    if flags.mbr is None:
        for name in changed_fields(settings, fields(CandidateFlags)):
            raise UsageError(
                f"{typed(name)} belongs to --mbr, which is not switched on: add it "
                "or leave this flag out"
            )
        return
    if settings.generation.beam < 2:
        raise UsageError(
            "--mbr chooses among the hypotheses of a sentence, and --beam 1 finds one: raise "
            "--beam or leave --mbr out"
        )


def signature(settings: Settings) -> str:
    """Return the part of the signature for these flags; "" without --mbr."""
    changed = changed_fields(settings, fields(CandidateFlags))
    values = ",".join(f"{name}={value}" for name, value in changed.items())
    return f"mbr:{values}" if changed.get("mbr") else ""


register_feature(
    "candidates",
    CandidateFlags,
    check=check,
    signature=signature,
    page="candidates.md",
    title="the best of many candidates",
    example="--beam 10 --mbr chrf",
)
