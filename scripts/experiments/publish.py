"""Puts what a paper's experiments wrote into the project: the sources of docs/results,
with how they were made.

    python scripts/experiments/publish.py begin --out OUT
    python scripts/experiments/publish.py finish --out OUT --paper PAPER --name NAME [--into ROOT]
        --command 'run.sh ...'

begin: notes commit and date in OUT/begun.json unless that is there, because a run that was
stopped goes on with what it has. finish: ROOT/scripts/experiments/PAPER/results/NAME gets the
pictures and tables.md, headed by command, machine, versions, signatures, dates and commit;
ROOT/docs/results/PAPER.md gets a section for it if it has none. `scripts/docs.py --write`
then fills the pages.

    --out DIR         of the experiments (required)
    --paper PAPER     folder of scripts/experiments
    --name NAME       of these results, among others of the paper
    --into DIR        the checkout that gets the results; this one by default
    --command WORDS   what was run
"""

import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path += [
    str(Path(__file__).resolve().parent),
    str(Path(__file__).resolve().parents[1] / "bench"),
]

from harness import BenchError  # noqa: E402
from report import ROOT, changes, machine, without_places  # noqa: E402
from text import command_line  # noqa: E402
from write_up import with_message  # noqa: E402

FOLDERS = re.compile(r"(?<==)/[^|,]*/(?=[^|,/]+)")  # of a file in a signature, often a random name


def signatures(value: Any) -> Iterator[str]:
    """Every "signature" in a JSON value."""
    if isinstance(value, dict):
        if isinstance(value.get("signature"), str) and value["signature"]:
            yield value["signature"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from signatures(item)


def folded(names: Iterable[str]) -> str:
    """A folded paragraph with the signatures, each once, in their order, without the flags in
    brackets behind them; "" where there are none."""
    found = list(dict.fromkeys(name.partition(" (")[0] for name in names))
    if not found:
        return ""
    title = f"{len(found)} signature{'s' * (len(found) != 1)}"
    lines = [f"<details><summary>{title}</summary>", "", *(f"- `{name}`" for name in found)]
    return "\n".join([*lines, "", "</details>"])


def begin(out: Path) -> None:
    """Note where and when the experiments of this folder began."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "begun.json"
    if not file.exists():
        file.write_text(json.dumps(machine(), indent=1), encoding="utf-8")


def how_made(out: Path, command: str) -> str:
    """The paragraphs before the tables.

    The commit is that of the beginning: later ones may have measured a part only.
    """
    try:
        begun = json.loads((out / "begun.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchError(
            f"{out / 'begun.json'} is missing: publish.py begin --out {out} comes before "
            "the experiments"
        ) from error
    now = machine()
    results = (json.loads(file.read_text(encoding="utf-8")) for file in sorted(out.rglob("*.json")))
    found = folded(FOLDERS.sub("", name) for result in results for name in signatures(result))
    changed = changes(begun)
    end = f" to {now['date']}" + (
        f", the last part at {now['git_commit']}"
        if now["git_commit"] != begun["git_commit"]
        else ""
    )
    end += changes(now) if changes(now) != changed else ""
    lines = [
        (
            f"Every table here: `{without_places(command)}` on {begun['cores']} "
            f"core{'s' * (begun['cores'] != 1)} of {begun['cpu']}; python {begun['python']}, torch "
            f"{begun['torch']}, fairseq {begun['fairseq']}; "
            f"commit {begun['git_commit'] or 'none'}{changed}; {begun['date']}{end}."
        ),
    ]
    return "\n".join([*lines, *(["", found] if found else [])]) + "\n"


def finish(out: Path, paper: str, name: str, into: Path, command: str) -> Path:
    """Write the results into the project; the file of tables."""
    parts = [
        out / "tables.md",
        *sorted(file for file in out.glob("*.md") if file.name != "tables.md"),
    ]
    if not parts[0].exists():
        raise BenchError(
            f"{parts[0]} is missing: the experiments of {paper} have not come to their end"
        )
    folder = into / "scripts" / "experiments" / paper / "results" / name
    folder.mkdir(parents=True, exist_ok=True)
    for picture in out.glob("*.svg"):
        shutil.copy(picture, folder)
    text = "\n".join(
        [
            how_made(out, command),
            *(part.read_text(encoding="utf-8").strip() + "\n" for part in parts),
        ]
    )
    (folder / "tables.md").write_text(text, encoding="utf-8")
    source = (folder / "tables.md").relative_to(into).as_posix()
    page = into / "docs" / "results" / f"{paper}.md"
    title = paper.replace("_", " ").capitalize()
    old = (
        page.read_text(encoding="utf-8")
        if page.exists()
        else f"# {title}\n\nWritten by `scripts/experiments/run.sh`.\n\n"
        "<!-- generated: age -->\n<!-- end -->\n"
    )
    if f"generated: results {source} " not in old:
        section = f"\n## {name}\n\n<!-- generated: results {source} -->\n<!-- end -->\n"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(old.rstrip("\n") + "\n" + section, encoding="utf-8")
    return folder / "tables.md"


def main() -> None:
    parse = command_line(__doc__, into=ROOT, command="")
    parse.add_argument("step", choices=["begin", "finish"])
    args = parse.parse_args()
    if args.step == "begin":
        begin(args.out)
    elif not args.paper or not args.name:
        parse.error("finish needs --paper and --name")
    else:
        print(
            with_message(lambda: finish(args.out, args.paper, args.name, args.into, args.command))
        )


if __name__ == "__main__":
    main()
