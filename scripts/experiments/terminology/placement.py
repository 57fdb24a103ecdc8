"""Compare ways to put a glossary's terms into a translation.

    python scripts/experiments/terminology/placement.py --out DIR --name TITLE --displaced F
        [--beams 5 1 10] [--model DIR] [--text PREFIX] [--src de] [--tgt en] [--limit N]
    python scripts/experiments/terminology/placement.py --out DIR --name TITLE --glossary F
        [--match casefold] [--in-reference] [--lines-of FILE WORD] [...]

--displaced: terms that the model would not use, and the words that they displace
(placement_scores.py): no glossary, those words replaced by hand, fairseq's own constrained
search, which takes no alternatives: with each term's first form, and with the one that the
reference has (form known), --glossary-placement free and align, at the first beam also again: the
draft up to the word that the term displaces and the term are a prefix, and the rest is searched.
Also how often each alignment finds the displaced word.
--glossary: terms that agree with the references: no glossary, fairseq, free and align.
--in-reference: only lines whose terms are all in the reference. --lines-of: only those for which
FILE has WORD.

Only lines with a term are translated. DIR/placement.json holds the sections by name; what is run
again takes its old place there, so a section can be made in parts, and DIR/tables.md has their
tables. Outputs are in DIR/outputs, a line each. It runs on the CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "bench"), str(HERE.parent / "optimal_ending")]

from contenders import StockFailed, stock_translations  # noqa: E402
from placement_scores import (  # noqa: E402
    AttentiveModel,
    Entry,
    Line,
    accuracy,
    again,
    as_word,
    bleu_over,
    by_hand,
    entries_of,
    measured,
)
from searches import (  # noqa: E402
    command_line,
    machine,
    model_flags,
    named,
    quiet,
    read_text,
    run_script,
    text_arguments,
)
from write_up import Results, made_by, table, write_json, write_tables  # noqa: E402

from fairseq_ext.search.report import Translation  # noqa: E402
from fairseq_ext.translator import Translator  # noqa: E402

WAYS = ("fairseq", "fairseq, form known", "free", "align", "again")


def read_displaced(file: Path) -> list[Entry]:
    """A table of displaced words."""
    rows = (line.split("\t") for line in file.read_text(encoding="utf-8").splitlines())
    return [
        Entry(source, *(tuple(words.split("|")) for words in others)) for source, *others in rows
    ]


class Section:
    """A text, its terms, and the ways to place them."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.flags = dict(cpu=True, batch_size=64, **model_flags(args.model, args.src, args.tgt))
        self.table = read_displaced(args.displaced or args.glossary)
        pairs = list(zip(*read_text(args.text, args.src, args.tgt), strict=True))
        if args.lines_of:
            file, word = args.lines_of
            kinds = Path(file).read_text(encoding="utf-8").splitlines()
            pairs = [pair for pair, kind in zip(pairs, kinds, strict=True) if kind == word]
        is_cased = args.match == "surface"
        kept = [
            (*pair, entries)
            for pair in pairs[: args.limit]
            if (entries := entries_of(pair[0], self.table, is_cased))
            and (not args.in_reference or all(e.is_in(pair[1]) for e in entries))
        ]
        self.sources, self.plain, self.entries = map(list, zip(*kept, strict=True))
        self.references = [
            by_hand(line, entries) for line, entries in zip(self.plain, self.entries, strict=True)
        ]
        self.work = args.out / "outputs" / args.name.replace(" ", "-").replace("/", "-")
        self.work.mkdir(parents=True, exist_ok=True)
        self.accuracy: dict[str, Any] | None = None
        self.glossary = self.work / "glossary.tsv"
        self.glossary.write_text(
            "".join(f"{e.source}\t{'|'.join(e.forms)}\n" for e in self.table), encoding="utf-8"
        )

    def translator(self, beam: int, placement: str | None = None) -> Translator:
        """The model, with a glossary where a placement is given."""
        more = (
            {
                "glossary": str(self.glossary),
                "glossary_match": self.args.match,
                "glossary_placement": placement,
            }
            if placement
            else {}
        )
        return Translator(**self.flags, beam=beam, **more)

    def translated(self, beam: int, placement: str | None = None) -> list[Translation]:
        """The best hypotheses."""
        print(
            f"{self.args.name}: {placement or 'no glossary'}, beam {beam}",
            file=sys.stderr,
            flush=True,
        )
        return [nbest[0] for nbest in self.translator(beam, placement).translate(self.sources)]

    def of_fairseq(self, beam: int, known: bool) -> list[str]:
        """What fairseq's own constrained search makes of the terms; nothing where it fails.

        known: it gets the references' forms.
        """
        print(f"{self.args.name}: fairseq, beam {beam}", file=sys.stderr, flush=True)
        languages = self.args.src, self.args.tgt
        for language, lines in zip(languages, (self.sources, self.plain), strict=True):
            (self.work / f"text.{language}").write_text(
                "".join(line + "\n" for line in lines), encoding="utf-8"
            )
        pieces = (
            Translator(**self.flags).task.session.sentences.constraint_source().segmenter.pieces
        )
        pairs = zip(self.references, self.entries, strict=True)
        reported = [
            [[f for f in e.forms if known and as_word(f).search(line)] or e.forms for e in entries]
            for line, entries in pairs
        ]
        phrases = [[forms[0] for forms in of_line] for of_line in reported]
        flags = ["--cpu", "--beam", str(beam), "--batch-size", str(self.flags["batch_size"])]
        try:
            return stock_translations(
                self.args.model, str(self.work / "text"), languages, flags, phrases, pieces
            )[0]
        except StockFailed as error:
            print(f"{self.args.name}: {error}", file=sys.stderr)
            return []

    def of_beam(self, beam: int) -> list[dict[str, Any]]:
        """A row of the table for each way at a beam."""
        drafts = self.translated(beam)
        texts = {"no glossary": [draft.text for draft in drafts]}
        if self.args.displaced:
            texts["by hand"] = [
                by_hand(*each) for each in zip(texts["no glossary"], self.entries, strict=True)
            ]
        for way in [way for way in WAYS[:2] if way in self.args.ways]:
            if lines := self.of_fairseq(beam, way != "fairseq"):
                texts[way] = lines
        inserted: dict[str, int] = {}
        for placement in [way for way in ("free", "align") if way in self.args.ways]:
            found = self.translated(beam, placement)
            texts[placement] = [each.text for each in found]
            inserted[placement] = sum(len(each.elsewhere) for each in found)
        if "again" in self.args.ways and self.args.displaced and beam == self.args.beams[0]:
            translator = self.translator(beam)
            model = AttentiveModel(self.flags["path"], translator.task)
            lines = [
                Line.of(model, translator, *each)
                for each in zip(self.sources, drafts, self.entries, strict=True)
            ]
            self.accuracy = accuracy(model, lines)
            print(f"{self.args.name}: again, beam {beam}", file=sys.stderr, flush=True)
            texts["again"] = again(model, translator, lines, self.args.tgt)
        baseline = texts["by hand" if self.args.displaced else "no glossary"]
        rows = []
        for way, output in texts.items():
            (self.work / f"{beam}.{way.replace(' ', '-')}").write_text(
                "".join(line + "\n" for line in output), encoding="utf-8"
            )
            scores = measured(output, self.references, self.entries)
            scores.over = (
                None if output is baseline else bleu_over(output, baseline, self.references)
            )
            rows.append(
                {"beam": beam, "way": way}
                | scores.as_dict()
                | ({"inserted": inserted[way]} if way == "align" else {})
            )
        return rows

    def about(self) -> dict[str, Any]:
        """What a section of placement.json says next to its rows."""
        about = {
            "model": named(self.args.model),
            "text": named(self.args.text),
            "languages": [self.args.src, self.args.tgt],
        }
        about |= {
            "kind": "displaced" if self.args.displaced else "agreeing",
            "sentences": len(self.sources),
        }
        return about | {"entries": len(self.table), "machine": machine()}


def keep(
    file: Path,
    name: str,
    about: dict[str, Any],
    rows: list[dict[str, Any]],
    found: dict[str, Any] | None,
) -> None:
    """Put rows, and how often alignments find the displaced words, into a section
    of placement.json."""
    sections = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    old = sections.get(name, {"rows": [], "accuracy": None})
    of_place = {(row["beam"], row["way"]): row for row in (*old["rows"], *rows)}
    order = sorted(
        of_place, key=lambda place: (place[0], ("no glossary", "by hand", *WAYS).index(place[1]))
    )
    sections[name] = about | {
        "rows": [of_place[place] for place in order],
        "accuracy": found or old["accuracy"],
    }
    write_json(file, sections)


SCORES = ["BLEU", "chrF", "TER"]
DISPLACED = ["way", *SCORES, "terms met", "displaced word still there", "appended at the end"]
DISPLACED += ["BLEU over by hand (95 % interval)"]
AGREEING = ["way", *SCORES, "terms met", "BLEU over no glossary (95 % interval)"]


def cells(row: dict[str, Any], displaced: bool) -> list[str]:
    """A way's line."""
    counts = ("met", "left", "appended") if displaced else ("met",)
    over = "" if row["over"] is None else "{:+.1f} ({:+.1f} to {:+.1f})".format(*row["over"])
    scores = [f"{row[name.lower()]:.1f}" for name in SCORES]
    return [row["way"], *scores, *(str(row[name]) for name in counts), over]


def section(name: str, found: dict[str, Any]) -> str:
    """A text: a table for each beam."""
    displaced = found["kind"] == "displaced"
    out = []
    for beam in dict.fromkeys(row["beam"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["beam"] == beam]
        title = f"{name}, beam {beam}: {rows[0]['terms']} terms in {found['sentences']} sentences"
        head = DISPLACED if displaced else AGREEING
        out.append(table(head, [cells(row, displaced) for row in rows], title))
        inserted = next((row["inserted"] for row in rows if row["way"] == "align"), 0)
        out.append(f"align has {inserted} terms elsewhere: inserted, or brought in by a search.\n")
    return "\n".join(out)


def alignments(results: Results) -> str:
    """The share of displaced words that each alignment finds."""
    of_text = {name: found["accuracy"] for name, found in results.items() if found["accuracy"]}
    if not of_text:
        return ""
    head = ["alignment"]
    for name, found in of_text.items():
        head += [f"{name} ({found['terms']} terms)", f"{name}, shifted"]
    names = dict.fromkeys(name for found in of_text.values() for name in found["found"])

    def share(found: dict[str, Any], name: str, shift: int) -> str:
        of_alignment = found["found"].get(name)
        return f"{of_alignment[shift] / found['terms']:.1%}" if of_alignment else ""

    rows = [
        [name, *(share(found, name, shift) for found in of_text.values() for shift in (0, 1))]
        for name in names
    ]
    return table(head, rows, "Which alignment finds the displaced word")


def markdown(results: Results) -> str:
    """tables.md. The machine is that of the last section."""
    *_, last = results.values()
    parts = [section(name, found) for name, found in results.items()]
    made = f"Made by placement.py: {made_by(last['machine'])}\n"
    return "\n".join([*parts, alignments(results), made])


def main(argv: Sequence[str] | None = None) -> None:
    parse = command_line(__doc__)
    text_arguments(parse)
    terms = parse.add_mutually_exclusive_group(required=True)
    terms.add_argument(
        "--displaced",
        type=Path,
        help="terms that the references lack, with the words that they displace",
    )
    terms.add_argument("--glossary", type=Path, help="terms that the references have (TSV)")
    parse.add_argument(
        "--match", choices=["surface", "casefold"], default="surface", help="of terms (surface)"
    )
    parse.add_argument(
        "--in-reference", action="store_true", help="only lines whose terms the reference has"
    )
    parse.add_argument(
        "--lines-of", nargs=2, metavar=("FILE", "WORD"), help="only these lines (all)"
    )
    parse.add_argument(
        "--beams", type=int, nargs="+", default=[5], help="again runs at the first (5)"
    )
    parse.add_argument(
        "--ways",
        nargs="+",
        choices=WAYS,
        default=list(WAYS),
        help="next to no glossary and by hand (all)",
    )
    parse.add_argument("--name", required=True, help="title of the section")
    parse.add_argument("--out", type=Path, required=True, help="folder for outputs and results")
    args = parse.parse_args(argv)
    quiet()
    section = Section(args)
    for beam in args.beams:
        rows = section.of_beam(beam)
        keep(args.out / "placement.json", args.name, section.about(), rows, section.accuracy)
        write_tables(None, "placement.py", markdown, out=args.out)


if __name__ == "__main__":
    run_script(main)
