"""The three sentences that scripts/demo.sh shows first, and what is asked of their translations."""

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


EXAMPLES = (
    Example("Der Verband wird morgen geprüft.", "bandage", "Verband\tdressing|bandage", "tomorrow"),
    Example("Die Ärztin öffnet die Akte.", "record", "Akte\tfile", "doctor"),
    Example("Die Kollegin prüft den Befund.", "examines", "Befund\ttest result", "finding"),
)


def show(args: argparse.Namespace, ours: list[str], run: Callable[[list[str], Path], str]) -> None:
    """Print each example: fairseq's own translation, with a required word, with a glossary, and with a banned word.

    ours: the flags that switch this project on; run: gives a command's standard output, its messages in the named file.
    """
    (args.work / "required.tsv").write_text("".join(e.required + "\n" for e in EXAMPLES), encoding="utf-8")
    (args.work / "glossary.tsv").write_text("".join(e.glossary + "\n" for e in EXAMPLES), encoding="utf-8")
    (args.work / "banned.txt").write_text("".join(e.banned + "\n" for e in EXAMPLES), encoding="utf-8")
    (args.work / "examples.txt").write_text("".join(e.source + "\n" for e in EXAMPLES), encoding="utf-8")
    ways = {
        "stock fairseq": [],
        "required word": [*ours, "--constraints-file", f"{args.work}/required.tsv"],
        "glossary": [*ours, "--glossary", f"{args.work}/glossary.tsv"],
        "banned word": [*ours, "--avoid-file", f"{args.work}/banned.txt"],
    }
    found = {}
    for name, flags in ways.items():
        print(f"demo: three sentences: {name}", flush=True)
        command = ["fairseq-interactive", str(args.model), "--path", str(args.model / "checkpoint.pt"), "--source-lang", args.src]
        command += ["--target-lang", args.tgt, "--bpe", "sentencepiece", "--sentencepiece-model", str(args.model / "spm.model")]
        command += ["--input", str(args.work / "examples.txt"), "--buffer-size", "10", "--batch-size", "10", *flags]
        output = run(command, args.work / "examples.log")
        found[name] = re.findall(r"^D-\d+\t[^\t]*\t(.*)$", output, flags=re.MULTILINE)
    print()
    for number, example in enumerate(EXAMPLES):
        asked = ("", example.required, example.glossary.replace("\t", " = "), f"no {example.banned}")
        print(f"  {'German':15}  {example.source}")
        for (name, lines), what in zip(found.items(), asked, strict=True):
            print(f"  {name:15}  {lines[number]}" + (f"   [{what}]" if what else ""))
        print(flush=True)
