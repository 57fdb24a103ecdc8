"""What the scripts of every paper share: searches that are kept in files, results in one JSON file,
and tables and figures of it."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

from harness import BenchError  # noqa: E402
from report import named, table  # noqa: E402, F401
from text import command_line  # noqa: E402

Results = dict[str, Any]
Figures = Callable[[Results], Mapping[str, Sequence[dict[str, Any]]]]  # panels by name


def read_results(out: Path, script: str) -> Results:
    """OUT/NAME.json, which NAME.py makes, or OUT/runs.json of run.py."""
    file = out / ("runs.json" if script == "run.py" else Path(script).with_suffix(".json").name)
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchError(f"{file} is missing: run {script} --out {out} first") from error


def write_json(file: Path, value: Any) -> None:
    """Write a file in one move: an interrupted run leaves whole files only."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
    os.replace(part, file)


def kept(file: Path, key: Any, make: Callable[[], Any]) -> Any:
    """The value in `file` if it was made from the same key, else a new one, which is kept there."""
    key = json.loads(json.dumps(key, default=str))
    if file.exists():
        saved = json.loads(file.read_text(encoding="utf-8"))
        if saved["key"] == key:
            return saved["value"]
    print(file.stem, file=sys.stderr, flush=True)
    write_json(file, {"key": key, "value": make()})
    return json.loads(file.read_text(encoding="utf-8"))["value"]


def with_interval(quality: Mapping[str, float]) -> str:
    """BLEU with half the width of its 95 % interval."""
    return f"{quality['bleu']:.2f} ±{(quality['high'] - quality['low']) / 2:.2f}"


def difference_cell(over: Sequence[float] | None) -> str:
    """A difference and its interval; "" for none."""
    return "{:+.2f} ({:+.2f} to {:+.2f})".format(*over) if over else ""


def ratio_cell(above: Sequence[float], below: Sequence[float]) -> str:
    """The mean of the rounds' ratios, and their range."""
    found = sorted(a / b for a, b in zip(above, below, strict=True))
    return f"{sum(found) / len(found):.2f}x ({found[0]:.2f}-{found[-1]:.2f})"


def made_by(facts: Mapping[str, Any]) -> str:
    """The machine, in the words of the last line of a table's note."""
    # results of old lack fairseq's
    versions = "".join(f"{name} {facts[name]}, " for name in ("python", "fairseq") if name in facts)
    return (
        f"{versions}torch {facts['torch']}, {facts['cpu']}, commit {facts['git_commit'] or 'none'}"
        f", {facts['date']}."
    )


def write_tables(
    doc: str | None,
    script: str,
    markdown: Callable[[Results], str],
    figures: Figures = lambda results: {},
    out: Path | None = None,
) -> None:
    """OUT/tables.md, also printed, and OUT/NAME.svg for each figure; out: that of the command
    line, `--out DIR`, unless it is given."""
    out = out or folder(doc)
    results = with_message(lambda: read_results(out, script))
    text = markdown(results)
    (out / "tables.md").write_text(text, encoding="utf-8")
    print(text)
    for name, panels in figures(results).items():
        from figure_style import draw

        print(draw(out / name, *panels))


def folder(doc: str | None) -> Path:
    parse = command_line(doc)
    parse.add_argument("--out", type=Path, required=True, help="folder of the results")
    return parse.parse_args().out


def with_message(act: Callable[[], Any]) -> Any:
    """act(), or its BenchError as the command's last words."""
    try:
        return act()
    except BenchError as error:
        sys.exit(f"error: {error}")
