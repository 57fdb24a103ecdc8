"""Minimum Bayes risk next to beam search: BLEU, chrF and TER with paired intervals against
beam 5, and CPU seconds.

    python scripts/experiments/candidates/measure.py --model MODEL --text TEXT --lines 1000
        --lists FOLDER --out scripts/experiments/candidates/results/captions

Lists of hypotheses are kept in FOLDER, so that other ways to choose from them need no new search.
Time is that of the search and of the choice. Length is words of the outputs over words of the
references: rows with a larger --lenpen say what longer outputs gain by themselves. An asterisk
marks the metric that the choice optimises: a gain there says little. Intervals are the middle 95
per cent of 1,000 paired resamples of the sentences (Koehn 2004).

    --model DIR      with checkpoint.pt, dict.*.txt and spm.model (required)
    --text PREFIX    of PREFIX.de and PREFIX.en (required)
    --lines N        (1000)
    --lists DIR      of the lists of hypotheses (required)
    --out OUT        write OUT.md and OUT.json
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from sacrebleu.metrics import BLEU, CHRF, TER

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from report import Page  # noqa: E402
from text import command_line  # noqa: E402

from fairseq_ext import Translator
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.mbr import BayesRisk, CandidateFlags

LONGER = {f"beam 5, `--lenpen {lenpen}`": dict(beam=5, lenpen=lenpen) for lenpen in (1.2, 1.5, 2)}
SEARCHES = {f"beam {k}": dict(beam=k) for k in (5, 20, 30)} | LONGER
SEARCHES |= {"30 samples": dict(beam=30, sampling=True, sampling_epsilon=0.02)}
CHOICES = {  # of a search's list: the flags of --mbr
    "beam 5": ("beam 5", {}),
    **{name: (name, {}) for name in LONGER},
    "beam 30": ("beam 30", {}),
    "MBR chrF, 30-best, `prob`": ("beam 30", dict(mbr="chrf", mbr_weights="prob")),
    "MBR chrF, 30-best, `uniform`": ("beam 30", dict(mbr="chrf", mbr_weights="uniform")),
    "MBR BLEU, 30-best, `prob`": ("beam 30", dict(mbr="bleu", mbr_weights="prob")),
    "MBR BLEU, 30-best, `uniform`": ("beam 30", dict(mbr="bleu", mbr_weights="uniform")),
    "MBR BLEU, 20-best, `uniform`": ("beam 20", dict(mbr="bleu", mbr_weights="uniform")),
    "MBR BLEU, 5-best, `uniform`": ("beam 5", dict(mbr="bleu", mbr_weights="uniform")),
    "MBR chrF, 5-best, `uniform`": ("beam 5", dict(mbr="chrf", mbr_weights="uniform")),
    "MBR chrF, 30 samples, epsilon 0.02": ("30 samples", dict(mbr="chrf", mbr_weights="uniform")),
}
METRICS = {"BLEU": BLEU(), "chrF": CHRF(), "TER": TER()}


def lists(
    args: argparse.Namespace, search: str, source: list[str]
) -> tuple[list[list[list]], float]:
    """Each line's hypotheses, [text, tokens, score, sum of log-probabilities] each, and the
    CPU seconds of the search."""
    path = args.lists / f"{Path(args.text).name}.{search.replace(' ', '-')}.json"
    if not path.exists():
        pair = dict(source_lang="de", target_lang="en", cpu=True, batch_size=32)
        translator = Translator.from_folder(args.model, **pair, **SEARCHES[search])
        start = time.process_time()
        found = translator.translate(source, nbest=SEARCHES[search]["beam"])
        took = time.process_time() - start
        rows = [
            [[h.text, len(h.tokens), h.score, float(sum(h.positional_scores))] for h in nbest]
            for nbest in found
        ]
        path.write_text(json.dumps([rows, took]), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def chosen(nbest: list[list], risk: BayesRisk, source: str) -> str:
    """The text that --mbr answers with."""
    texts = {i: text for i, (text, *_) in enumerate(nbest)}
    risk.text = lambda tokens: texts[int(tokens[0])]
    every = [
        Hypothesis(torch.tensor([i]), score, torch.tensor([total]))
        for i, (_, _, score, total) in enumerate(nbest)
    ]
    return texts[int(risk(every, source)[0].tokens[0])]


def scores(metric, lines: list[str], references: list[str], times: np.ndarray) -> np.ndarray:
    """A metric of the whole text, then of each resample; times (resamples, lines): how
    often each line is drawn."""
    # of each line, which add up
    counts = np.array(metric._extract_corpus_statistics(lines, [references]), dtype=float)
    return np.array(
        [
            metric._compute_score_from_stats(row.tolist()).score
            for row in np.vstack([counts.sum(0), times @ counts])
        ]
    )


def main() -> None:
    args = command_line(__doc__).parse_args()
    args.lists.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    source, references = (
        Path(f"{args.text}.{side}").read_text(encoding="utf-8").split("\n")[: args.lines]
        for side in ("de", "en")
    )
    times = np.random.default_rng(12345).multinomial(
        len(source), np.full(len(source), 1 / len(source)), size=1000
    )
    base: dict[str, np.ndarray] = {}
    first = 0.0
    rows = []
    for name, (search, flags) in CHOICES.items():
        found, took = lists(args, search, source)
        start = time.process_time()
        risk = BayesRisk(CandidateFlags(**flags), str) if flags else None
        lines = [
            chosen(nbest, risk, line) if risk else nbest[0][0]
            for nbest, line in zip(found, source, strict=True)
        ]
        took += time.process_time() - start
        first = first or took
        cells = []
        for metric, of in METRICS.items():
            value = scores(of, lines, references, times)
            base.setdefault(metric, value)
            low, high = np.percentile((value - base[metric])[1:], [2.5, 97.5])
            reported = "" if name == "beam 5" else f" ({low:+.2f} to {high:+.2f})"
            cells.append(f"{value[0]:.2f}{'*' if f'MBR {metric}' in name else ''}{reported}")
        score = METRICS["BLEU"].corpus_score(lines, [references])
        cells += [f"{score.sys_len / score.ref_len:.3f}", f"{took / first:.1f}"]
        rows.append([name, *cells])
        print(" | ".join(rows[-1]), flush=True)
    head = ["search", *METRICS, "length", "time"]
    Page(args.out).add_table(head, rows, f"{Path(args.text).name}, {len(source)} lines")


if __name__ == "__main__":
    main()
