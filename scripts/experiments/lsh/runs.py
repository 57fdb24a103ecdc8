"""Run the searches behind the paper's tables and figures, one sentence at a time.

    python scripts/experiments/lsh/runs.py --model DIR --out DIR [--sentences 1000] [--few 200]
        [--rounds 6]

DIR of --model is what train.sh made, with `lexicon` from scripts/lexical_table.py; or what
prepare.py --model made, without the searches that need a lexicon. The searches
take turns: in each round every search translates the next share of the sentences, and every other
round goes through the searches backwards, so that a machine that becomes steadily slower or faster
does so for all of them. Each share of a search becomes a file of OUT/searches; those that are there
are not repeated. Times are CPU seconds of the one thread that decodes, which other work on the
machine lengthens less than it does the clock.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import fairseq_ext
from fairseq_ext.model.transformer import decoder as transformer
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.strategies.decoding.beam import beam_search
from fairseq_ext.search.strategies.softmax import _shortlist as softmax_stats
from fairseq_ext.search.strategies.softmax.lsh import LSH

BEAM, PAPER_BEAM = 5, 12
ROUNDS = 6
BEST = dict(softmax="lsh", lsh_k=16, lsh_u=3, lsh_bands=100, lsh_hits=2, lsh_top=6000)
MAIN = "lsh T=6000 t=2"  # with the flags BEST
FULL: dict[str, Any] = dict(softmax="full")
# Section 5 recommends {8, 3, 500} and {16, 3, 500}, and names no hits; 100 bands of 16 and 3: BEST
GRID = ((8, 3, 500), (16, 3, 500), (8, 3, 100), (16, 2, 100), (8, 4, 100))
HITS = {500: (4, 8), 100: (2, 3)}
# words of each row in the baseline of Vijayanarasimhan et al. 2015; the paper gives no number
COLLISIONS = (500, 2000)


def settings() -> dict[str, tuple[dict[str, Any], str]]:
    """Label -> flags and which sentences: many, or few."""
    out: dict[str, tuple[dict[str, Any], str]] = {
        "full": (FULL, "many"),
        "screened": (dict(softmax="screened"), "many"),
    }
    for T in (2000, 4000, 6000):
        for t in (1, 2, 3):
            out[f"lsh T={T} t={t}"] = (BEST | dict(lsh_top=T, lsh_hits=t), "many")
    for K, u, W in GRID:
        for t in HITS[W]:
            flags = dict(lsh_k=K, lsh_u=u, lsh_bands=W, lsh_hits=t)
            out[f"lsh K={K} u={u} W={W} T=6000 t={t}"] = (BEST | flags, "many")
    for most in COLLISIONS:
        out[f"per row, {most} collisions"] = (BEST | dict(lsh_top=0, per_row=most), "many")
    out["full --int8"] = (FULL | dict(int8=True), "many")
    out["lsh --int8"] = (BEST | dict(int8=True), "many")
    for T in (2000, 4000, 6000, 8000):
        out[f"top T={T}"] = (dict(softmax="top", shortlist_top=T), "many")
    for words in (5, 20, 50):
        out[f"lexical N={words}"] = (
            dict(softmax="lexical", shortlist_top=200, shortlist_words=words),
            "many",
        )
    for beam in (PAPER_BEAM, 6, 3, 1):
        for name, flags in (("full", FULL), ("lsh", BEST)):
            out[f"{name} beam={beam}"] = (flags | dict(beam=beam), "many")
    for T in (2000, 4000):
        out[f"lsh T={T} beam={PAPER_BEAM}"] = (BEST | dict(lsh_top=T, beam=PAPER_BEAM), "many")
    for beam in (24, 36, 48):
        for name, flags in (("full", FULL), ("lsh", BEST)):
            out[f"{name} beam={beam}"] = (flags | dict(beam=beam), "few")
    return out


class PerRow(LSH):
    """LSH on CPU as Section 4.1 describes it (Vijayanarasimhan et al. 2015): each row has a
    shortlist of its own, the words with the most collisions, scored one row after the other.

    EOS is always on it, so that a sentence can end.
    """

    most: int
    eos: int

    def __call__(self, decoder, features, beam=None, pool=None):
        (x,), (weight, bias) = features, self.layers[0]
        hits = self.hits(x)
        out = x.new_full((x.size(0), self.V), -torch.inf)
        for row in range(x.size(0)):
            # before all words that collide as often, which topk may take in any order
            hits[row, self.eos] = hits[row].max() + 1
            words = hits[row].topk(min(self.most, self.V)).indices
            logits = weight[words] @ x[row]
            logits = logits if bias is None else logits + bias[words]
            out[row, words] = (logits / self.temperature).log_softmax(0)
        return LogProbs(out)


class Parts:
    """CPU seconds of what the loop calls, by wrapping it."""

    def __init__(self, generator: Any):
        self.seconds: dict[str, float] = {}
        self.wrap(generator.decoder, "admit", "source side")
        self.wrap(generator.decoder, "step", "decoder layers")
        self.wrap(generator.decoder, "select", "hidden states reorder")
        for name in ("softmax", "select"):
            self.wrap(
                generator.strategies, name, {"softmax": "softmax", "select": "beam expansion"}[name]
            )
        self.wrap(generator.setup, "processors", "beam expansion")

    def wrap(self, owner: Any, name: str, part: str) -> None:
        self.seconds.setdefault(part, 0.0)
        timed = Timed(getattr(owner, name), part, self.seconds)
        object.__setattr__(owner, name, timed)  # a setup is frozen

    @contextmanager
    def normalising(self) -> Iterator[None]:
        """Count what of the full softmax turns logits into log-probabilities, too; the rest of it
        is the matrix product."""
        self.seconds["normalise"] = 0.0
        with ExitStack() as stack:
            for owner, name in ((torch, "log_softmax"), (transformer, "log_softmax_")):
                timed = Timed(getattr(owner, name), "normalise", self.seconds)
                stack.enter_context(patch.object(owner, name, timed))
            yield


class Timed:
    """Something that is called, with its attributes."""

    def __init__(self, inner: Any, part: str, seconds: dict[str, float]):
        self.inner, self.part, self.seconds = inner, part, seconds

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        start = time.thread_time()
        out = self.inner(*arguments, **named)
        self.seconds[self.part] += time.thread_time() - start
        return out

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def spread(wanted: int, available: int) -> list[int]:
    """`wanted` places of those available, at equal distances."""
    return [i * available // wanted for i in range(wanted)]


def joined(line: str) -> str:
    """A line of SentencePiece's pieces as text; one of words as it is."""
    return line.replace(" ", "").replace("\u2581", " ").strip() if "\u2581" in line else line


def search(args: argparse.Namespace, flags: dict[str, Any], chosen: list[int]) -> dict[str, Any]:
    """Translate these lines of the test set."""
    texts = []
    for side in ("src", "tgt"):
        with (args.model / f"test.{side}").open(encoding="utf-8") as lines:
            whole = [line.rstrip("\n") for line in lines]
            texts.append([whole[i] for i in chosen])
    source, target = texts
    flags = dict(flags)
    if flags["softmax"] in ("lsh", "top", "lexical") and (args.model / "counts").exists():
        flags["shortlist_counts"] = str(args.model / "counts")
    most = flags.pop("per_row", None)
    model = str(args.model / "checkpoint.pt")
    translator = fairseq_ext.Translator(
        model,
        str(args.model),
        source_lang="src",
        target_lang="tgt",
        cpu=True,
        batch_size=1,
        **(dict(beam=BEAM) | flags),
    )
    if most is not None:
        softmax = translator.generator.strategies.softmax
        softmax.__class__ = PerRow
        softmax.most, softmax.eos = most, translator.task.target_dictionary.eos()
    is_shortlist = flags["softmax"] not in ("full", "screened") and most is None
    if is_shortlist:
        # recall is measured in a run of its own
        translator.generator.strategies.softmax.meter.every = 0
    translator.translate(source[:2])
    parts = Parts(translator.generator)
    with parts.normalising() if flags["softmax"] == "full" else ExitStack():
        before, start = translator.stats.copy(), time.thread_time()
        found = translator.translate(source)
        seconds = time.thread_time() - start
        counts = translator.stats.since(before).as_dict()
        # compiled code, which has no parts to be timed, ran the whole search: the loop has
        if not parts.seconds["decoder layers"]:
            translator.generator.driver = partial(beam_search, translator.generator.setup)
            translator.translate(source)
    softmax = counts.get("softmax", {})
    out = {
        "seconds": seconds,
        "parts": dict(parts.seconds),
        "calls": counts["decoder_calls"],
        "signature": translator.signature + (f"|experiment:per_row={most}" if most else ""),
    }
    out |= {
        "words": (most or softmax.get("vocab_mean", 0.0)) * counts["decoder_calls"],
        "stages": softmax.get("seconds", {}),
    }
    out |= {"texts": [joined(nbest[0].text) for nbest in found]}
    out |= {"references": [joined(line) for line in target]}
    if is_shortlist:
        translator.generator.strategies.softmax.inner.meter.every = 1
        translator.translate(source[:: max(1, len(source) // 15)])
        recall = translator.stats.as_dict()["softmax"]
        out["recall"] = [
            recall["recall_rows"],
            *(recall["recall_rows"] * recall[key] for key in ("recall_at_1", "recall_at_k")),
        ]
    return out


def together(shares: list[dict[str, Any]]) -> dict[str, Any]:
    """The results of a search's shares as those of one search, with the seconds of each share."""
    out: dict[str, Any] = {
        "rounds": [share["seconds"] for share in shares],
        "signature": shares[0]["signature"],
    }
    for key in ("seconds", "calls", "words"):
        out[key] = sum(share[key] for share in shares)
    for key in ("parts", "stages"):
        out[key] = {
            name: sum(share[key][name] or 0.0 for share in shares) for name in shares[0][key]
        }
    for key in ("texts", "references"):
        out[key] = [line for share in shares for line in share[key]]
    if "recall" in shares[0]:
        rows, at_1, at_k = (sum(share["recall"][i] for share in shares) for i in range(3))
        out["recall"] = {"rows": rows, "at_1": at_1 / rows, "at_k": at_k / rows}
    out["sentences"] = len(out["texts"])
    assert out["sentences"] == len(out["references"])
    return out


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parse.add_argument("--model", type=Path, required=True)
    parse.add_argument("--out", type=Path, required=True)
    parse.add_argument(
        "--sentences",
        type=int,
        default=1000,
        help="of the test set, spread evenly; at most all (1000)",
    )
    parse.add_argument(
        "--few",
        type=int,
        default=200,
        help="sentences for beams above 12, at most --sentences (200)",
    )
    parse.add_argument(
        "--rounds",
        type=int,
        help="in turns, each over its share of the sentences (6, or fewer where sentences are)",
    )
    parse.add_argument(
        "--only",
        nargs="+",
        choices=list(settings()),
        help=f"these searches (all), with full and {MAIN}",
    )
    args = parse.parse_args()
    for name in ("sentences", "few", "rounds"):
        if (given := getattr(args, name)) is not None and given < 1:
            parse.error(f"--{name} wants 1 or more, not {given}")
    lexical = ["lexicon"] if args.only is None or "lexical" in " ".join(args.only) else []
    for name in ("checkpoint.pt", "test.src", "test.tgt", *lexical):
        if not (args.model / name).exists():
            parse.error(
                f"{args.model / name} is missing: train.sh and scripts/lexical_table.py make "
                "the folder of --model"
            )
    with (args.model / "test.src").open(encoding="utf-8") as lines:
        available = sum(1 for _ in lines)
    many = min(args.sentences, available)
    few = min(args.few, many)
    rounds = args.rounds or min(ROUNDS, few)
    if rounds > few:
        parse.error(
            f"--rounds {rounds} leaves rounds without a sentence: of {available} lines, "
            f"--sentences takes {many} and --few {few}"
        )
    torch.set_num_threads(1)
    softmax_stats.CLOCK = time.CLOCK_THREAD_CPUTIME_ID
    (args.out / "searches").mkdir(parents=True, exist_ok=True)
    chosen = {
        label: of
        for label, of in settings().items()
        if args.only is None or label in ("full", MAIN, *args.only)
    }
    shares: dict[str, list[dict[str, Any]]] = {label: [] for label in chosen}
    for turn in range(rounds):
        for label, (flags, which) in list(chosen.items())[:: -1 if turn % 2 else 1]:
            wanted = many if which == "many" else few
            file = (
                args.out
                / "searches"
                / f"{label.replace(' ', '_')}.{turn + 1}of{rounds}.{wanted}of{available}.json"
            )
            if not file.exists():
                print(f"{label}, round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
                if flags["softmax"] == "lexical":
                    flags = flags | dict(shortlist_file=str(args.model / "lexicon"))
                share = search(args, flags, spread(wanted, available)[turn::rounds])
                share["flags"] = {
                    key: value for key, value in flags.items() if key != "shortlist_file"
                }
                file.write_text(json.dumps(share, ensure_ascii=False), encoding="utf-8")
            shares[label].append(json.loads(file.read_text(encoding="utf-8")))
    found = {
        label: together(of_search) | {"flags": of_search[0]["flags"]}
        for label, of_search in shares.items()
    }
    (args.out / "runs.json").write_text(
        json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
