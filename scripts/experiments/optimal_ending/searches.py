"""Searches whose finished hypotheses are kept, so that one search answers for several
ways to score them.

Neither the beams nor the finished hypotheses of `first`, `shrink` and `count` depend on how
finished hypotheses are scored, and they finish no more of them than the beam has rows, all of which
are kept. So they run once for each beam, and rewards and length penalties are swept over what they
found. `optimal` runs once for each reward and wanted length and returns its best hypothesis
alone, as a command without --nbest: a proof of a whole list takes more rows. Of hypotheses of equal
length only the best can win.
"""

from __future__ import annotations

import logging
import statistics
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [
    str(Path(__file__).resolve().parents[2] / "bench"),
    str(Path(__file__).resolve().parents[1]),
]
logging.getLogger("fairseq").setLevel(logging.WARNING)  # it talks while it is imported

from harness import BenchError  # noqa: E402, F401
from intervals import counts_of, interval, resampled  # noqa: E402
from report import ROOT, machine, named  # noqa: E402, F401
from sacrebleu.metrics import BLEU  # noqa: E402
from text import (  # noqa: E402, F401
    command_line,
    model_files,
    parallel_lines,
    run_script,
    text_arguments,
)
from write_up import kept  # noqa: E402

import fairseq_ext  # noqa: E402, F401
from fairseq_ext.translator import Translator  # noqa: E402

BATCH = 64  # sentences
# (sum of log-probabilities, tokens with EOS, wanted length) -> score
Score = Callable[[float, int, float], float]


@dataclass(frozen=True)
class Wanted:
    """The wanted target length, ratio x source subwords + offset."""

    ratio: float = 1.0
    offset: float = 0.0

    def of(self, source: int) -> float:
        return self.ratio * source + self.offset

    def __str__(self) -> str:
        sign = "+" if self.offset > 0 else "-"
        return f"{self.ratio:g} x" + (f" {sign} {abs(self.offset):.3g}" if self.offset else "")


def bounded(r: float) -> Score:
    """The paper's reward; r = 0 is the raw score."""
    return lambda total, length, wanted: total + r * min(length, wanted)


def unbounded(r: float) -> Score:
    return lambda total, length, wanted: total + r * length


def normalised(lenpen: float) -> Score:
    return lambda total, length, wanted: total / length**lenpen


@dataclass
class Search:
    """What one search over a text found.

    Hypotheses are [sum of log-probabilities, tokens with EOS, text], best of each length.
    """

    signature: str
    stats: dict[str, Any]
    source_lengths: list[int]  # subwords without EOS
    hypotheses: list[list[tuple[float, int, str]]]

    def answers(self, score: Score, wanted: Wanted | None = None) -> list[tuple[float, int, str]]:
        """The best hypothesis of each sentence; wanted: the target length that a reward counts
        up to (none: no score requests)."""
        wanted = wanted or Wanted()
        pairs = zip(self.hypotheses, self.source_lengths, strict=True)
        return [max(found, key=lambda h: score(h[0], h[1], wanted.of(n))) for found, n in pairs]


Answers = Sequence[tuple[float, int, str]]  # one a sentence: sum of log-probabilities, tokens, text
Difference = tuple[float, float, float]  # of BLEU, and its interval


@dataclass
class Measure:
    """Quality of one answer a sentence."""

    bleu: float
    ratio: float  # length of the output over that of the reference, in BLEU's words
    model_score: float  # mean sum of log-probabilities
    low: float = 0.0  # BLEU's 95 % interval
    high: float = 0.0


def measure(answers: Answers, references: Sequence[str]) -> Measure:
    """sacrebleu's corpus BLEU.

    A sweep requests many sets of answers that differ in few sentences, so counts
    are kept by sentence.
    """
    counts = counts_of([text for *_, text in answers], references)
    *grams, sys_len, ref_len = (int(column) for column in counts.sum(0))
    bleu = BLEU.compute_bleu(grams[:4], grams[4:], sys_len, ref_len, smooth_method="exp")
    return Measure(
        bleu.score,
        sys_len / ref_len,
        sum(total for total, *_ in answers) / len(answers),
        *interval(resampled(counts)),
    )


def difference(answers: Answers, others: Answers, references: Sequence[str]) -> Difference:
    """BLEU less that of the other answers, with the 95 % interval of the difference
    on the same resamples."""
    of_both = [measure(each, references).bleu for each in (answers, others)]
    ours, theirs = (
        resampled(counts_of([text for *_, text in each], references)) for each in (answers, others)
    )
    return of_both[0] - of_both[1], *interval(ours - theirs)


def read_text(
    prefix: str, source: str, target: str, limit: int | None = None
) -> tuple[list[str], list[str]]:
    """The first `limit` lines of PREFIX.source and PREFIX.target."""
    return parallel_lines(prefix, (source, target), limit)


def model_flags(model: Path, source: str, target: str) -> dict[str, Any]:
    """Translator's arguments for a folder with checkpoint.pt, dict.*.txt and, for
    SentencePiece, spm.model."""
    model_files(model, source, target)
    flags = dict(
        path=str(model / "checkpoint.pt"), data=str(model), source_lang=source, target_lang=target
    )
    if (model / "spm.model").exists():
        flags |= dict(bpe="sentencepiece", sentencepiece_model=str(model / "spm.model"))
    return flags


def quiet() -> None:
    """Without what fairseq says while it loads: a sweep loads a model many times."""
    for name in ("fairseq", "fairseq_ext"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.simplefilter("ignore")


def pieces(translator: Translator, line: str) -> int:
    """Subwords of a line on either side, EOS not counted."""
    for step in (translator.tokenizer, translator.bpe):
        line = step.encode(line) if step is not None else line
    return len(line.split())


def wanted_lengths(
    translator: Translator, sources: Iterable[str], references: Iterable[str]
) -> tuple[Wanted, Wanted]:
    """Two estimates of the target length: the paper's ratio, subwords of all references over
    subwords of all sources; and the least-squares line through (source subwords, reference subwords
    and EOS), which the reward counts too."""
    x, y = ([pieces(translator, line) for line in side] for side in (sources, references))
    ratio = Wanted(round(sum(y) / sum(x), 3))
    if len(set(x)) < 2:
        return ratio, ratio
    slope, intercept = statistics.linear_regression(x, y)
    return ratio, (Wanted(round(slope, 3), round(intercept + 1, 3)) if slope > 0 else ratio)


def reward_flags(r: float, wanted: Wanted) -> dict[str, float]:
    """The flags of a bounded reward."""
    return (
        dict(length_reward=r, length_ratio=wanted.ratio, length_offset=wanted.offset) if r else {}
    )


def hypotheses_requested(beam: int, flags: Mapping[str, Any]) -> int:
    """Requested hypotheses of a search: all of the beam, but of `optimal` the best, since
    a proof of more takes more rows."""
    return 1 if flags.get("stop") == "optimal" else beam


def search(sources: Sequence[str], **flags: Any) -> Search:
    """Translate with these flags and keep the finished hypotheses that were requested:
    of each length the best."""
    quiet()
    translator = Translator(**({"batch_size": BATCH} | flags))
    kept = []
    for found in translator.translate(sources, nbest=hypotheses_requested(translator.beam, flags)):
        best: dict[int, tuple[float, int, str]] = {}
        for h in found:
            total, length = sum(h.positional_scores), len(h.positional_scores)
            if length not in best or total > best[length][0]:
                best[length] = (total, length, h.text)
        kept.append(list(best.values()))
    return Search(
        translator.signature,
        translator.stats.as_dict(),
        [pieces(translator, line) for line in sources],
        kept,
    )


def cached(file: Path, sources: Sequence[str], **flags: Any) -> Search:
    """`search`, unless the file already holds the result of the same search."""
    key = [flags, hypotheses_requested(0, flags), list(sources)]
    return Search(**kept(file, key, lambda: asdict(search(sources, **flags))))
