"""What a decoder step requests of host and device on the pretended GPU: waits and launches.

`python tests/search/counted_steps.py` prints the table of docs/gpu.md; -v: the waits with their
places."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
import torch
from kernels.cuda_executor import SOURCE, Executor
from model.decoder_rows import model_of
from models import batch, generators, on_device, requests_of, run
from pretended_device import COUNTS, Counts, counting, pretended_device
from required_phrases import required_phrases

from fairseq_ext.kernels import lsh_cuda
from fairseq_ext.search.phrases.sentence import SentenceConstraints

# steps of two runs, of which every sentence takes all; their difference is what a step costs
SPAN = (8, 16)
LENGTHS = [7, 5, 3, 1]
NO_GRAPHS = {"cuda_graphs": "off"}
SMALL = {"lsh_k": 4, "lsh_u": 2, "lsh_bands": 20, "lsh_hits": 3, "lsh_top": 8}
WAYS: dict = {  # our flags
    "plain": {},
    "plain, no graphs": NO_GRAPHS,
    "DBA": {"select": "dba"},
    "optimal": {"stop": "optimal"},
    "stream": {"schedule": "stream", "stream_width": 4},
    "LSH": {"softmax": "lsh", **SMALL},
    "LSH, CUDA kernels": {"softmax": "lsh", **SMALL},
    "window": {"decoding": "window", "block_size": 4, "draft": "repeat", "draft_cost": 0.0},
}


def counted(flags: dict, device: torch.device, span: tuple[int, int] = SPAN) -> Counts:
    """A step of a small model whose every sentence takes as many steps as it may. It is one call of
    the decoder (parallel decoding: one target token), on average."""
    model, found, calls = model_of(2, torch.float32, device, decoder_layers=6), [], []
    sample = batch(LENGTHS)
    if "select" in flags:
        sample["requests"] = requests_of(
            [SentenceConstraints(required_phrases((((9, 10),),), ("9 10",))) for _ in LENGTHS]
        )
    for steps in span:
        sizes = {"beam": 1 if "decoding" in flags else 5, "min_len": steps, "max_len_b": steps}
        ours = generators([model], flags, **sizes).ours
        for _ in range(2):  # the first records graphs
            before = ours.stats.decoder_calls
            with counting() as counts:
                run(ours, on_device(sample, device))
        found.append(counts)
        calls.append(steps if "decoding" in flags else ours.stats.decoder_calls - before)
    (short, long), more = found, calls[1] - calls[0]

    def a_step(before: Counter, after: Counter) -> Counter:
        return Counter(
            {key: (n - before[key]) / more for key, n in after.items() if n > before[key]}
        )

    return Counts(a_step(short.waits, long.waits), a_step(short.launches, long.launches))


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
        print("| search | waits a step | launches a step |\n|---|---|---|")
        for name, flags in WAYS.items():
            if name == "LSH, CUDA kernels":
                use_kernels(Path(folder) / "kernels", patch)
            step = counted(flags, there, (16, 48))
            print(
                f"| {name} | {step.waits.total():.2f} | {step.launches.total():.0f} |", flush=True
            )
            for place, n in step.waits.most_common() if "-v" in sys.argv else ():
                print(f"    {n:.2f} {place}")
