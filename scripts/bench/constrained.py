"""What do constraints cost, and how does fairseq's own constrained search compare?

    python scripts/bench/constrained.py --out results/constrained
    python scripts/bench/constrained.py --model DIR --text PREFIX --limit 200 --repeats 5 --parts sets constant interactive

sets: unconstrained search against DBA with constraints from the references (rand1..rand4, phr4), alone, with --prune-finished, and with
--stop optimal. "time" is over the unconstrained search, "rows" the decoder's rows over its rows, "a row" their quotient: what is left of
the time when extra steps are taken out. constant: the same sentences with one constraint token and with ten or more.
interactive: the complete command fairseq-interactive --constraints, stock and ours, batches of 32; "decoding" is what the command
itself reports as its translation time.
"""

import argparse
import contextlib
import io
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments" / "dba"))

from contenders import OURS, load, read
from extract import SETS, extract
from harness import BenchError, Contender, Spread, as_json, compare, fix_threads
from report import ROOT, cores, machine
from text import Text, prepare

SEARCHES = {
    "unconstrained": None,
    "DBA": [],
    "DBA, --prune-finished 20": ["--prune-finished", "20"],
    "DBA, --prune-finished 3": ["--prune-finished", "3"],
    "DBA, raw scores, --stop optimal": ["--unnormalized", "--stop", "optimal"],
}
FEW, MANY = "1 constraint token", "10 or more"
Row = list[str]


@dataclass
class Counted:
    """A contender whose decoder rows are counted too."""

    contender: Contender
    stats: dict[str, Any] = field(default_factory=dict)  # of the last run


def searching(text: Text, flags: Sequence[str], name: str) -> Counted:
    """Ours with these fairseq-generate flags; C- lines are not printed."""
    loaded = load([*OURS, *text.flags, *flags])
    loaded.task.build_tokenizer(loaded.cfg.tokenizer)  # as fairseq-generate does: constraints are segmented by them
    loaded.task.build_bpe(loaded.cfg.bpe)
    generator = loaded.task.build_generator(loaded.models, loaded.cfg.generation)
    counted = Counted(Contender(name, list, read, exact=False, signature=generator.stats.signature))

    def run() -> list:
        generator.stats.extra.clear()
        before = generator.stats.decoder_rows
        with contextlib.redirect_stdout(io.StringIO()):
            out = [(b["id"].tolist(), loaded.task.inference_step(generator, loaded.models, b)) for b in loaded.batches]
        counted.stats = {**generator.stats.extra.get("constraints", {}), "rows": generator.stats.decoder_rows - before}
        return out

    counted.contender.run = run
    return counted


class Bench:
    def __init__(self, args: argparse.Namespace, folder: Path):
        self.args, self.folder = args, folder
        self.text = self.prepared("all", args.text, args.limit)
        self.common = ["--cpu", "--beam", str(args.beam), "--max-tokens", str(args.max_tokens)]

    def prepared(self, name: str, prefix: str, limit: int | None = None) -> Text:
        place = self.folder / name
        place.mkdir()
        text = prepare(place, self.args.model, prefix, self.args.src, self.args.tgt, limit)
        spm = self.args.model / "spm.model"
        self.bpe = ["--bpe", "sentencepiece", "--sentencepiece-model", str(spm)] if spm.exists() else []
        return text

    def pieces(self) -> Callable[[str], list[str]]:
        if not self.bpe:
            return str.split
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_file=self.bpe[-1])
        return lambda phrase: processor.encode(phrase, out_type=str)

    def usable(self) -> Callable[[str], bool]:
        """Whether the target dictionary can write a phrase."""
        known = {line.split(" ")[0] for line in (self.text.folder / f"dict.{self.args.tgt}.txt").read_text(encoding="utf-8").splitlines()}
        pieces = self.pieces()
        return lambda phrase: known.issuperset(pieces(phrase))

    def file(self, name: str, lines: Sequence[Sequence[str]]) -> list[str]:
        """Flags that give these constraints."""
        path = self.folder / f"{name}.tsv"
        path.write_text("".join("\t".join(phrases) + "\n" for phrases in lines), encoding="utf-8")
        return ["--constraints-file", str(path), *self.bpe]

    def raced(self, text: Text, searches: dict[str, list[str]]) -> list[Row]:
        """A row of the table for each search; ratios are over the first."""
        counted = [searching(text, [*self.common, *flags], name) for name, flags in searches.items()]
        races = compare([c.contender for c in counted], self.args.repeats, threads=self.args.threads, bleu=text.bleu)
        reference, rows = races.results[0], []
        for c, result in zip(counted, races.results, strict=True):
            taken = Spread.of([a / b for a, b in zip(result.seconds, reference.seconds, strict=True)])
            more = c.stats["rows"] / counted[0].stats["rows"]
            met = f"{c.stats['met']} of {c.stats['given']}" if "given" in c.stats else ""
            seconds = f"{Spread.of(result.seconds).median:.2f}"
            ratios = [f"{taken.median:.2f} ({taken.low:.2f}-{taken.high:.2f})", f"{more:.2f}", f"{taken.median / more:.2f}"]
            rows.append([c.contender.name, seconds, *ratios, f"{result.bleu:.2f}", met])
        return rows

    def sets(self) -> list[tuple[str, list[Row]]]:
        out = []
        for name in self.args.sets:
            given = self.file(name, extract(self.text.references, name, self.args.seed, self.usable()))
            rows = self.raced(self.text, {search: [] if more is None else given + more for search, more in SEARCHES.items()})
            out.append((f"{name}, beam {self.args.beam}", rows))
        return out

    def constant(self) -> list[tuple[str, list[Row]]]:
        """The same sentences with one token and with at least ten, both out of the reference."""
        pieces, usable, draw = self.pieces(), self.usable(), random.Random(self.args.seed)
        kept, few, many = [], [], []
        sources = Path(f"{self.args.text}.{self.args.src}").read_text(encoding="utf-8").split("\n")
        for source, reference in zip(sources, self.text.references, strict=False):
            words = [word for word in reference.split() if usable(word)]
            single = [word for word in words if len(pieces(word)) == 1]
            if not single or sum(len(pieces(word)) for word in words) < 10:
                continue
            draw.shuffle(words)
            chosen: list[str] = []
            while sum(len(pieces(word)) for word in chosen) < 10:
                chosen.append(words[len(chosen)])
            kept.append((source, reference))
            few.append([draw.choice(single)])
            many.append(chosen)
        for language, side in zip((self.args.src, self.args.tgt), zip(*kept, strict=True), strict=True):
            (self.folder / f"long.{language}").write_text("".join(line + "\n" for line in side), encoding="utf-8")
        text = self.prepared("long", str(self.folder / "long"))
        rows = self.raced(text, {FEW: self.file("few", few), MANY: self.file("many", many), "unconstrained": []})
        return [(f"constant in the number of constraints, beam {self.args.beam}, {len(kept)} sentences", rows)]

    def interactive(self) -> list[tuple[str, list[Row]]]:
        """fairseq-interactive --constraints as a user runs it."""
        sources = Path(f"{self.args.text}.{self.args.src}").read_text(encoding="utf-8").split("\n")
        out = []
        for name in self.args.interactive_sets:
            constraints = extract(self.text.references, name, self.args.seed, self.usable())[: self.args.limit_interactive]
            file = self.folder / f"{name}.input"
            lines = zip(sources, constraints, strict=False)
            file.write_text("".join("\t".join([source, *phrases]) + "\n" for source, phrases in lines), encoding="utf-8")
            command = [str(Path(sys.executable).parent / "fairseq-interactive"), str(self.text.folder), *self.text.flags[1:-2], *self.bpe]
            command += ["--constraints", "unordered", "--cpu", "--beam", str(self.args.beam), "--batch-size", "32", "--buffer-size", "32"]
            command += ["--input", str(file)]
            times: dict[str, list[tuple[float, float]]] = {"stock": [], "ours": []}
            for _ in range(self.args.repeats):
                for which, flags in (("stock", []), ("ours", OURS)):
                    times[which].append(timed([*command, *flags]))
            rows = []
            for which, taken in times.items():
                seconds = [f"{Spread.of(column).median:.2f}" for column in zip(*taken, strict=True)]
                gain = [Spread.of([b[i] / a[i] for a, b in zip(taken, times["stock"], strict=True)]).median for i in (0, 1)]
                rows.append([which, *seconds, *(f"{g:.2f}" for g in gain)])
            out.append((f"fairseq-interactive --constraints, {name}, beam {self.args.beam}, {len(constraints)} sentences", rows))
        return out


def timed(command: Sequence[str]) -> tuple[float, float]:
    """Seconds of a whole fairseq-interactive run, and of its decoding as it reports them."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    seconds = time.perf_counter() - start
    said = re.search(r"translation time: ([\d.]+)", done.stdout + done.stderr)
    if done.returncode or not said:
        last = (done.stderr.strip() or "nothing").splitlines()[-1]
        raise BenchError(f"{' '.join(Path(part).name for part in command[:1])} ended with code {done.returncode} and said: {last}")
    return seconds, float(said[1])


HEADS = {
    "sets": ["search", "seconds", "time (min-max)", "rows", "a row", "BLEU", "met"],
    "interactive": ["command", "seconds", "decoding", "times stock", "decoding, times stock"],
}
HEADS["constant"] = HEADS["sets"]


def markdown(part: str, title: str, rows: list[Row]) -> str:
    lines = [HEADS[part], ["---"] + ["---:"] * (len(HEADS[part]) - 1), *rows]
    return f"### {title}\n\n" + "".join("| " + " | ".join(line) + " |\n" for line in lines)


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parse.add_argument("--model", type=Path, default=ROOT / "checkpoints" / "demo", help="folder with checkpoint.pt, dict.*.txt, spm.model")
    parse.add_argument("--text", default=str(ROOT / "data" / "demo" / "test"), help="prefix of the two text files (the demo test set)")
    parse.add_argument("--src", default="de", help="source language and suffix (de)")
    parse.add_argument("--tgt", default="en", help="target language and suffix (en)")
    parse.add_argument("--limit", type=int, help="first sentences only (all)")
    parse.add_argument("--limit-interactive", type=int, default=320, help="sentences for fairseq-interactive (320)")
    parse.add_argument("--beam", type=int, default=10, help="(10)")
    parse.add_argument("--max-tokens", type=int, default=4000, help="of a batch (4000)")
    parse.add_argument("--seed", type=int, default=1, help="of the extraction (1)")
    parse.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parse.add_argument("--interactive-sets", nargs="+", choices=SETS, default=["rand1", "rand3"])
    parse.add_argument("--parts", nargs="+", choices=HEADS, default=["sets", "constant", "interactive"])
    parse.add_argument("--repeats", type=int, default=5, help="timed rounds (5)")
    parse.add_argument("--threads", type=int, default=cores(), help="torch threads (all cores)")
    parse.add_argument("--out", type=Path, help="write OUT.md and OUT.json")
    args = parse.parse_args()
    fix_threads(args.threads)
    tables, facts = [], {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, Path(folder))
        for part in args.parts:
            for title, rows in getattr(bench, part)():
                tables.append(markdown(part, title, rows))
                facts[title] = [dict(zip(HEADS[part], row, strict=True)) for row in rows]
                print(tables[-1], flush=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        about = json.dumps(machine(), ensure_ascii=False)
        args.out.with_name(args.out.name + ".md").write_text("\n".join([*tables, about, ""]), encoding="utf-8")
        args.out.with_name(args.out.name + ".json").write_text(as_json({"machine": machine(), "tables": facts}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        sys.exit(f"error: {error}")
