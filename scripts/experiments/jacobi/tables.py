"""The paper's Tables 1 to 3 and 5 to 7 from run.py's results, and the gain on short and on long
sentences.

    python scripts/experiments/jacobi/tables.py --out DIR

DIR holds resultI.THREADS.json, I the number of the model and text. It gets tables.md (Tables 1, 2,
6 and 7), flops.md (Tables 3 and 5) and by_length.md.

By length: lengths are tokens of greedy's output, EOS counted; batches of one on one thread. A gain
is greedy's sum over a method's, of the sentences of those lengths; its interval is the middle 95
per cent of 1,000 resamples of them.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))

from intervals import RESAMPLES, SEED, interval  # noqa: E402
from write_up import folder, table  # noqa: E402

Result = dict[str, Any]
ABOUT = """# Parallel decoding: calls, time and BLEU (the paper's Tables 1, 2, 6 and 7)

Every method gives greedy's output, sentence for sentence (a beam does not). `iterations` is
greedy's calls over the method's, each call counted; PJ's and HGJ's lengths are 1.25 x source
tokens, but for `PJ, known length`, whose block is as long as greedy's output. `our greedy` is the
same driver with single tokens. `previous output` is a second run over the same text; `output of an
edited source` has as drafts the translations of the text without the middle word of each line.
"""
FLOPS = """# FLOPs of a sentence by method and model size

Counted are multiplications and additions of every matrix product (2 for each weight and position)
and of attention (4 d for each position and each position it looks at), encoder once a sentence,
the decoder at the positions that each method really computed, output layer included. Positions a
target token and lengths come from the measured runs; for sizes that were not run (the paper's base
and big) they are taken over from the first result, which is an assumption.
"""
STOCK, GREEDY, KNOWN = "fairseq greedy", "our greedy", "PJ, known length"
FITTED = (GREEDY, "PJ", KNOWN, "window, previous output")  # searches that give the costs
ENDS = (10, 20, 30, 45)  # the last length of each class but the last, which has no end
LEAST = 5  # sentences that a class must have
Gain = tuple[float, float, float]  # the gain, and its interval


def spread(speed: list[float] | None) -> str:
    return "-" if speed is None else f"{speed[0]:.2f}x ({speed[1]:.2f}-{speed[2]:.2f})"


def measured(result: Result) -> str:
    """Tables 1, 2, 6 and 7 of one result."""
    about, rows = result["about"], result["rows"]
    calls, lines = rows[GREEDY]["decoder_calls"], []
    for name, row in rows.items():
        counts = [""] * 4
        if "decoder_calls" in row:
            counts = [f"{row['decoder_calls']:,}", f"{calls / row['decoder_calls']:.2f}x"]
            counts.append(f"{row['target_tokens'] / row['decoder_rows']:.2f}")
            counts.append(f"{row['decoder_positions']:,}")
        speeds = [spread(row["speed"][over]) for over in (GREEDY, STOCK)]
        lines.append([name, *counts, *speeds, f"{row['bleu']:.2f}"])
    head = ["method", "calls", "iterations", "tokens a call", "positions"]
    head += ["time over our greedy", "time over fairseq greedy", "BLEU"]
    title = f"{about['pair']}, {about['size']['name']}: {about['text']}, {about['sentences']} "
    title += f"sentences, batch {about['batch']}, {about['threads']} thread(s)"
    timed = (
        f"Time is {about['clock']}; median (extremes) over {len(rows[GREEDY]['seconds'])} rounds; "
        f"load average at the end {about['load']:.1f}."
    )
    timed = "Times were not measured." if about["clock"] == "not measured" else timed
    return f"## {title}\n\n{timed}\n\n{table(head, lines)}{costs(result)}"


def costs(result: Result) -> str:
    """What a call and a position cost, and the time of each method over what these allow."""
    rows, sentences = result["rows"], result["about"]["sentences"]
    fitted = [rows[name] for name in FITTED if name in rows]
    if result["about"]["clock"] == "not measured" or len(fitted) < 3:
        return ""

    def counts(row: Result) -> list[int]:
        return [sentences, row["decoder_calls"], row["decoder_positions"]]

    counted, seconds = zip(*((counts(row), np.median(row["seconds"])) for row in fitted))  # noqa: B905
    # relative errors: greedy weighs as much as a slow method
    weighed = np.array(counted) / np.array(seconds)[:, None]
    cost = np.linalg.lstsq(weighed, np.ones(len(fitted)), rcond=None)[0]
    lines = []
    for name, row in rows.items():
        if "decoder_calls" in row:
            allowed, taken = float(np.dot(counts(row), cost)), float(np.median(row["seconds"]))
            lines.append([name, f"{taken:.2f}", f"{allowed:.2f}", f"{taken / allowed:.2f}"])
    parts = zip(("a sentence", "a call", "a position"), cost * 1e3, strict=True)
    title = f"Costs in milliseconds: {', '.join(f'{name} {x:.3f}' for name, x in parts)}"
    head = ["method", "seconds", "by its calls and positions", "ratio"]
    return "\n" + table(head, lines, f"{title}; fitted to {', '.join(FITTED)}")


@dataclass
class Size:
    """A Transformer."""

    name: str
    encoder: int  # layers
    decoder: int
    d: int
    ffn: int
    vocabulary: int

    def operations(self, source: float, positions: float, seen: float) -> float:
        """Of a sentence: the encoder, the decoder's keys and values of the source, and positions
        of the decoder, each looking at this many target positions."""
        d, product = self.d, 2 * self.d * self.ffn
        encoded = source * self.encoder * (2 * (4 * d**2 + product) + 4 * d * source)
        layer = 2 * (6 * d**2 + product) + 4 * d * (source + seen)
        decoded = positions * (self.decoder * layer + 2 * d * self.vocabulary)
        return encoded + source * self.decoder * 4 * d**2 + decoded


PAPER_SIZES = [
    Size("base, 6+6 layers of 512, 58,000 words", 6, 6, 512, 2048, 58_000),
    Size("big, 12+12 layers of 1024, 250,000 words", 12, 12, 1024, 4096, 250_000),
]


def flops(results: list[Result]) -> str:
    """Floating-point operations of a sentence by method and model size: Tables 3 and 5."""
    parts = [FLOPS]
    own = [(Size(**result["about"]["size"]), result) for result in results]
    for size, result in own + [(size, results[0]) for size in PAPER_SIZES]:
        about, greedy = result["about"], result["rows"][GREEDY]
        source, target = (
            n / about["sentences"] for n in (about["source_tokens"], greedy["target_tokens"])
        )
        is_own, base, rows = any(size == each for each, _ in own), 0.0, []
        for name, row in result["rows"].items():
            if "decoder_positions" not in row or name == "our beam search, beam 1":
                continue
            positions = row["decoder_positions"] / about["sentences"]
            total = size.operations(source, positions, target / 2) / 1e6
            base, speed = base or total, row["speed"][GREEDY] if is_own else None
            shown = [f"{speed[0]:.2f}x", f"{total / speed[0]:.1f}"] if speed else ["", ""]
            cells = [f"{positions:.1f}", f"{total:.1f}", f"{total / base:.2f}"]
            rows.append([name, *cells, *shown])
        head = ["method", "positions", "MFLOPs", "of greedy"]
        head += ["speed over our greedy", "MFLOPs / speed"]
        kind = "measured here" if is_own else "counts taken over"
        title = f"{size.name} ({kind}; {source:.1f} source and {target:.1f} target tokens)"
        parts.append(table(head, rows, title, "##"))
    return "\n".join(parts)


def classes(result: Result) -> dict[str, np.ndarray]:
    """The sentences of each class of lengths, by its name; classes of few
    sentences are left out."""
    each = result["rows"][GREEDY].get("each")
    places = np.searchsorted(ENDS, each["tokens"] if each else [])
    names = [f"{low + 1}-{high}" for low, high in zip((0, *ENDS), ENDS, strict=False)]
    names.append(f"{ENDS[-1] + 1} and more")
    found = {name: np.flatnonzero(places == i) for i, name in enumerate(names)}
    return {name: lines for name, lines in found.items() if len(lines) >= LEAST}


def gain(greedy: list[float], method: list[float], places: np.ndarray) -> Gain:
    """How many times greedy's sum is the method's, over these sentences."""
    a, b = (np.asarray(values, dtype=float)[places] for values in (greedy, method))
    n = len(places)
    times = np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    return float(a.sum() / b.sum()), *interval((times @ a) / (times @ b))


def gains(result: Result, what: str) -> dict[str, list[Gain]]:
    """The gain of each method in each class; what: "calls" or "seconds"."""
    each = {name: row["each"] for name, row in result["rows"].items() if row["each"]}
    counted = [n for n, one in each.items() if n not in (GREEDY, STOCK) and sum(one["calls"])]
    lines = classes(result).values()
    return {n: [gain(each[GREEDY][what], each[n][what], x) for x in lines] for n in counted}


def by_length(result: Result) -> str:
    """Two tables: calls and time."""
    about, found = result["about"], classes(result)
    title = f"{about['pair']}, {about['text']}, {about['sentences']} sentences"
    text = f"## By length: {title}, tokens of greedy's output\n"
    for what, title in (("calls", "calls"), ("seconds", "time")):
        rows = [["sentences", *(str(len(places)) for places in found.values())]]
        rows += [[name, *map(spread, row)] for name, row in gains(result, what).items()]
        title = f"Greedy's {title} over the method's{' (CPU time)' * (what != 'calls')}"
        text += "\n" + table(["method", *found], rows, f"{title}, with 95 % intervals")
    return text


def write(out: Path) -> None:
    files = sorted(out.glob("result*.json"))
    results = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    models = [file.name.split(".")[0] for file in files]
    first = [results[models.index(name)] for name in dict.fromkeys(models)]
    (out / "tables.md").write_text("\n".join([ABOUT, *map(measured, results)]), encoding="utf-8")
    (out / "flops.md").write_text(flops(first), encoding="utf-8")
    # elsewhere no length has enough sentences
    if timed := [result for result in first if classes(result)]:
        (out / "by_length.md").write_text("\n".join(map(by_length, timed)), encoding="utf-8")


if __name__ == "__main__":
    write(folder(__doc__))
