"""How does the cost grow: with rows, beam, length, vocabulary, workers, entries of a glossary?

    python scripts/bench/growth.py --out scripts/bench/results/growth
    python scripts/bench/growth.py --what beam vocabulary --sizes 1 5 50 --repeats 3 --out OUT

One model of random weights (3 + 3 layers of 256 dimensions) and made-up lines (random_models.py):
no hypothesis ends before its limit, so every contender reads equally many tokens. While one
size grows the others stay: 16 sentences a batch, beam 5, 25 tokens, 8,000 words, one thread.
A time is the median of alternating rounds, in CPU milliseconds of this process for each target
token of a sentence; workers, which are processes, have wall time. CTranslate2 and the stock
generator decode the same batches. The slope between two sizes is the exponent of a power law:
log(time ratio) / log(size ratio). A glossary's rows are its own cost: to load it, and to match
a sentence of 20 words.

Writes OUT.md, OUT.json and OUT-WHAT.svg.

    --what WHAT ...         what grows (all)
    --sizes N ...           sizes of it; those of the page by default
    --sentences N           lines, or the rows of a batch where those are more (32)
    --many N                lines for workers (2048)
    --repeats N             timed rounds (3)
    --folder DIR            where models are kept for the next run (none)
    --out OUT               (required)
    --stock LIMIT [...]     WHAT=SIZE: the largest size at which stock runs; all by default
"""

from __future__ import annotations

import math
import os
import random
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))

import figure_style
import random_models
from contenders import OURS, build
from fairseq.data import Dictionary
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE, SentencepieceConfig
from harness import BenchError, Spread, compare, least, run_command, time_ways
from report import Page
from text import DEMO, Text, prepare, run_bench

from fairseq_ext.core.glossary import Languages
from fairseq_ext.core.lemmas import lemmatizer
from fairseq_ext.core.words import words_of
from fairseq_ext.search.constraints.glossary import Glossary, GlossaryOptions
from fairseq_ext.search.phrases.segmenter import Segmenter

CONTENDERS = ("ours", "ours --int8", "stock", "ctranslate2 float32", "ctranslate2 int8")
USUAL = {"rows": 16, "beam": 5, "length": 25, "vocabulary": 8_000}


def lines_of(size: dict[str, int], args: Namespace, folder: Path, count: int) -> Text:
    """Lines of the same number of tokens, of which EOS is one, prepared for fairseq-generate."""
    words = size["vocabulary"]
    model = random_models.make((words, random_models.SMALL), (args.folder or folder) / f"{words}")
    for language in ("de", "en"):
        rows = (
            [f"w{(i * 7919 + j * 104_729) % (words - 4)}" for j in range(size["length"] - 1)]
            for i in range(count)
        )
        text = "".join(" ".join(row) + "\n" for row in rows)
        (folder / f"text.{language}").write_text(text, encoding="utf-8")
    return prepare(folder / f"{count}", model, str(folder / "text"), "de", "en")


def searched(size: dict[str, int], args: Namespace, folder: Path) -> dict[str, float]:
    """CPU milliseconds for each target token of a sentence, by contender."""
    sentences = max(args.sentences, size["rows"])
    text = lines_of(size, args, folder, sentences)
    flags = f"--cpu --beam {size['beam']} --batch-size {size['rows']}".split()
    flags += ["--max-len-b", str(size["length"] - 1)]
    limits = dict(text.split("=") for text in args.stock)
    runs_stock = all(value <= float(limits.get(what, "inf")) for what, value in size.items())
    racing = [
        build(name, text, flags, apart=False)
        for name in CONTENDERS
        if name != "stock" or runs_stock
    ]
    for each in racing:  # random weights: in a long line two words may be equally likely
        each.exact &= each.name != "stock" or size["length"] == USUAL["length"]
    results = compare(racing, args.repeats, clock=time.process_time)
    if results.refused:
        raise BenchError(f"outputs differ: {', '.join(results.refused)}")
    scale = 1000 / (sentences * size["length"])
    return {r.contender.name: Spread.of(r.seconds).median * scale for r in results.results}


def of_workers(size: dict[str, int], args: Namespace, folder: Path) -> dict[str, float]:
    """Wall milliseconds for each target token of a sentence: whole commands, less those for one
    batch (start-up, loading)."""
    generate = str(Path(sys.executable).with_name("fairseq-generate"))
    flags = f"--cpu --batch-size 64 --beam 5 --cpu-workers {size['workers']}".split()
    flags += ["--max-len-b", str(size["length"] - 1)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    texts = [lines_of(size, args, folder, sentences) for sentences in (64, args.many)]
    ways = {
        (kind, text.folder): lambda more=more, text=text: run_command(
            [generate, *OURS, *text.flags, *flags, *more], env=environment
        )
        for kind, more in (("ours", []), ("ours --int8", ["--int8"]))
        for text in texts
    }
    spent = time_ways(ways, args.repeats, time.perf_counter)
    scale, small, large = 1000 / ((args.many - 64) * size["length"]), *(t.folder for t in texts)
    return {
        kind: Spread.of(
            [b - a for a, b in zip(spent[kind, small], spent[kind, large], strict=True)]
        ).median
        * scale
        for kind in ("ours", "ours --int8")
    }


def of_glossary(size: dict[str, int], args: Namespace, folder: Path) -> dict[str, float]:
    """CPU milliseconds to load a glossary of N made-up entries over the demo's dictionaries and
    segmentation, by --glossary-match (lemma's with the language's lemmas, which are loaded once);
    to load N lines of one source term; and to match a segmented sentence of 20 words."""
    entries, draw, found = size["glossary"], random.Random(1), dict[str, float]()
    target = Dictionary.load(str(DEMO / "dict.en.txt"))
    bpe = SentencepieceBPE(SentencepieceConfig(sentencepiece_model=str(DEMO / "spm.model")))
    segmenter = Segmenter(target, None, bpe)
    starts = (symbol[1:] for symbol in target.symbols if symbol.startswith("▁"))
    known = [word for word in starts if word.isalpha()]

    def word() -> str:
        return "".join(draw.choices("abcdefghiklmnoprstu", k=draw.randint(4, 9)))

    sentences = [words_of(" ".join(word() for _ in range(20))) for _ in range(2_000)]
    sources = [f"{word()} {word()}" if i % 3 == 0 else word() for i in range(entries)]
    lemmas, _ = least(lambda: lemmatizer("de", "--glossary-match lemma"), 1)
    file = folder / "terms.tsv"
    for name in ("surface", "casefold", "lemma", "one source term"):
        of = ["haus"] * entries if name.startswith("one") else sources
        lines = (f"{each}\t{' '.join(draw.choices(known, k=3))}\n" for each in of)
        file.write_text("".join(lines), encoding="utf-8")
        match = "surface" if name.startswith("one") else name
        options = GlossaryOptions(str(file), match, "once", Languages("de", "en"))
        load, glossary = least(lambda options=options: Glossary(options, segmenter), args.repeats)
        found[f"load, {name}"] = 1000 * (load + lemmas * (name == "lemma"))
        if not name.startswith("one"):
            glossary.required(sentences[0])
            match_all = lambda of=glossary: [of.required(words) for words in sentences]  # noqa: E731
            each, _ = least(match_all, args.repeats)
            found[f"match, {name}"] = 1000 * each / len(sentences)
    return found


@dataclass(frozen=True)
class Growth:
    """What grows: its name in tables, its sizes, how each is measured, and the unit."""

    label: str
    sizes: list[int]
    measure: Callable[[dict[str, int], Namespace, Path], dict[str, float]] = searched
    unit: str = "ms for each target token of a sentence, CPU time of one thread"


WALL = "ms for each target token of a sentence, wall time"
TEN = [10, 100, 1_000, 10_000, 100_000]
CASES = {
    "rows": Growth("sentences a batch", [1, 4, 16, 64, 256]),
    "beam": Growth("beam", [1, 2, 5, 10, 20, 50]),
    "length": Growth("source and target tokens of a sentence", [10, 25, 50, 100, 200, 400]),
    "vocabulary": Growth("words", [1000 * 2**i for i in range(3, 9)]),
    "workers": Growth("worker processes", [1, 2], of_workers, WALL),
    "glossary": Growth("entries of the glossary", TEN, of_glossary, "ms, CPU time of one thread"),
}


def main(args: Namespace, page: Page, place: Path) -> None:
    for what in args.what:
        case, cells = CASES[what], dict[int, dict[str, float]]()
        for size in args.sizes or case.sizes:
            folder = Path(tempfile.mkdtemp(dir=place))
            cells[size] = case.measure(USUAL | {what: size}, args, folder)
            print(f"{case.label} {size:,}: {cells[size]}", flush=True)
        names = dict.fromkeys(name for row in cells.values() for name in row)
        lines = {n: [(x, row[n]) for x, row in cells.items() if row.get(n)] for n in names}
        rows = [
            [f"{size:,}", *(f"{row[name]:.3g}" if name in row else "" for name in names)]
            for size, row in cells.items()
        ]
        rows.append(["last slope", *map(slope, lines.values())])
        page.add_table([case.label, *names], rows, what)
        page.add(f"In {case.unit}.\n")
        label = "ms" if what == "glossary" else "ms a target token"
        logarithmic = dict(xscale="log", yscale="log", xlabel=case.label, ylabel=label)
        figure = args.out.with_name(f"{args.out.name}-{what}")
        figure_style.draw(figure, dict(lines=lines, **logarithmic))


def slope(points: list[tuple[int, float]]) -> str:
    """The exponent between the last two sizes that a contender has; "" for one with fewer."""
    if len(points) < 2:
        return ""
    (size, ms), (larger, more) = points[-2:]
    return f"{round(math.log(more / ms) / math.log(larger / size), 2) + 0.0:.2f}"  # no -0.00


if __name__ == "__main__":
    run_bench(main, __doc__, {"what": CASES}, has_text=False, stock=[])
