"""How does the cost grow: with rows, beam, length, vocabulary, workers, entries of a glossary?

    python scripts/bench/growth.py --out scripts/bench/results/growth
    python scripts/bench/growth.py --what beam vocabulary --sizes 1 5 50 --repeats 3 --out OUT

One model of random weights (3 + 3 layers of 256 dimensions) and made-up lines, as in shapes.py:
no hypothesis ends before its limit, so every contender reads equally many tokens. While one
size grows the others stay: 16 sentences a batch, beam 5, 25 tokens, 8,000 words, one thread.
A time is the median of alternating rounds, in CPU milliseconds of this process for each target
token of a sentence; workers, which are processes, have wall time. CTranslate2 and the stock
generator decode the same batches. The slope between two sizes is the exponent of a power law:
log(time ratio) / log(size ratio). A glossary's rows are its own cost: to load it, and to match
a sentence of 20 words.

Writes OUT/tables.md, OUT/WHAT.json, and OUT/WHAT.svg; what OUT has already
is not measured again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import shapes
from arguments import command_line, run_script
from contenders import OURS, ours, quiet, stock
from ct2 import ctranslate2
from harness import BenchError, Contender, Spread, as_json, compare, fix_threads
from report import ROOT, machine, where_and_when
from text import Text, prepare

SIZES: dict[str, list[int]] = {
    "rows": [1, 4, 16, 64, 256],
    "beam": [1, 2, 5, 10, 20, 50],
    "length": [10, 25, 50, 100, 200, 400],
    "vocabulary": [8_000, 16_000, 32_000, 64_000, 128_000, 256_000],
    "workers": [1, 2],
    "glossary": [10, 100, 1_000, 10_000, 100_000],
}
USUAL = {"rows": 16, "beam": 5, "length": 25, "vocabulary": 8_000}
SAID = {
    "rows": "sentences a batch",
    "beam": "beam",
    "length": "source and target tokens of a sentence",
    "vocabulary": "words",
    "workers": "worker processes",
    "glossary": "entries of the glossary",
}
Cells = dict[str, dict[str, float]]  # size as text -> contender -> milliseconds


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    fix_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    for what in args.what:
        file = args.out / f"{what}.json"
        found: dict[str, Any] = (
            json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"cells": {}}
        )
        for size in args.sizes or SIZES[what]:
            if str(size) not in found["cells"]:
                found["cells"][str(size)] = MEASURES.get(what, searched)(what, size, args)
                found |= {"what": what, "machine": where_and_when(machine())}
                file.write_text(as_json(found) + "\n", encoding="utf-8")
                print(f"{SAID[what]} {size:,}: {found['cells'][str(size)]}", flush=True)
        draw(found, args.out / what)
    made = [
        json.loads((args.out / f"{what}.json").read_text(encoding="utf-8"))
        for what in SIZES
        if (args.out / f"{what}.json").exists()
    ]
    (args.out / "tables.md").write_text("\n".join(map(table, made)), encoding="utf-8")
    return 0


def model_of(words: int, folder: Path) -> Path:
    """The folder of the model with this number of words, made where it is not there."""
    made = folder / f"{words}"
    if not (made / "text.en").exists():
        shapes.SHAPES[f"growth {words}"] = (words, shapes.SMALL)
        with quiet():
            shapes.make(f"growth {words}", made, 0)
    return made


def lines_of(size: dict[str, int], model: Path, folder: Path, sentences: int) -> Text:
    """Lines of the same number of tokens, prepared for fairseq-generate; EOS is one
    of a line's tokens."""
    words = size["vocabulary"] - 4
    for language in ("de", "en"):
        rows = (
            [f"w{(i * 7919 + j * 104_729) % words}" for j in range(size["length"] - 1)]
            for i in range(sentences)
        )
        (folder / f"text.{language}").write_text(
            "".join(" ".join(row) + "\n" for row in rows), encoding="utf-8"
        )
    place = folder / "prepared"
    place.mkdir()
    return prepare(place, model, str(folder / "text"), "de", "en")


def searched(what: str, value: int, args: argparse.Namespace) -> dict[str, float]:
    """CPU milliseconds for each target token of a sentence, by contender."""
    size = USUAL | {what: value}
    sentences = max(args.sentences, size["rows"])
    with tempfile.TemporaryDirectory() as temporary:
        text = lines_of(
            size,
            model_of(size["vocabulary"], args.folder or Path(temporary)),
            Path(temporary),
            sentences,
        )
        flags = [
            "--cpu",
            "--beam",
            str(size["beam"]),
            "--batch-size",
            str(size["rows"]),
            "--max-len-b",
            str(size["length"] - 1),
        ]
        racing = [ours(text, flags), ours(text, [*flags, "--int8"], "ours, int8", exact=False)]
        if value <= dict(args.stock).get(what, math.inf):
            rival = stock(text, flags)
            # random weights: in a long line two words may be equally likely
            racing.append(replace(rival, exact=what != "length"))
        if importlib.util.find_spec("ctranslate2") is not None:
            racing += [
                ctranslate2(text, flags, kind, name=f"CTranslate2, {kind}")
                for kind in ("float32", "int8")
            ]
        return timed(racing, args.repeats, time.process_time, 1000 / (sentences * size["length"]))


def timed(
    racing: Sequence[Contender], repeats: int, clock: Callable[[], float], scale: float
) -> dict[str, float]:
    """The median of each contender's rounds, in units of `scale`; BenchError where outputs
    that must be equal are not."""
    results = compare(racing, repeats, clock=clock)
    if results.refused:
        raise BenchError(f"outputs differ: {', '.join(results.refused)}")
    return {
        result.contender.name: round(Spread.of(result.seconds).median * scale, 5)
        for result in results.results
    }


def of_workers(what: str, value: int, args: argparse.Namespace) -> dict[str, float]:
    """Wall milliseconds for each target token of a sentence: whole commands, less those for one
    batch (start-up, loading)."""
    size = USUAL | {"rows": 64}
    with tempfile.TemporaryDirectory() as temporary:
        model, found = model_of(size["vocabulary"], args.folder or Path(temporary)), {}
        for kind, flags in (("ours", []), ("ours, int8", ["--int8"])):
            seconds = []
            for round_ in range(args.repeats):
                taken = []
                for sentences in (64, args.many):
                    folder = Path(temporary, f"{kind}{round_}{sentences}")
                    folder.mkdir()
                    text = lines_of(size, model, folder, sentences)
                    command = [
                        str(Path(sys.executable).with_name("fairseq-generate")),
                        *OURS,
                        *text.flags,
                        "--cpu",
                        "--batch-size",
                        "64",
                    ]
                    command += [
                        "--beam",
                        "5",
                        "--max-len-b",
                        str(size["length"] - 1),
                        "--cpu-workers",
                        str(value),
                        *flags,
                    ]
                    start = time.perf_counter()
                    subprocess.run(
                        command,
                        check=True,
                        capture_output=True,
                        env={**os.environ, "OMP_NUM_THREADS": "1"},
                    )
                    taken.append(time.perf_counter() - start)
                seconds.append(taken[1] - taken[0])
            found[kind] = round(
                Spread.of(seconds).median * 1000 / ((args.many - 64) * size["length"]), 5
            )
        return found


def of_glossary(what: str, value: int, args: argparse.Namespace) -> dict[str, float]:
    """CPU milliseconds to load a glossary of N entries, and to match a sentence of 20 words
    (glossary.py, the best of its rounds)."""
    with tempfile.TemporaryDirectory() as temporary:
        script = [sys.executable, str(ROOT / "scripts" / "bench" / "glossary.py")]
        subprocess.run(
            [*script, "--entries", str(value), "--out", f"{temporary}/out"],
            check=False,
            capture_output=True,
        )
        rows = [
            line.split("|")[1:-1]
            for line in Path(temporary, "out.md").read_text(encoding="utf-8").splitlines()
            if "surface" in line
        ]
        (_, _, load, _, each), *_ = rows
        return {"load": float(load) * 1000, "match a sentence": float(each)}


MEASURES: dict[str, Callable[[str, int, argparse.Namespace], dict[str, float]]] = {
    "workers": of_workers,
    "glossary": of_glossary,
}


def slope(cells: Cells, name: str) -> str:
    """The exponent between the last two sizes that a contender has; "" for one with fewer."""
    points = [(float(size), row[name]) for size, row in cells.items() if row.get(name)]
    if len(points) < 2:
        return ""
    (size, ms), (larger, more) = points[-2:]
    return f"{round(math.log(more / ms) / math.log(larger / size), 2) + 0.0:.2f}"  # no -0.00


def table(found: dict[str, Any]) -> str:
    """A table with a row for each size and a column for each contender, and the
    last slope of each."""
    cells: Cells = found["cells"]
    names = list(dict.fromkeys(name for row in cells.values() for name in row))
    unit = "ms" if found["what"] == "glossary" else "ms for each target token of a sentence"
    lines = [
        f"### {found['what']}",
        "",
        f"| {SAID[found['what']]} | " + " | ".join(names) + " |",
        "| ---: |" + " ---: |" * len(names),
    ]
    for size, row in cells.items():
        lines.append(
            f"| {int(size):,} | "
            + " | ".join(f"{row[name]:.3g}" if name in row else "" for name in names)
            + " |"
        )
    lines += ["| last slope | " + " | ".join(slope(cells, name) for name in names) + " |"]
    clock = "wall time" if found["what"] == "workers" else "CPU time of one thread"
    return "\n".join([*lines, "", f"In {unit}, {clock}. {found['machine']}", ""])


def draw(found: dict[str, Any], file: Path) -> None:
    """The figure of time against size, both on logarithmic scales."""
    sys.path.insert(0, str(ROOT / "scripts" / "experiments"))
    import figure_style as style

    figure, axes = style.panel(width=style.FULL)
    cells: Cells = found["cells"]
    for place, name in enumerate(dict.fromkeys(name for row in cells.values() for name in row)):
        points = [(int(size), row[name]) for size, row in cells.items() if row.get(name)]
        axes.plot(*zip(*points, strict=True), label=name, **style.of(name, place))
    axes.set(
        xscale="log",
        yscale="log",
        xlabel=SAID[found["what"]],
        ylabel="ms" if found["what"] == "glossary" else "ms a target token",
    )
    sizes = [int(size) for size in cells]
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.xaxis.set_minor_formatter("")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    style.save(figure, file)


def limits(text: str) -> tuple[str, int]:
    """WHAT=SIZE of --stock."""
    what, _, size = text.partition("=")
    return what, int(size)


def parser() -> argparse.ArgumentParser:
    parse = command_line(__doc__)
    parse.add_argument(
        "--what", nargs="+", choices=SIZES, default=list(SIZES), help="what grows (everything)"
    )
    parse.add_argument("--sizes", nargs="+", type=int, help="sizes of it (those of the page)")
    parse.add_argument(
        "--sentences",
        type=int,
        default=32,
        help="lines, or the rows of a batch where those are more (32)",
    )
    parse.add_argument("--many", type=int, default=2048, help="lines for workers (2048)")
    parse.add_argument("--repeats", type=int, default=3, help="timed rounds (3)")
    parse.add_argument(
        "--folder", type=Path, help="where models are kept for the next run (a temporary folder)"
    )
    parse.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder of tables.md, and of WHAT.json and .svg",
    )
    parse.add_argument(
        "--stock",
        nargs="*",
        type=limits,
        default=[],
        help="WHAT=SIZE: the largest size at which stock runs (all)",
    )
    return parse


if __name__ == "__main__":
    run_script(main)
