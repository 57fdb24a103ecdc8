"""Santilli et al. 2023 (--decoding): greedy decoding and every parallel method against each other,
calls, time and BLEU; then OUT/tables.md, OUT/flops.md and OUT/by_length.md (tables.py), and
graphs of decoding dependencies.

    python scripts/experiments/jacobi/run.py --models DIR DIR --pairs de-en fr-en --text PREFIX
        --out DIR

Contenders run in turn; a ratio is the median over rounds. Time is the process' CPU time on one
thread, which other work on the machine disturbs less than the clock does, and on --threads above 1
the clock's. Outputs must equal stock's at beam 1.

    --models DIR ...     with checkpoint.pt, dict.*.txt and spm.model (required)
    --pairs PAIR ...     each one's languages, or one pair for all (de-en)
    --text PREFIX ...    what is translated; one for all, or one for each model (required)
    --limit N            sentences (100)
    --batch N            sentences at a time (1)
    --repeats N          (3)
    --threads N ...      (1)
    --only METHOD ...    these searches only, and fairseq greedy and ours
    --graphs N [...]     lines of the first text whose dependency graphs are drawn (1)
    --counts-only        calls and BLEU without times, for a machine that others use
    --out OUT            runs/jacobi by default
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import tables
from contenders import Loaded, ours, read, stock
from harness import BenchError, Contender, compare
from report import ROOT, named
from tables import GREEDY, KNOWN, STOCK
from text import Text, command_line, prepare, read_lines, run_script

from fairseq_ext import Translator
from fairseq_ext.search.strategies.decoding._parallel import Blocks
from fairseq_ext.viz.ddg import main as draw

BEAM = "fairseq beam 5"
WINDOW = "--decoding window"
SEARCHES = {
    STOCK: "",
    BEAM: "--beam 5",
    "our beam search, beam 1": "",
    GREEDY: f"{WINDOW} --draft none",  # the same driver with single tokens: the fair comparison
    "PJ": "--decoding jacobi --draft pad",
    KNOWN: "--decoding jacobi --draft pad",  # the block has the length of greedy's output
    "PGJ b=5": "--decoding gs-jacobi --block-size 5 --draft pad",
    "PGJ b=3": "--decoding gs-jacobi --block-size 3 --draft pad",
    "HGJ b=3": "--decoding hybrid-jacobi --block-size 3 --draft pad",
    "window, pad": f"{WINDOW} --draft pad",
    "window, repeat": f"{WINDOW} --draft repeat",
    "window, previous output": f"{WINDOW} --draft none --draft-file {{previous}}",
    "window, output of an edited source": f"{WINDOW} --draft-file {{edited}}",
}


class Batches:
    """What each batch of a search takes: output tokens with EOS, calls, CPU seconds, of all
    runs one after the other; lines: of the batches of one run; drafts: a file of the outputs whose
    lengths the search knows, or None."""

    def __init__(self, drafts: Path | None = None) -> None:
        self.drafts = drafts
        self.taken: list[tuple[int, int, float]] = []
        self.lines: list[int] = []
        self.loaded: Any = None

    def watch(self, loaded: Loaded, generator: Any) -> None:
        self.loaded, step = loaded, loaded.task.inference_step
        self.lines = [number for batch in loaded.batches for number in batch["id"].tolist()]

        def calls() -> int | None:
            return getattr(generator, "stats", None) and generator.stats.decoder_calls

        def timed(*given: Any, **named: Any) -> Any:
            with known_lengths(self.drafts):
                before, begin = calls(), time.process_time()
                found = step(*given, **named)
            seconds, more = time.process_time() - begin, (calls() or 0) - (before or 0)
            tokens = sum(len(nbest[0]["tokens"]) for nbest in found)
            self.taken.append((tokens, more, seconds))
            return found

        loaded.task.inference_step = timed

    def sentences(self, rounds: int) -> dict[str, list]:
        """Tokens and calls, and CPU seconds summed over the last rounds; in batches of one."""
        many = len(self.lines)
        last = [self.taken[len(self.taken) - many * (i + 1) :][:many] for i in range(rounds)]
        tokens, calls, _ = zip(*last[0], strict=True)
        seconds = [sum(one[i][2] for one in last) for i in range(many)]
        return {"tokens": list(tokens), "calls": list(calls), "seconds": seconds}


def known_lengths(drafts: Path | None) -> contextlib.AbstractContextManager:
    """Blocks of one sentence as long as its line in this file and EOS, as in the paper, which knows
    the target's length."""
    if drafts is None:
        return contextlib.nullcontext()
    lengths = np.array([len(line.split()) + 1 for line in drafts.open(encoding="utf-8")])
    start = Blocks.start

    def begin(blocks: Blocks, pool: Any) -> None:
        start(blocks, pool)
        blocks.length = lengths[pool.ids.cpu().numpy()]

    return mock.patch.object(Blocks, "start", begin)


def contender(
    text: Text, name: str, flags: str, batch: int, drafts: Path | None = None
) -> tuple[Contender, Batches]:
    found = Batches(drafts if name == KNOWN else None)
    words = f"--cpu --batch-size {batch} --beam 1 {flags}".split()
    kind = stock if name in (STOCK, BEAM) else ours
    made = kind(text, words, name, change=found.watch)
    made.exact = name != BEAM
    return made, found


def edited(line: str) -> str:
    """A source line without the word in its middle: an edit that changes the output
    there and often behind."""
    words = line.split()
    middle = len(words) // 2
    return " ".join(words[:middle] + words[middle + 1 :])


def write_drafts(file: Path, text: Text) -> None:
    """What greedy decoding gives, as a draft file."""
    made, batches = contender(text, GREEDY, SEARCHES[GREEDY], 32)
    known = batches.loaded.task.target_dictionary
    lines = (" ".join(known[t] for t in best[0][0][:-1]) for best in read(made.run()))
    file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def measure(
    args: argparse.Namespace, model: Path, prefix: str, pair: str, threads: int
) -> dict[str, Any]:
    """A model on a text: Tables 1, 2, 6 and 7."""
    languages = pair.split("-")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = prepare(folder / "bin", model, prefix, *languages, args.limit)
        sides = zip(languages, (map(edited, text.sources), text.references), strict=True)
        for language, side in sides:
            lines = "".join(line + "\n" for line in side)
            (folder / f"source.{language}").write_text(lines, encoding="utf-8")
        other = prepare(folder / "other", model, str(folder / "source"), *languages)
        places = {name: folder / name for name in ("previous", "edited")}
        for place, of_text in zip(places.values(), (text, other), strict=True):
            write_drafts(place, of_text)
        chosen = [n for n in SEARCHES if not args.only or n in (STOCK, GREEDY, *args.only)]
        made = {
            n: contender(text, n, SEARCHES[n].format(**places), args.batch, places["previous"])
            for n in chosen
        }
        clock = time.process_time if threads == 1 else time.perf_counter
        how = dict(threads=threads, bleu=text.bleu, clock=clock)
        result = compare([each for each, _ in made.values()], args.repeats, **how)
        is_timed = not args.counts_only
    rows = {}
    by_sentence = args.batch == 1 and threads == 1 and is_timed
    for n, (each, batches) in made.items():
        one, row = result[n], {}
        if kind := each.stats.get("target_tokens"):
            names = ("decoder_calls", "decoder_rows", "decoder_positions")
            row = {key: each.stats[key] for key in names} | {"target_tokens": kind}
        speed = {over: is_timed and result.speed_up(n, over) for over in (STOCK, GREEDY)}
        row |= {"bleu": one.bleu, "equal": one.same_best, "seconds": one.seconds}
        row |= {"signature": each.signature}
        row["each"] = batches.sentences(args.repeats) if by_sentence else None
        row["speed"] = {k: [s.median, s.low, s.high] if s else None for k, s in speed.items()}
        rows[n] = row
    loaded = made[GREEDY][1].loaded
    net, layer = loaded.models[0], loaded.models[0].decoder.layers[0]
    size = {"encoder": len(net.encoder.layers), "decoder": len(net.decoder.layers)}
    size |= {"d": layer.embed_dim, "ffn": layer.fc1.out_features}
    size["vocabulary"] = words = len(loaded.task.target_dictionary)
    title = f"{size['encoder']}+{size['decoder']} layers of {size['d']}, {words:,} words"
    kind = "CPU time" if threads == 1 else "wall clock"
    about = {"model": named(model), "text": named(prefix), "pair": pair, "threads": threads}
    about |= {"sentences": result.sentences, "size": size | {"name": title}, "load": result.load}
    lengths = (batch["net_input"]["src_lengths"].sum() for batch in loaded.batches)
    about |= {"source_tokens": int(sum(lengths)), "batch": args.batch}
    about["clock"] = kind if is_timed else "not measured"
    wrong = [n for n, row in rows.items() if n != BEAM and row["equal"] < result.sentences]
    if wrong:
        print(f"not greedy's output for every sentence (near-ties?): {', '.join(wrong)}")
    return {"about": about, "rows": rows}


def graphs(args: argparse.Namespace) -> None:
    """OUT/graphN.svg: the paper's Figures 4 and 6."""
    model, pair = args.models[0], args.pairs[0].split("-")
    for n in args.graphs:
        out, line = args.out / f"graph{n}.svg", read_lines(args.text[0], pair[0])[n - 1]
        if not out.exists():
            flags = {"beam": 1, "decoding": "jacobi", "draft": "pad", "cpu": True}
            flags |= {"source_lang": pair[0], "target_lang": pair[1], "ddg_dir": args.out}
            Translator.from_folder(model, **flags).translate([line])
            draw(["--out", str(args.out), str(args.out / "0.json")])
            (args.out / "0.svg").rename(out)


def main() -> None:
    args = command_line(__doc__, out=ROOT / "runs" / "jacobi").parse_args()
    many = len(args.models)
    for flag, given in (("--pairs", args.pairs), ("--text", args.text)):
        if len(given) not in (1, many):
            raise BenchError(f"{flag}: one for all --models, or one for each")
    args.out.mkdir(parents=True, exist_ok=True)
    for i, model in enumerate(args.models):
        text, pair = (each[i % len(each)] for each in (args.text, args.pairs))
        for threads in args.threads:
            if not (file := args.out / f"result{i}.{threads}.json").exists():
                found = measure(args, model, text, pair, threads)
                file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    tables.write(args.out)
    graphs(args)


if __name__ == "__main__":
    run_script(main)
