"""What a decoder step requests of host and device on the pretended GPU: waits, launches, bytes.

`python tests/search/counted_steps.py [WAY ...]` prints the table of docs/gpu.md; -v: the waits with
their places; -vv: the commonest launches too."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
import torch
from fairseq.token_generation_constraints import pack_constraints
from kernels.cuda_executor import SOURCE, Executor
from model.decoder_rows import model_of
from models import batch, generators, on_device, requests_of, run
from pretended_device import COUNTS, counting, pretended_device
from required_phrases import required_phrases

from fairseq_ext.kernels import lsh_cuda
from fairseq_ext.search.phrases.sentence import SentenceConstraints

# steps of two runs, of which every sentence takes all; their difference is what a step costs
SPAN = (8, 16)
LENGTHS = [7, 5, 3, 1]
LAUNCH = 4e-3  # ms, assumed: published measurements lie around it
# bytes that a step of scripts/bench/gpu_step.py's model must read in float16: its
# `bytes_of_a_step`, 16 sentences, beam 5
READ = 300.9e6
BANDWIDTH = {"H100": 3.35e9, "L4": 0.3e9}  # bytes a ms, of NVIDIA's data sheets
NO_GRAPHS = {"cuda_graphs": "off"}
SMALL = {"lsh_k": 4, "lsh_u": 2, "lsh_bands": 20, "lsh_hits": 3, "lsh_top": 8}
WAYS: dict = {  # our flags; a string: fairseq's own generator, with these --constraints
    "stock": "",
    "stock, constrained": "unordered",
    "plain": {},
    "plain, no graphs": NO_GRAPHS,
    "DBA": {"select": "dba"},
    "optimal": {"stop": "optimal"},
    "stream": {"schedule": "stream", "stream_width": 4},
    "LSH": {"softmax": "lsh", **SMALL},
    "LSH, CUDA kernels": {"softmax": "lsh", **SMALL},
    "window": {"decoding": "window", "block_size": 4, "draft": "repeat", "draft_cost": 0.0},
}


@dataclass
class Step:
    """Of one step, which is one call of the decoder (parallel decoding: one target
    token), on average."""

    waits: Counter
    launches: Counter
    bytes: float


def counted(
    flags: dict | str, device: torch.device, span: tuple[int, int] = SPAN, beam: int = 5
) -> Step:
    """A step of a small model whose every sentence takes as many steps as it may."""
    model, found, calls = model_of(2, torch.float32, device, decoder_layers=6), [], []
    sample, named, stock = batch(LENGTHS), {}, isinstance(flags, str)
    of_stock = {"constraints": flags or None} if stock else {}
    if stock and flags:
        named["constraints"] = pack_constraints([[torch.tensor([9, 10])]] * len(LENGTHS))
    elif "select" in flags:
        sample["requests"] = requests_of(
            [SentenceConstraints(required_phrases((((9, 10),),), ("9 10",))) for _ in LENGTHS]
        )
    for steps in span:
        sizes = {"beam": 1 if "decoding" in flags else beam, "min_len": steps, "max_len_b": steps}
        pair = generators([model], {} if stock else flags, **sizes, **of_stock)
        generator = pair.stock if stock else pair.ours
        for _ in range(2):  # the first records graphs
            before = 0 if stock else generator.stats.decoder_calls
            with counting() as counts:
                run(generator, on_device(sample, device), **named)
        found.append(counts)
        calls.append(
            steps if stock or "decoding" in flags else generator.stats.decoder_calls - before
        )
    (short, long), more = found, calls[1] - calls[0]

    def a_step(name: str) -> Counter:
        before, after = getattr(short, name), getattr(long, name)
        return Counter(
            {key: (n - before[key]) / more for key, n in after.items() if n > before[key]}
        )

    return Step(a_step("waits"), a_step("launches"), (long.bytes - short.bytes) / more)


def use_kernels(folder: Path, patch: pytest.MonkeyPatch) -> list[str]:
    """LSH's CUDA kernels, run by the executor, for tensors of the pretended GPU; return the names
    of those launched so far."""
    executor = Executor(SOURCE.read_text(), folder)

    def launch(name: str, grid: tuple[int, ...], *arguments, **sizes) -> None:
        for counts in COUNTS:
            counts.launches[name] += 1
        executor.launch(
            name, grid, *(a.inner if isinstance(a, torch.Tensor) else a for a in arguments), **sizes
        )

    patch.setattr(lsh_cuda, "launch", launch)
    patch.setattr(lsh_cuda, "unavailable_reason", lambda: None)
    return executor.launched


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        pretended_device(Path(folder), patch) as there,
    ):
        print(
            "| search | waits a step | launches a step | MB a step | derived ms: "
            f"{' | '.join(BANDWIDTH)} |"
        )
        print((4 + len(BANDWIDTH)) * "|---" + "|")
        requested = [word for word in sys.argv[1:] if word in WAYS] or WAYS
        for name, flags in ((name, WAYS[name]) for name in requested):
            if name == "LSH, CUDA kernels":
                use_kernels(Path(folder) / "kernels", patch)
            step = counted(flags, there, (16, 48))
            longest = [
                max(step.launches.total() * LAUNCH, READ / speed) for speed in BANDWIDTH.values()
            ]
            # which reads another number of rows
            derived = " | ".join("" if name == "window" else f"{ms:.2f}" for ms in longest)
            print(
                f"| {name} | {step.waits.total():.2f} | {step.launches.total():.0f} | "
                f"{step.bytes / 1e6:.1f} | {derived} |",
                flush=True,
            )
            if "-v" in sys.argv or "-vv" in sys.argv:
                print(
                    "\n".join(
                        f"    {n:.2f} {place}"
                        for place, n in [
                            *step.waits.most_common(),
                            *step.launches.most_common(9 ** ("-vv" in sys.argv)),
                        ]
                    )
                )
