"""The searches behind the paper's Tables 1, 3, 4, 5 and Figure 2: translation, on a text and on a
length-mixed corpus made from it.

    python scripts/experiments/streaming/translation.py --out DIR [--model DIR]
        [--ensemble CHECKPOINT ...] [--text PREFIX] [--dev PREFIX]

Each group of methods that ran in turns becomes a file of DIR/translation; those that are there
are not repeated, so an interrupted run goes on where it was. Times compare within a group, on a
machine that does nothing else.
"""

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from methods import (
    ROOT,
    Decoding,
    Setting,
    Text,
    add_timing_arguments,
    cached,
    clock_of,
    command_line,
    defaults,
    flushed,
    measure,
    methods,
    named,
    prepare,
    run_script,
    text_arguments,
    timing,
)
from mixed_corpus import mix
from step_costs import compiled_search

from fairseq_ext.kernels.beam import SearchResult
from fairseq_ext.search.compiled import CompiledSearch

PARTS = ("grid", "exploration", "steps")
# one at a time: Table 5, and the further values of the paper's manual tuning (Appendix A.3)
EXPLORED = {"delta": (0.5, 2.5, 5, 10), "M": (3, 10), "eps": (1 / 12, 1 / 4, 1 / 3, 1 / 2)}


class Translation:
    """A model, or an ensemble, and the texts."""

    def __init__(self, args: argparse.Namespace, folder: Path):
        self.args = args
        self.folder = folder
        self.models: dict[str, list[Path]] = {"single model": []} if args.single else {}
        if args.ensemble:
            self.models["ensemble"] = [*args.ensemble]
        mix(args.text, [args.src, args.tgt], folder / "mixed", args.longest, args.seed)
        self.texts = {
            "test": self.text(args.text, "test"),
            "mixed": self.text(str(folder / "mixed"), "mixed"),
        }

    def text(self, prefix: str, name: str) -> Text:
        place = self.folder / f"{name}.text"
        place.mkdir()
        limit = self.args.mixed_limit if name == "mixed" else self.args.limit
        return prepare(place, self.args.model, prefix, self.args.src, self.args.tgt, limit)

    def setting(self, k: int) -> Setting:
        return Setting(
            k, self.args.n[self.args.beams.index(k)], self.args.delta, self.args.children
        )

    def key(self, text: Text, members: list[Path]) -> list[Any]:
        args = self.args
        size = (args.model / "checkpoint.pt").stat().st_size
        return [
            named(args.model),
            size,
            [(path.name, path.stat().st_size) for path in members],
            text.references,
            timing(args),
        ]

    def about(self, text: Text, members: list[Path], n: int) -> str:
        args = self.args
        models = f"{named(args.model)} and {len(members)} more" if members else named(args.model)
        return f"{models}, {len(text.references)} lines, n = {n}, {timing(args)}"

    def group(
        self, name: str, text: Text, members: list[Path], wanted: dict[str, list[str]], n: int
    ) -> None:
        """Run these methods in turns on one text."""
        args = self.args
        if members:
            path = ":".join(map(str, [args.model / "checkpoint.pt", *members]))
            wanted = {method: [*flags, "--path", path] for method, flags in wanted.items()}

        def make() -> list[dict]:
            return measure(text, wanted, lambda outputs: {"BLEU": text.bleu(outputs)}, args)

        flags = {
            method: [flag for flag in flags if ".pt" not in flag]
            for method, flags in wanted.items()
        }
        about = self.about(text, members, n)
        cached(
            args.out / "translation" / f"{name}.json", [self.key(text, members), flags], make, about
        )

    def grid(self) -> None:
        """Tables 1, 3 and 4: every method at every beam."""
        for name in self.args.texts:
            text = self.texts[name]
            for models, members in self.models.items():
                for k in self.args.beams:
                    s = self.setting(k)
                    wanted = methods(s) | flushed(s) | defaults(s)
                    self.group(f"{name}, {models}, k = {k}", text, members, wanted, s.n)

    def exploration(self) -> None:
        """Table 5: FIXED, VAR-STREAM, and VAR-STREAM with one of delta, M and eps changed,
        at the largest beam."""
        s = self.setting(max(self.args.beams))
        wanted = {"FIXED": methods(s)["FIXED"], "VAR-STREAM": methods(s)["VAR-STREAM"]}
        for letter, values in EXPLORED.items():
            for value in values:
                shown = f"1/{round(1 / value)}" if letter == "eps" else f"{value:g}"
                wanted[f"{letter} = {shown}"] = methods(replace(s, **{letter: value}))["VAR-STREAM"]
        self.group("exploration", self.text(self.args.dev, "dev"), [], wanted, s.n)

    def steps(self) -> None:
        """Figure 2: seconds of single steps by the number of tokens decoded before, for VAR-STREAM
        at the largest beam; of the length-mixed corpus unless --texts leaves it out."""
        s = self.setting(max(self.args.beams))
        flags, text = ["--cpu", *methods(s)["VAR-STREAM"]], self.texts[self.args.texts[-1]]

        def make() -> list[dict]:
            decoding = Decoding("VAR-STREAM", flags, text)
            clock = StepClock(
                decoding.generator.decoder,
                clock_of(self.args),
                compiled_search(decoding.generator.driver),
            )
            decoding.run()
            return [
                dict(length=length, rows=rows, seconds=seconds)
                for length, (rows, seconds) in clock.times()
            ]

        cached(self.args.out / "translation" / "steps.json", [self.key(text, []), flags], make)


class StepClock:
    """The time from one decoder step to the next; search: the compiled one, which makes its steps
    without the decoder's methods."""

    def __init__(
        self, decoder: Any, clock: Callable[[], float], search: CompiledSearch | None = None
    ):
        self.begun: list[tuple[int, int, float]] = []  # tokens read before, rows, when
        step = decoder.step

        def timed(tokens, *args, **kwargs):
            self.begun.append((tokens.size(1), tokens.size(0), clock()))
            return step(tokens, *args, **kwargs)

        decoder.step = timed
        if search is not None:
            batch, go_on = search.batch, search.batch.run_steps

            def one_step(most: int, *arguments: Any) -> SearchResult:
                # all have equally many tokens
                begun = batch.live[0].struct.length + 1, batch.rows, clock()
                result = go_on(1, *arguments)
                if result != SearchResult.NO_ROOM:
                    self.begun.append(begun)
                return result

            batch.run_steps = one_step  # type: ignore[method-assign]

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


def main() -> None:
    parse = command_line(__doc__)
    text_arguments(parse)
    parse.add_argument(
        "--ensemble",
        type=Path,
        nargs="+",
        default=[],
        help="more checkpoints with the same dictionaries (none)",
    )
    parse.add_argument(
        "--single",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="Tables 1, 3 and 4 of --model alone, beside the ensemble's (yes)",
    )
    parse.add_argument(
        "--dev", default=str(ROOT / "data" / "demo" / "test"), help="the same for Table 5"
    )
    parse.add_argument(
        "--parts",
        nargs="+",
        choices=PARTS,
        default=PARTS,
        help="Tables 1, 3 and 4; Table 5; Figure 2 (all)",
    )
    texts = ["test", "mixed"]
    parse.add_argument(
        "--texts",
        nargs="+",
        choices=texts,
        default=texts,
        help="of Tables 1, 3 and 4; Figure 2: of the last (both)",
    )
    parse.add_argument(
        "--mixed-limit", type=int, help="first lines only of the length-mixed corpus (all)"
    )
    parse.add_argument(
        "--longest",
        type=int,
        default=8,
        help="sentences of the longest lines of the length-mixed corpus (8)",
    )
    parse.add_argument("--seed", type=int, default=1, help="of the length-mixed corpus (1)")
    parse.add_argument("--beams", type=int, nargs="+", default=[5, 50], help="k (5 50)")
    parse.add_argument(
        "--n",
        type=int,
        nargs="+",
        default=[64, 32],
        help="sentences of a batch, for each k (64 32)",
    )
    parse.add_argument("--delta", type=float, default=1.5, help="--prune-threshold (1.5)")
    parse.add_argument(
        "--children", type=int, default=5, help="--prune-children, the paper's M (5)"
    )
    add_timing_arguments(parse)
    parse.add_argument("--out", type=Path, required=True, help="folder for the results")
    args = parse.parse_args()
    if len(args.n) != len(args.beams):
        parse.error("--n needs a value for each of --beams")
    with tempfile.TemporaryDirectory() as folder:
        runs = Translation(args, Path(folder))
        for part in args.parts:
            getattr(runs, part)()


if __name__ == "__main__":
    run_script(main)
