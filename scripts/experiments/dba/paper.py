"""The comparisons of the paper in its own search: --dba-allocation paper --stop ranked
--prune-finished 20 (PAPER), for runs.py --paper.

- figure4: BLEU of DBA and GBS by number of constraint tokens, next to our own search
- table3: BLEU, decoder rows and steps of the paper's search by pruning threshold
- stops: Section 6.4's early stopping, at the first complete hypothesis
- figure6: one sentence with one set of words after the other (--example, --example-words)
- figure9: the beam of a search that is not pruned, at its length limit (--trace)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from searches import BenchError, difference, measure

from fairseq_ext.search.strategies.stop.count import Count
from fairseq_ext.search.strategies.stop.ranked import Ranked
from fairseq_ext.translator import Translator

if TYPE_CHECKING:
    from runs import Run, Runs

THRESHOLD = 20.0  # nats, Section 4
STOP: dict[str, Any] = {"stop": "ranked"}
PAPER: dict[str, Any] = {"dba_allocation": "paper", **STOP}
PARTS = ("figure4", "table3", "stops", "figure6", "figure9")


class FirstComplete(Count):
    """Final with one finished hypothesis, whether or not others rank above it."""

    def finished_needed(self, candidates):
        return 1


class Traced(Ranked):
    """--stop ranked of one sentence, which keeps the rows of its last step."""

    rows: list[tuple[float, list[int]]] = []

    def __call__(self, candidates, beam, pool, finished, at_limit):
        score = beam.last_score()
        self.rows = [
            (value, row) for value, row in zip(score.tolist(), beam.tokens.tolist(), strict=True)
        ]
        return super().__call__(candidates, beam, pool, finished, at_limit)


def at_first_complete(translator: Translator) -> None:
    """Replace the stop of a translator that was made with --stop ranked."""
    strategies = translator.generator.setup.strategies
    strategies.stop = FirstComplete(strategies.stop.eos)


def facts(run: Run, references: Sequence[str]) -> dict[str, Any]:
    quality = measure(run.best, references)
    return {
        "bleu": quality.bleu,
        "low": quality.low,
        "high": quality.high,
        "ratio": quality.ratio,
        "total": sum(total for total, *_ in run.best),
        "signature": run.signature,
    } | {name: run.stats[name] for name in ("decoder_rows", "decoder_calls")}


def figure4(runs: Runs, timed: str) -> dict[str, Any]:
    """BLEU of every method over the sentences of a set that have all their words, and over those
    with each number of constraint tokens."""
    if timed not in runs.sets:
        return {}
    args, tokens = runs.args, runs.tokens(timed)
    whole = [i for i, found in enumerate(runs.sets[timed]) if found]
    methods: dict[str, dict[str, Any]] = {}
    for k in args.figure4_beams:
        methods[f"none, k = {k}"] = dict(beam=k)
        methods[f"DBA, k = {k}"] = dict(beam=k)
        methods[f"DBA of the paper, k = {k}"] = dict(beam=k, prune_finished=THRESHOLD, **PAPER)
    for b in args.gbs:
        methods[f"GBS, b = {b}"] = dict(select="gbs", gbs_base=b, prune_finished=THRESHOLD, **STOP)
    groups = {
        count: [i for i in whole if tokens[i] == count]
        for count in sorted({tokens[i] for i in whole})
    }
    groups = {n: found for n, found in groups.items() if len(found) >= args.figure4_least}
    base = f"DBA of the paper, k = {max(args.figure4_beams)}"
    found = {}
    for method, flags in methods.items():
        label = f"figure4.{method.replace(' = ', '').replace(', ', '.').replace(' ', '_')}"
        given = None if method.startswith("none") else runs.sets[timed]
        found[method] = runs.search(label, whole, given, **flags)
    places = {i: at for at, i in enumerate(whole)}

    def part(run: Run, lines: Sequence[int]) -> list[tuple[float, int, str]]:
        return [run.best[places[i]] for i in lines]

    rows = []
    for method, run in found.items():
        references = [runs.references[i] for i in whole]
        row = {"method": method} | facts(run, references)
        row["over"] = difference(run.best, found[base].best, references) if method != base else None
        row["by"] = {
            count: measure(part(run, lines), [runs.references[i] for i in lines]).bleu
            for count, lines in groups.items()
        }
        rows.append(row)
    sizes = {n: len(lines) for n, lines in groups.items()}
    return {"set": timed, "sentences": len(whole), "sizes": sizes, "base": base, "rows": rows}


def table3(runs: Runs) -> list[dict[str, Any]]:
    """The paper's search by threshold; None: not pruned."""
    beam, out = runs.args.table_beam, []
    for name in ("none", *runs.sets):
        for threshold in (None, *runs.args.prune):
            shown = "off" if threshold is None else f"{threshold:g}"
            flags = STOP if name == "none" else PAPER
            run = runs.search(
                f"paper.{name}.beam{beam}.prune{shown}",
                range(len(runs.sources)),
                runs.sets.get(name),
                beam=beam,
                prune_finished=threshold,
                **flags,
            )
            out.append({"set": name, "prune": threshold} | facts(run, runs.references))
    return out


def stops(runs: Runs) -> list[dict[str, Any]]:
    """The paper's stop, the first complete hypothesis, and our own search, on the same sets."""
    beam, out = runs.args.table_beam, []
    for name in runs.sets:
        label = f"stops.{name}.beam{beam}"
        lines, given = range(len(runs.sources)), runs.sets[name]
        found = {
            "all finished, pruned": runs.search(
                f"{label}.ranked", lines, given, beam=beam, prune_finished=THRESHOLD, **PAPER
            ),
            "first complete": runs.search(
                f"{label}.first", lines, given, change=at_first_complete, beam=beam, **PAPER
            ),
            "ours (early, even)": runs.unpruned(name, beam),
        }
        base = found["all finished, pruned"].best
        for stop, run in found.items():
            over = None if run.best is base else difference(run.best, base, runs.references)
            out.append({"set": name, "stop": stop, "over": over} | facts(run, runs.references))
    return out


def line_of(runs: Runs, flag: str, number: int | None) -> int | None:
    """Return the line that a flag names, counted from 0; None where it names none."""
    if number is not None and not 1 <= number <= len(runs.sources):
        raise BenchError(f"{flag} {number}: the text has {len(runs.sources)} lines")
    return None if number is None else number - 1


def figure6(runs: Runs) -> dict[str, Any]:
    """Scores of one sentence's translations under one set of words after the other."""
    args = runs.args
    line = line_of(runs, "--example", args.example)
    if line is None:
        return {}
    rows: list[dict[str, Any]] = []
    for words in ([], *(part.split("; ") for part in args.example_words)):
        run = runs.search(
            f"figure6.{line}.{len(rows)}",
            [line],
            {line: words},
            beam=args.table_beam,
            prune_finished=THRESHOLD,
            **(PAPER if words else STOP),
        )
        ((total, length, text),) = run.best
        rows.append({"words": words, "score": total / length, "text": text})
    return {"source": runs.sources[line], "reference": runs.references[line], "rows": rows}


def figure9(runs: Runs) -> dict[str, Any]:
    """What is on the beam at the end of a search without pruning: finished hypotheses with their
    normalised scores, the others with sums of log-probabilities."""
    args = runs.args
    line = line_of(runs, "--trace", args.trace)
    if line is None:
        return {}
    words = args.trace_words or runs.sets[args.placed][line]
    translator = Translator(**runs.flags, beam=args.table_beam, nbest=args.table_beam, **PAPER)
    strategies = translator.generator.setup.strategies
    stop = strategies.stop = Traced(args.table_beam, strategies.stop.eos)
    (found,) = translator.translate([runs.sources[line]], constraints=[list(words)])
    dictionary = translator.task.target_dictionary
    ended = [{"score": h.score, "tokens": len(h.positional_scores), "text": h.text} for h in found]
    live = [
        {
            "score": score,
            "tokens": len(row) - 1,
            "text": translator.decode(" ".join(dictionary[t] for t in row[1:])),
        }
        for score, row in sorted(stop.rows, key=lambda each: -each[0])
        if score > -float("inf")
    ]
    return {"source": runs.sources[line], "words": list(words), "ended": ended, "live": live}


def comparisons(runs: Runs, parts: Sequence[str], timed: str) -> dict[str, Any]:
    """The chosen parts by name."""
    work = {
        "figure4": lambda: figure4(runs, timed),
        "table3": lambda: table3(runs),
        "stops": lambda: stops(runs),
        "figure6": lambda: figure6(runs),
        "figure9": lambda: figure9(runs),
    }
    return {name: work[name]() for name in parts}
