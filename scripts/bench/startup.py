"""Where does the time of a whole command go, from the start of Python to its end: stock fairseq and
this project?

    python scripts/bench/startup.py --model DIR --text PREFIX --limit 150 --repeats 3
    python scripts/bench/startup.py --commands interactive api doctor

Every contender runs as a command of its own, in turns, and its user CPU time is counted, which
other work on the machine disturbs little. The table's parts are measured in the process by
functions of fairseq that are wrapped: importing torch, importing fairseq and the tasks, flags and
configuration, reading checkpoint and data, making the generator (weights, self-check), decoding,
and the rest (printing and the end of the process). Start-up is all but decoding. Next to them:
the peak of resident memory.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from arguments import command_line, run_script, text_arguments
from harness import BenchError, compile_modules
from report import ROOT, write_page
from text import Text, prepare
from timed_parts import TIMED_PARTS

PARTS = [
    "import torch",
    "import fairseq and the tasks",
    "flags, configuration",
    "checkpoint, data",
    "generator",
    "decoding",
    "rest",
]
CHILD = (
    TIMED_PARTS
    + """
import atexit, json, os, resource, sys
used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_utime
command, out = sys.argv.pop(1), sys.argv.pop(1)
if command != "api":  # whose process this is shows in these
    sys.argv[0], sys.orig_argv = "fairseq-" + command, sys.argv

import importlib.util
if importlib.util.find_spec("fairseq_cli"):  # as a command does: this wakes the start-up file
    import fairseq_cli
with timed("import torch"):
    import torch
with timed("import fairseq and the tasks"):
    if command == "api":
        import fairseq_ext
        from fairseq_ext import Translator
    else:
        import importlib
        cli = importlib.import_module("fairseq_cli." + command)
    from fairseq import checkpoint_utils, options, tasks
for name in ("get_generation_parser", "parse_args_and_arch"):
    wrap(options, name, "flags, configuration")
configure = "convert_namespace_to_omegaconf"
for name, module in list(sys.modules.items()):  # where it is does not matter, and changes
    if name.partition(".")[0] in ("fairseq_ext", "fairseq_cli") and configure in vars(module):
        wrap(module, configure, "flags, configuration")
wrap(checkpoint_utils, "load_model_ensemble", "checkpoint, data")
setup = tasks.setup_task
def setup_task(*arguments, **named):
    task = setup(*arguments, **named)
    for name in ("load_dataset", "build_tokenizer", "build_bpe"):
        wrap(task, name, "checkpoint, data")
    wrap(task, "build_generator", "generator")
    wrap(task, "inference_step", "decoding")
    return task
tasks.setup_task = setup_task
wrap(tasks, "setup_task", "checkpoint, data")
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
atexit.register(lambda: open(out, "w").write(json.dumps([parts, peak()])))
if command == "api":
    data, source, target, path = sys.argv[1:5]
    flags = dict(beam=5, cpu=True, source_lang=source, target_lang=target, path=path, data=data)
    lines = [line.strip() for line in sys.stdin]
    for found in fairseq_ext.Translator(**flags).translate(lines):
        print(found[0].text)
else:
    cli.cli_main()
"""  # noqa: E501
)


class Run:
    """A contender's command: name, flags; its user CPU seconds and its parts, one entry a round."""

    def __init__(
        self,
        name: str,
        arguments: list[str],
        source: Path | None = None,
        child: bool = True,
    ):
        self.name, self.source = name, source
        self.command = [sys.executable, *(["-c", CHILD] if child else []), *arguments]
        self.child = child
        self.seconds: list[float] = []
        self.parts: list[dict[str, float]] = []
        self.peak_mib: list[float] = []

    def __call__(self, folder: Path) -> None:
        out = folder / "parts.json"
        command = [*self.command[:4], str(out), *self.command[4:]] if self.child else self.command
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        with open(self.source or os.devnull, encoding="utf-8") as lines:
            done = subprocess.run(
                command,
                stdin=lines,
                capture_output=True,
                text=True,
                env=environment,
                cwd=folder,
                check=False,
            )
        self.seconds.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
        if done.returncode:
            raise BenchError(
                f"{self.name} ended with code {done.returncode}: "
                f"{(done.stderr.strip() or '?').splitlines()[-1]}"
            )
        parts, peak = json.loads(out.read_text()) if self.child else ({}, None)
        self.peak_mib += [] if peak is None else [peak]
        parts["rest"] = self.seconds[-1] - sum(parts.values())
        self.parts.append(parts)

    @property
    def startup(self) -> list[float]:
        """Seconds of each round without decoding."""
        return [
            whole - parts.get("decoding", 0.0)
            for whole, parts in zip(self.seconds, self.parts, strict=True)
        ]


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    tables = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = prepare(folder, args.model, args.text, args.src, args.tgt, args.limit)
        for command in args.commands:
            runs = contenders(args, text, command)
            for _ in range(args.repeats):
                for run in runs:
                    run(folder)
            tables.append(table(command, runs))
            print(tables[-1], flush=True)
            write_page(args.out, tables)
    return 0


def contenders(args: argparse.Namespace, text: Text, command: str) -> list[Run]:
    """The commands that are compared: stock's and ours."""
    compile_modules(ROOT)
    source = text.folder / f"test.{text.source}-{text.target}.{text.source}"
    if command == "doctor":
        return [Run("ours", ["-m", "fairseq_ext.doctor"], child=False)]
    if command == "api":
        given = [str(text.folder), text.source, text.target, str(text.model / "checkpoint.pt")]
        return [Run("ours", ["api", *given], source)]
    flags = [*text.flags, "--cpu", "--beam", "5"]
    if command == "interactive":
        flags = [
            *[flag for flag in flags if flag not in ("--dataset-impl", "raw")],
            "--buffer-size",
            "100",
            "--max-tokens",
            "4000",
        ]
    else:
        flags += ["--max-tokens", "4000"]
    words = [command, *flags]
    return [Run("stock", words, source), Run("ours", [*words, "--task", "translation_ext"], source)]


def table(command: str, runs: list[Run]) -> str:
    """Medians of user CPU seconds, a row a part, and each contender's start-up over that
    of ours, round by round."""
    lines = [
        f"### {command}",
        "",
        "| part | " + " | ".join(run.name for run in runs) + " |",
        "| --- |" + " ---: |" * len(runs),
    ]
    for part in [
        part for part in PARTS if any(part in parts for run in runs for parts in run.parts)
    ]:
        lines.append(
            f"| {part} | "
            + " | ".join(
                f"{statistics.median(p.get(part, 0.0) for p in run.parts):.2f}" for run in runs
            )
            + " |"
        )
    lines.append(
        "| whole | " + " | ".join(f"{statistics.median(run.seconds):.2f}" for run in runs) + " |"
    )
    lines.append(
        "| start-up | " + " | ".join(f"{statistics.median(run.startup):.2f}" for run in runs) + " |"
    )
    if runs[0].peak_mib:
        lines.append(
            "| peak MiB | "
            + " | ".join(f"{statistics.median(run.peak_mib):.0f}" for run in runs)
            + " |"
        )
    ours = next(run for run in runs if run.name == "ours")
    ratios = [
        statistics.median(
            mine / theirs for mine, theirs in zip(ours.startup, run.startup, strict=True)
        )
        for run in runs
    ]
    lines.append(
        "| start-up of ours over it | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |"
    )
    return "\n".join(
        [*lines, "", f"User CPU seconds, medians of {len(runs[0].seconds)} alternating rounds.", ""]
    )


def parser() -> argparse.ArgumentParser:
    parse = command_line(__doc__)
    text_arguments(parse)
    parse.set_defaults(limit=150)
    parse.add_argument(
        "--commands",
        nargs="+",
        choices=["generate", "interactive", "api", "doctor"],
        default=["generate", "interactive"],
    )
    parse.add_argument("--out", type=Path, help="write OUT.md")
    parse.add_argument("--repeats", type=int, default=3, help="rounds (3)")
    return parse


if __name__ == "__main__":
    run_script(main)
