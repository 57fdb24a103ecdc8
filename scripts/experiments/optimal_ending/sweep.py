"""Run the searches behind the paper's tables and figures: every method at every beam on the dev
set, the best ones on the test set.

    python scripts/experiments/optimal_ending/sweep.py --out DIR [--model DIR] [--dev PREFIX]
        [--text PREFIX] [--beams 1 5] [--rewards 0 1]

Each search becomes a file of DIR/searches; those that are there are not repeated, so an interrupted
sweep goes on where it was. The sweep itself, with all its choices, is DIR/sweep.json, from which
tables.py and figures.py work.
"""

import argparse
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
from write_up import write_json

from fairseq_ext.translator import Translator

REWARDS = [0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
LENPENS = [0.0, 0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0]
# further rewards, where the best one is the largest tried: the grid must bracket it
MOST_FURTHER = 8
# length limit of the certificate for normalised scores, which is the looser the longer a
# hypothesis may become
A, B = 1.5, 5
# a candidate that ends takes a place of its step's beam (B_i of the paper)
EXPANSION = dict(stop="optimal", stop_expansion="paper")


@dataclass(frozen=True)
class Setting:
    """One way to pick an answer."""

    what: str  # what the number is
    value: float
    score: Score
    wanted: Wanted = Wanted()


@dataclass(frozen=True)
class Decoder:
    """A row of Table 3: a way to stop, and the settings by which its answer may be picked."""

    name: str
    method: str
    settings: list[Setting]


def decoders(rewards: list[float], ratio: Wanted, line: Wanted) -> list[Decoder]:
    """fairseq's own, the paper's, and one more whose wanted length is a line."""
    positive = [r for r in rewards if r > 0]
    found = [
        Decoder("fairseq (count)", "count", [Setting("lenpen", p, normalised(p)) for p in LENPENS]),
        Decoder("first (OpenNMT-py default)", "first", [Setting("", 0.0, bounded(0))]),
        Decoder("shrink, length norm.", "shrink", [Setting("lenpen", 1.0, normalised(1.0))]),
        Decoder("shrink, reward", "shrink", [Setting("r", r, unbounded(r)) for r in positive]),
        Decoder("optimal, no reward", "optimal", [Setting("", 0.0, bounded(0))]),
        Decoder("optimal, no reward, paper's beam", "expansion", [Setting("", 0.0, bounded(0))]),
        Decoder(
            "optimal, bounded reward",
            "optimal",
            [Setting("r", r, bounded(r), ratio) for r in positive],
        ),
        Decoder(
            "optimal, bounded reward, line",
            "optimal",
            [Setting("r", r, bounded(r), line) for r in positive],
        ),
    ]
    return [decoder for decoder in found if decoder.settings]


def search_of(method: str, setting: Setting) -> tuple[str, dict[str, Any]]:
    """The name of the search that a setting picks its answer from, and its flags: of `optimal` one
    for each reward and wanted length."""
    if method == "count":
        return method, {}
    flags: dict[str, Any] = dict(stop=method, unnormalized=True)
    if method == "expansion":
        return "optimal.paper", flags | EXPANSION
    if method != "optimal":
        return method, flags
    name = f"optimal.r{setting.value:g}" + (
        f".l{setting.wanted.ratio:g}{setting.wanted.offset:+g}" if setting.value else ""
    )
    return name, flags | reward_flags(setting.value, setting.wanted)


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


class Sweep:
    """The searches of one sweep."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.flags = dict(cpu=args.cpu, **model_flags(args.model, args.src, args.tgt))
        prefixes = {"dev": args.dev, "test": args.text}
        self.text = {
            split: read_text(prefix, args.src, args.tgt, args.limit)
            for split, prefix in prefixes.items()
        }
        quiet()
        self.ratio, self.line = wanted_lengths(Translator(**self.flags), *self.text["dev"])
        self.decoders = decoders(args.rewards, self.ratio, self.line)

    def search(
        self, split: str, name: str, beam: int, flags: dict[str, Any], limit: int | None = None
    ) -> Search:
        print(f"{split}, beam {beam}: {name}", file=sys.stderr, flush=True)
        path = self.args.out / "searches" / f"{split}.{name}.beam{beam}.json"
        return cached(path, self.text[split][0][:limit], **self.flags, beam=beam, **flags)

    def bracketed(self) -> list[Choice]:
        """`choices`, with further rewards until the best of no decoder is the largest."""
        found = self.choices()
        rewards = sorted(self.args.rewards)
        for _ in range(MOST_FURTHER if len(rewards) > 1 else 0):
            largest = [c for c in best_of(found) if c.what == "r" and c.value == rewards[-1]]
            if not largest:
                break
            rewards.append(round(2 * rewards[-1] - rewards[-2], 6))
            self.decoders = decoders(rewards, self.ratio, self.line)
            found = self.choices()
        return found

    def choices(self, split: str = "dev") -> list[Choice]:
        """Every decoder at every beam and number."""
        out = []
        for beam in self.args.beams:
            found: dict[str, Search] = {}
            for decoder in self.decoders:
                if beam > self.args.baseline_beam and decoder.method in ("first", "shrink"):
                    continue
                for x in decoder.settings:
                    name, flags = search_of(decoder.method, x)
                    if name not in found:
                        found[name] = self.search(split, name, beam, flags)
                    out.append(
                        Choice(
                            decoder.name,
                            decoder.method,
                            beam,
                            x.what,
                            x.value,
                            self.quality(split, found[name], x),
                        )
                    )
        return out

    def on_test(self, choice: Choice) -> Answers:
        """What the choice answers on the test set."""
        setting = self.setting(choice)
        name, flags = search_of(choice.method, setting)
        return self.search("test", name, choice.beam, flags).answers(setting.score, setting.wanted)

    def setting(self, choice: Choice) -> Setting:
        return next(
            x
            for d in self.decoders
            if d.name == choice.decoder
            for x in d.settings
            if x.value == choice.value
        )

    def quality(
        self, split: str, found: Search, setting: Setting, limit: int | None = None
    ) -> Measure:
        return measure(found.answers(setting.score, setting.wanted), self.text[split][1][:limit])

    def costs(self, tuned: Setting) -> dict[str, dict[str, Any]]:
        """What deciding takes, on dev: the statistics of each search as a user would run it, and
        the quality of its answer."""
        raw, prune, limit = (
            dict(stop="optimal", unnormalized=True),
            dict(prune_bound=True),
            self.args.cost_limit,
        )
        plain, norm = Setting("", 0.0, bounded(0)), Setting("lenpen", 1.0, normalised(1.0))
        rewarded = raw | reward_flags(tuned.value, tuned.wanted)
        name = f"optimal, r = {tuned.value:g}, l = {tuned.wanted}"
        limited = dict(stop="optimal", max_len_a=A, max_len_b=B)
        runs: dict[str, tuple[str, dict[str, Any], Setting]] = {
            "count, normalised scores": ("count", {}, norm),
            "count, unnormalised scores": ("count", {}, plain),  # the same search
            "first, unnormalised scores": (*search_of("first", plain), plain),
            "shrink, unnormalised scores": (*search_of("shrink", plain), plain),
            "optimal, unnormalised scores": ("optimal.raw", raw, plain),
            "optimal, unnormalised scores, pruned": ("optimal.raw.pruned", raw | prune, plain),
            "optimal, unnormalised scores, --stop-expansion paper": (
                "optimal.raw.paper",
                raw | EXPANSION,
                plain,
            ),
            name: ("optimal.tuned", rewarded, tuned),
            f"{name}, pruned": ("optimal.tuned.pruned", rewarded | prune, tuned),
            f"optimal, normalised scores, pruned, at most {A} x source + {B} tokens": (
                "optimal.norm.pruned",
                limited | prune,
                norm,
            ),
        }
        out: dict[str, dict[str, Any]] = {}
        for label, (file, flags, setting) in runs.items():
            out[label] = {}
            for beam in self.args.cost_beams or self.args.beams:
                found = self.search("dev", f"cost.{file}", beam, flags, limit)
                quality = self.quality("dev", found, setting, limit)
                out[label][str(beam)] = found.stats | {
                    "bleu": quality.bleu,
                    "model_score": quality.model_score,
                }
        return out

    def steps(self) -> dict[str, dict[str, float]]:
        """Decoder steps a sentence of each way to stop, on dev: calls with single sentences."""
        searches = {
            "first": dict(stop="first"),
            "optimal": dict(stop="optimal"),
            "optimal, --stop-expansion paper": EXPANSION,
            "count": {},
        }
        out: dict[str, dict[str, float]] = {}
        for label, flags in searches.items():
            out[label] = {}
            for beam in self.args.cost_beams or self.args.beams:
                found = self.search(
                    "dev",
                    f"steps.{label.replace(', --', '.').replace(' ', '_')}",
                    beam,
                    dict(unnormalized=True, batch_size=1) | flags,
                    self.args.cost_limit,
                )
                out[label][str(beam)] = found.stats["decoder_calls"] / len(found.hypotheses)
        return out


def best_of(choices: list[Choice]) -> list[Choice]:
    """Each decoder's best setting on dev; of equals the cheaper beam and the smaller number."""
    names = dict.fromkeys(choice.decoder for choice in choices)
    return [
        min((c for c in choices if c.decoder == name), key=lambda c: (-c.dev.bleu, c.beam, c.value))
        for name in names
    ]


def add_model_arguments(parse: argparse.ArgumentParser) -> None:
    """The model, and the text to tune on."""
    text_arguments(parse, "--dev")


def main() -> None:
    parse = command_line(__doc__)
    add_model_arguments(parse)
    parse.add_argument(
        "--text", default=str(ROOT / "data" / "demo" / "test"), help="the same for the test set"
    )
    parse.add_argument("--beams", type=int, nargs="+", default=[1, 2, 3, 5, 7, 10, 15, 20])
    parse.add_argument("--rewards", type=float, nargs="+", default=REWARDS)
    parse.add_argument(
        "--baseline-beam",
        type=int,
        default=sys.maxsize,
        help="largest beam for first and shrink (all)",
    )
    parse.add_argument("--cpu", action="store_true", help="no GPU even if there is one")
    parse.add_argument(
        "--cost-beams",
        type=int,
        nargs="+",
        help="beams for the searches that only count decoder rows (--beams)",
    )
    parse.add_argument("--cost-limit", type=int, help="sentences of the dev set for them (all)")
    parse.add_argument(
        "--no-costs",
        action="store_true",
        help="leave out the searches that only count decoder rows",
    )
    parse.add_argument("--out", type=Path, required=True, help="folder for searches and results")
    args = parse.parse_args()
    sweep = Sweep(args)
    choices = sweep.bracketed()
    best = best_of(choices)
    references = sweep.text["test"][1]
    answers = [sweep.on_test(choice) for choice in best]
    for choice, of_choice in zip(best, answers, strict=True):
        choice.test = measure(of_choice, references)
        choice.over_stock = difference(of_choice, answers[0], references)
    tuned = sweep.setting(
        max(
            (choice for choice in best if choice.method == "optimal"),
            key=lambda choice: choice.dev.bleu,
        )
    )
    result = {
        "model": named(args.model),
        "dev": named(args.dev),
        "test": named(args.text),
        "languages": [args.src, args.tgt],
        "sentences": {split: len(sources) for split, (sources, _) in sweep.text.items()},
        "ratio": str(sweep.ratio),
        "line": str(sweep.line),
        "tuned": {"reward": tuned.value, **asdict(tuned.wanted)},
        "cost_sentences": len(sweep.text["dev"][0][: args.cost_limit]),
        "choices": [asdict(choice) for choice in choices],
        "best": [asdict(choice) for choice in best],
        "costs": {} if args.no_costs else sweep.costs(tuned),
        "steps": {} if args.no_costs else sweep.steps(),
        "machine": machine(),
    }
    write_json(args.out / "sweep.json", result)


if __name__ == "__main__":
    run_script(main)
