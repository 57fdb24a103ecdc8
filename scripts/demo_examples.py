"""What scripts/demo.sh shows first: sentences with required phrases, a term base and banned
phrases, and the messages of a program with a term base."""

import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from contenders import stock
from text import prepare

from fairseq_ext import Translator

ROOT = Path(__file__).resolve().parent.parent
MODEL, DATA = ROOT / "checkpoints" / "demo", ROOT / "data" / "demo"
BEST = 6  # the first lines of examples.tsv are shown without --all
PAGE = DATA / "documents" / "messages.po"


class Example(NamedTuple):
    """A sentence, a phrase that its translation must contain, and one that it must not."""

    kind: str
    source: str
    required: str
    banned: str


def examples() -> list[Example]:
    """Return all examples, the best first."""
    lines = (DATA / "examples.tsv").read_text(encoding="utf-8").splitlines()
    return [Example(*line.split("\t")) for line in lines]


def translator(kind: str = "") -> Translator:
    """Return the demo model, with the term base of a kind of text where one is named."""
    glossary: dict[str, Any] = {"glossary": str(DATA / f"terms.{kind}.tsv")}
    return Translator.from_folder(MODEL, beam=5, cpu=True, **glossary if kind else {})


def stock_translations(sources: list[str]) -> list[str]:
    """Return the translations of fairseq's own search at beam 5."""
    with tempfile.TemporaryDirectory() as folder:
        for side in ("de", "en"):
            Path(folder, f"lines.{side}").write_text("".join(s + "\n" for s in sources), "utf-8")
        text = prepare(Path(folder), MODEL, f"{folder}/lines", "de", "en")
        found = stock(text, ["--cpu", "--beam", "5", "--max-tokens", "4000"])
        return text.lines(found.read(found.run()))


def show(shown: list[Example]) -> None:
    """Print each example: stock, with its required phrase, with the term base of its kind, and
    without its banned phrase."""
    sources, plain = [e.source for e in shown], translator()
    lines = {
        "stock fairseq": stock_translations(sources),
        "required": texts(plain.translate(sources, constraints=[[e.required] for e in shown])),
        "term base": [""] * len(shown),
        "banned": [texts(plain.translate([e.source], avoid=[e.banned]))[0] for e in shown],
    }
    for kind in ("handbook", "letters"):
        numbers = [i for i, e in enumerate(shown) if e.kind == kind]
        found = translator(kind).translate([sources[i] for i in numbers]) if numbers else []
        for i, text in zip(numbers, texts(found), strict=True):
            lines["term base"][i] = text
    for i, example in enumerate(shown):
        print(f"  {'German':14} {example.source}")
        notes = {"required": example.required, "banned": f"no “{example.banned}”"}
        for name, found_lines in lines.items():
            if found_lines[i]:
                note = f"   [{notes[name]}]" if name in notes else ""
                print(f"  {name:14} {found_lines[i]}{note}")
        print(flush=True)


def texts(found: list) -> list[str]:
    """Return the best translation of each line."""
    return [hypotheses[0].text for hypotheses in found]


def show_page() -> None:
    """Print the messages that the term base changes, before and after."""
    german = re.findall(r'^msgid "(.+)"$', PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    before, after = (
        translator(kind).translate_text("\n".join(german)).text.splitlines()
        for kind in ("", "handbook")
    )
    changed = [row for row in zip(german, before, after, strict=True) if row[1] != row[2]]
    name = PAGE.relative_to(ROOT)
    print(f"  {name}: terms.handbook.tsv changes {len(changed)} of {len(german)} messages\n")
    for line, old, new in changed:
        print(f"  {'German':14} {line}\n  {'without':14} {old}\n  {'term base':14} {new}\n")
    print(end="", flush=True)
