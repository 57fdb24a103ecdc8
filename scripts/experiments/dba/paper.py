"""The comparisons of the paper in its own search: --dba-allocation paper --stop ranked
--prune-finished 20 (PAPER), for run.py --paper.

- figure4: BLEU of DBA and GBS by number of constraint tokens (--figure4-sets), next to our own
  search; GBS also with --stop early
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
    from run import Run, Runs

THRESHOLD = 20.0  # nats, Section 4
STOP: dict[str, Any] = {"stop": "ranked"}
PAPER: dict[str, Any] = {"dba_allocation": "paper", **STOP}


class FirstComplete(Count):
    """Final with one finished hypothesis, whether or not others rank above it."""

    def finished_needed(self, candidates):
        return 1


class Traced(Ranked):
    """--stop ranked of one sentence, which keeps the rows of its last step."""

    rows: list[tuple[float, list[int]]] = []

    def __call__(self, candidates, beam, pool, finished, at_limit):
        score = beam.last_score()
        self.rows = list(zip(score.tolist(), beam.tokens.tolist(), strict=True))
        return super().__call__(candidates, beam, pool, finished, at_limit)


def at_first_complete(translator: Translator) -> None:
    """Replace the stop of a translator that was made with --stop ranked."""
    strategies = translator.generator.setup.strategies
    strategies.stop = FirstComplete(strategies.stop.eos)


def facts(run: Run, references: Sequence[str]) -> dict[str, Any]:
    """What the tables show of a search over these references."""
    quality = measure(run.best, references)
    found = {name: getattr(quality, name) for name in ("bleu", "low", "high", "ratio")}
    found |= {name: run.stats[name] for name in ("decoder_rows", "decoder_calls")}
    return found | {"total": sum(total for total, *_ in run.best), "signature": run.signature}


def figure4(runs: Runs) -> list[dict[str, Any]]:
    """BLEU of every method on each set of --figure4-sets."""
    return [of_methods(runs, name) for name in runs.args.figure4_sets if name in runs.sets]


def of_methods(runs: Runs, name: str) -> dict[str, Any]:
    """BLEU of every method over the sentences of a set that have all their words, and over those
    with each number of constraint tokens."""
    args = runs.args
    tokens = runs.tokens(name)
    whole = [i for i, found in enumerate(runs.sets[name]) if found]
    methods: dict[str, dict[str, Any]] = {}
    for k in args.figure4_beams:
        methods |= {f"none, k = {k}": dict(beam=k), f"DBA, k = {k}": dict(beam=k)}
        methods[f"DBA of the paper, k = {k}"] = dict(beam=k, prune_finished=THRESHOLD, **PAPER)
    for b in args.gbs:
        gbs: dict[str, Any] = dict(select="gbs", gbs_base=b)
        methods[f"GBS, b = {b}"] = gbs | dict(prune_finished=THRESHOLD, **STOP)
        methods[f"GBS, b = {b}, --stop early"] = gbs
    groups = {n: [i for i in whole if tokens[i] == n] for n in sorted({tokens[i] for i in whole})}
    groups = {n: found for n, found in groups.items() if len(found) >= args.figure4_least}
    base = f"DBA of the paper, k = {max(args.figure4_beams)}"
    found = {}
    for method, flags in methods.items():
        label = f"figure4.{name}.{method.replace(' = ', '').replace(', ', '.').replace(' ', '_')}"
        given = None if method.startswith("none") else runs.sets[name]
        found[method] = runs.search(label, whole, given, **flags)
    references = [runs.references[i] for i in whole]
    places, rows = {i: at for at, i in enumerate(whole)}, []
    for method, run in found.items():
        row = {"method": method} | facts(run, references)
        row["over"] = difference(run.best, found[base].best, references) if method != base else None
        row["by"] = {
            n: measure([run.best[places[i]] for i in x], [runs.references[i] for i in x]).bleu
            for n, x in groups.items()
        }
        rows.append(row)
    sizes = {n: len(lines) for n, lines in groups.items()}
    return {"set": name, "sentences": len(whole), "sizes": sizes, "base": base, "rows": rows}


def table3(runs: Runs) -> list[dict[str, Any]]:
    """The paper's search by threshold; None: not pruned."""
    beam, out = runs.args.table_beam, []
    for name in ("none", *runs.sets):
        for threshold in (None, *runs.args.prune):
            shown = "off" if threshold is None else f"{threshold:g}"
            flags = (STOP if name == "none" else PAPER) | {"prune_finished": threshold}
            run = runs.of_set(f"paper.{name}.beam{beam}.prune{shown}", name, beam, **flags)
            out.append({"set": name, "prune": threshold} | facts(run, runs.references))
    return out


def stops(runs: Runs) -> list[dict[str, Any]]:
    """The paper's stop, the first complete hypothesis, and our own search, on the same sets."""
    beam, out = runs.args.table_beam, []
    for name in runs.sets:
        of = f"stops.{name}.beam{beam}", name, beam
        ranked = runs.of_set(f"{of[0]}.ranked", *of[1:], prune_finished=THRESHOLD, **PAPER)
        first = runs.of_set(f"{of[0]}.first", *of[1:], change=at_first_complete, **PAPER)
        found = {"all finished, pruned": ranked, "first complete": first}
        for stop, run in (found | {"ours (early, even)": runs.whole(name, beam)}).items():
            over = None if run is ranked else difference(run.best, ranked.best, runs.references)
            out.append({"set": name, "stop": stop, "over": over} | facts(run, runs.references))
    return out


def line_of(runs: Runs, flag: str) -> int | None:
    """Return the line that a flag names, counted from 0; None where it names none."""
    number = getattr(runs.args, flag)
    if number is not None and not 1 <= number <= len(runs.sources):
        raise BenchError(f"--{flag} {number}: the text has {len(runs.sources)} lines")
    return None if number is None else number - 1


def figure6(runs: Runs) -> dict[str, Any]:
    """Scores of one sentence's translations under one set of words after the other."""
    args, line, rows = runs.args, line_of(runs, "example"), []
    if line is None:
        return {}
    for words in ([], *(part.split("; ") for part in args.example_words)):
        how = dict(beam=args.table_beam, prune_finished=THRESHOLD, **(PAPER if words else STOP))
        run = runs.search(f"figure6.{line}.{len(rows)}", [line], {line: words}, **how)
        ((total, length, text),) = run.best
        rows.append({"words": words, "score": total / length, "text": text})
    return {"source": runs.sources[line], "reference": runs.references[line], "rows": rows}


def figure9(runs: Runs) -> dict[str, Any]:
    """What is on the beam at the end of a search without pruning: finished hypotheses with their
    normalised scores, the others with sums of log-probabilities."""
    args, line = runs.args, line_of(runs, "trace")
    if line is None:
        return {}
    words = args.trace_words or runs.sets[args.placed][line]
    translator = Translator(**runs.flags, beam=args.table_beam, nbest=args.table_beam, **PAPER)
    strategies = translator.generator.setup.strategies
    stop = strategies.stop = Traced(args.table_beam, strategies.stop.eos)
    (found,) = translator.translate([runs.sources[line]], constraints=[list(words)])
    known = translator.task.target_dictionary
    ended = [{"score": h.score, "tokens": len(h.positional_scores), "text": h.text} for h in found]
    live = [
        {
            "score": score,
            "tokens": len(row) - 1,
            "text": translator.decode(" ".join(known[t] for t in row[1:])),
        }
        for score, row in sorted(stop.rows, key=lambda each: -each[0])
        if score > -float("inf")
    ]
    return {"source": runs.sources[line], "words": list(words), "ended": ended, "live": live}


PARTS = {part.__name__: part for part in (figure4, table3, stops, figure6, figure9)}
