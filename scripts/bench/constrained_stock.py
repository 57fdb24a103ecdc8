"""fairseq's own constrained search against DBA, cell by cell (parts of constrained.py): a cell is a
set of constraints at a beam.

quality: mean score of the best hypotheses, sentences that score better and worse, decoder rows
over unconstrained search; each search runs once. A cell is accepted where worse <= better + 2%
of the sentences. bleu: BLEU and length of the outputs of the same searches, with 95 % intervals
(intervals.py); a difference is one of BLEU on the same resamples; long, repeats: outputs, as
`ramblers` counts them. speed: interleaved rounds; accepted from 5 times as fast.
fairseq meets phrases inside words too, so the two compare under --constraint-boundary none;
whole words stand next to it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from against_stock import SPEED, StockFailed, compare_scores, ramblers, stock_constrained
from counted import Counted, Row, searching
from extract import MORE_SETS
from harness import BenchError, Spread, compare
from intervals import bleu, counts_of, half, interval, resampled
from report import changes, machine
from text import Text

# in a signature: which words, not how they are searched
FILE = re.compile(r",constraints_file=[^|,]*")
INSIDE = ["--constraint-boundary", "none"]  # phrases count inside words too, as fairseq counts them
HEADS = {
    "quality": [
        "set",
        "beam",
        "rows",
        "mean score",
        "fairseq's mean",
        "better",
        "worse",
        "accepted",
    ]
    + [f"whole words: {column}" for column in ("rows", "mean", "better", "worse")],
    "bleu": [
        "set",
        "beam",
        "BLEU",
        "fairseq's BLEU",
        "difference",
        "over unconstrained",
        "whole words: BLEU",
        "whole words: difference",
    ]
    + [
        "length ratio",
        "fairseq's",
        "whole words",
        "long, fairseq's",
        "whole words",
        "repeats, fairseq's",
        "whole words",
    ],
    "speed": ["set", "beam", "times as fast (min-max)", "accepted", "time over unconstrained"]
    + [f"whole words: {column}" for column in ("times as fast", "time over unconstrained")],
}


@dataclass
class Searches:
    """The contenders of a cell: fairseq's own constrained search, ours without constraints, DBA as
    fairseq counts and on whole words. required: tokens of each sentence's phrases."""

    theirs: Counted
    free: Counted
    inside: Counted
    whole: Counted
    required: list[int]

    @classmethod
    def of(
        cls,
        text: Text,
        flags: Sequence[str],
        beams: tuple[int, int],
        phrases: Sequence[Sequence[str]],
        given: Sequence[str],
        pieces: Callable[[str], list[str]],
    ) -> Searches:
        """flags: of all of them; beams: of ours and of fairseq's; given: flags that give the
        phrases; pieces: a phrase as symbols of the target dictionary."""
        own, stocks = ([*flags, "--beam", str(beam)] for beam in beams)
        ours = {"free": [], "inside": [*given, *INSIDE], "whole": [*given]}
        made = {name: searching(text, [*own, *more], name) for name, more in ours.items()}
        required = [sum(len(pieces(phrase)) for phrase in line) for line in phrases]
        stock = stock_constrained(text, stocks, phrases, pieces, "fairseq")
        return cls(stock, **made, required=required)

    def all(self) -> list[Counted]:
        """In the order of a race."""
        return [self.theirs, self.free, self.inside, self.whole]


def quality(searches: Searches, text: Text) -> dict[str, Any]:
    """Scores and BLEU of a cell."""
    names = ("theirs", "free", "inside", "whole")
    every = {name: getattr(searches, name) for name in names}
    found = {name: each.contender.read(each.contender.run()) for name, each in every.items()}
    measured = against(
        text.references, {name: text.lines(outputs) for name, outputs in found.items()}
    )
    rows = searches.free.stats["rows"]
    facts: dict[str, Any] = {name: measured[name] for name in ("theirs", "free")}
    for name in ("theirs", "whole"):
        measured[name]["long"], measured[name]["repeats"] = ramblers(
            text, found[name], found["free"], searches.required
        )
    for name in ("inside", "whole"):
        each = getattr(searches, name)
        scores = compare_scores(each.outputs, searches.theirs.outputs)
        facts |= {"mean": scores.mean_of_other, "sentences": scores.sentences}
        facts[name] = {
            "rows": each.stats["rows"] / rows,
            "mean": scores.mean,
            "better": scores.better,
            "worse": scores.worse,
        }
        facts[name] |= {
            "accepted": scores.accepted,
            "signature": FILE.sub("", each.contender.signature),
            **measured[name],
        }
    return facts


def against(
    references: Sequence[str], lines: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """BLEU of each search's lines with its interval, how far it is from the others', with that
    difference's, and the length ratio."""
    counts = {name: counts_of(found, references) for name, found in lines.items()}
    drawn = {name: resampled(each) for name, each in counts.items()}
    whole = {name: float(bleu(each.sum(0))) for name, each in counts.items()}
    facts: dict[str, dict[str, Any]] = {}
    for name, each in counts.items():
        *_, output, reference = each.sum(0)
        facts[name] = {
            "BLEU": whole[name],
            "interval": interval(drawn[name]),
            "ratio": float(output / reference),
        }
        over = {
            other: [whole[name] - whole[other], *interval(drawn[name] - drawn[other])]
            for other in lines
            if other != name
        }
        facts[name]["over"] = over
    return facts


def speed(searches: Searches, repeats: int, threads: int) -> dict[str, Any]:
    """Times of a cell: ratios of each round."""
    race = compare([each.contender for each in searches.all()], repeats, threads=threads)
    stock, free = race.results[:2]
    facts: dict[str, Any] = {"load": race.load, "sentences": race.sentences}
    for name in ("inside", "whole"):
        result = race[name]
        fast = Spread.of([a / b for a, b in zip(stock.seconds, result.seconds, strict=True)])
        more = Spread.of([a / b for a, b in zip(result.seconds, free.seconds, strict=True)])
        facts[name] = {"fast": [fast.median, fast.low, fast.high], "more": more.median}
    return facts


def row(part: str, name: str, beam: int, facts: dict[str, Any]) -> Row:
    """A cell as a row of its part's table."""
    inside, whole = facts["inside"], facts["whole"]
    if part == "speed":
        median, low, high = inside["fast"]
        verdict = "yes" if median >= SPEED else "no"
        taken = [inside["more"], whole["fast"][0], whole["more"]]
        fast = f"{median:.2f} ({low:.2f}-{high:.2f})"
        return [name, str(beam), fast, verdict, *(f"{value:.2f}" for value in taken)]
    if part == "bleu":
        theirs = facts["theirs"]
        shown = [
            with_interval(inside),
            with_interval(theirs),
            difference(inside["over"]["theirs"]),
            difference(inside["over"]["free"]),
        ]
        shown += [with_interval(whole), difference(whole["over"]["theirs"])]
        shown += [f"{each['ratio']:.3f}" for each in (inside, theirs, whole)]
        return [
            name,
            str(beam),
            *shown,
            *(str(each[rambling]) for rambling in ("long", "repeats") for each in (theirs, whole)),
        ]
    first = [
        f"{inside['rows']:.3f}",
        f"{inside['mean']:.4f}",
        f"{facts['mean']:.4f}",
        str(inside["better"]),
        str(inside["worse"]),
    ]
    last = [
        f"{whole['rows']:.3f}",
        f"{whole['mean']:.4f}",
        str(whole["better"]),
        str(whole["worse"]),
    ]
    return [name, str(beam), *first, "yes" if inside["accepted"] else "no", *last]


def with_interval(measured: dict[str, Any]) -> str:
    """BLEU, and half the width of its interval."""
    return f"{measured['BLEU']:.2f} {half(*measured['interval'])}"


def difference(over: Sequence[float]) -> str:
    """A difference of BLEU and its interval."""
    value, low, high = over
    return f"{value:+.2f} ({low:+.2f} to {high:+.2f})"


@dataclass
class Cells:
    """The measured cells of a part, kept in a folder where there is one; what it holds
    is not measured again.

    key: what the figures depend on besides set and beam; cells of another key are left alone and
    not shown. failed: why fairseq's search has no figures for a set and a beam; it is not kept,
    so the next run tries again.
    """

    part: str
    key: list[Any]
    folder: Path | None
    found: dict[tuple[str, int], dict[str, Any]]
    failed: dict[tuple[str, int], str] = field(default_factory=dict)

    @classmethod
    def read(cls, part: str, key: list[Any], folder: Path | None) -> Cells:
        """The cells that an earlier run has measured."""
        cells = cls(part, key, folder, {})
        for file in sorted(folder.glob(f"*.{part}.*.json")) if folder is not None else ():
            saved = json.loads(file.read_text(encoding="utf-8"))
            if saved["key"] == key:
                cells.found[saved["set"], saved["beam"]] = saved
        return cells

    def measure(self, name: str, beam: int, run: Callable[[], dict[str, Any]]) -> None:
        """Measure a cell unless it is there."""
        if (name, beam) in self.found:
            return
        try:
            facts = run()
        except StockFailed as error:
            self.failed[name, beam] = str(error)
            return
        cell = {"key": self.key, "set": name, "beam": beam, "machine": machine(), "facts": facts}
        self.found[name, beam] = cell
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            key = hashlib.sha256(json.dumps(self.key).encode()).hexdigest()[:8]
            file = self.folder / f"{name}.{beam}.{self.part}.{key}.json"
            file.write_text(json.dumps(cell, indent=1) + "\n", encoding="utf-8")

    def table(self, title: str, part: str | None = None) -> tuple[str, list[Row]]:
        """Title, with what made the cells, and rows, by beam; part: whose columns (the cells' own).

        BenchError where there is no cell.
        """
        if not self.found:
            raise BenchError(
                "; ".join(
                    f"{name} at beam {beam}: {reason}"
                    for (name, beam), reason in self.failed.items()
                )
            )
        cells = sorted(
            self.found.items(), key=lambda item: (item[0][1], list(MORE_SETS).index(item[0][0]))
        )
        made = dict.fromkeys(
            f"commit {cell['machine']['git_commit']}{changes(cell['machine'])}" for _, cell in cells
        )
        commits = ", ".join(made)
        dates = sorted(cell["machine"]["date"] for _, cell in cells)
        facts = cells[0][1]["machine"]
        about = (
            f"torch {facts['torch']}, {facts['cores']} cores of {facts['cpu']}, {commits}, "
            f"{dates[0]} to {dates[-1]}."
        )
        about += "".join(
            f" Without {name} at beam {beam}: {reason}."
            for (name, beam), reason in self.failed.items()
        )
        if self.part == "speed":
            load = max(cell["facts"]["load"] for _, cell in cells)
            about += f" Highest load average: {load:.1f}."
        return f"{title}\n\n{about}", [
            row(part or self.part, *place, cell["facts"]) for place, cell in cells
        ]
