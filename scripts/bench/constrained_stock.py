"""fairseq's own constrained search against DBA, cell by cell (parts of constrained.py): a cell is a set of constraints at a beam.

quality: mean score of the best hypotheses, sentences that score better and worse, BLEU, decoder rows over unconstrained search; each search
runs once. A cell is accepted where worse <= better + 2% of the sentences. speed: interleaved rounds; accepted from 5 times as fast on.
fairseq meets phrases inside words too, so the two compare under --constraint-boundary none; whole words stand beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from against_stock import SPEED, compare_scores, stock_constrained
from counted import Counted, Row, searching
from extract import MORE_SETS
from harness import Spread, compare
from report import machine
from text import Text

INSIDE = ["--constraint-boundary", "none"]  # phrases count inside words too, as fairseq counts them
HEADS = {
    "quality": ["set", "beam", "rows", "mean score", "fairseq's mean", "better", "worse", "accepted", "BLEU", "fairseq's BLEU"]
    + [f"whole words: {column}" for column in ("rows", "mean", "better", "worse", "BLEU")],
    "speed": ["set", "beam", "times as fast (min-max)", "accepted", "time over unconstrained"]
    + [f"whole words: {column}" for column in ("times as fast", "time over unconstrained")],
}


@dataclass
class Searches:
    """The contenders of a cell: fairseq's own constrained search, ours without constraints, DBA as fairseq counts and on whole words."""

    theirs: Counted
    free: Counted
    inside: Counted
    whole: Counted

    @classmethod
    def of(
        cls, text: Text, flags: Sequence[str], phrases: Sequence[Sequence[str]], given: Sequence[str], pieces: Callable[[str], list[str]]
    ) -> Searches:
        """flags: of all of them; given: flags that give the phrases; pieces: a phrase as symbols of the target dictionary."""
        ours = {"free": [], "inside": [*given, *INSIDE], "whole": [*given]}
        made = {name: searching(text, [*flags, *more], name) for name, more in ours.items()}
        return cls(stock_constrained(text, flags, phrases, pieces, "fairseq"), **made)

    def all(self) -> list[Counted]:
        """In the order of a race."""
        return [self.theirs, self.free, self.inside, self.whole]


def quality(searches: Searches, text: Text) -> dict[str, Any]:
    """Scores of a cell."""
    bleu = {}
    for name, each in vars(searches).items():
        bleu[name] = text.bleu(each.contender.read(each.contender.run()))
    rows = searches.free.stats["rows"]
    facts: dict[str, Any] = {"BLEU": bleu["theirs"]}
    for name in ("inside", "whole"):
        each = getattr(searches, name)
        scores = compare_scores(each.outputs, searches.theirs.outputs)
        facts |= {"mean": scores.mean_of_other, "sentences": scores.sentences}
        facts[name] = {"rows": each.stats["rows"] / rows, "mean": scores.mean, "better": scores.better, "worse": scores.worse}
        facts[name] |= {"accepted": scores.accepted, "BLEU": bleu[name]}
    return facts


def speed(searches: Searches, repeats: int, threads: int) -> dict[str, Any]:
    """Times of a cell: ratios of each round."""
    race = compare([each.contender for each in searches.all()], repeats, threads=threads)
    stock, free, *ours = race.results
    facts: dict[str, Any] = {"load": race.load, "sentences": race.sentences}
    for name, result in zip(("inside", "whole"), ours, strict=True):
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
        return [name, str(beam), f"{median:.2f} ({low:.2f}-{high:.2f})", verdict, *(f"{value:.2f}" for value in taken)]
    first = [f"{inside['rows']:.3f}", f"{inside['mean']:.4f}", f"{facts['mean']:.4f}", str(inside["better"]), str(inside["worse"])]
    first += ["yes" if inside["accepted"] else "no", f"{inside['BLEU']:.2f}", f"{facts['BLEU']:.2f}"]
    last = [f"{whole['rows']:.3f}", f"{whole['mean']:.4f}", str(whole["better"]), str(whole["worse"]), f"{whole['BLEU']:.2f}"]
    return [name, str(beam), *first, *last]


@dataclass
class Cells:
    """The measured cells of a part, kept in a folder where there is one; what it holds is not measured again.

    key: what the figures depend on beside set and beam; cells of another key are left alone and not shown.
    """

    part: str
    key: list[Any]
    folder: Path | None
    found: dict[tuple[str, int], dict[str, Any]]

    @classmethod
    def read(cls, part: str, key: list[Any], folder: Path | None) -> Cells:
        """The cells that an earlier run has measured."""
        cells = cls(part, key, folder, {})
        for file in sorted(folder.glob(f"*.{part}.json")) if folder is not None else ():
            saved = json.loads(file.read_text(encoding="utf-8"))
            if saved["key"] == key:
                cells.found[saved["set"], saved["beam"]] = saved
        return cells

    def measure(self, name: str, beam: int, run: Callable[[], dict[str, Any]]) -> None:
        """Measure a cell unless it is there."""
        if (name, beam) in self.found:
            return
        cell = {"key": self.key, "set": name, "beam": beam, "machine": machine(), "facts": run()}
        self.found[name, beam] = cell
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = self.folder / f"{name}.{beam}.{self.part}.json"
            file.write_text(json.dumps(cell, indent=1) + "\n", encoding="utf-8")

    def table(self, title: str) -> tuple[str, list[Row]]:
        """Title, with what made the cells, and rows, by beam."""
        cells = sorted(self.found.items(), key=lambda item: (item[0][1], list(MORE_SETS).index(item[0][0])))
        made = dict.fromkeys((cell["machine"]["git_commit"], cell["machine"]["git_changed"]) for _, cell in cells)
        commits = ", ".join(f"commit {commit}{' with changes' if changed else ''}" for commit, changed in made)
        dates = sorted(cell["machine"]["date"] for _, cell in cells)
        facts = cells[0][1]["machine"]
        about = f"torch {facts['torch']}, {facts['cores']} cores of {facts['cpu']}, {commits}, {dates[0]} to {dates[-1]}."
        if self.part == "speed":
            load = max(cell["facts"]["load"] for _, cell in cells)
            about += f" Highest load average: {load:.1f}."
        return f"{title}\n\n{about}", [row(self.part, *place, cell["facts"]) for place, cell in cells]
