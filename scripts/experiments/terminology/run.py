"""Where forced terms land, and what that costs: the searches that place terms, side by side, and
their scores; then OUT/tables.md.

    python scripts/experiments/terminology/run.py --out DIR [--model DIR] [--text PREFIX]
        [--limit N] [--beam 5] [--glossary F] [--proper F] [--sets rand1 rand2 rand3 rand4 phr4]
        [--methods ...] [--published DIR]

Terms: rand1 .. phr4 are words and phrases of the references, as experiments/dba draws them (WMT's
"random" terms); --proper is a glossary of which those terms are requested that the reference has;
--glossary is requested as it stands, whether the reference agrees or not (make_glossary.py
makes both kinds). Without arguments: the demo's model and test set, random terms. Each search
becomes a file of OUT/searches; those that are there are not repeated, so an interrupted run goes on
where it was. Term success, window overlap and the share behind final punctuation are those of
`python -m fairseq_ext.terms score`; p is sacrebleu's paired bootstrap against dba. Times are of
decoding alone: compare them within one machine that does nothing else. --published: `terms score`
next to the scores that the WMT 2025 task published (published_scores.py says what DIR holds), in
OUT/published.md; status 1 where they differ by more than they may.

    --glossary FILE       terms that are required wherever a source has them
    --proper FILE         terms that are required where the reference has them too
    --sets SET [...]      terms drawn from the references (rand1 rand2 rand3 rand4 phr4)
    --methods METHOD ...  none, paper, dba, end, bonus 2, bonus 4 and fairseq by default
    --seed N              of the extraction (1)
    --beam N              (5)
    --batch-size N        sentences (64)
    --draws N             of the bootstrap (500)
    --published DIR       of the published scores
    --out OUT             folder for searches and results; runs/terminology by default
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1] / "bench"))
sys.path.append(str(HERE.parent / "optimal_ending"))

from contenders import stock_translations  # noqa: E402
from sacrebleu.significance import PairedTest  # noqa: E402
from searches import (  # noqa: E402
    ROOT,
    command_line,
    machine,
    model_flags,
    named,
    quiet,
    read_text,
    run_script,
    text_arguments,
)
from text import MORE_SETS, extract  # noqa: E402
from write_up import kept, made_by, table, write_json, write_tables  # noqa: E402

from fairseq_ext.core.lemmas import lemmatizer  # noqa: E402
from fairseq_ext.terms.cases import Sentence, Term, cases_of  # noqa: E402
from fairseq_ext.terms.formats import Files  # noqa: E402
from fairseq_ext.terms.formats import read_text as read_with_glossary  # noqa: E402
from fairseq_ext.terms.score import (  # noqa: E402
    score,
    success_words,
    translation_metrics,
)
from fairseq_ext.translator import Translator  # noqa: E402

HEAD = (
    """method|BLEU|chrF2++|terms met|behind the end|overlap 2|overlap 3|rows|time|p BLEU|p chrF"""
)
NOTE = (
    "terms met: share that stands as words; behind the end: share of those that stand behind "
    "final punctuation; rows and time are over unconstrained search; p: paired bootstrap against "
    "dba, {draws} draws."
)
METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    # Post and Vilar 2018, wholly
    "paper": {"dba_allocation": "paper", "stop": "ranked", "prune_finished": 20.0},
    "dba": {},
    "end": {"constraint_end": True},
    **{f"bonus {b}": {"constraint_bonus": b} for b in (1, 2, 4, 8)},
    "gbs": {"select": "gbs", "gbs_base": 5},
    "cbs": {"select": "cbs"},
    "fairseq": {},  # its own constrained search
}
DEFAULT = ["none", "paper", "dba", "end", "bonus 2", "bonus 4", "fairseq"]
BASELINE = "dba"
MOST_CBS = 3  # constraints of a sentence: cbs has a bank for each subset
SCORES = "bleu chrf2pp term_success term_success_words terms after_final_punctuation window_overlap"


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
        self.flags = dict(cpu=True, batch_size=args.batch_size, beam=args.beam)
        self.flags |= model_flags(args.model, args.src, args.tgt)
        self.sources, self.references = read_text(args.text, args.src, args.tgt, args.limit)
        quiet()
        sentences = Translator(**self.flags).task.session.sentences
        self.segmenter = sentences.constraint_source().segmenter
        self.lemmas = lemmatizer(args.src, "--src"), lemmatizer(args.tgt, "--tgt")

    def terms(self, name: str) -> list[tuple[Term, ...]]:
        """The terms of each sentence in a set."""
        args = self.args
        if name in MORE_SETS:
            drawn = extract(self.references, name, args.seed, self.segmenter.writable)
            return [tuple(Term(each, (each,), marked=True) for each in line) for line in drawn]
        sides = [f"{args.text}.{side}" for side in (args.tgt, args.src)]
        file = str(args.glossary if name == "glossary" else args.proper)
        found = read_with_glossary(Files(sides[0], args.tgt, args.src, sides[1], file))[0]
        if name == "glossary":
            return [each.terms for each in found[: args.limit]]
        proper = (filter(partial(self.is_proper, x), x.terms) for x in found[: args.limit])
        return [tuple(each) for each in proper]

    def is_proper(self, sentence: Sentence, term: Term) -> bool:
        """Whether the reference has a term, as term success counts."""
        alone = replace(sentence, terms=(term,))
        return success_words(cases_of([alone], [sentence.reference], *self.lemmas))[0][0] > 0

    def search(self, name: str, method: str, terms: list[tuple[Term, ...]]) -> Run:
        """Translate with a method; from the file of this name if it holds the same search.
        fairseq's own takes no alternatives, so the first of each term."""
        given = [[list(term.targets) for term in line] for line in terms]
        key = [self.flags, METHODS[method], self.sources, given if method != "none" else None]
        label = f"{name if method != 'none' else 'none'}.{method.replace(' ', '-')}.json"

        def run() -> dict[str, Any]:
            args = self.args
            if method == "fairseq":
                flags = f"--cpu --beam {args.beam} --batch-size {args.batch_size}".split()
                phrases = [[alternatives[0] for alternatives in line] for line in given]
                of = (args.model, args.text, (args.src, args.tgt), flags, phrases)
                texts, seconds = stock_translations(*of, self.segmenter.pieces, args.limit)
                return asdict(Run({}, seconds, texts))
            more = {} if method == "none" else {"constraints": "unordered"}
            translator = Translator(**self.flags, **more, **METHODS[method])
            found = translator.translate(self.sources, constraints=given if more else None)
            stats = translator.stats.as_dict()
            return asdict(Run(stats, stats["seconds"], [nbest[0].text for nbest in found]))

        return Run(**kept(self.args.out / "searches" / label, key, run))

    def scores(
        self, name: str, method: str, terms: list[tuple[Term, ...]], baseline: list[str], free: Run
    ) -> dict[str, Any]:
        """A row of the tables."""
        run = self.search(name, method, terms)
        lines = zip(self.sources, self.references, terms, strict=True)
        sentences = [Sentence(*x) for x in lines]
        found = score(sentences, run.texts, f"terms:{name}", *self.lemmas)
        facts: dict[str, Any] = {"set": name, "method": method, "sentences": len(run.texts)}
        facts |= {key: found[key] for key in SCORES.split()}
        same = {"bleu": 1.0, "chrf2pp": 1.0} if run.texts == baseline else None
        facts["p"] = same or self.p_values(run.texts, baseline)
        counts = run.stats.get("constraints", {})
        facts |= {"met": counts.get("met"), "given": counts.get("given")}
        rows = run.stats["decoder_rows"] / free.stats["decoder_rows"] if run.stats else None
        signature = run.stats.get("signature", "fairseq")
        return facts | {"rows": rows, "time": run.seconds / free.seconds, "signature": signature}

    def p_values(self, texts: list[str], baseline: list[str]) -> dict[str, float]:
        """Of the differences from the baseline, by metric."""
        metrics = translation_metrics()
        named = [("baseline", baseline), ("system", texts)]
        how = dict(test_type="bs", n_samples=self.args.draws)
        found: Any = PairedTest(named, metrics, [self.references], **how)()[1]
        values = [each for key, each in found.items() if key != "System"]
        return {name: own.p_value for name, (_, own) in zip(metrics, values, strict=True)}

    def rows(self) -> list[dict[str, Any]]:
        """Every method on every set; cbs where no sentence has too many constraints."""
        args, out = self.args, []
        more = [name for name in ("proper", "glossary") if getattr(args, name)]
        for name in (*args.sets, *more):
            terms = self.terms(name)
            free = self.search(name, "none", terms)
            baseline = self.search(name, BASELINE, terms).texts
            left_out = {"cbs"} if max(map(len, terms)) > MOST_CBS else set()
            methods = [method for method in args.methods if method not in left_out]
            out += [self.scores(name, method, terms, baseline, free) for method in methods]
        return out


def row(run: dict[str, Any]) -> list[str]:
    """A method on a set; a cell is empty where there is nothing to count."""
    cells = [(run[key], ".2f") for key in ("bleu", "chrf2pp")]
    cells += [(run[key], ".1%") for key in ("term_success_words", "after_final_punctuation")]
    cells += [(run["window_overlap"][n], ".3f") for n in ("2", "3")]
    cells += [(run["rows"], ".3f"), (run["time"], ".2f")]
    cells += [(run["p"].get(key), ".3f") for key in ("bleu", "chrf2pp")]
    return [run["method"], *("" if x is None else format(x, form) for x, form in cells)]


def markdown(runs: dict[str, Any]) -> str:
    """The page."""
    parts, rows = [], runs["rows"]
    for name in dict.fromkeys(run["set"] for run in rows):
        found = [run for run in rows if run["set"] == name]
        title = f"{name}: {found[0]['terms']} terms in {found[0]['sentences']} sentences, "
        parts.append(table(HEAD.split("|"), [*map(row, found)], f"{title}beam {runs['beam']}"))
    signatures = {run["method"]: run["signature"] for run in rows}
    parts.append("".join(f"- {name}: `{signature}`\n" for name, signature in signatures.items()))
    about = f"{runs['text']}, model {runs['model']}, {'-'.join(runs['languages'])}, extraction "
    about += f"seed {runs['seed']}. {NOTE.format(draws=runs['draws'])}"
    return "\n".join([*parts, about, made_by(runs["machine"]), ""])


def main() -> int:
    known = {"sets": MORE_SETS, "methods": METHODS}
    parse = command_line(__doc__, known, out=ROOT / "runs" / "terminology", methods=DEFAULT)
    text_arguments(parse)
    args = parse.parse_args()
    runs = Runs(args)
    about = {key: getattr(args, key) for key in ("seed", "beam", "draws")}
    about |= {"model": named(args.model), "text": named(args.text), "machine": machine()}
    about |= {"languages": [args.src, args.tgt], "sentences": len(runs.sources)}
    write_json(args.out / "runs.json", about | {"rows": runs.rows()})
    write_tables(None, "run.py", markdown, out=args.out)
    if args.published is None:
        return 0
    command = [sys.executable, HERE / "published_scores.py", args.published, "--out", args.out]
    return subprocess.run([*map(str, command)]).returncode


if __name__ == "__main__":
    run_script(main)
