"""The tables of gains of README and of the methods' pages; their numbers are read off the results
that scripts wrote.

A number is found by its file, a part of the heading above its table, the row's first cell and a
part of the column's name. Where one of them has another name by now, the page is reported as stale.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCH, PAPERS = "scripts/bench/results", "scripts/experiments"
BULK, ONE = "beam 5, in bulk", "beam 5, one sentence at a time"
STOCK, CT2 = "times stock", "times ctranslate2 float32"
JACOBI = {  # a file of results and its title, by the kind of text
    "captions": (f"{PAPERS}/jacobi/results/flickr_1000/tables.md", "1000 sentences, batch 1"),
    "documentation": (f"{PAPERS}/jacobi/results/docs_200/tables.md", "200 sentences, batch 1"),
}
SUM = "optimal, unnormalised scores, pruned"
MEAN = "optimal, normalised scores, pruned"


def tables_in(text: str) -> Iterator[tuple[list[str], list[str], list[list[str]]]]:
    """Yield the headings above each table of a text, its head and its rows."""
    above: dict[int, str] = {}
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if heading := re.match("(#+) +(.*)", line):
            level = len(heading[1])
            above = {each: title for each, title in above.items() if each < level}
            above[level] = heading[2]
        elif line.startswith("|") and (number == 0 or not lines[number - 1].startswith("|")):
            rows = []
            for row in lines[number:]:
                if not row.startswith("|"):
                    break
                rows.append([cell.strip() for cell in row.strip("| ").split(" | ")])
            rows = [[*row, *[""] * (len(rows[0]) - len(row))] for row in rows]
            yield list(above.values()), rows[0], rows[2:]


def fits(row: str, first: str) -> bool:
    """Return whether a row is meant: "ctranslate2 int8*" is all rows that begin so."""
    return row.endswith("*") and first.startswith(row[:-1])


def cells_of(file: str, heading: str, row: str, column: str) -> list[str]:
    """Return each cell that fits. row: the whole first cell, or "" for all rows.
    Errors: KeyError with a sentence for none."""
    found: list[str] = []
    for titles, head, rows in tables_in((ROOT / file).read_text(encoding="utf-8")):
        for cells in rows if titles and heading in titles[-1] else ():
            if row in ("", cells[0]) or fits(row, cells[0]):
                pairs = list(zip(head, cells, strict=True))
                same = [cell for name, cell in pairs if column == name]
                found += same or [cell for name, cell in pairs if column in name]
    if not found:
        raise KeyError(f"the cell of {row!r}, {column!r} below {heading!r} in {file}")
    return found


def numbers(file: str, heading: str, row: str, column: str) -> list[float]:
    """Return the first number of each cell that fits."""
    found = [
        re.match(r"[-+]?[\d.]+", cell.replace(",", ""))
        for cell in cells_of(file, heading, row, column)
    ]
    return [float(match[0]) for match in found if match]


def number(file: str, heading: str, row: str, column: str) -> float:
    """Return the first number that fits."""
    return numbers(file, heading, row, column)[0]


def times(value: float) -> str:
    """Return a ratio as the table has it: two digits."""
    return f"{value:.0f}x" if value >= 10 else f"{value:.1f}x" if value >= 1 else f"{value:.2f}x"


def rivals(row: str, column: str) -> str:
    """Return a contender's ratios in bulk and one sentence at a time."""
    values = [number(f"{BENCH}/rivals.md", kind, row, column) for kind in (BULK, ONE)]
    return ", ".join(map(times, values))


def over(other: str, row: str) -> str:
    """Return the same over another contender, or the fastest of several, by the medians of the
    seconds."""
    file = f"{BENCH}/rivals.md"
    pairs = [
        [min(numbers(file, kind, name, "seconds")) for name in (other, row)] for kind in (BULK, ONE)
    ]
    return ", ".join(times(theirs / own) for theirs, own in pairs)


def gains() -> str:
    """Return the table."""
    captions, documentation = (
        f"{PAPERS}/optimal_ending/results/{name}/tables.md" for name in ("flickr_300", "docs_80")
    )
    mean = [
        value
        for file in (captions, documentation)
        for value in numbers(file, "Time at beam", MEAN, "over count")
    ]
    dba = numbers(
        f"{BENCH}/constrained_stock.md", "own constrained search", "", "whole words: times"
    )
    streams = f"{PAPERS}/streaming/results/flickr_1000/tables.md"
    k50 = "test, single model, k = 50"
    lsh = f"{PAPERS}/lsh/results/words_200/tables.md"
    edited = (*JACOBI["documentation"], "window, output of an edited source")
    placed = f"{PAPERS}/terminology/results/placement/tables.md"
    placements = [
        [number(placed, text, row, "BLEU") for row in ("align", "fairseq", "no glossary")]
        for text in ("test 2016, beam 5", "Documentation, other lines, every entry, beam 5")
    ]
    ranked = number(streams, k50, "VAR-STREAM", "BLEU") - number(streams, k50, "DEFAULT", "BLEU")
    rows = [
        (
            "ours",
            f"[{rivals('ours', STOCK)}](docs/results/rivals.md)",
            rivals("ours", CT2),
            "",
            "[runs of few lines](docs/results/latency.md#whole-commands): fairseq's start takes "
            "most of the time ([short commands](docs/quickstart.md#short-commands) help)",
        ),
        (
            "`--int8`",
            f"[{rivals('ours --int8', STOCK)}](docs/results/rivals.md)",
            f"{over('ctranslate2 int8*', 'ours --int8')} (its 8 bits)",
            over("ours", "ours --int8"),
            "the best hypothesis may differ from float32's; held to AVX2, CTranslate2's 8 bits are "
            "faster in bulk",
        ),
        (
            "[constraints](docs/constraints.md) ([Post and Vilar 2018]"
            "(https://aclanthology.org/N18-1119/))",
            f"[{times(min(dba))} to {times(max(dba))}](docs/results/constrained.md) (fairseq's "
            "constrained search, beams 5 and 10)",
            "",
            "",
            "with three or four words, or a phrase of four, more captions score below fairseq's "
            "search than above it; of news and documentation already with one word",
        ),
        (
            "[glossaries](docs/glossaries.md)",
            "BLEU with it, with fairseq's search, without: [{}; documentation {}]"
            "(docs/results/placement.md) (captions: terms put into the references)".format(
                *(", ".join(map(str, each)) for each in placements)
            ),
            "",
            "",
            "documentation, whose terms the model knows; text that it knows badly; forms of words "
            "outside English and German; time",
        ),
        (
            "[optimal ending](docs/optimal-ending.md) ([Huang, Zhao and Ma 2017]"
            "(https://aclanthology.org/D17-1227/))",
            "[{}; documentation {}](docs/results/optimal_ending.md)".format(
                *(
                    times(number(file, "Time at beam 5", SUM, "over fairseq"))
                    for file in (captions, documentation)
                )
            ),
            "",
            "{}; documentation {}".format(
                *(
                    times(number(file, "Time at beam 5", SUM, "over count"))
                    for file in (captions, documentation)
                )
            ),
            f"normalised scores: {times(min(mean))} to {times(max(mean))} ours",
        ),
        (
            "[variable-width beams](docs/streaming.md) ([Yang et al. 2020]"
            "(https://aclanthology.org/2020.emnlp-main.366/))",
            f"[beam 50: {times(number(streams, k50, 'VAR-STREAM', 'over FIXED'))}]"
            "(docs/results/streaming.md)",
            "",
            f"beam 50: {times(number(streams, k50, 'VAR-STREAM', 'over DEFAULT'))}",
            f"BLEU {ranked:+.1f} at beam 50 (threshold tuned); continuous "
            "batching alone gains nothing on a CPU",
        ),
        (
            "[LSH softmax](docs/large-vocabularies.md) ([Shi, Xu and Knight 2018]"
            "(https://arxiv.org/abs/1806.00588))",
            "",
            "",
            "[vocabulary 52,568: {}](docs/results/lsh.md)".format(
                times(number(lsh, "Table 7", "lsh T=6000 t=2", "overall"))
            ),
            "`--int8` gains more; vocabularies below some tens of thousands of words; text of one "
            "narrow subject",
        ),
        (
            "[parallel decoding](docs/parallel-decoding.md) ([Santilli et al. 2023]"
            "(https://aclanthology.org/2023.acl-long.689/))",
            "",
            "",
            "[beam 1, with an edited line's old translation: {}](docs/results/jacobi.md)".format(
                times(number(*edited, "over our greedy"))
            ),
            "the paper's `gs-jacobi` on a CPU: {} (the paper: 1.3x to 1.4x), and `jacobi`: {} (the "
            "paper: 0.66x to 0.88x); lines without an old translation".format(
                times(number(*JACOBI["captions"], "PGJ b=3", "over our greedy")),
                times(number(*JACOBI["captions"], "PJ", "over our greedy")),
            ),
        ),
    ]
    return table(("method", "over stock", "over CTranslate2", "over ours", "where it loses"), rows)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table, the first column to the left."""
    lines = [head, ("---", *("---:" for _ in head[1:])), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def constraints() -> str:
    """Return the cost and the quality of constrained search, beam 5."""
    bleu = "fairseq's own constrained search against DBA: BLEU"
    speed = (f"{BENCH}/constrained_stock.md", "own constrained search")
    texts = [
        (f"{BENCH}/constrained_{name}.md", bleu) for name in ("captions", "documentation", "news")
    ]
    rows = []
    for kind, name in (("rand", "random words: {}"), ("phr", "a phrase of {} words")):
        for n in (1, 2, 3, 4) if kind == "rand" else (2, 3, 4):
            required = f"{kind}{n}"
            rows.append(
                (
                    name.format(n),
                    *(
                        times(number(*speed, required, f"whole words: {column}"))
                        for column in ("time over", "times as fast")
                    ),
                    *(cells_of(*text, required, "whole words: difference")[0] for text in texts),
                )
            )
    return table(
        (
            "required",
            "time, over search without",
            "speed over fairseq's constrained search",
            "BLEU over it: captions",
            "documentation",
            "news",
        ),
        rows,
    )


def optimal_ending() -> str:
    """Return the speed of optimal ending."""
    rows = []
    for text, name in (("captions", "flickr_300"), ("documentation", "docs_80")):
        file = f"{PAPERS}/optimal_ending/results/{name}/tables.md"
        for beam in (5, 20):
            heading = f"Time at beam {beam}"
            cells = [
                times(number(file, heading, search, column))
                for column in ("over count", "over fairseq")
                for search in (SUM, MEAN)
            ]
            rows.append((f"{text}, beam {beam}", *cells))
    return table(
        (
            "text",
            "over our decoder with fairseq's criterion: sums",
            "normalised",
            "over fairseq: sums",
            "normalised",
        ),
        rows,
    )


def streaming() -> str:
    """Return the speed of streaming and of variable width."""
    rows = []
    for text, name in (
        ("captions", "flickr_1000"),
        ("an ensemble, delta 1.5", "flickr_60_ensemble"),
    ):
        file = f"{PAPERS}/streaming/results/{name}/tables.md"
        for beam in (5, 50):

            def of(row: str, column: str, where: tuple = (file, f", k = {beam}")) -> float:
                return number(*where, row, column)

            ranked = of("FIXED-OURS", "BLEU") - of("DEFAULT", "BLEU")
            width = of("VAR-BATCH", "BLEU") - of("FIXED-OURS", "BLEU")
            rows.append(
                (
                    f"{text}, beam {beam}",
                    times(of("VAR-BATCH", "over DEFAULT")),
                    f"{ranked:+.1f}, {width:+.1f}",
                    times(of("VAR-STREAM", "over FIXED")),
                    times(of("DEFAULT-STREAM", "over DEFAULT")),
                )
            )
    return table(
        (
            "text",
            "variable width, over our batches",
            "BLEU by `--stop ranked`, by the width",
            "the paper's stream, over stock",
            "a stream alone, over our batches",
        ),
        rows,
    )


def parallel_decoding() -> str:
    """Return the speed of parallel decoding."""
    jacobi, old = "`jacobi` (the paper's PJ)", "`window`, the line's own old output"
    blocks = "`gs-jacobi` (PGJ, blocks of 3)"
    rows = [
        (name, text, *(cells_of(*JACOBI[text], row, c)[0] for c in ("iterations", "our greedy")))
        for name, text, row in (
            (jacobi, "captions", "PJ"),
            (jacobi, "documentation", "PJ"),
            (blocks, "captions", "PGJ b=3"),
            (blocks, "documentation", "PGJ b=3"),
            (old, "captions", "window, previous output"),
            (old, "documentation", "window, previous output"),
            (
                "`window`, an edited line's old output",
                "documentation",
                "window, output of an edited source",
            ),
        )
    ]
    return table(("method", "text", "reduction of calls", "speed"), rows)


def large_vocabularies() -> str:
    """Return the speed of the shortlists and of the screened softmax."""
    file = f"{PAPERS}/lsh/results/words_200/tables.md"
    rows = []
    for name, search in (
        ("`lsh`", "lsh T=6000 t=2"),
        ("`top`", "top T=6000"),
        ("`screened`", "screened"),
        ("all words, with `--int8`", "full --int8"),
    ):
        where = (file, "Table 7", search)
        rows.append((name, *(cells_of(*where, each)[0] for each in ("softmax", "overall", "BLEU"))))
    return table(("softmax", "speed of the softmax", "of the whole decoding", "BLEU lost"), rows)
