"""Yang et al. 2020 (--schedule stream): the searches behind Tables 1 to 5 and 7 and Figure 2, then
OUT/tables.md and OUT/figure2.svg (tables.py).

    python scripts/experiments/streaming/run.py --out DIR [--model DIR] [--text PREFIX]
        [--dev PREFIX] [--ensemble CHECKPOINT ...] [--raw DIR] [--trees DIR]

Translation, on a text and on a length-mixed corpus made from it: every line is 1 to --longest
consecutive sentences joined, how many drawn by seed. Without arguments: the demo's model and test
set. Parts: grid, Tables 1, 3 and 4; natural, batches in the order of the corpus and of length;
exploration, Table 5; steps, Figure 2. With --raw, a folder of atis and geo
.{train,dev,test}.{nl,sql}, semantic parsing too (ten minutes of training each); with --trees, a
folder of {train,dev,test}.trees, syntactic parsing too (twenty minutes; PYEVALB counts brackets).
Each group of methods that ran in turns becomes a file of OUT; those that are there are not
repeated, so an interrupted run goes on where it was. Times compare within a group.

    --ensemble FILE [...]    more checkpoints with the same dictionaries
    --no-single              not Tables 1, 3 and 4 of --model alone, but the ensemble's only
    --dev PREFIX             for Table 5; the demo's by default
    --parts PART [...]       (all)
    --texts TEXT ...         of Tables 1, 3 and 4; Figure 2: of the last (all)
    --mixed-limit N          first lines only of the length-mixed corpus
    --longest N              sentences of the longest lines of the length-mixed corpus (8)
    --seed N                 of the length-mixed corpus (1)
    --beams N ...            k (5 50)
    --n N ...                sentences of a batch, for each k (64 32)
    --natural N ...          k and n of natural order in turn (5 16 20 8)
    --delta X                --prune-threshold, the one that FIXED's BLEU on dev chooses (1.5)
    --further X [...]        further thresholds in Tables 1, 3 and 4
    --children N             --prune-children, the paper's M (5)
    --raw DIR                for semantic parsing
    --trees DIR              for syntactic parsing
    --parsing-only           no translation
    --out OUT                folder for the results; runs/streaming by default
"""

import argparse
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tables
from intervals import counts_of
from methods import (
    ROOT,
    TIMING,
    BenchError,
    Change,
    Setting,
    Text,
    cached,
    clock_of,
    command_line,
    measure,
    methods,
    named,
    ours,
    prepare,
    run_script,
    text_arguments,
    timing,
)
from text import parallel_lines

from fairseq_ext.kernels.beam import SearchResult
from fairseq_ext.search.compiled import CompiledSearch

HERE = Path(__file__).resolve().parent
PARTS = ("grid", "natural", "exploration", "steps")
# one at a time: Table 5, and the further values of the paper's manual tuning (Appendix A.3)
EXPLORED = {"delta": (0.5, 2, 2.5, 3, 4, 5, 10), "M": (3, 10), "eps": (1 / 12, 1 / 4, 1 / 3, 1 / 2)}
WIDTHS = {"default": ("DEFAULT", "DEFAULT-STREAM"), "fixed": ("FIXED-OURS", "FIXED-STREAM")}
WIDTHS["variable"] = ("VAR-BATCH", "VAR-STREAM")


def mix(sides: Sequence[list[str]], out: str, languages: Sequence[str], longest: int, seed: int):
    """Write OUT.language: sentences joined, every one of them once, in order."""
    draw, start, groups = random.Random(seed), 0, []
    while start < len(sides[0]):
        groups.append(slice(start, start := start + draw.randint(1, longest)))
    for language, side in zip(languages, sides, strict=True):
        lines = "".join(" ".join(side[group]) + "\n" for group in groups)
        Path(f"{out}.{language}").write_text(lines, encoding="utf-8")


class Translation:
    """A model, or an ensemble, and the texts."""

    def __init__(self, args: argparse.Namespace, folder: Path):
        self.args, self.folder = args, folder
        self.models: dict[str, list[Path]] = {} if args.no_single else {"single model": []}
        if args.ensemble:
            self.models["ensemble"] = [*args.ensemble]
        pair, mixed = (args.src, args.tgt), str(folder / "mixed")
        mix(parallel_lines(args.text, pair), mixed, pair, args.longest, args.seed)
        self.texts = {"test": self.text(args.text, args.limit)}
        self.texts["mixed"] = self.text(mixed, args.mixed_limit)

    def text(self, prefix: str, limit: int | None) -> Text:
        args, place = self.args, self.folder / f"text{len(list(self.folder.iterdir()))}"
        return prepare(place, args.model, prefix, args.src, args.tgt, limit)

    def setting(self, k: int) -> Setting:
        args = self.args
        return Setting(k, args.n[args.beams.index(k)], args.delta, args.children)

    def keep(
        self,
        name: str,
        text: Text,
        n: int,
        wanted: Any,
        make: Callable[[], list[dict]],
        members: Sequence[Path] = (),
    ) -> None:
        """OUT/translation/NAME.json of these methods."""
        args = self.args
        size = (args.model / "checkpoint.pt").stat().st_size
        of_members = [(path.name, path.stat().st_size) for path in members]
        key = [named(args.model), size, of_members, text.references, timing(args), wanted]
        models = named(args.model) + f" and {len(members)} more" * bool(members)
        about = f"{models}, {len(text.references)} lines, n = {n}, {timing(args)}"
        cached(args.out / "translation" / f"{name}.json", key, make, about)

    def group(
        self,
        name: str,
        text: Text,
        n: int,
        wanted: dict[str, list[str]],
        members: Sequence[Path] = (),
        **how: Any,
    ) -> None:
        """Run these methods in turns on one text."""
        path = ":".join(map(str, [self.args.model / "checkpoint.pt", *members]))
        flags = {method: [*each, "--path", path] for method, each in wanted.items()}

        def make() -> list[dict]:
            quality = lambda outputs: {"BLEU": text.bleu(outputs)}  # noqa: E731
            counts = lambda outputs: counts_of(text.lines(outputs), text.references)  # noqa: E731
            how["counts"] = counts
            return measure(text, flags if members else wanted, quality, self.args, **how)

        self.keep(name, text, n, wanted, make, members)

    def grid(self) -> None:
        """Tables 1, 3 and 4: every method at every beam."""
        for name in self.args.texts:
            for models, members in self.models.items():
                for s in map(self.setting, self.args.beams):
                    title = f"{name}, {models}, k = {s.k}"
                    wanted = methods(s)
                    for delta in self.args.further:
                        at = methods(replace(s, delta=delta))
                        pair = ("VAR-BATCH", "VAR-STREAM")
                        wanted |= {f"{method}, delta = {delta:g}": at[method] for method in pair}
                    self.group(title, self.texts[name], s.n, wanted, members)

    def natural(self) -> None:
        """Streams next to batches of n lines in the order of the corpus and in the order of
        length. Default: they stop as fairseq does; fixed width: as the paper does; variable
        width: a stream of at most n x k rows, so that the sentences that pruning has narrowed
        leave room for others. fairseq sorts the lines before it makes batches."""
        for k, n in zip(self.args.natural[::2], self.args.natural[1::2], strict=True):
            wanted, change, same = {}, dict[str, Change](), {}
            for width, (batches, stream) in WIDTHS.items():
                rows = n * k if width == "variable" else None
                flags = methods(Setting(k, n, self.args.delta, self.args.children, 1 / 2, rows))
                names = [f"{width} batches, {x}" for x in ("corpus order", "by length")]
                wanted |= dict.fromkeys(names, flags[batches])
                wanted[f"{width} stream"] = [*flags[stream], "--stream-order", "fifo"]
                same |= dict.fromkeys((names[1], f"{width} stream"), names[0])
                change[names[0]] = lambda loaded, _, n=n: in_corpus_order(loaded, n)
            title = f"natural order, k = {k}"
            self.group(title, self.texts["test"], n, wanted, change=change, same_as=same)

    def exploration(self) -> None:
        """Table 5: FIXED, VAR-STREAM, and VAR-STREAM with one of delta, M and eps changed,
        at the largest beam."""
        s = self.setting(max(self.args.beams))
        wanted = {name: methods(s)[name] for name in ("FIXED", "VAR-STREAM")}
        for letter, values in EXPLORED.items():
            for value in values:
                shown = f"1/{round(1 / value)}" if letter == "eps" else f"{value:g}"
                wanted[f"{letter} = {shown}"] = methods(replace(s, **{letter: value}))["VAR-STREAM"]
        self.group("exploration", self.text(self.args.dev, self.args.limit), s.n, wanted)

    def steps(self) -> None:
        """Figure 2: seconds of single steps by the number of tokens decoded before, for VAR-STREAM
        at the largest beam; of the length-mixed corpus unless --texts leaves it out."""
        s, text = self.setting(max(self.args.beams)), self.texts[self.args.texts[-1]]
        flags, clock = ["--cpu", *methods(s)["VAR-STREAM"]], StepClock(clock_of(self.args))

        def make() -> list[dict]:
            ours(text, flags, change=clock.watch).run()
            return [dict(length=n, rows=x, seconds=each) for n, (x, each) in clock.times()]

        self.keep("steps", text, s.n, flags, make)


def in_corpus_order(loaded: Any, n: int) -> None:
    """Give a method batches of n neighbouring lines."""
    lines = loaded.task.dataset(loaded.cfg.dataset.gen_subset)
    groups = (range(at, min(at + n, len(lines))) for at in range(0, len(lines), n))
    loaded.batches = [lines.collater([lines[i] for i in group]) for group in groups]


class StepClock:
    """The time from one decoder step to the next, also of the compiled search, which makes its
    steps without the decoder's methods."""

    def __init__(self, clock: Callable[[], float]):
        self.clock = clock
        self.begun: list[tuple[int, int, float]] = []  # tokens read before, rows, when

    def watch(self, loaded: Any, generator: Any) -> None:
        decoder = generator.decoder
        step = decoder.step

        def timed(tokens, *args, **kwargs):
            self.begun.append((tokens.size(1), tokens.size(0), self.clock()))
            return step(tokens, *args, **kwargs)

        decoder.step = timed
        for search in generator.driver.compiled:
            if isinstance(search, CompiledSearch):
                search.batch.run_steps = self.one_by_one(search.batch, search.batch.run_steps)

    def one_by_one(self, batch: Any, go_on: Callable) -> Callable:
        def one_step(most: int, *arguments: Any) -> SearchResult:
            # all have equally many tokens
            begun = batch.live[0].struct.length + 1, batch.rows, self.clock()
            result = go_on(1, *arguments)
            if result != SearchResult.NO_ROOM:
                self.begun.append(begun)
            return result

        return one_step

    def times(self) -> list[tuple[int, tuple[list[int], list[float]]]]:
        """For every number of tokens read before: the rows and the seconds of its steps, those
        before other sentences' left out."""
        out: dict[int, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
        for (length, rows, start), (following, _, end) in zip(
            self.begun, self.begun[1:], strict=False
        ):
            if following == length + 1:
                out[length][0].append(rows)
                out[length][1].append(end - start)
        return sorted(out.items())


def parsing(args: argparse.Namespace, flag: str, folder: Path, name: str) -> None:
    """Train a parser unless there is one, and search with it."""
    if not (args.out / name / "model" / "checkpoint.pt").exists():
        more = [] if flag == "--trees" else ["--set", name]
        started("train.py", flag, folder, *more, "--out", args.out / name)
    started("parsing.py", flag, folder, "--sets", name, "--out", args.out)


def started(script: str, *words: object) -> None:
    if subprocess.run([sys.executable, HERE / script, *map(str, words)]).returncode:
        raise BenchError(f"{script} failed (see above)")


def main() -> None:
    known = {"parts": PARTS, "texts": ("test", "mixed")}
    more = dict(dev=str(ROOT / "data" / "demo" / "test"), out=ROOT / "runs" / "streaming")
    parse = command_line(f"{__doc__}{TIMING}", known, ensemble=[], further=[], **more)
    text_arguments(parse)
    args = parse.parse_args()
    if len(args.n) != len(args.beams) or len(args.natural) % 2:
        raise BenchError("--n needs a value for each of --beams, and --natural pairs of k and n")
    for name in ("atis", "geo") if args.raw else ():
        parsing(args, "--raw", args.raw, name)
    if args.trees:
        parsing(args, "--trees", args.trees, "trees")
    if not args.parsing_only:
        with tempfile.TemporaryDirectory() as folder:
            runs = Translation(args, Path(folder))
            for part in args.parts:
                getattr(runs, part)()
    tables.write(args.out)


if __name__ == "__main__":
    run_script(main)
