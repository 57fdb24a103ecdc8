"""Huang et al. 2017 (--stop optimal, --length-reward): every method at every beam on the dev set,
the best ones on the test set; what deciding takes; then OUT/tables.md and OUT/figure1 and 2.svg
(tables.py).

    python scripts/experiments/optimal_ending/run.py --out DIR [--model DIR] [--dev PREFIX]
        [--text PREFIX] [--beams 1 2 5 10 20 50] [--rewards 0 0.5 1] [--limit N]

Without arguments: the demo's model, tuned on the text on which it is tested, a check that it runs.
Each search becomes a file of OUT/searches; those that are there are not repeated, so an interrupted
run goes on where it was. Time is processor time of one thread, of searches in turns that return
their best hypothesis; stock is fairseq's own generator.

    --text PREFIX         of the test set; the demo's by default
    --beams N ...         (1 2 3 5 7 10 15 20)
    --rewards X ...       (0 0.2 0.4 0.5 0.6 0.7 0.8 1.0 1.1 1.2 1.3 1.4 1.5)
    --baseline-beam N     largest beam for first and shrink (1000000)
    --cost-beams N ...    for the searches that only count decoder rows; --beams by default
    --cost-limit N        sentences of the dev set for them
    --no-costs            leave them out
    --steps-text PREFIX   whose steps are counted by length of the sentence (none)
    --steps-model DIR     that translates it; --model by default
    --steps-beam N        (10)
    --time-beams N [...]  that are timed (5 20)
    --time-limit N        sentences of the test set that are timed (200)
    --repeats N           timed rounds (2)
    --out OUT             folder for searches and results; runs/optimal_ending by default
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tables
from contenders import ours, stock
from harness import compare
from searches import (
    ROOT,
    Answers,
    Difference,
    Measure,
    Score,
    Search,
    Wanted,
    bounded,
    cached,
    command_line,
    difference,
    machine,
    measure,
    model_flags,
    named,
    normalised,
    quiet,
    read_text,
    reward_flags,
    run_script,
    text_arguments,
    unbounded,
    wanted_lengths,
)
from text import prepare
from write_up import ratio_cell, write_json, write_tables

from fairseq_ext.translator import Translator

LENPENS = [0.0, 0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0]
# further rewards, where the best one is the largest tried: the grid must bracket it
MOST_FURTHER = 8
# length limit of the certificate for normalised scores, which is the looser the longer a
# hypothesis may become
LIMITED = dict(stop="optimal", max_len_a=1.5, max_len_b=5, prune_bound=True)
RAW = dict(stop="optimal", unnormalized=True)
PRUNED = RAW | dict(prune_bound=True)
# a candidate that ends takes a place of its step's beam (B_i of the paper)
EXPANSION = RAW | dict(stop_expansion="paper")
SINGLE = dict(unnormalized=True, batch_size=1)  # whose decoder calls are steps
WAYS: dict[str, dict[str, Any]] = {"first": dict(stop="first"), "optimal": RAW}
WAYS |= {"optimal, --stop-expansion paper": EXPANSION, "count": {}}
WORDS = (1, 11, 21, 31, 41, 61)  # the shortest source of each group
COUNTS = ("count, unnormalised scores", "count, normalised scores")


@dataclass(frozen=True)
class Setting:
    """One way to pick an answer."""

    what: str  # what the number is
    value: float
    score: Score
    wanted: Wanted = Wanted()


PLAIN, NORM = Setting("", 0.0, bounded(0)), Setting("lenpen", 1.0, normalised(1.0))
# a row of Table 3: its name; a way to stop; the settings by which its answer may be picked
Decoders = dict[str, tuple[str, list[Setting]]]


def decoders(rewards: list[float], ratio: Wanted, line: Wanted) -> Decoders:
    """fairseq's own, the paper's, and one more whose wanted length is a line."""
    positive = [r for r in rewards if r > 0]

    def by_reward(*wanted: Wanted) -> list[Setting]:
        return [Setting("r", r, bounded(r) if wanted else unbounded(r), *wanted) for r in positive]

    found: Decoders = {
        "fairseq (count)": ("count", [Setting("lenpen", p, normalised(p)) for p in LENPENS]),
        "first (OpenNMT-py default)": ("first", [PLAIN]),
        "shrink, length norm.": ("shrink", [NORM]),
        "shrink, reward": ("shrink", by_reward()),
        "optimal, no reward": ("optimal", [PLAIN]),
        "optimal, no reward, paper's beam": ("expansion", [PLAIN]),
        "optimal, bounded reward": ("optimal", by_reward(ratio)),
        "optimal, bounded reward, line": ("optimal", by_reward(line)),
    }
    return {name: each for name, each in found.items() if each[1]}


def search_of(method: str, setting: Setting) -> tuple[str, dict[str, Any]]:
    """The name of the search that a setting picks its answer from, and its flags: of `optimal` one
    for each reward and wanted length."""
    if method == "count":
        return method, {}
    if method == "expansion":
        return "optimal.paper", EXPANSION
    flags, r, wanted = dict(stop=method, unnormalized=True), setting.value, setting.wanted
    if method != "optimal":
        return method, flags
    name = f"optimal.r{r:g}" + (f".l{wanted.ratio:g}{wanted.offset:+g}" if r else "")
    return name, flags | reward_flags(r, wanted)


@dataclass
class Choice:
    """A decoder at one setting, and how good it is there."""

    decoder: str
    method: str
    beam: int
    what: str
    value: float
    dev: Measure
    test: Measure | None = None
    # BLEU on test less that of fairseq's decoder, and its 95 % interval
    over_stock: Difference | None = None
    tuned_over: Difference | None = None  # the same of the tuned optimal decoder less this one


class Sweep:
    """The searches of one sweep."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.flags = dict(cpu=True, **model_flags(args.model, args.src, args.tgt))
        prefixes, pair = {"dev": args.dev, "test": args.text}, (args.src, args.tgt)
        self.text = {x: read_text(prefix, *pair, args.limit) for x, prefix in prefixes.items()}
        quiet()
        self.ratio, self.line = wanted_lengths(Translator(**self.flags), *self.text["dev"])
        self.decoders = decoders(args.rewards, self.ratio, self.line)

    def search(
        self, split: str, name: str, beam: int, flags: dict[str, Any], limit: int | None = None
    ) -> Search:
        path = self.args.out / "searches" / f"{split}.{name}.beam{beam}.json"
        return cached(path, self.text[split][0][:limit], **self.flags, beam=beam, **flags)

    def bracketed(self) -> list[Choice]:
        """`choices`, with further rewards until the best of no decoder is the largest."""
        found, rewards = list(self.choices()), sorted(self.args.rewards)
        for _ in range(MOST_FURTHER if len(rewards) > 1 else 0):
            if not any(c.what == "r" and c.value == rewards[-1] for c in best_of(found)):
                break
            rewards.append(round(2 * rewards[-1] - rewards[-2], 6))
            self.decoders = decoders(rewards, self.ratio, self.line)
            found = list(self.choices())
        return found

    def choices(self) -> Iterator[Choice]:
        """Every decoder at every beam and number."""
        for beam in self.args.beams:
            found: dict[str, Search] = {}
            for decoder, (method, settings) in self.decoders.items():
                if beam > self.args.baseline_beam and method in ("first", "shrink"):
                    continue
                for x in settings:
                    name, flags = search_of(method, x)
                    if name not in found:
                        found[name] = self.search("dev", name, beam, flags)
                    quality = self.quality(found[name], x)
                    yield Choice(decoder, method, beam, x.what, x.value, quality)

    def on_test(self, choice: Choice) -> Answers:
        """What the choice answers on the test set."""
        setting = self.setting(choice)
        name, flags = search_of(choice.method, setting)
        return self.search("test", name, choice.beam, flags).answers(setting.score, setting.wanted)

    def setting(self, choice: Choice) -> Setting:
        return next(x for x in self.decoders[choice.decoder][1] if x.value == choice.value)

    def quality(self, found: Search, setting: Setting, limit: int | None = None) -> Measure:
        return measure(found.answers(setting.score, setting.wanted), self.text["dev"][1][:limit])

    def costs(self, tuned: Setting) -> dict[str, dict[str, Any]]:
        """What deciding takes, on dev: the statistics of each search as a user would run it, and
        the quality of its answer."""
        limit, reward = self.args.cost_limit, reward_flags(tuned.value, tuned.wanted)
        name = f"optimal, r = {tuned.value:g}, l = {tuned.wanted}"
        at_most = "optimal, normalised scores, pruned, at most 1.5 x source + 5 tokens"
        runs: dict[str, tuple[str, dict[str, Any], Setting]] = {
            "count, normalised scores": ("count", {}, NORM),
            "count, unnormalised scores": ("count", {}, PLAIN),  # the same search
            "first, unnormalised scores": (*search_of("first", PLAIN), PLAIN),
            "shrink, unnormalised scores": (*search_of("shrink", PLAIN), PLAIN),
            "optimal, unnormalised scores": ("optimal.raw", RAW, PLAIN),
            "optimal, unnormalised scores, pruned": ("optimal.raw.pruned", PRUNED, PLAIN),
            "optimal, unnormalised scores, --stop-expansion paper": (
                "optimal.raw.paper",
                EXPANSION,
                PLAIN,
            ),
            name: ("optimal.tuned", RAW | reward, tuned),
            f"{name}, pruned": ("optimal.tuned.pruned", PRUNED | reward, tuned),
            at_most: ("optimal.norm.pruned", LIMITED, NORM),
        }
        out: dict[str, dict[str, Any]] = {label: {} for label in runs}
        for label, (file, flags, setting) in runs.items():
            for beam in self.args.cost_beams or self.args.beams:
                found = self.search("dev", f"cost.{file}", beam, flags, limit)
                quality = asdict(self.quality(found, setting, limit))
                more = {key: quality[key] for key in ("bleu", "model_score")}
                out[label][str(beam)] = found.stats | more
        return out

    def steps(self) -> dict[str, dict[str, float]]:
        """Decoder steps a sentence of each way to stop, on dev: calls with single sentences."""
        out: dict[str, dict[str, float]] = {label: {} for label in WAYS}
        for label, flags in WAYS.items():
            name = f"steps.{label.replace(', --', '.').replace(' ', '_')}"
            for beam in self.args.cost_beams or self.args.beams:
                found = self.search("dev", name, beam, SINGLE | flags, self.args.cost_limit)
                out[label][str(beam)] = found.stats["decoder_calls"] / len(found.hypotheses)
        return out

    def steps_by_length(self) -> dict[str, dict[str, float]]:
        """The same for --steps-text at --steps-beam, by the number of source words."""
        args, out = self.args, dict[str, dict[str, float]]()
        pair = args.src, args.tgt
        lines = read_text(args.steps_text, *pair)[0] if args.steps_text else []
        shared = self.flags | model_flags(args.steps_model or args.model, *pair) | SINGLE
        for low, high in zip(WORDS, [*WORDS[1:], None], strict=True):
            some = [x for x in lines if low <= len(x.split()) < (high or len(x) + 1)]
            label = f"{low} to {high - 1}" if high else f"{low} or more"
            for way, flags in WAYS.items() if some else ():
                path = args.out / "searches" / f"words.{low}.{way.replace(', --', '.')}.json"
                flags = shared | flags | {"beam": args.steps_beam}
                calls = cached(path, some, **flags).stats["decoder_calls"]
                row = out.setdefault(label, {"sentences": len(some)})
                row[way] = calls / len(some)
        return out


def best_of(choices: list[Choice]) -> list[Choice]:
    """Each decoder's best setting on dev; of equals the cheaper beam and the smaller number."""
    return [
        min((c for c in choices if c.decoder == name), key=lambda c: (-c.dev.bleu, c.beam, c.value))
        for name in dict.fromkeys(choice.decoder for choice in choices)
    ]


def times(args: argparse.Namespace, tuned: Setting) -> dict[str, list[dict[str, Any]]]:
    """By beam: the stopping criteria in turns on the test set, those of unnormalised scores first,
    which all find the best sum of log-probabilities that they can."""
    raw, wanted = "--unnormalized", tuned.wanted
    reward = f"--length-reward {tuned.value} --length-ratio {wanted.ratio} "
    flags = {
        "fairseq, unnormalised scores": raw,
        COUNTS[0]: raw,
        "first, unnormalised scores": f"{raw} --stop first",
        "shrink, unnormalised scores": f"{raw} --stop shrink",
        "optimal, unnormalised scores": f"{raw} --stop optimal",
        "optimal, unnormalised scores, pruned": f"{raw} --stop optimal --prune-bound",
        f"optimal, r = {tuned.value:g}, pruned": f"{raw} --stop optimal --prune-bound {reward}"
        f"--length-offset {wanted.offset}",
        COUNTS[1]: "",
        "optimal, normalised scores, pruned": "--stop optimal --prune-bound --max-len-a 1.5 "
        "--max-len-b 5",
    }
    out = {}
    for beam in args.time_beams:
        with tempfile.TemporaryDirectory() as folder:
            pair = args.src, args.tgt
            text = prepare(Path(folder), args.model, args.text, *pair, args.time_limit)
            made = []
            for name, more in flags.items():
                words = f"--cpu --beam {beam} --batch-size 64 {more}".split()
                made.append((stock if name.startswith("fairseq") else ours)(text, words, name))
                made[-1].exact = False
            done = compare(made, args.repeats, 0, 1, clock=time.process_time)
            out[str(beam)] = []
            for each in made:
                seconds, outputs = done[each.name].seconds, done[each.name].outputs
                best = [max(nbest, key=lambda h: h[1]) for nbest in outputs]
                scores = [s if raw in flags[each.name] else s * len(t) for t, s in best]
                others = COUNTS[", normalised" in each.name], made[0].name
                row = {"name": each.name, "signature": each.signature, "bleu": text.bleu(outputs)}
                row |= {"seconds": seconds, "score": statistics.mean(scores), "stats": each.stats}
                row["over"] = [ratio_cell(done[other].seconds, seconds) for other in others]
                out[str(beam)].append(row)
    return out


def main() -> None:
    demo = str(ROOT / "data" / "demo" / "test")
    out = ROOT / "runs" / "optimal_ending"
    parse = command_line(__doc__, text=demo, out=out, steps_text="")
    text_arguments(parse, "--dev")
    args = parse.parse_args()
    sweep = Sweep(args)
    choices = sweep.bracketed()
    best = best_of(choices)
    references = sweep.text["test"][1]
    answers = [sweep.on_test(choice) for choice in best]
    optimal = [at for at, choice in enumerate(best) if choice.method == "optimal"]
    place = max(optimal, key=lambda at: best[at].dev.bleu)
    tuned = sweep.setting(best[place])
    for at, (choice, of_choice) in enumerate(zip(best, answers, strict=True)):
        choice.test = measure(of_choice, references)
        choice.over_stock = difference(of_choice, answers[0], references)
        if at != place:
            choice.tuned_over = difference(answers[place], of_choice, references)
    result = {
        "model": named(args.model),
        "dev": named(args.dev),
        "test": named(args.text),
        "languages": [args.src, args.tgt],
        "sentences": {split: len(sources) for split, (sources, _) in sweep.text.items()},
        "ratio": str(sweep.ratio),
        "line": str(sweep.line),
        "cost_sentences": len(sweep.text["dev"][0][: args.cost_limit]),
        "choices": [asdict(choice) for choice in choices],
        "best": [asdict(choice) for choice in best],
        "costs": {} if args.no_costs else sweep.costs(tuned),
        "steps": {} if args.no_costs else sweep.steps(),
        "steps_by_length": sweep.steps_by_length(),
        "steps_text": named(args.steps_text),
        "steps_model": named(args.steps_model or args.model),
        "steps_beam": args.steps_beam,
        "times": times(args, tuned),
        "machine": machine(),
    }
    write_json(args.out / "runs.json", result)
    write_tables(None, "run.py", tables.markdown, tables.figures, args.out)


if __name__ == "__main__":
    run_script(main)
