"""Pages of results: tables of comparisons and of anything else as Markdown (for people) and JSON
(for everything else, raw times included), with the machine and the commit."""

import dataclasses
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from harness import Comparison, Result, Spread

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ("fairseq_ext",)  # what is measured
CODE = (*PACKAGE, "scripts", ":!scripts/**/results/**")  # what a measurement depends on

OWN_FOLDERS = re.compile(r" --(?:out|into) (?:'[^']*'|\S+)")
# a URL; a quoted path, which may have spaces; a path
PLACES = re.compile(
    r"\w+://[^\s'\"`]*|'(?:~[\w.-]*|\.{1,2})?/[^']*'|(?<![\w./])(?:~[\w.-]*|\.{1,2})?/[^\s'\"`,:|]*"
)


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", level: str = "###"
) -> str:
    """A Markdown table; the first column is on the left, the others on the right."""
    assert all(len(row) == len(head) for row in rows), "a row has other columns than the head"
    lines = [f"{level} {title}\n"] * bool(title)
    lines += [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


class Page:
    """Text that is printed as it is added and, where `out` is given, written to OUT.md; OUT.json
    has what was added with it. Both are written after every addition, so that an interrupted
    benchmark keeps what it has."""

    def __init__(self, out: Path | None, note: str = ""):
        self.out, self.parts = out, [note.rstrip() + "\n"] * bool(note)
        self.data: list[object] = []
        if note:
            print(note, flush=True)

    def add(self, text: str, data: object = None) -> None:
        print(text, flush=True)
        self.parts.append(text)
        self.data += [] if data is None else [data]
        self.write()

    def add_table(
        self, head: Sequence[str], rows: Sequence[Sequence[str]], title: str = ""
    ) -> None:
        """A table, whose JSON has an object a row."""
        cells = [dict(zip(head, row, strict=True)) for row in rows]
        self.add(table(head, rows, title), {"title": title, "rows": cells})

    def add_comparison(
        self, found: Comparison, over: Sequence[str] = (), more: "Columns | None" = None
    ) -> None:
        self.add(comparison_table(found, over, more or no_columns), as_dict(found))

    def write(self) -> None:
        if self.out is None:
            return
        facts = machine()
        self.out.parent.mkdir(parents=True, exist_ok=True)
        text = "\n".join([*self.parts, where_and_when(facts), ""])
        self.out.with_name(self.out.name + ".md").write_text(text, encoding="utf-8")
        if self.data:
            everything = as_json({"machine": facts, "tables": self.data})
            self.out.with_name(self.out.name + ".json").write_text(everything, encoding="utf-8")


def as_json(value: object) -> str:
    """JSON that other programs accept: no NaN, no infinity."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


Facts = dict[str, str | int | bool | None]  # of a machine
Columns = Callable[[Result], Mapping[str, str]]  # further cells of a contender, by column


def no_columns(result: Result) -> dict[str, str]:
    return {}


def comparison_table(
    comparison: Comparison, over: Sequence[str] = (), more: Columns = no_columns
) -> str:
    """A table of the contenders; one speed-up column for each name in `over` (the reference
    if none is given). A refused one shows dashes where its speed would stand."""
    results = comparison.results
    names = [result.contender.name for result in results]
    over = [name for name in over or names[:1] if name in names]
    shown, columns, ties = [], dict.fromkeys(("contender", "seconds (min-max)", "sentences/s")), []
    columns |= dict.fromkeys(f"times {name}" for name in over)
    for result in results:
        contender, verdict = result.contender, str(result.verdict)
        cells = {"contender": contender.name}
        if result.refused:
            verdict = f"**{verdict}: no speed shown**"
        else:
            taken = Spread.of(result.seconds)
            cells["seconds (min-max)"] = taken.shown(3)
            cells["sentences/s"] = f"{comparison.sentences / taken.median:.1f}"
            for name in over:
                ratio = comparison.speed_up(contender.name, name)
                cells |= {f"times {name}": ratio.shown(2, "x")} if ratio else {}
            cells |= more(result)
            cells |= {"peak MiB": f"{result.peak_mib:.0f}"} if result.peak_mib else {}
        cells |= {"instructions": contender.instructions} if contender.instructions else {}
        if not contender.exact:
            verdict = f"best equal in {result.same_best} of {comparison.sentences}"
        elif result.verdict:
            ties += [
                f"- near-tie of {contender.name}: sentence {sentence}, rank {rank}, scores "
                f"{gap:.1e} apart"
                for sentence, rank, gap in result.verdict.near_ties
            ]
        bleu = "" if result.bleu is None else f", BLEU {result.bleu:.2f}"
        columns |= dict.fromkeys(cells)
        shown.append({**cells, "outputs": verdict + bleu})
    head = [*columns, "outputs"]
    rows = [[cells.get(name, "-") for name in head] for cells in shown]
    lines = [re.sub(r" ---: \|$", " --- |", table(head, rows, comparison.title), flags=re.M)]
    lines += ties[:10]
    lines += [f"- and {len(ties) - 10} more near-ties (all of them in the JSON)"] * (len(ties) > 10)
    threads = f", torch threads: {comparison.threads}" if comparison.threads else ""
    lines += [""] * bool(ties) + [
        f"{comparison.sentences} sentences, median of {len(results[0].seconds)} interleaved "
        f"rounds{threads}; speed-ups are medians of per-round ratios."
    ]
    # waiting OpenMP threads spin, so too few cores slow one contender or another at random
    if comparison.load > cores() + 0.5:
        lines.append(
            f"\n**Other jobs were running (load average {comparison.load:.1f} on {cores()} "
            "cores): take no speed from this table.**"
        )
    return "\n".join(lines) + "\n"


def as_dict(comparison: Comparison) -> dict[str, object]:
    """Everything known of a comparison; a refused contender keeps its verdict
    and loses its times."""
    contenders = []
    for result in comparison.results:
        facts: dict[str, object] = {
            key: getattr(result.contender, key)
            for key in ("name", "signature", "exact", "instructions")
        }
        facts |= {key: getattr(result, key) for key in ("refused", "same_best", "bleu", "peak_mib")}
        facts |= {"outputs": str(result.verdict), "verdict": dataclasses.asdict(result.verdict)}
        facts |= {} if result.refused else {"seconds": result.seconds}
        contenders.append(facts)
    shared = {key: getattr(comparison, key) for key in ("title", "sentences", "threads", "load")}
    return shared | {"contenders": contenders}


def machine() -> Facts:
    """Where and when this runs."""
    import torch

    return {
        "cpu": cpu_model(),
        "cores": cores(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fairseq": version("fairseq"),
        "torch_threads": torch.get_num_threads(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "git_commit": git("rev-parse", "--verify", "HEAD"),
        "git_changed": has_changes(CODE),
        "package_changed": has_changes(PACKAGE),
    }


def has_changes(paths: Sequence[str]) -> bool:
    """Whether files of these paths are not as the commit has them."""
    return bool(git("status", "--porcelain", "--untracked-files=no", "--", *paths))


def changes(facts: Facts) -> str:
    """What the checkout that measured had not committed, to follow the commit; "" for nothing."""
    if facts.get("package_changed", facts["git_changed"]):
        return ", with changes of the package that were not committed"
    return ", with changes of scripts that were not committed" if facts["git_changed"] else ""


def named(path: str | Path) -> str:
    """The last two names of a path, for tables: "europarl/test" says more than "test"."""
    return last_two(Path(os.path.abspath(path)).parts[1:])


def last_two(names: Sequence[str]) -> str:
    """The last two names of an absolute path, joined by /. A home folder is not among them,
    because it has its user's name."""
    home = {"home": 2, "Users": 2, "root": 1}.get(names[0], 0) if names else 0
    return "/".join(names[home:][-2:])


def without_places(text: str) -> str:
    """The text without --out and --into, and with paths that begin with /, . or ~ cut to their
    last two names; URLs stay."""
    return PLACES.sub(lambda found: cut(found[0]), OWN_FOLDERS.sub("", text))


def cut(place: str) -> str:
    """What PLACES matches, cut: a path or, in quotes, several paths with : between them."""
    if "://" in place:
        return place
    if place.startswith("'"):
        return "'" + ":".join(map(cut, place[1:-1].split(":"))) + "'"
    names = [name for name in place.split("/") if name not in ("", ".", "..") and name[0] != "~"]
    return last_two(names) or place


def where_and_when(facts: Facts) -> str:
    """A line of what `machine` says, under tables."""
    return (
        f"torch {facts['torch']}, {facts['cores']} cores of {facts['cpu']}, commit "
        f"{facts['git_commit'] or 'none'}{changes(facts)}, {facts['date']}"
    )


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    """The processor's name as Linux gives it."""
    try:
        names = re.findall(r"^model name\s*: *(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        names = []
    return names[0] if names else platform.processor()


def git(*arguments: str, root: Path = ROOT) -> str | None:
    """What git says of this checkout; None outside one or before its first commit."""
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
