"""Races of our own searches against each other whose decoder rows are counted too, as rows
of a Markdown table."""

import contextlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contenders import OURS, load, read
from equality import Outputs
from harness import Comparison, Contender, Spread, as_json, compare
from report import machine
from text import Text

Row = list[str]
TIMES = ["seconds", "time (min-max)", "rows", "a row"]  # the columns of `ratios`


@dataclass
class Counted:
    """A contender with what it has counted."""

    contender: Contender
    stats: dict[str, Any] = field(default_factory=dict)  # of the last run
    outputs: Outputs = field(default_factory=list)  # of the last run


def searching(text: Text, flags: Sequence[str], name: str) -> Counted:
    """Ours with these fairseq-generate flags; C- lines are not printed."""
    loaded = load([*OURS, *text.flags, *flags])
    # as fairseq-generate does: constraints are segmented by them
    loaded.task.build_tokenizer(loaded.cfg.tokenizer)
    loaded.task.build_bpe(loaded.cfg.bpe)
    generator = loaded.task.build_generator(loaded.models, loaded.cfg.generation)

    def run() -> list:
        before = generator.stats.copy()
        with contextlib.redirect_stdout(io.StringIO()):
            out = [
                (b["id"].tolist(), loaded.task.inference_step(generator, loaded.models, b))
                for b in loaded.batches
            ]
        found = generator.stats.since(before).as_dict()
        counted.stats = {**found.get("constraints", {}), "rows": found["decoder_rows"]}
        return out

    def keep(decoded: list) -> Outputs:
        counted.outputs = read(decoded)
        return counted.outputs

    counted = Counted(Contender(name, run, keep, exact=False, signature=generator.stats.signature))
    return counted


def race(text: Text, counted: Sequence[Counted], repeats: int, threads: int) -> Comparison:
    return compare([c.contender for c in counted], repeats, threads=threads, bleu=text.bleu)


def ratios(races: Comparison, counted: Sequence[Counted]) -> list[Row]:
    """For each search the columns TIMES: seconds, and time, decoder rows and time a row
    over the first search's."""
    out, reference = [], races.results[0]
    for c, result in zip(counted, races.results, strict=True):
        taken = Spread.of([a / b for a, b in zip(result.seconds, reference.seconds, strict=True)])
        seconds, time = (
            f"{Spread.of(result.seconds).median:.2f}",
            f"{taken.median:.2f} ({taken.low:.2f}-{taken.high:.2f})",
        )
        more = c.stats["rows"] / counted[0].stats["rows"] if c.stats else None
        out.append(
            [seconds, time, *([f"{more:.3f}", f"{taken.median / more:.2f}"] if more else ["", ""])]
        )
    return out


def after_the_best(c: Counted, k: int) -> str:
    """The share of decoder rows that came after a sentence's best hypothesis was finished,
    the beam full until then."""
    useful = sum(1 + k * (len(hypotheses[0][0]) - 1) for hypotheses in c.outputs)
    return f"{max(0.0, 1 - useful / c.stats['rows']):.0%}"


def markdown(title: str, head: Row, rows: Sequence[Row]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return f"### {title}\n\n" + "".join("| " + " | ".join(line) + " |\n" for line in lines)


def print_tables(tables: Iterable[tuple[str, Row, list[Row]]], out: Path | None) -> None:
    """Print each table, of title, head and rows, as soon as it is there; with `out`,
    write all that are there."""
    found: dict[str, tuple[Row, list[Row]]] = {}
    for title, head, rows in tables:
        found[title] = (head, rows)
        print(markdown(title, head, rows), flush=True)
        if out:
            write_tables(out, found)


def write_tables(out: Path, tables: Mapping[str, tuple[Row, list[Row]]]) -> None:
    """OUT.md and OUT.json, with the machine's facts."""
    out.parent.mkdir(parents=True, exist_ok=True)
    facts = {
        title: [dict(zip(head, row, strict=True)) for row in rows]
        for title, (head, rows) in tables.items()
    }
    text = [
        *(markdown(title, head, rows) for title, (head, rows) in tables.items()),
        json.dumps(machine(), ensure_ascii=False),
        "",
    ]
    out.with_name(out.name + ".md").write_text("\n".join(text), encoding="utf-8")
    out.with_name(out.name + ".json").write_text(
        as_json({"machine": machine(), "tables": facts}) + "\n", encoding="utf-8"
    )
