"""Shi, Xu and Knight 2018 (--softmax lsh): Tables 1, 4, 7, 8 and Figures 6 to 8, one sentence at a
time; then OUT/tables.md and the figures (tables.py).

    python scripts/experiments/lsh/run.py --raw DIR [--arch transformer] [--work runs/lsh]
        [--out DIR] [--sentences 1000] [--few 200] [--rounds 6]

RAW holds Multi30k's text (train, val, test_2016_flickr in en, de, fr, cs). The first run trains the
model (train.sh; --arch lstm: the kind of the paper's Table 1) and learns the lexical table
(scripts/lexical_table.py, which needs eflomal); WORK keeps both. WORK may also be what prepare.py
--model makes, without the searches that need a lexicon. The searches
take turns: in each round every search translates the next share of the sentences, and every other
round goes through the searches backwards, so that a machine that becomes steadily slower or faster
does so for all of them. Each share of a search becomes a file of OUT/searches; those that are there
are not repeated. Times are CPU seconds of the one thread that decodes, which other work on the
machine lengthens less than it does the clock.

    --raw DIR           Multi30k's text
    --arch ARCH         transformer or lstm (transformer)
    --work DIR          of the model; runs/lsh by default
    --out OUT           runs/lsh by default
    --sentences N       of the test set, spread evenly; at most all (1000)
    --few N             sentences for beams above 12, at most --sentences (200)
    --rounds N          in turns; 6, or fewer where sentences are
    --only SEARCH ...   with full and lsh T=6000 t=2 (all)
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tables
import torch
from write_up import BenchError, command_line, kept, named, write_json, write_tables

import fairseq_ext
from fairseq_ext.model.transformer import decoder as transformer
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.strategies.decoding.beam import beam_search
from fairseq_ext.search.strategies.softmax import _shortlist as softmax_stats
from fairseq_ext.search.strategies.softmax.lsh import LSH

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BEAM, PAPER_BEAM = 5, 12
ROUNDS = 6
BEST = dict(softmax="lsh", lsh_k=16, lsh_u=3, lsh_bands=100, lsh_hits=2, lsh_top=6000)
FULL: dict[str, Any] = dict(softmax="full")
# Section 5 recommends {8, 3, 500} and {16, 3, 500}, and names no hits; 100 bands of 16 and 3: BEST
GRID = ((8, 3, 500), (16, 3, 500), (8, 3, 100), (16, 2, 100), (8, 4, 100))
HITS = {500: (4, 8), 100: (2, 3)}
# words of each row in the baseline of Vijayanarasimhan et al. 2015; the paper gives no number
COLLISIONS = (500, 2000)


def settings() -> dict[str, dict[str, Any]]:
    """Label -> flags."""
    out: dict[str, dict[str, Any]] = {"full": FULL, "screened": dict(softmax="screened")}
    for T in (2000, 4000, 6000):
        out |= {f"lsh T={T} t={t}": BEST | dict(lsh_top=T, lsh_hits=t) for t in (1, 2, 3)}
    for K, u, W in GRID:
        for t in HITS[W]:
            flags = dict(lsh_k=K, lsh_u=u, lsh_bands=W, lsh_hits=t)
            out[f"lsh K={K} u={u} W={W} T=6000 t={t}"] = BEST | flags
    out |= {f"per row, {n} collisions": BEST | dict(lsh_top=0, per_row=n) for n in COLLISIONS}
    out |= {"full --int8": FULL | dict(int8=True), "lsh --int8": BEST | dict(int8=True)}
    for T in (2000, 4000, 6000, 8000):
        out[f"top T={T}"] = dict(softmax="top", shortlist_top=T)
    for n in (5, 20, 50):
        out[f"lexical N={n}"] = dict(softmax="lexical", shortlist_top=200, shortlist_words=n)
    for T in (2000, 4000):
        out[f"lsh T={T} beam={PAPER_BEAM}"] = BEST | dict(lsh_top=T, beam=PAPER_BEAM)
    for beam in (PAPER_BEAM, 6, 3, 1, 24, 36, 48):
        out |= {f"{n} beam={beam}": f | dict(beam=beam) for n, f in (("full", FULL), ("lsh", BEST))}
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
        self.wrap(generator.strategies, "softmax", "softmax")
        self.wrap(generator.strategies, "select", "beam expansion")
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


def joined(line: str) -> str:
    """A line of SentencePiece's pieces as text; one of words as it is."""
    return line.replace(" ", "").replace("\u2581", " ").strip() if "\u2581" in line else line


def lines_of(work: Path, side: str) -> list[str]:
    return (work / f"test.{side}").read_text(encoding="utf-8").removesuffix("\n").split("\n")


def search(work: Path, flags: dict[str, Any], chosen: list[int]) -> dict[str, Any]:
    """Translate these lines of the test set."""
    source, target = ([lines_of(work, side)[i] for i in chosen] for side in ("src", "tgt"))
    given = dict(flags)
    if given["softmax"] in ("lsh", "top", "lexical") and (work / "counts").exists():
        given["shortlist_counts"] = str(work / "counts")
    if given["softmax"] == "lexical":
        given["shortlist_file"] = str(work / "lexicon")
    most = given.pop("per_row", None)
    how = dict(source_lang="src", target_lang="tgt", cpu=True, batch_size=1, beam=BEAM) | given
    translator = fairseq_ext.Translator(str(work / "checkpoint.pt"), str(work), **how)
    generator = translator.generator
    softmax = generator.strategies.softmax
    if most is not None:
        softmax.__class__ = PerRow
        softmax.most, softmax.eos = most, translator.task.target_dictionary.eos()
    is_shortlist = flags["softmax"] not in ("full", "screened") and most is None
    if is_shortlist:
        softmax.meter.every = 0  # recall is measured in a run of its own
    translator.translate(source[:2])
    parts = Parts(generator)
    with parts.normalising() if flags["softmax"] == "full" else ExitStack():
        before, start = translator.stats.copy(), time.thread_time()
        found = translator.translate(source)
        seconds = time.thread_time() - start
        counts = translator.stats.since(before).as_dict()
        # compiled code, which has no parts to be timed, ran the whole search: the loop has
        if not parts.seconds["decoder layers"]:
            generator.driver = partial(beam_search, generator.setup)
            translator.translate(source)
    of_softmax, calls = counts.get("softmax", {}), counts["decoder_calls"]
    out = {
        "seconds": seconds,
        "parts": dict(parts.seconds),
        "calls": calls,
        "signature": translator.signature + (f"|experiment:per_row={most}" if most else ""),
        "words": (most or of_softmax.get("vocab_mean", 0.0)) * calls,
        "stages": of_softmax.get("seconds", {}),
        "texts": [joined(nbest[0].text) for nbest in found],
        "references": [joined(line) for line in target],
        "flags": flags,
    }
    if is_shortlist:
        softmax.meter.every = 1
        translator.translate(source[:: max(1, len(source) // 15)])
        recall = translator.stats.as_dict()["softmax"]
        rows = recall["recall_rows"]
        out["recall"] = [rows, *(rows * recall[f"recall_at_{k}"] for k in ("1", "k"))]
    return out


def together(shares: list[dict[str, Any]]) -> dict[str, Any]:
    """The results of a search's shares as those of one search, with the seconds of each share."""
    out: dict[str, Any] = {key: shares[0][key] for key in ("signature", "flags")}
    out["rounds"] = [share["seconds"] for share in shares]
    for key in ("seconds", "calls", "words"):
        out[key] = sum(share[key] for share in shares)
    for key in ("parts", "stages"):
        names = shares[0][key]
        out[key] = {name: sum(share[key][name] or 0.0 for share in shares) for name in names}
    for key in ("texts", "references"):
        out[key] = [line for share in shares for line in share[key]]
    if "recall" in shares[0]:
        rows, at_1, at_k = (sum(share["recall"][i] for share in shares) for i in range(3))
        out["recall"] = {"rows": rows, "at_1": at_1 / rows, "at_k": at_k / rows}
    out["sentences"] = len(out["texts"])
    assert out["sentences"] == len(out["references"])
    return out


def prepare(args: argparse.Namespace) -> None:
    """Model and lexical table, unless WORK has them."""
    if not (args.work / "checkpoint.pt").exists():
        if args.raw is None:
            raise BenchError("--raw is needed to train the model")
        command = [HERE / "train.sh", "--raw", args.raw, "--out", args.work, "--arch", args.arch]
        places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        subprocess.run([*map(str, command)], check=True, env={**os.environ, "PATH": places})
    if (args.work / "train.src").exists() and not (args.work / "lexicon").exists():
        sides = ["--source", args.work / "train.src", "--target", args.work / "train.tgt"]
        table = [sys.executable, ROOT / "scripts" / "lexical_table.py", *sides]
        subprocess.run([*map(str, [*table, "--out", args.work / "lexicon"])], check=True)


def main() -> None:
    runs, known = ROOT / "runs" / "lsh", {"only": settings(), "arch": ("transformer", "lstm")}
    args = command_line(__doc__, known, work=runs, out=runs).parse_args()
    prepare(args)
    available = len(lines_of(args.work, "src"))
    many = min(args.sentences, available)
    few = min(args.few, many)
    rounds = args.rounds or min(ROUNDS, few)
    if not 0 < rounds <= few:
        raise BenchError(
            f"--rounds {rounds} leaves rounds without a sentence: of {available} lines, "
            f"--sentences takes {many} and --few {few}"
        )
    torch.set_num_threads(1)
    softmax_stats.CLOCK = time.CLOCK_THREAD_CPUTIME_ID
    wanted = ("full", tables.BEST, *args.only)
    chosen = {label: flags for label, flags in settings().items() if label in wanted}
    if not (args.work / "lexicon").exists():
        left_out = [label for label, flags in chosen.items() if flags["softmax"] == "lexical"]
        if left_out:
            print(f"{args.work} has no lexicon: without {', '.join(left_out)}", file=sys.stderr)
        chosen = {label: flags for label, flags in chosen.items() if label not in left_out}
    model = [named(args.work), (args.work / "checkpoint.pt").stat().st_size]
    shares: dict[str, list[dict[str, Any]]] = {label: [] for label in chosen}
    for turn in range(rounds):
        for label, flags in list(chosen.items())[:: -1 if turn % 2 else 1]:
            count = few if flags.get("beam", 0) > PAPER_BEAM else many
            lines = [i * available // count for i in range(count)][turn::rounds]
            name = f"{label.replace(' ', '_')}.{turn + 1}of{rounds}.{count}of{available}.json"
            make = partial(search, args.work, flags, lines)
            shares[label].append(kept(args.out / "searches" / name, [*model, flags], make))
    found = {label: together(of_search) for label, of_search in shares.items()}
    write_json(args.out / "runs.json", found)
    write_tables(None, "run.py", tables.markdown, tables.figures, args.out)


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        sys.exit(f"error: {error}")
