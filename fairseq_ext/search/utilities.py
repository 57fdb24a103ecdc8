"""How good a translation is if another one is right: metrics of sacrebleu, fastchrf and COMET, or a function of the user's.

Shapes: C candidates, R references of one sentence.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fairseq_ext.core.errors import SentenceError, UsageError

Utility = Callable[[Sequence[str], Sequence[str], str], Any]  # candidates, references, source -> (C, R), higher is better


def utility_of(flags: Any) -> Utility:
    """The utility that --mbr names. Errors: UsageError for one that cannot be loaded."""
    name = flags.mbr
    if flags.mbr_aggregate:
        return aggregated()
    if name == "chrf" and importlib.util.find_spec("fastchrf") is not None:
        from fastchrf import pairwise_chrf

        return lambda candidates, references, source: pairwise_chrf([list(candidates)], [list(references)])[0]
    if name in ("chrf", "bleu", "ter"):
        return of_sacrebleu(name)
    return comet(flags.mbr_model) if name == "comet" else named(name)


def of_sacrebleu(name: str) -> Utility:
    """A metric of sacrebleu on sentences; TER, which counts errors, with its sign changed."""
    from sacrebleu.metrics import BLEU, CHRF, TER

    metric, sign = {"chrf": (CHRF(), 1), "bleu": (BLEU(effective_order=True), 1), "ter": (TER(), -1)}[name]

    def utility(candidates: Sequence[str], references: Sequence[str], source: str) -> Any:
        return [[sign * metric.sentence_score(candidate, [reference]).score for reference in references] for candidate in candidates]

    return utility


def aggregated() -> Utility:
    """chrF against all references as one, whose n-grams are counted together:

    J. Vamvas and R. Sennrich. Linear-time Minimum Bayes Risk Decoding with Reference Aggregation. ACL 2024.
    """
    try:
        from fastchrf import aggregate_chrf
    except ImportError:
        raise UsageError("--mbr-aggregate needs fastchrf: pip install fastchrf, or leave it out") from None
    return lambda candidates, references, source: np.array(aggregate_chrf([list(candidates)], [list(references)])[0])[:, None]


def comet(path: str) -> Utility:
    """COMET, by the checkpoint that the user names."""
    try:
        from comet import load_from_checkpoint
    except ImportError:
        raise UsageError("--mbr comet needs COMET: pip install unbabel-comet, or use --mbr chrf") from None
    if not os.path.isfile(path):
        raise UsageError(f"--mbr-model {path} is not there: name the file of a COMET model")
    try:
        model = load_from_checkpoint(path)
    except Exception as error:
        raise UsageError(f"--mbr-model {path}: COMET cannot load it ({error}): name the file of a COMET model") from error

    def utility(candidates: Sequence[str], references: Sequence[str], source: str) -> Any:
        pairs = [{"src": source, "mt": candidate, "ref": reference} for candidate in candidates for reference in references]
        return np.reshape(model.predict(pairs, gpus=0, progress_bar=False).scores, (len(candidates), len(references)))

    return utility


def named(name: str) -> Utility:
    """A function of the user's, `module:function`, that is given candidates, references and the source, and returns (C, R)."""
    module, _, function = name.partition(":")
    if not function:
        raise UsageError(f"--mbr must be chrf, bleu, ter, comet or module:function, not {name}")
    sys.path.insert(0, os.getcwd())
    try:
        if not callable(found := getattr(importlib.import_module(module), function)):
            raise AttributeError(f"{function} cannot be called")
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"--mbr {name} cannot be loaded ({error}): name a module that Python finds, and a function of it") from None
    finally:
        sys.path.remove(os.getcwd())

    def utility(candidates: Sequence[str], references: Sequence[str], source: str) -> Any:
        try:
            out = np.asarray(found(list(candidates), list(references), source), dtype=float)
        except Exception as error:
            raise SentenceError(f"--mbr {name} raises {type(error).__name__} ({error}): mend it for this sentence") from error
        if out.shape != (len(candidates), len(references)) or not np.isfinite(out).all():
            raise UsageError(f"--mbr {name} must give a number for each of {len(candidates)} candidates and {len(references)} references")
        return out

    return utility
