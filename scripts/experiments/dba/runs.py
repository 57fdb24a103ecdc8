"""Run the searches behind the paper's tables and figures.

    python scripts/experiments/dba/runs.py --out DIR [--model DIR] [--text PREFIX] [--beams 5 10 20]
        [--prune 3 10 20] [--limit N]

Each search becomes a file of DIR/searches; those that are there are not repeated, so an
interrupted run goes on where it was. What they found is summed up in DIR/runs.json, from which
tables.py and figures.py work. Times are processor time of a whole call, segmenting included;
the model is loaded before. --paper adds the paper's own search (paper.py).
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

# behind this folder: both have tables.py, figures.py
sys.path.append(str(Path(__file__).resolve().parents[1] / "optimal_ending"))

from extract import MORE_SETS, SETS, extract
from paper import PAPER, PARTS, STOP, comparisons
from searches import (
    Difference,
    Measure,
    command_line,
    difference,
    machine,
    measure,
    model_flags,
    named,
    quiet,
    read_text,
    run_script,
    text_arguments,
)
from write_up import kept, write_json

from fairseq_ext.translator import Translator

TIMED = "rand3"  # Figure 4


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
        self.flags = dict(
            cpu=args.cpu,
            batch_size=args.batch_size,
            max_len_a=a,
            max_len_b=int(b),
            **model_flags(args.model, args.src, args.tgt),
        )
        self.sources, self.references = read_text(args.text, args.src, args.tgt, args.limit)
        quiet()
        self.segmenter = (
            Translator(**self.flags).task.session.sentences.constraint_source().segmenter
        )
        self.sets = {
            name: extract(self.references, name, args.seed, self.usable) for name in args.sets
        }

    def usable(self, phrase: str) -> bool:
        return all(
            self.segmenter.dictionary.index(piece) != self.segmenter.dictionary.unk()
            for piece in self.segmenter.pieces(phrase)
        )

    def tokens(self, name: str) -> list[int]:
        """Constraint tokens of each sentence."""
        return [
            sum(len(self.segmenter.pieces(phrase)) for phrase in phrases)
            for phrases in self.sets[name]
        ]

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
        key = [self.flags, flags, sources, given, "processor time", *changed]

        def run() -> dict[str, Any]:
            translator = Translator(**self.flags, **flags)
            signature = translator.signature
            if change is not None:
                change(translator)
                signature += f"|experiment:{change.__name__}"
            begin = time.process_time()
            found = translator.translate(sources, constraints=given)
            seconds = time.process_time() - begin
            scores = [nbest[0].positional_scores for nbest in found]
            best = [(sum(s), len(s), nbest[0].text) for s, nbest in zip(scores, found, strict=True)]
            return asdict(Run(signature, translator.stats.as_dict(), best, seconds))

        return Run(**kept(self.args.out / "searches" / f"{label}.json", key, run))

    def whole(self, label: str, name: str, beam: int, prune: float | None) -> Run:
        """The search over the whole text with this set of words ("none": without), beam
        and --prune-finished."""
        return self.search(
            label, range(len(self.sources)), self.sets.get(name), beam=beam, prune_finished=prune
        )

    def unpruned(self, name: str, beam: int) -> Run:
        """The same without --prune-finished."""
        return self.whole(f"{name}.beam{beam}", name, beam, None)

    def corpus(
        self, name: str, beam: int, prune: float | None = None
    ) -> tuple[Run, dict[str, Any]]:
        """One set ("none": no constraints) over the whole text."""
        run = (
            self.unpruned(name, beam)
            if prune is None
            else self.whole(f"{name}.beam{beam}.prune{prune:g}", name, beam, prune)
        )
        quality: Measure = measure(run.best, self.references)
        counts = run.stats.get("constraints", {"given": 0, "met": 0})
        facts = dict(
            set=name,
            beam=beam,
            prune=prune,
            total=sum(t for t, *_ in run.best),
            ratio=quality.ratio,
        )
        facts |= dict(bleu=quality.bleu, low=quality.low, high=quality.high)
        facts |= {"seconds": run.seconds} | {
            key: run.stats[key] for key in ("decoder_rows", "decoder_calls")
        }
        return run, facts | {
            "given": counts["given"],
            "met": counts["met"],
            "over": self.differences(run, name, beam, prune),
        }

    def differences(
        self, run: Run, name: str, beam: int, prune: float | None
    ) -> dict[str, Difference]:
        """BLEU less that of other searches, with the 95 % interval on the same resamples.

        Of a pruned search: "off", without pruning. Of others: "none", without words; "fewer", the
        set with a word fewer; "beam", at --table-beam.
        """
        if prune is not None:
            others = {"off": (name, beam)}
        else:
            others = {"beam": (name, self.args.table_beam)} if beam != self.args.table_beam else {}
            if name != "none":
                others |= {
                    "none": ("none", beam),
                    "fewer": (f"{name[:-1]}{int(name[-1]) - 1}", beam),
                }
        known = {kind: other for kind, other in others.items() if other[0] in ("none", *self.sets)}
        return {
            kind: difference(run.best, self.unpruned(*other).best, self.references)
            for kind, other in known.items()
        }

    def times(self) -> list[dict[str, Any]]:
        """Figure 4: seconds a sentence by number of constraint tokens. Sentences with equally
        many are decoded together.

        Methods take turns in --rounds rounds, every other one backwards; "low" and "high" are the
        fastest and the slowest round's.
        """
        by_tokens: dict[int, list[int]] = {}
        for i, count in enumerate(self.tokens(TIMED) if TIMED in self.sets else ()):
            if len(self.sets[TIMED][i]) == SETS[TIMED][0]:
                by_tokens.setdefault(count, []).append(i)
        methods: dict[str, dict[str, Any]] = {
            f"DBA, k = {k}": dict(beam=k) for k in self.args.beams
        }
        methods |= {f"GBS, b = {b}": dict(select="gbs", gbs_base=b) for b in self.args.gbs}
        methods |= {f"CBS, k = {self.args.beams[0]}": dict(select="cbs", beam=self.args.beams[0])}
        if self.args.time_paper:
            methods |= {
                f"DBA of the paper, k = {k}": dict(beam=k, **PAPER) for k in self.args.figure4_beams
            }
            beam = max(self.args.figure4_beams)
            methods[f"DBA of the paper, k = {beam}, not pruned"] = dict(
                beam=beam, prune_finished=None, **PAPER
            )
            methods |= {
                f"GBS of the paper, b = {b}": dict(select="gbs", gbs_base=b, **STOP)
                for b in self.args.gbs
            }
        timed = {
            count: found[: self.args.most]
            for count, found in sorted(by_tokens.items())
            if len(found) >= self.args.least
        }
        searches = [(count, method) for count in timed for method in methods]
        rounds: dict[tuple[int, str], list[Run]] = {search: [] for search in searches}
        for n in range(self.args.rounds):
            for count, method in reversed(searches) if n % 2 else searches:
                label = (
                    f"time.{method.lower().replace(' = ', '').replace(', ', '.')}.tokens{count}"
                    f".round{n + 1}"
                )
                flags = {"prune_finished": self.args.time_prune} | methods[method]
                rounds[count, method].append(
                    self.search(label, timed[count], self.sets[TIMED], **flags)
                )
        out = []
        for (count, method), found in rounds.items():
            taken = [run.seconds / len(timed[count]) for run in found]
            facts = dict(
                method=method, tokens=count, sentences=len(timed[count]), rounds=len(found)
            )
            facts |= dict(seconds=median(taken), low=min(taken), high=max(taken))
            out.append(facts | {"rows": found[0].stats["decoder_rows"] / len(timed[count])})
        return out

    def placement(self, run: Run) -> list[tuple[float, float]]:
        """Figure 7: where the first word of each constraint stands, in the reference and in the
        output, in per cent of their lengths."""
        out = []
        for phrases, reference, (*_, text) in zip(
            self.sets[self.args.placed], self.references, run.best, strict=True
        ):
            for phrase in phrases:
                places = [place_of(phrase, line) for line in (reference, text)]
                if places[0] is not None and places[1] is not None:
                    out.append((places[0], places[1]))
        return out

    def present(self, name: str) -> float:
        """Appendix A.1: per cent of a set's phrases that the output without words has."""
        texts = [text for *_, text in self.unpruned("none", self.args.table_beam).best]
        found = [
            place_of(phrase, text) is not None
            for phrases, text in zip(self.sets[name], texts, strict=True)
            for phrase in phrases
        ]
        return 100 * sum(found) / max(1, len(found))

    def reference_score(self) -> float | None:
        """Figure 8: the model's score of the references, the sum of their log-probabilities."""
        if not self.args.score_references:
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
    parse = command_line(__doc__)
    text_arguments(parse)
    parse.add_argument(
        "--sets", nargs="+", choices=MORE_SETS, default=list(MORE_SETS), help="of constraints (all)"
    )
    parse.add_argument("--seed", type=int, default=1, help="of the extraction (1)")
    parse.add_argument(
        "--beams", type=int, nargs="+", default=[5, 10, 20], help="for Figures 4, 5 and 8 (5 10 20)"
    )
    parse.add_argument(
        "--gbs", type=int, nargs="+", default=[1, 5, 10], help="base beams for Figure 4 (1 5 10)"
    )
    parse.add_argument(
        "--prune",
        type=float,
        nargs="*",
        default=[3, 5, 10, 20, 30],
        help="thresholds for Table 3 (3 5 10 20 30)",
    )
    parse.add_argument(
        "--table-beam", type=int, default=10, help="beam for Table 3 and Figure 7 (10)"
    )
    parse.add_argument(
        "--time-prune", type=float, default=20.0, help="threshold for Figure 4 (20, as the paper's)"
    )
    parse.add_argument(
        "--least",
        type=int,
        default=5,
        help="sentences that a number of tokens must have to be timed (5)",
    )
    parse.add_argument(
        "--most", type=int, default=50, help="sentences timed for each number of tokens (50)"
    )
    parse.add_argument("--rounds", type=int, default=3, help="timed rounds of Figure 4 (3)")
    parse.add_argument("--batch-size", type=int, default=64, help="sentences (64)")
    parse.add_argument("--cpu", action="store_true", help="no GPU even if there is one")
    parse.add_argument("--out", type=Path, required=True, help="folder for searches and results")
    parse.add_argument(
        "--max-len",
        type=float,
        nargs=2,
        metavar=("A", "B"),
        default=[0.0, 200],
        help="at most A x source + B tokens (0 200, fairseq's)",
    )
    parse.add_argument(
        "--placed", choices=MORE_SETS, default="phr3", help="set of Figure 7 (phr3, as the paper's)"
    )
    parse.add_argument(
        "--no-reference-score",
        dest="score_references",
        action="store_false",
        help="do not score the references for Figure 8",
    )
    paper = parse.add_argument_group("the paper's own search (paper.py)")
    paper.add_argument(
        "--paper", nargs="*", choices=PARTS, default=list(PARTS), help="its parts (all)"
    )
    paper.add_argument(
        "--figure4-beams", type=int, nargs="+", default=[5, 10], help="of DBA (5 10)"
    )
    paper.add_argument(
        "--figure4-least", type=int, default=10, help="sentences of a number of tokens (10)"
    )
    paper.add_argument(
        "--time-paper", action="store_true", help="time it too, also without pruning (no)"
    )
    paper.add_argument("--example", type=int, help="line of Figure 6, from 1 (none)")
    paper.add_argument(
        "--example-words",
        nargs="+",
        default=[],
        help="its sets of phrases, the phrases of a set separated by '; '",
    )
    paper.add_argument("--trace", type=int, help="line of Figure 9, from 1 (none)")
    paper.add_argument("--trace-words", nargs="+", help="its phrases (those of --placed)")
    args = parse.parse_args()
    if args.rounds < 1:
        parse.error("--rounds wants 1 or more")
    runs = Runs(args)
    grid = [
        runs.corpus(name, beam)[1]
        for name in ("none", *args.sets)
        for beam in dict.fromkeys([*args.beams, args.table_beam])
    ]
    pruned = [
        runs.corpus(name, args.table_beam, prune)[1]
        for name in ("none", *args.sets)
        for prune in args.prune
    ]
    result = {
        "model": named(args.model),
        "text": named(args.text),
        "languages": [args.src, args.tgt],
        "sentences": len(runs.sources),
        "seed": args.seed,
        "table_beam": args.table_beam,
        "time_prune": args.time_prune,
        "batch_size": args.batch_size,
        "grid": grid,
        "pruned": pruned,
        "tokens": {name: runs.tokens(name) for name in args.sets},
        "present": {name: runs.present(name) for name in args.sets},
        "times": runs.times(),
        "timed": TIMED,
        "placed": args.placed,
        "placement": runs.placement(runs.corpus(args.placed, args.table_beam)[0])
        if args.placed in args.sets
        else [],
        "reference_score": runs.reference_score(),
        "max_len": args.max_len,
        "paper": comparisons(runs, args.paper, TIMED),
        "machine": machine(),
    }
    write_json(args.out / "runs.json", result)


if __name__ == "__main__":
    run_script(main)
