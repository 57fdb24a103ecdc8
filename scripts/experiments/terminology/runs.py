"""Run the searches that place terms, side by side, and score them.

    python scripts/experiments/terminology/runs.py --out DIR [--model DIR] [--text PREFIX]
        [--limit N] [--beam 5] [--glossary F] [--proper F] [--sets rand1 rand2 rand3 rand4 phr4]
        [--methods ...]

Terms: rand1 .. phr4 are words and phrases of the references, as experiments/dba draws them (WMT's
"random" terms); --proper is a glossary of which those terms are requested that the reference has;
--glossary is requested as it stands, whether the reference agrees or not (make_glossary.py
makes both kinds). Each search becomes a file of DIR/searches; those that are there are not
repeated, so an interrupted run goes on where it was. DIR/runs.json holds the scores, from which
tables.py and figures.py work.
Term success, window overlap and the share behind final punctuation are those of `python -m
fairseq_ext.terms score`; p is the paired bootstrap against dba. Times are of decoding alone:
compare them within one machine that does nothing else.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [
    str(HERE.parents[1] / "bench"),
    str(HERE.parent / "optimal_ending"),
    str(HERE.parent / "dba"),
]

from bootstrap import compare  # noqa: E402
from constrained_stock import stock_translations  # noqa: E402
from extract import MORE_SETS, SETS, extract  # noqa: E402
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
from write_up import kept, write_json  # noqa: E402

from fairseq_ext.core.lemmas import lemmatizer  # noqa: E402
from fairseq_ext.terms.cases import Sentence, Term  # noqa: E402
from fairseq_ext.terms.formats import Files  # noqa: E402
from fairseq_ext.terms.formats import read_text as read_with_glossary  # noqa: E402
from fairseq_ext.terms.metrics import success_words  # noqa: E402
from fairseq_ext.terms.score import EvaluationSet, score  # noqa: E402
from fairseq_ext.translator import Translator  # noqa: E402

SOFT = {f"bonus {b}": {"constraint_bonus": b} for b in (1, 2, 4, 8)}
METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    # Post and Vilar 2018, wholly
    "paper": {"dba_allocation": "paper", "stop": "ranked", "prune_finished": 20.0},
    "dba": {},
    "end": {"constraint_end": True},
    **SOFT,
    "gbs": {"select": "gbs", "gbs_base": 5},
    "cbs": {"select": "cbs"},
    "fairseq": {},  # its own constrained search
}
DEFAULT = ["none", "paper", "dba", "end", "bonus 2", "bonus 4", "fairseq"]
BASELINE = "dba"
MOST_CBS = 3  # constraints of a sentence: cbs has a bank for each subset


@dataclass
class Run:
    """What one search over a text found."""

    stats: dict[str, Any]
    seconds: float  # of decoding
    texts: list[str]


class Runs:
    """The text, its terms, and the searches over them."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.flags = dict(
            cpu=args.cpu,
            batch_size=args.batch_size,
            beam=args.beam,
            **model_flags(args.model, args.src, args.tgt),
        )
        self.sources, self.references = read_text(args.text, args.src, args.tgt, args.limit)
        quiet()
        self.segmenter = (
            Translator(**self.flags).task.session.sentences.constraint_source().segmenter
        )
        self.lemmas = lemmatizer(args.src, "--src"), lemmatizer(args.tgt, "--tgt")

    def terms(self, name: str) -> list[tuple[Term, ...]]:
        """The terms of each sentence in a set."""
        if name in MORE_SETS:
            drawn = extract(self.references, name, self.args.seed, self.segmenter.writable)
            return [
                tuple(Term(phrase, (phrase,), marked=True) for phrase in line) for line in drawn
            ]
        file = self.args.glossary if name == "glossary" else self.args.proper
        args = self.args
        files = Files(
            f"{args.text}.{args.tgt}", args.tgt, args.src, f"{args.text}.{args.src}", str(file)
        )
        found = read_with_glossary(files)[0][: args.limit]
        return [
            each.terms
            if name == "glossary"
            else tuple(filter(partial(self.is_proper, each), each.terms))
            for each in found
        ]

    def is_proper(self, sentence: Sentence, term: Term) -> bool:
        """Whether the reference has a term, as term success counts."""
        test_set = EvaluationSet([replace(sentence, terms=(term,))], *self.lemmas, "")
        return success_words(test_set.cases([sentence.reference]))[0][0] > 0

    def sentences(self, terms: list[tuple[Term, ...]]) -> list[Sentence]:
        """The test set of these terms."""
        return [Sentence(*each) for each in zip(self.sources, self.references, terms, strict=True)]

    def search(self, name: str, method: str, terms: list[tuple[Term, ...]]) -> Run:
        """Translate with a method; from the file of this name if it holds the same search."""
        given = [[list(term.targets) for term in line] for line in terms]
        key = [self.flags, METHODS[method], self.sources, given if method != "none" else None]
        label = f"{name if method != 'none' else 'none'}.{method.replace(' ', '-')}.json"

        def run() -> dict[str, Any]:
            if method == "fairseq":
                return asdict(self.stock(given))
            return asdict(self.ours(METHODS[method], None if method == "none" else given))

        return Run(**kept(self.args.out / "searches" / label, key, run))

    def ours(self, flags: dict[str, Any], given: list | None) -> Run:
        """A search of this package."""
        if given is not None:
            flags = {"constraints": "unordered"} | flags
        translator = Translator(**self.flags, **flags)
        found = translator.translate(self.sources, constraints=given)
        stats = translator.stats.as_dict()
        return Run(stats, stats["seconds"], [nbest[0].text for nbest in found])

    def stock(self, given: list[list[list[str]]]) -> Run:
        """fairseq's own constrained search; it takes no alternatives, so the first of each term."""
        args = self.args
        flags = ["--cpu", "--beam", str(args.beam), "--batch-size", str(args.batch_size)]
        phrases = [[alternatives[0] for alternatives in line] for line in given]
        texts, seconds = stock_translations(
            args.model,
            args.text,
            (args.src, args.tgt),
            flags,
            phrases,
            self.segmenter.pieces,
            args.limit,
        )
        return Run({}, seconds, texts)

    def scores(
        self, name: str, method: str, terms: list[tuple[Term, ...]], baseline: list[str], free: Run
    ) -> dict[str, Any]:
        """A row of the tables."""
        run = self.search(name, method, terms)
        test_set = EvaluationSet(self.sentences(terms), *self.lemmas, f"terms:{name}")
        found = score(test_set, run.texts)
        keep = (
            "bleu",
            "chrf2pp",
            "term_success",
            "term_success_words",
            "terms",
            "after_final_punctuation",
            "window_overlap",
        )
        facts: dict[str, Any] = {"set": name, "method": method, "sentences": len(run.texts)} | {
            key: found[key] for key in keep
        }
        facts["p"] = {
            key: value["p"]
            for key, value in compare(test_set, run.texts, baseline, self.args.draws).items()
        }
        counts = run.stats.get("constraints", {})
        facts |= {"met": counts.get("met"), "given": counts.get("given")}
        rows = run.stats["decoder_rows"] / free.stats["decoder_rows"] if run.stats else None
        signature = run.stats.get("signature", "fairseq")
        return facts | {"rows": rows, "time": run.seconds / free.seconds, "signature": signature}

    def rows(self) -> list[dict[str, Any]]:
        """Every method on every set; cbs where no sentence has too many constraints."""
        sets = [
            *self.args.sets,
            *["proper"] * bool(self.args.proper),
            *["glossary"] * bool(self.args.glossary),
        ]
        out = []
        for name in sets:
            terms = self.terms(name)
            free = self.search(name, "none", terms)
            baseline = self.search(name, BASELINE, terms).texts
            left_out = {"cbs"} if max(map(len, terms)) > MOST_CBS else set()
            methods = [method for method in self.args.methods if method not in left_out]
            out += [self.scores(name, method, terms, baseline, free) for method in methods]
            self.write(out)
        return out

    def write(self, rows: list[dict[str, Any]]) -> None:
        """DIR/runs.json."""
        args = self.args
        about = {
            "model": named(args.model),
            "text": named(args.text),
            "languages": [args.src, args.tgt],
            "seed": args.seed,
        }
        about |= {
            "sentences": len(self.sources),
            "beam": args.beam,
            "draws": args.draws,
            "machine": machine(),
        }
        write_json(args.out / "runs.json", about | {"rows": rows})


def main() -> None:
    parse = command_line(__doc__)
    text_arguments(parse)
    parse.add_argument(
        "--glossary", type=Path, help="terms that are asked for wherever a source has them (none)"
    )
    parse.add_argument(
        "--proper",
        type=Path,
        help="terms that are asked for where the reference has them too (none)",
    )
    parse.add_argument(
        "--sets",
        nargs="*",
        choices=MORE_SETS,
        default=list(SETS),
        help="terms drawn from the references",
    )
    parse.add_argument("--methods", nargs="+", choices=METHODS, default=DEFAULT)
    parse.add_argument("--seed", type=int, default=1, help="of the extraction (1)")
    parse.add_argument("--beam", type=int, default=5, help="(5)")
    parse.add_argument("--batch-size", type=int, default=64, help="sentences (64)")
    parse.add_argument("--draws", type=int, default=500, help="of the bootstrap (500)")
    parse.add_argument("--cpu", action="store_true", help="no GPU even if there is one")
    parse.add_argument("--out", type=Path, required=True, help="folder for searches and results")
    args = parse.parse_args()
    Runs(args).rows()


if __name__ == "__main__":
    run_script(main)
