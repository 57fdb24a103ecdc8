"""Minimum Bayes risk beside beam search: BLEU, chrF and TER with paired intervals against beam 5, and CPU seconds.

    python scripts/experiments/candidates/measure.py --model MODEL --text TEXT --lines 1000

An asterisk marks the metric that the search optimises: a gain there says little. Intervals are the middle 95 per cent of 1,000 paired
resamples of the sentences (Koehn 2004).
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from sacrebleu.metrics import BLEU, CHRF, TER

from fairseq_ext import Translator

SAMPLES = dict(sampling=True, sampling_epsilon=0.02)
SYSTEMS = {
    "beam 5": dict(beam=5),
    "beam 30": dict(beam=30),
    "MBR chrF, 30-best": dict(beam=30, mbr="chrf"),
    "MBR chrF, 30-best, uniform": dict(beam=30, mbr="chrf", mbr_weights="uniform"),
    "MBR BLEU, 30-best": dict(beam=30, mbr="bleu"),
    "MBR chrF, 30 samples": dict(beam=30, mbr="chrf", **SAMPLES),
    "MBR chrF, 30 samples, aggregated": dict(beam=30, mbr="chrf", mbr_aggregate=True, **SAMPLES),
}
METRICS = {"BLEU": BLEU(), "chrF": CHRF(), "TER": TER()}


def scores(metric, lines: list[str], references: list[str], times: np.ndarray) -> np.ndarray:
    """A metric of the whole text, then of each resample; times (resamples, lines): how often each line is drawn."""
    counts = np.array(metric._extract_corpus_statistics(lines, [references]), dtype=float)  # of each line, which add up
    return np.array([metric._compute_score_from_stats(row.tolist()).score for row in np.vstack([counts.sum(0), times @ counts])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder with checkpoint.pt, dict.*.txt and spm.model")
    parser.add_argument("--text", required=True, help="TEXT.de and TEXT.en")
    parser.add_argument("--lines", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    source, references = (Path(f"{args.text}.{side}").read_text(encoding="utf-8").split("\n")[: args.lines] for side in ("de", "en"))
    times = np.random.default_rng(12345).multinomial(len(source), np.full(len(source), 1 / len(source)), size=1000)
    model = dict(path=str(args.model / "checkpoint.pt"), data=str(args.model), source_lang="de", target_lang="en", bpe="sentencepiece")
    model |= dict(sentencepiece_model=str(args.model / "spm.model"), cpu=True, batch_size=32)
    base: dict[str, np.ndarray] = {}
    first = 0.0
    print(f"{args.text}, {len(source)} lines\n| search | BLEU | chrF | TER | time |\n| --- | --- | --- | --- | --- |")
    for name, flags in SYSTEMS.items():
        translator = Translator(**model, **flags)
        start = time.process_time()
        lines = [nbest[0].text for nbest in translator.translate(source)]
        took = time.process_time() - start
        first = first or took
        cells = []
        for metric, of in METRICS.items():
            found = scores(of, lines, references, times)
            base.setdefault(metric, found)
            low, high = np.percentile((found - base[metric])[1:], [2.5, 97.5])
            told = "" if name == "beam 5" else f" ({found[0] - base[metric][0]:+.2f}, {low:+.2f} to {high:+.2f})"
            cells.append(f"{found[0]:.2f}{'*' if f'MBR {metric}' in name else ''}{told}")
        print(f"| {name} | {' | '.join(cells)} | {took / first:.1f} |", flush=True)


if __name__ == "__main__":
    main()
