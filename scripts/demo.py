"""What scripts/demo.sh runs: example sentences and a program's messages with and without required
phrases, term bases and banned phrases; then a table of methods on the demo's sentences.

All of it runs in one process. The model is small and was trained in hours: it makes mistakes of its
own, which no method mends.
"""

import argparse
import contextlib
import io
import logging
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "bench"))
if __name__ == "__main__":  # before fairseq is imported, which logs what is not installed
    logging.disable(logging.WARNING)

import demo_examples  # noqa: E402
import sacrebleu  # noqa: E402
from contenders import ours, stock  # noqa: E402
from harness import BenchError, Comparison, compare, fix_threads  # noqa: E402
from text import Text, prepare  # noqa: E402

DATA = demo_examples.DATA
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


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/demo.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--all", action="store_true", help="all of the example sentences")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="the table: the first N sentences of each kind (all)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="the table: timed passes (3)"
    )
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="threads (1; more gain little here)"
    )
    parser.add_argument(
        "--list", action="store_true", help="name the methods and their flags, and stop"
    )
    args = parser.parse_args()
    for name in ("limit", "rounds", "threads"):
        if (given := getattr(args, name)) is not None and given < 1:
            fail(f"--{name} must be 1 or more, not {given}")
    return args


def main() -> None:
    args = parse()
    if args.list:
        for name, method in METHODS.items():
            print(f"{name}: {' '.join(method.flags) or '(no flag)'}")
        return
    for name in ("checkpoint.pt", "spm.model", "dict.de.txt", "dict.en.txt"):
        if not (demo_examples.MODEL / name).is_file():
            fail(f"{demo_examples.MODEL / name} is missing; a clone has it.")
    fix_threads(args.threads)
    listed = demo_examples.examples()
    shown = listed if args.all else listed[: demo_examples.BEST]
    best = f"the {len(shown)} best of {len(listed)} (--all shows them all)"
    failing = f"{len(listed)}; after the first {demo_examples.BEST} come some where it fails"
    print(f"demo: sentences, {failing if args.all else best}")
    print("  Each line changes a phrase; the other words are the model's, its mistakes too.\n")
    demo_examples.show(shown)
    print("demo: the messages of a program")
    print("  The term base mends terms, not the grammar (“no enough”); quotes around %s stay.\n")
    demo_examples.show_page()
    numbers = part(args.limit)
    print(f"demo: {len(numbers)} sentences, every method {args.rounds} times\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_text(work, numbers)
        try:
            text = prepare(work, demo_examples.MODEL, str(work / "lines"), "de", "en")
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
