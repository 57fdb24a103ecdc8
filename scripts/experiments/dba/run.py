"""Post and Vilar 2018 (--select dba): the searches behind the paper's tables and figures, then
OUT/tables.md and OUT/figure4, 5, 7 and 8.svg (tables.py).

    python scripts/experiments/dba/run.py --out DIR [--model DIR] [--text PREFIX] [--beams 5 10 20]
        [--prune 3 10 20] [--limit N]

Without arguments: the demo's model and test set. Each search becomes a file of OUT/searches; those
that are there are not repeated, so an interrupted run goes on where it was. Times are processor
time of a whole call, segmenting included; those of Figure 4 are of a second call.

    --sets SET ...            of constraints (all)
    --seed N                  of the extraction (1)
    --beams N ...             for Figures 4, 5 and 8 (5 10 20)
    --gbs N ...               base beams for Figure 4 (1 5 10)
    --prune X [...]           thresholds for Table 3 (3 5 10 20 30)
    --table-beam N            for Table 3 and Figure 7 (10)
    --time-prune X            threshold for Figure 4 (20)
    --time-tokens N [...]     numbers of constraint tokens that are timed (1 2 3 4 6 8 10 12)
    --most N                  sentences that are timed (24)
    --rounds N                timed rounds of Figure 4 (3)
    --batch-size N            sentences (64)
    --out OUT                 folder for searches and results; runs/dba by default
    --max-len X X             length limit: a factor of the source, and tokens (0 200)
    --placed SET              of Figure 7 (phr3)
    --no-reference-score      do not score the references for Figure 8
    --paper PART [...]        of the paper's own search, paper.py (all)
    --figure4-sets SET ...    whose BLEU is compared with GBS (rand3)
    --figure4-beams N ...     of DBA (5 10)
    --figure4-least N         sentences of a number of tokens (10)
    --time-paper              time the paper's search too, also without pruning
    --example N               line of Figure 6, from 1
    --example-words SET ...   its sets of phrases, the phrases of a set separated by '; '
    --trace N                 line of Figure 9, from 1
    --trace-words PHRASE ...  its phrases; those of --placed by default
"""

import argparse
import itertools
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

# behind this folder: both have tables.py
sys.path.append(str(Path(__file__).resolve().parents[1] / "optimal_ending"))

import tables
from paper import PAPER, PARTS, STOP, facts
from searches import (
    ROOT,
    BenchError,
    Difference,
    command_line,
    difference,
    machine,
    model_flags,
    named,
    quiet,
    read_text,
    run_script,
    text_arguments,
)
from text import MORE_SETS, extract
from write_up import kept, write_json, write_tables

from fairseq_ext.translator import Translator


@dataclass
class Run:
    """What one search over a text found; hypotheses are (sum of log-probabilities,
    tokens with EOS, text)."""

    signature: str
    stats: dict[str, Any]
    best: list[tuple[float, int, str]]
    seconds: float  # processor time


class Runs:
    """The text, its constraints, and the searches over them."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        a, b = args.max_len
        self.flags = dict(cpu=True, batch_size=args.batch_size, max_len_a=a, max_len_b=int(b))
        self.flags |= model_flags(args.model, args.src, args.tgt)
        self.sources, self.references = read_text(args.text, args.src, args.tgt, args.limit)
        quiet()
        sentences = Translator(**self.flags).task.session.sentences
        self.segmenter = sentences.constraint_source().segmenter
        self.sets = {
            name: extract(self.references, name, args.seed, self.usable) for name in args.sets
        }

    def usable(self, phrase: str) -> bool:
        known = self.segmenter.dictionary
        return all(known.index(piece) != known.unk() for piece in self.segmenter.pieces(phrase))

    def tokens(self, name: str) -> list[int]:
        """Constraint tokens of each sentence."""
        count = lambda phrase: len(self.segmenter.pieces(phrase))  # noqa: E731
        return [sum(map(count, phrases)) for phrases in self.sets[name]]

    def search(
        self,
        label: str,
        sentences: Sequence[int],
        constraints: Sequence[Sequence[str]] | Mapping[int, Sequence[str]] | None,
        change: Callable[[Translator], None] | None = None,
        **flags: Any,
    ) -> Run:
        """Translate these sentences; from the file of this label if it holds the same search.

        change: what is done to the translator first, which its signature then names."""
        sources = [self.sources[i] for i in sentences]
        given = None if constraints is None else [list(constraints[i]) for i in sentences]
        changed = [] if change is None else [change.__name__]
        key = [self.flags, flags, sources, given, "processor time of later calls", *changed]

        def run() -> dict[str, Any]:
            translator = Translator(**self.flags, **flags)
            signature = translator.signature
            if change is not None:
                change(translator)
                signature += f"|experiment:{change.__name__}"
            if label.startswith("time."):  # the first call with constraints makes their tables
                before = translator.stats.mark()
                translator.translate(sources[:1], constraints=given and given[:1])
                translator.stats.rollback(before)
            begin = time.process_time()
            found = translator.translate(sources, constraints=given)
            seconds = time.process_time() - begin
            scores = [nbest[0].positional_scores for nbest in found]
            best = [(sum(s), len(s), nbest[0].text) for s, nbest in zip(scores, found, strict=True)]
            return asdict(Run(signature, translator.stats.as_dict(), best, seconds))

        return Run(**kept(self.args.out / "searches" / f"{label}.json", key, run))

    def of_set(self, label: str, name: str, beam: int, **flags: Any) -> Run:
        """The search over the whole text with this set of words ("none": without)."""
        lines = range(len(self.sources))
        return self.search(label, lines, self.sets.get(name), beam=beam, **flags)

    def whole(self, name: str, beam: int, prune: float | None = None) -> Run:
        """The same by our own search, with this --prune-finished."""
        label = f"{name}.beam{beam}" + (f".prune{prune:g}" if prune is not None else "")
        return self.of_set(label, name, beam, prune_finished=prune)

    def corpus(self, name: str, beam: int, prune: float | None = None) -> dict[str, Any]:
        """A row of the tables: one set over the whole text."""
        run = self.whole(name, beam, prune)
        counts = run.stats.get("constraints", {"given": 0, "met": 0})
        row = {"set": name, "beam": beam, "prune": prune, "seconds": run.seconds}
        row |= {key: counts[key] for key in ("given", "met")}
        return row | facts(run, self.references) | {"over": self.over(run, name, beam, prune)}

    def over(self, run: Run, name: str, beam: int, prune: float | None) -> dict[str, Difference]:
        """BLEU less that of other searches, with the 95 % interval on the same resamples.

        Of a pruned search: "off", without pruning. Of others: "none", without words; "fewer", the
        set with a word fewer; "beam", at --table-beam.
        """
        others = {"off": (name, beam)}
        if prune is None:
            at = self.args.table_beam
            others = {"beam": (name, at)} if beam != at else {}
            if name != "none":
                fewer = f"{name[:-1]}{int(name[-1]) - 1}"
                others |= {"none": ("none", beam), "fewer": (fewer, beam)}
        known = {kind: other for kind, other in others.items() if other[0] in ("none", *self.sets)}
        return {
            kind: difference(run.best, self.whole(*other).best, self.references)
            for kind, other in known.items()
        }

    def exactly(self, line: int, tokens: int) -> list[str]:
        """Words of a reference, drawn up to this number of tokens; fewer where no word fits."""
        words = list(filter(self.usable, self.references[line].split()))
        random.Random(f"{line} {self.args.seed}").shuffle(words)
        found = []
        for word in words:
            count = len(self.segmenter.pieces(word))
            if count <= tokens:
                found.append(word)
                tokens -= count
        return found if tokens == 0 else []

    def times(self) -> list[dict[str, Any]]:
        """Figure 4: seconds a sentence by number of constraint tokens, of the same sentences: the
        first whose references have words of each number.

        Methods take turns in --rounds rounds, every other one backwards; "low" and "high" are the
        fastest and the slowest round's. CBS, whose rows double with each token, up to four.
        """
        args, counts = self.args, self.args.time_tokens
        fit = (i for i in range(len(self.sources)) if all(self.exactly(i, n) for n in counts))
        lines = list(itertools.islice(fit, args.most if counts else 0))
        methods: dict[str, dict[str, Any]] = {}
        for k in args.beams:
            methods |= {f"none, k = {k}": dict(beam=k), f"DBA, k = {k}": dict(beam=k)}
        gbs = {b: dict(select="gbs", gbs_base=b) for b in args.gbs}
        methods |= {f"GBS, b = {b}": flags for b, flags in gbs.items()}
        methods |= {f"CBS, k = {args.beams[0]}": dict(select="cbs", beam=args.beams[0])}
        if args.time_paper:
            for k in args.figure4_beams:
                methods[f"DBA of the paper, k = {k}"] = dict(beam=k, **PAPER)
            whole = dict(beam=max(args.figure4_beams), prune_finished=None, **PAPER)
            methods[f"DBA of the paper, k = {whole['beam']}, not pruned"] = whole
            methods |= {f"GBS of the paper, b = {b}": flags | STOP for b, flags in gbs.items()}
        pairs = [(n, m) for n in counts for m in methods if n <= 4 or not m.startswith("CBS")]
        rounds: dict[tuple[int, str], list[Run]] = {pair: [] for pair in pairs if lines}
        for turn in range(args.rounds):
            for count, method in list(rounds)[:: -1 if turn % 2 else 1]:
                label = f"time.{method.lower().replace(' = ', '').replace(', ', '.')}"
                label += f".tokens{count}.round{turn + 1}"
                flags = {"prune_finished": args.time_prune} | methods[method]
                words = {i: self.exactly(i, count) for i in lines}
                given = None if method.startswith("none") else words
                rounds[count, method].append(self.search(label, lines, given, **flags))
        out = []
        for (count, method), found in rounds.items():
            many = len(lines)
            taken = [run.seconds / many for run in found]
            row = dict(method=method, tokens=count, sentences=many, rounds=len(found))
            row |= dict(seconds=median(taken), low=min(taken), high=max(taken))
            out.append(row | {"rows": found[0].stats["decoder_rows"] / many})
        return out

    def placement(self) -> list[tuple[float, float]]:
        """Figure 7: where the first word of each constraint stands, in the reference and in the
        output, in per cent of their lengths."""
        if (name := self.args.placed) not in self.sets:
            return []
        best = self.whole(name, self.args.table_beam).best
        found = (
            [place_of(phrase, line) for line in (reference, text)]
            for phrases, reference, (*_, text) in zip(
                self.sets[name], self.references, best, strict=True
            )
            for phrase in phrases
        )
        return [(a, b) for a, b in found if a is not None and b is not None]

    def present(self, name: str) -> float:
        """Appendix A.1: per cent of a set's phrases that the output without words has."""
        best = self.whole("none", self.args.table_beam).best
        found = [
            place_of(phrase, text) is not None
            for phrases, (*_, text) in zip(self.sets[name], best, strict=True)
            for phrase in phrases
        ]
        return 100 * sum(found) / max(1, len(found))

    def reference_score(self) -> float | None:
        """Figure 8: the model's score of the references, the sum of their log-probabilities."""
        if self.args.no_reference_score:
            return None

        def score() -> float:
            found = Translator(**self.flags).score(self.sources, self.references)
            return sum(sum(translation.positional_scores) for translation in found)

        return kept(self.args.out / "references.json", self.flags, score)


def place_of(phrase: str, line: str) -> float | None:
    """Per cent of the line before a phrase, whose last word may go on there; None
    where it is not found."""
    words, wanted = line.split(), phrase.split()
    for i in range(len(words) - len(wanted) + 1):
        *first, last = words[i : i + len(wanted)]
        if first == wanted[:-1] and last.startswith(wanted[-1]):
            return 100 * i / len(words)
    return None


def main() -> None:
    known = {"sets": MORE_SETS, "figure4_sets": MORE_SETS, "placed": MORE_SETS, "paper": PARTS}
    parse = command_line(__doc__, known, out=ROOT / "runs" / "dba", example_words=[])
    text_arguments(parse)
    args = parse.parse_args()
    if args.rounds < 1:
        raise BenchError("--rounds wants 1 or more")
    runs, beam = Runs(args), args.table_beam
    names = ("none", *args.sets)
    beams = dict.fromkeys([*args.beams, beam])
    shared = ("seed", "table_beam", "time_prune", "batch_size", "placed", "max_len")
    result = {key: getattr(args, key) for key in shared} | {
        "model": named(args.model),
        "text": named(args.text),
        "languages": [args.src, args.tgt],
        "sentences": len(runs.sources),
        "grid": [runs.corpus(name, k) for name in names for k in beams],
        "pruned": [runs.corpus(name, beam, prune) for name in names for prune in args.prune],
        "tokens": {name: runs.tokens(name) for name in args.sets},
        "present": {name: runs.present(name) for name in args.sets},
        "times": runs.times(),
        "placement": runs.placement(),
        "reference_score": runs.reference_score(),
        "paper": {name: PARTS[name](runs) for name in args.paper},
        "machine": machine(),
    }
    write_json(args.out / "runs.json", result)
    write_tables(None, "run.py", tables.markdown, tables.figures, args.out)


if __name__ == "__main__":
    run_script(main)
