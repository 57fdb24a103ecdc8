"""Floating-point operations of a sentence by method and model size, as in the
paper's Tables 3 and 5.

    python scripts/experiments/jacobi/flops.py --out flops.md RESULT.json [RESULT.json ...]
        results of measure.py

Counted are multiplications and additions of every matrix product (2 for each weight and position)
and of attention (4 d for each position and each position it looks at), encoder once a sentence,
the decoder at the positions that each method really computed, output layer included. Positions a
target token and lengths come from the measured runs; for sizes that were not run (the paper's base
and big) they are taken over from the first result, which is an assumption. The paper's
numbers are quoted, not measured: training by ELECTRA's calculator, decoding over the whole test set
of WMT14 En-De, not for a sentence.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Size:
    """A Transformer."""

    name: str
    encoder: int  # layers
    decoder: int
    d: int
    ffn: int
    vocabulary: int

    def encode(self, source: float) -> float:
        return (
            source
            * self.encoder
            * (2 * (4 * self.d**2 + 2 * self.d * self.ffn) + 4 * self.d * source)
        )

    def source_keys(self, source: float) -> float:
        """The decoder's keys and values of the source, once a sentence."""
        return source * self.decoder * 4 * self.d**2

    def decode(self, positions: float, source: float, seen: float) -> float:
        """positions of the decoder, each looking at this many target positions."""
        layer = 2 * (6 * self.d**2 + 2 * self.d * self.ffn) + 4 * self.d * (source + seen)
        return positions * (self.decoder * layer + 2 * self.d * self.vocabulary)


PAPER_SIZES = [
    Size("base, 6+6 layers of 512, 58,000 words", 6, 6, 512, 2048, 58_000),
    Size("big, 12+12 layers of 1024, 250,000 words", 12, 12, 1024, 4096, 250_000),
]
# Tables 3 and 5: speed, BLEU on WMT14 En-De, FLOPs of training, FLOPs of decoding the test set
PAPER = [
    ("HGJ (the paper's)", "1.34x", 28.24, "0", "2.53e13"),
    ("SUNDAE", "1.4x", 28.46, "5.27e21", "1.58e14"),
    ("ShallowDec (12-1)", "1.4x", 26.90, "1.02e19", "1.15e13"),
    ("Semi-NAT", "1.5x", 26.90, "1.55e17", "2.08e13"),
    ("DisCo", "3.5x", 27.34, "4.06e19", "1.58e13"),
    ("DSLP", "14.8x", 27.02, "1.93e19", "1.58e13"),
    ("F-VAE", "16.5x", 27.49, "4.06e19", "1.58e13"),
]


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parse.add_argument("results", nargs="+", type=Path)
    parse.add_argument("--out", type=Path, required=True)
    args = parse.parse_args()
    results = [json.loads(file.read_text(encoding="utf-8")) for file in args.results]
    lines = [
        "# FLOPs of a sentence by method and model size",
        "",
        __doc__.split("\n\n")[2].replace("\n", " "),
        "",
    ]
    sizes = [(Size(**r["about"]["size"]), r) for r in results] + [
        (size, results[0]) for size in PAPER_SIZES
    ]
    for size, result in sizes:
        about = result["about"]
        source, greedy = about["source_tokens"] / about["sentences"], result["rows"]["our greedy"]
        target = greedy["target_tokens"] / about["sentences"]
        measured = (
            "measured here"
            if any(size.name == r["about"]["size"]["name"] for r in results)
            else "counts taken over"
        )
        lines += [
            f"## {size.name} ({measured}; {source:.1f} source and {target:.1f} target tokens)",
            "",
        ]
        lines += [
            "| method | positions | MFLOPs | of greedy | speed over our greedy | MFLOPs / speed |",
            "| --- | ---: | ---: | ---: | ---: | ---: |",
        ]
        base = None
        for name, row in result["rows"].items():
            if "decoder_positions" not in row or name == "our beam search, beam 1":
                continue
            positions = row["decoder_positions"] / about["sentences"]
            total = (
                size.encode(source)
                + size.source_keys(source)
                + size.decode(positions, source, target / 2)
            )
            base = base or total
            speed = row["speed"]["our greedy"]
            known = measured == "measured here" and speed is not None
            shown = (f"{speed[0]:.2f}x", f"{total / 1e6 / speed[0]:.1f}") if known else ("", "")
            lines.append(
                f"| {name} | {positions:.1f} | {total / 1e6:.1f} | {total / base:.2f} | {shown[0]} "
                f"| {shown[1]} |"
            )
        lines.append("")
    lines += ["## From the paper (Tables 3 and 5): WMT14 En-De", ""]
    lines += [
        "| method | speed | BLEU | training FLOPs | decoding FLOPs, whole test set |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {name} | {speed} | {bleu:.2f} | {train} | {decode} |"
        for name, speed, bleu, train, decode in PAPER
    ]
    args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
