"""What scripts/demo.sh runs: example sentences and a program's messages with and without required
phrases, term bases and banned phrases; then a table of methods on the demo's sentences.

All of it runs in one process. The model is small and was trained in hours: it makes mistakes of its
own, which no method mends.

    --all          all of the example sentences
    --limit N      the table: the first N sentences of each kind; all by default
    --rounds N     the table: timed passes (3)
    --threads N    more gain little here (1)
    --list         name the methods and their flags, and stop
"""

import argparse
import contextlib
import io
import logging
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "bench"))
if __name__ == "__main__":  # before fairseq is imported, which logs what is not installed
    logging.disable(logging.WARNING)

import sacrebleu  # noqa: E402
from contenders import ours, stock  # noqa: E402
from harness import BenchError, Comparison, compare, fix_threads  # noqa: E402
from text import Text, command_line, prepare  # noqa: E402

from fairseq_ext import Translator  # noqa: E402

MODEL, DATA = ROOT / "checkpoints" / "demo", ROOT / "data" / "demo"
BEST = 6  # the first lines of examples.tsv are shown without --all
PAGE = DATA / "documents" / "messages.po"
STOCK, GREEDY = "stock fairseq", "stock fairseq, beam 1"
TERMS = ("handbook", "letters")


class Method(NamedTuple):
    """A row of the table: flags besides --task translation_ext, what it is compared with, and
    what to know about it."""

    flags: list[str]
    over: str = STOCK
    note: str = ""


METHODS = {
    "ours, no flag": Method([]),
    "8 bits": Method(["--int8"], note="results differ now and then"),
    "required words": Method(
        ["--constraints-file", "{work}/required.tsv"],
        note="the words of the term bases that the reference has",
    ),
    "glossary": Method(
        ["--glossary", "{work}/terms.tsv"],
        note="both term bases; slower than no flag, since lines with a term are scored again",
    ),
    "optimal ending": Method(
        "--unnormalized --stop optimal --prune-bound --length-reward 0.6".split(),
        note="the best that a beam of 5 can find for its scores, with a proof",
    ),
    "variable width": Method(
        "--schedule stream --prune-threshold 1.5 --prune-children 3".split(),
        note="beams narrow where the model is certain",
    ),
    "LSH softmax": Method(
        ["--softmax", "lsh"],
        note="loses time and BLEU: it pays above about 20,000 words, and this model has 8,000",
    ),
    "window, beam 1": Method(
        ["--beam", "1", "--decoding", "window"],
        over=GREEDY,
        note="greedy output from fewer decoder calls",
    ),
}


def fail(message: str) -> NoReturn:
    sys.exit(f"demo: {message}")


def part(limit: int | None) -> list[int]:
    """Return the numbers of the first `limit` lines of each kind of text."""
    kinds = (DATA / "test.kind").read_text(encoding="utf-8").splitlines()
    return [i for i, kind in enumerate(kinds) if limit is None or kinds[:i].count(kind) < limit]


def write_text(work: Path, numbers: list[int]) -> None:
    """Write these lines, and the words and terms for them, into the folder."""
    text = {
        side: (DATA / f"test.{side}").read_text(encoding="utf-8").splitlines()
        for side in ("de", "en", "kind")
    }
    bases = {k: (DATA / f"terms.{k}.tsv").read_text(encoding="utf-8") for k in TERMS}
    targets = {
        kind: sorted({t for line in base.splitlines() for t in line.split("\t")[1].split("|")})
        for kind, base in bases.items()
    }
    (work / "terms.tsv").write_text("".join(bases.values()), "utf-8")
    for side in ("de", "en"):
        (work / f"lines.{side}").write_text("".join(text[side][i] + "\n" for i in numbers), "utf-8")
    (work / "required.tsv").write_text(
        "".join(
            "\t".join(contained(text["en"][i], targets.get(text["kind"][i], []))) + "\n"
            for i in numbers
        ),
        "utf-8",
    )


def contained(reference: str, phrases: list[str]) -> list[str]:
    """Return the phrases that a reference contains as words, without those inside longer ones."""
    found, padded = [], f" {''.join(c if c.isalnum() else ' ' for c in reference)} "
    for phrase in sorted(phrases, key=len, reverse=True):
        if f" {phrase} " in padded:
            found.append(phrase)
            padded = padded.replace(f" {phrase} ", " ")
    return found


def comparisons(text: Text, args: argparse.Namespace, work: Path) -> list[Comparison]:
    """Run every method in turn with the stock search that it is compared with."""
    made = []
    for reference, beam in ((STOCK, "5"), (GREEDY, "1")):
        spm = ["--bpe", "sentencepiece", "--sentencepiece-model", f"{text.model}/spm.model"]
        shared = ["--cpu", "--beam", beam, "--max-tokens", "4000", *spm]
        contenders = [stock(text, shared, reference)]
        for name, method in METHODS.items():
            if method.over == reference:
                flags = [flag.format(work=work) for flag in method.flags]
                contenders.append(ours(text, [*shared, *flags], name, exact=not flags))
        with contextlib.redirect_stdout(io.StringIO()):  # the task prints constraints
            # the median leaves out a first pass that is slow
            made.append(compare(contenders, args.rounds, warmup=0))
    return made


def table(text: Text, compared: list[Comparison]) -> str:
    """Return the results as Markdown that also reads well as it stands."""
    rows = [["method", "BLEU", "chrF", "outputs equal", "times stock"]]
    for comparison in compared:
        over = comparison.results[0].contender.name
        for result in comparison.results:
            name, lines = result.contender.name, text.lines(result.outputs)
            bleu, chrf = (
                score(lines, [text.references]).score
                for score in (sacrebleu.corpus_bleu, sacrebleu.corpus_chrf)
            )
            speed = comparison.speed_up(name, over)
            same = f"{result.same_best} of {comparison.sentences}"
            ratio = f"{speed.median:.2f}" if speed else "wrong output"
            rows.append([name, f"{bleu:.1f}", f"{chrf:.1f}", same, ratio])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    rulers = ["-" * (width + 1) + (":" if column else "-") for column, width in enumerate(widths)]
    lines.insert(1, f"|{'|'.join(rulers)}|")
    return "\n".join(lines)


TRY_NEXT = """
Try next, from any folder (the first line once):
  . {root}/.venv/bin/activate; export CLONE={root} DEMO={root}/checkpoints/demo

  printf 'Angebot\\tquotation\\n' > glossary.tsv
  echo "Das Angebot muss noch geprüft werden." | fairseq-interactive $DEMO \\
    --path $DEMO/checkpoint.pt -s de -t en \\
    --bpe sentencepiece --sentencepiece-model $DEMO/spm.model \\
    --task translation_ext --glossary glossary.tsv

  $CLONE/scripts/demo.sh --serve    # a server with a page for people, at http://127.0.0.1:8000

More commands, and yours: {root}/docs/quickstart.md"""


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


def parse() -> argparse.Namespace:
    args = command_line(__doc__).parse_args()
    for name in ("limit", "rounds", "threads"):
        if (number := getattr(args, name)) is not None and number < 1:
            fail(f"--{name} must be 1 or more, not {number}")
    return args


def main() -> None:
    args = parse()
    if args.list:
        for name, method in METHODS.items():
            print(f"{name}: {' '.join(method.flags) or '(no flag)'}")
        return
    for name in ("checkpoint.pt", "spm.model", "dict.de.txt", "dict.en.txt"):
        if not (MODEL / name).is_file():
            fail(f"{MODEL / name} is missing; a clone has it.")
    fix_threads(args.threads)
    listed = examples()
    shown = listed if args.all else listed[:BEST]
    best = f"the {len(shown)} best of {len(listed)} (--all shows them all)"
    failing = f"{len(listed)}; after the first {BEST} come some where it fails"
    print(f"demo: sentences, {failing if args.all else best}")
    print("  Each line changes a phrase; the other words are the model's, its mistakes too.\n")
    show(shown)
    print("demo: the messages of a program")
    print("  The term base mends terms, not the grammar (“no enough”); quotes around %s stay.\n")
    show_page()
    numbers = part(args.limit)
    print(f"demo: {len(numbers)} sentences, every method {args.rounds} times\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_text(work, numbers)
        try:
            text = prepare(work, MODEL, str(work / "lines"), "de", "en")
            print(f"{table(text, comparisons(text, args, work))}\n")
        except BenchError as error:
            fail(str(error))
    for name, method in METHODS.items():
        if method.note:
            print(f"  {name}: {method.note}")
    print("\nDecoding alone, the median of the passes: scripts/bench measures more carefully.")
    print(TRY_NEXT.format(root=ROOT))


if __name__ == "__main__":
    main()
