"""What does a glossary cost whose terms are placed (--glossary-placement align)?

    python scripts/bench/placement.py [--glossary FILE] [--glossary-match casefold] [--beams 1 5]
        [--model DIR --text PREFIX --limit N] [--out OUT]

The same lines are translated with and without the glossary, in turns:
all lines, those with a term in the source, and those without. Times are CPU seconds of the search
and the placement; loading is not in them. "glossary / none" is the quotient of each round, the
median over the rounds. "a line" is what the glossary adds to a line with a term, in milliseconds:
the glossary's seconds less the others, over the number of lines with a term.

    --glossary FILE           the demo's handbook by default
    --glossary-match MATCH    surface, casefold or lemma (surface)
    --lines ROW ...           rows of the tables (all)
    --beams N ...             (1 5)
    --max-tokens N            of a batch (4000)
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from contenders import ours
from harness import BenchError, Spread, compare, fix_threads
from report import ROOT, Page, named
from text import (
    command_line,
    prepare,
    read_lines,
    run_script,
    text_arguments,
    timing_arguments,
)

from fairseq_ext.core.glossary import Languages, LineErrors, read
from fairseq_ext.core.words import matcher, words_of

LINES = {"all": lambda has: True, "with terms": lambda has: has, "without": lambda has: not has}
HEAD = ["lines", "number", "none, s", "glossary, s", "glossary / none", "a line, ms", "BLEU"]


def main(argv: list[str] | None = None) -> None:
    handbook = ROOT / "data" / "demo" / "terms.handbook.tsv"
    parse = command_line(__doc__, {"lines": LINES}, glossary=handbook)
    text_arguments(parse)
    timing_arguments(parse)
    args = parse.parse_args(argv)
    fix_threads(args.threads)
    finder = matcher(args.glossary_match, args.src)
    languages = Languages(args.src, args.tgt)
    for number, entry in enumerate(read(str(args.glossary), "--glossary", languages, LineErrors())):
        finder.add(words_of(entry.source), number)
    sources = read_lines(args.text, args.src, args.limit)
    has = [bool(finder.matches(words_of(source))) for source in sources]
    if not any(has):
        raise BenchError(f"no line of {args.text}.{args.src} has a term of {args.glossary}")
    page = Page(args.out)
    glossary = ["--glossary", str(args.glossary), "--glossary-match", args.glossary_match]
    with tempfile.TemporaryDirectory() as folder:
        for beam in args.beams:
            rows = []
            for name in args.lines:
                keep = lambda i, name=name: LINES[name](has[i])  # noqa: E731
                if not any(map(keep, range(len(has)))):
                    continue
                pair = (args.model, args.text, args.src, args.tgt, args.limit)
                text = prepare(Path(folder, name.replace(" ", "_")), *pair, keep)
                flags = ["--cpu", "--beam", str(beam), "--max-tokens", str(args.max_tokens)]
                ways = {"none": [*flags, *text.bpe], "glossary": [*flags, *text.bpe, *glossary]}
                made = [ours(text, way, kind, exact=False) for kind, way in ways.items()]
                how = dict(threads=args.threads, bleu=text.bleu, clock=time.process_time)
                none, own = compare(made, args.repeats, **how).results
                medians = [Spread.of(each.seconds).median for each in (none, own)]
                terms = 0 if name == "without" else sum(has)
                more = f"{1000 * (medians[1] - medians[0]) / terms:.2f}" if terms else ""
                seconds = [f"{median:.2f}" for median in medians]
                over = Spread.ratio(own.seconds, none.seconds).shown(3)
                count = str(len(text.references))
                rows.append([name, count, *seconds, over, more, f"{own.bleu:.2f}"])
            about = f"{named(args.model)}, {named(args.text)}, {named(args.glossary)}"
            page.add_table(HEAD, rows, f"{about}, beam {beam}")


if __name__ == "__main__":
    run_script(main)
