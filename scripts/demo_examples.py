"""What scripts/demo.sh shows first: three sentences with what is asked of their translations, and
how often a glossary works on text that nobody chose."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Example(NamedTuple):
    """A sentence of the demo, and what is asked of its translation."""

    source: str
    required: str
    glossary: str
    banned: str


# half of the test set is of another field
GLOSSARY = Path(__file__).resolve().parent.parent / "data" / "demo" / "glossary.tech.tsv"
EXAMPLES = (
    Example("Der Verband wird morgen geprüft.", "bandage", "Verband\tdressing|bandage", "tomorrow"),
    Example("Die Ärztin öffnet die Akte.", "record", "Akte\tfile", "doctor"),
    Example("Die Kollegin prüft den Befund.", "examines", "Befund\ttest result", "finding"),
)


def command(args: argparse.Namespace, source: Path, batch: str) -> list[str]:
    """The command that translates a file, `batch` lines at a time."""
    words = [
        "fairseq-interactive",
        str(args.model),
        "--path",
        str(args.model / "checkpoint.pt"),
        "--source-lang",
        args.src,
    ]
    words += [
        "--target-lang",
        args.tgt,
        "--bpe",
        "sentencepiece",
        "--sentencepiece-model",
        str(args.model / "spm.model"),
    ]
    return [*words, "--input", str(source), "--buffer-size", batch, "--batch-size", batch]


def show(args: argparse.Namespace, ours: list[str], run: Callable[[list[str], Path], str]) -> None:
    """Print each example: fairseq's own translation, with a required word, with a glossary,
    and with a banned word.

    ours: the flags that switch this project on; run: gives a command's standard output, its
    messages in the named file.
    """
    (args.work / "required.tsv").write_text(
        "".join(e.required + "\n" for e in EXAMPLES), encoding="utf-8"
    )
    (args.work / "glossary.tsv").write_text(
        "".join(e.glossary + "\n" for e in EXAMPLES), encoding="utf-8"
    )
    (args.work / "banned.txt").write_text(
        "".join(e.banned + "\n" for e in EXAMPLES), encoding="utf-8"
    )
    (args.work / "examples.txt").write_text(
        "".join(e.source + "\n" for e in EXAMPLES), encoding="utf-8"
    )
    ways = {
        "stock fairseq": [],
        "required word": [*ours, "--constraints-file", f"{args.work}/required.tsv"],
        "glossary": [*ours, "--glossary", f"{args.work}/glossary.tsv"],
        "banned word": [*ours, "--avoid-file", f"{args.work}/banned.txt"],
    }
    found = {}
    for name, flags in ways.items():
        print(f"demo: three sentences: {name}", flush=True)
        output = run(
            [*command(args, args.work / "examples.txt", "10"), *flags], args.work / "examples.log"
        )
        found[name] = re.findall(r"^D-\d+\t[^\t]*\t(.*)$", output, flags=re.MULTILINE)
    print()
    for number, example in enumerate(EXAMPLES):
        asked = (
            "",
            example.required,
            example.glossary.replace("\t", " = "),
            f"no {example.banned}",
        )
        print(f"  {'German':15}  {example.source}")
        for (name, lines), what in zip(found.items(), asked, strict=True):
            print(f"  {name:15}  {lines[number]}" + (f"   [{what}]" if what else ""))
        print(flush=True)
    print(f"  {'all sentences':15}  {uncurated(args, ours, run)}\n", flush=True)


def uncurated(
    args: argparse.Namespace, ours: list[str], run: Callable[[list[str], Path], str]
) -> str:
    """What became of a glossary's terms on the test set, in the words of the run's log."""
    lines = Path(f"{args.test}.{args.src}").read_text(encoding="utf-8").splitlines()[: args.limit]
    (args.work / "test.txt").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    log = args.work / "glossary.log"
    print(f"demo: {len(lines):,} sentences with {GLOSSARY.name}", flush=True)
    run([*command(args, args.work / "test.txt", "100"), *ours, "--glossary", str(GLOSSARY)], log)
    found = re.search(r"\d+ glossary terms? in .*? unmet", log.read_text(encoding="utf-8"))
    return f"{GLOSSARY.name} on all {len(lines):,}: {found[0] if found else 'no term'}"
