"""What does a glossary cost whose terms are placed (--glossary-placement align)?

    python scripts/bench/placement.py [--glossary FILE] [--glossary-match casefold] [--beams 1 5]
        [--model DIR --text PREFIX --limit N] [--out OUT]

The same lines are translated with and without the glossary, in turns:
all lines, those with a term in the source, and those without. Times are CPU seconds of the search
and the placement; loading is not in them. "glossary / none" is the quotient of each round, the
median over the rounds. "a line" is what the glossary adds to a line with a term, in milliseconds:
the glossary's seconds less the others, over the number of lines with a term.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from arguments import command_line, run_script, text_arguments, timing_arguments
from counted import Row, print_tables, searching
from harness import BenchError, Spread, compare, fix_threads
from report import ROOT, named, spread
from text import Text, prepare

from fairseq_ext.core.glossary import Languages, LineErrors, read
from fairseq_ext.core.words import matcher, words_of

LINES = ("all", "with terms", "without")
HEAD = ["lines", "number", "none, s", "glossary, s", "glossary / none", "a line, ms", "BLEU"]


def lines_of(prefix: str, language: str, limit: int | None) -> list[str]:
    """The first lines of a text file."""
    text = Path(f"{prefix}.{language}").read_text(encoding="utf-8")
    return text.removesuffix("\n").split("\n")[:limit]


def have_term(args: argparse.Namespace, sources: Sequence[str]) -> list[bool]:
    """Whether each source has a term of the glossary."""
    languages = Languages(args.src, args.tgt)
    finder = matcher(args.glossary_match, args.src)
    entries = read(str(args.glossary), "--glossary", languages, LineErrors())
    for number, entry in enumerate(entries):
        finder.add(words_of(entry.source), number)
    return [bool(finder.matches(words_of(source))) for source in sources]


def prepared(args: argparse.Namespace, folder: Path) -> tuple[dict[str, Text], int]:
    """The lines of each row of the table, and the number of those with a term."""
    sources, references = (lines_of(args.text, x, args.limit) for x in (args.src, args.tgt))
    has = have_term(args, sources)
    if not any(has):
        raise BenchError(f"no line of {args.text}.{args.src} has a term of {args.glossary}")
    chosen = dict(zip(LINES, ([True] * len(has), has, [not each for each in has]), strict=True))
    texts = {}
    for name, of in chosen.items():
        if name not in args.lines or not any(of):
            continue
        place = folder / name.replace(" ", "_")
        place.mkdir()
        for language, lines in ((args.src, sources), (args.tgt, references)):
            kept = "".join(f"{line}\n" for line, is_in in zip(lines, of, strict=True) if is_in)
            (place / f"lines.{language}").write_text(kept, encoding="utf-8")
        texts[name] = prepare(place, args.model, str(place / "lines"), args.src, args.tgt)
    return texts, sum(has)


def row(args: argparse.Namespace, name: str, text: Text, beam: int, terms: int) -> Row:
    """A row of the table. terms: lines with a term."""
    spm = args.model / "spm.model"
    bpe = ["--bpe", "sentencepiece", "--sentencepiece-model", str(spm)] if spm.exists() else []
    flags = ["--cpu", "--beam", str(beam), "--max-tokens", str(args.max_tokens), *bpe]
    glossary = ["--glossary", str(args.glossary), "--glossary-match", args.glossary_match]
    how = {"none": flags, "glossary": [*flags, *glossary]}
    made = [searching(text, more, kind).contender for kind, more in how.items()]
    clock = time.process_time
    races = compare(made, args.repeats, threads=args.threads, bleu=text.bleu, clock=clock)
    none, own = (races[kind].seconds for kind in how)
    over = Spread.of([a / b for a, b in zip(own, none, strict=True)])
    medians = [Spread.of(seconds).median for seconds in (none, own)]
    more = f"{1000 * (medians[1] - medians[0]) / terms:.2f}" if terms else ""
    seconds = [f"{median:.2f}" for median in medians]
    bleu = f"{races['glossary'].bleu:.2f}"
    return [name, str(len(text.references)), *seconds, spread(over), more, bleu]


def main() -> None:
    parse = command_line(__doc__)
    text_arguments(parse)
    default = ROOT / "data" / "demo" / "terms.handbook.tsv"
    parse.add_argument("--glossary", type=Path, default=default, help="(the demo's handbook)")
    parse.add_argument(
        "--glossary-match", default="surface", choices=["surface", "casefold", "lemma"]
    )
    parse.add_argument("--lines", nargs="+", choices=LINES, default=list(LINES), help="(all rows)")
    parse.add_argument("--beams", type=int, nargs="+", default=[1, 5], help="(1 5)")
    parse.add_argument("--max-tokens", type=int, default=4000, help="of a batch (4000)")
    timing_arguments(parse)
    args = parse.parse_args()
    fix_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        texts, with_terms = prepared(args, Path(folder))
        about = f"{named(args.model)}, {named(args.text)}, {named(args.glossary)}"
        print_tables(
            (
                (
                    f"{about}, beam {beam}",
                    HEAD,
                    [
                        row(args, name, text, beam, 0 if name == "without" else with_terms)
                        for name, text in texts.items()
                    ],
                )
                for beam in args.beams
            ),
            args.out,
        )


if __name__ == "__main__":
    run_script(main)
