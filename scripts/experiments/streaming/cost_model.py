"""Does refilling pay? The time of a step as a + b x rows, fitted for each backend, and the gain
that it predicts next to the measured one.

    python scripts/experiments/streaming/cost_model.py --out DIR [--model DIR] [--text PREFIX]
        [--limit 40] [--n 4 16] [--k 5] [--backends torch compiled int8 lstm]

torch: FAIRSEQ_EXT_KERNELS=off; compiled: the default; int8: --int8; lstm: an untrained LSTM with
the model's words, whose outputs are as long as the sources. Every width runs as batches, sorted by
length, and as a stream: fixed (n sentences) and variable (delta 1.5, M 5; the stream has at most n
x k rows). Predicted from steps: a x calls + b x rows of both, from their counted calls and rows;
with all: the encoder (its own line, over source positions) and changes too (what admitting, setting
aside and joining take beyond that); with cells: steps as a + b x rows + c x cells, rows x the
positions that their attention runs over (step_costs.py), the rest as before.
The last table takes bandwidth and launch figures of a GPU instead. It is a prediction: nothing in
it was measured on that GPU.
OUT gets cost_model.md and .svg, and a file for each backend, which is not measured again.
Seconds are processor time of one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cost_tables import backend_tables, draw, fitted, gpu_table
from methods import (
    BenchError,
    Decoding,
    Setting,
    Text,
    add_text_arguments,
    command_line,
    compare,
    machine,
    made_by,
    methods,
    named,
    prepare,
)
from step_costs import Launches, StepCosts, compiled_search
from write_up import write_json

BACKENDS: dict[str, list[str]] = {
    "torch": [],
    "compiled": [],
    "int8": ["--int8"],
    "lstm": ["--max-len-a", "1", "--max-len-b", "0"],
}
KINDS = {"fixed": ("FIXED-OURS", "FIXED-STREAM"), "variable": ("VAR-BATCH", "VAR-STREAM")}
H100 = {"bandwidth": 3.35e12, "launch": 3.8e-6}


def untrained_lstm(text: Text, out: Path) -> Path:
    """Save an LSTM of 2 + 2 layers, 512 units, with attention, over the text's dictionaries;
    weights as fairseq starts with them."""
    import torch
    from fairseq import tasks
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    torch.manual_seed(1)
    args = Namespace(
        arch="lstm",
        task="translation",
        data=str(text.folder),
        source_lang=text.source,
        target_lang=text.target,
        left_pad_source=True,
        encoder_layers=2,
        decoder_layers=2,
        max_source_positions=1024,
        max_target_positions=1024,
        criterion="cross_entropy",
        optimizer="adam",
        no_progress_bar=True,
    )
    ARCH_CONFIG_REGISTRY["lstm"](args)
    model = ARCH_MODEL_REGISTRY["lstm"].build_model(args, tasks.setup_task(args))
    history = dict(criterion_name="CrossEntropyCriterion", optimizer_name="FairseqAdam")
    history |= {"lr_scheduler_state": {}, "num_updates": 0}
    saved = {"args": args, "model": model.state_dict(), "optimizer_history": [history]}
    state = {"epoch": 1, "train_iterator": {"epoch": 1}}
    torch.save(saved | {"extra_state": state}, out)
    return out


def pair(kind: str, n: int, text: Text, backend: str, args: argparse.Namespace) -> dict[str, Any]:
    """Batches and a stream of one width: counts, points of a run with clocks in it, and
    seconds of rounds without."""
    setting = Setting(
        args.k, n, args.delta, args.children, args.eps, n * args.k if kind == "variable" else None
    )
    both = []
    for name in KINDS[kind]:
        flags = [
            *methods(setting)[name],
            *BACKENDS[backend],
            *(["--stream-order", "fifo"] if "STREAM" in name else []),
        ]
        both.append(Decoding(name, ["--cpu", *flags], text))
    measured = []
    for decoding in both:
        with StepCosts(
            decoding.generator.decoder, compiled_search(decoding.generator.driver)
        ) as clocks:
            decoding.run()
        measured.append(clocks.measured())
    contenders = [decoding.contender() for decoding in both]
    contenders[1].exact = True
    done = compare(contenders, args.repeats, warmup=0, threads=1, clock=time.process_time)
    ratio = done.speed_up(both[1].name, both[0].name)
    searches = [
        {
            "calls": d.timesteps,
            "rows": d.rows,
            "seconds": result.seconds,
            "signature": d.signature,
            **asdict(points),
        }
        for d, points, result in zip(both, measured, done.results, strict=True)
    ]
    gain = None if ratio is None else [ratio.median, ratio.low, ratio.high]
    return {
        "kind": kind,
        "n": n,
        "gain": gain,
        "outputs": str(done.results[1].verdict),
        "searches": searches,
    }


def gpu_facts(text: Text, args: argparse.Namespace) -> dict[str, float]:
    """What a step launches, and the bytes that it reads in half precision: always,
    and for each row."""
    decoding = Decoding(
        "FIXED-OURS", ["--cpu", *methods(Setting(args.k, args.n[0], 0, 0))["FIXED-OURS"]], text
    )
    decoding.loaded.batches = decoding.loaded.batches[:2]
    decoder, admit = decoding.generator.decoder, decoding.generator.decoder.admit
    counted = Launches()
    encoder = Launches()

    def apart(inputs: Any) -> None:
        with encoder:
            before = counted.count
            admit(inputs)
            counted.count = before

    decoder.admit = apart
    with counted:
        decoded = decoding.contender().read(decoding.run())
    model = decoding.loaded.models[0].decoder
    weights = {weight.data_ptr(): weight.numel() for weight in model.parameters()}
    d, layers, words = model.embed_dim, len(model.layers), model.output_projection.out_features
    length = sum(len(tokens) for nbest in decoded for tokens, _ in nbest) / sum(map(len, decoded))
    source = sum(
        int(batch["net_input"]["src_lengths"].sum()) for batch in decoding.loaded.batches
    ) / len(decoded)
    # KV cache; logits written, read, and read again
    row = 2 * layers * d * 2 * (length / 2 + source / args.k) + 3 * 4 * words
    return {
        "launches": counted.count / decoding.timesteps,
        "weights": 2.0 * sum(weights.values()),
        "row": row,
    }


def measure_backend(backend: str, args: argparse.Namespace) -> None:
    """Write OUT/BACKEND.json."""
    with tempfile.TemporaryDirectory() as folder:
        text = prepare(Path(folder), args.model, args.text, args.src, args.tgt, args.limit)
        if backend == "lstm":
            made = untrained_lstm(text, Path(folder, "lstm.pt"))
            text.flags[text.flags.index("--path") + 1] = str(made)
        pairs = [pair(kind, n, text, backend, args) for n in args.n for kind in KINDS]
        found = {
            "key": key(args),
            "machine": machine(),
            "pairs": pairs,
            "gpu": gpu_facts(text, args) if backend == "torch" else None,
        }
    write_json(args.out / f"{backend}.json", found)


def key(args: argparse.Namespace) -> list[Any]:
    """What a file of results must have been made with."""
    kept = ("text", "src", "tgt", "limit", "n", "k", "delta", "children", "eps", "repeats")
    return [
        named(args.model),
        (args.model / "checkpoint.pt").stat().st_size,
        *(getattr(args, name) for name in kept),
    ]


def results(backend: str, args: argparse.Namespace) -> dict[str, Any]:
    """The backend's results, measured in a process of its own unless they are there."""
    file = args.out / f"{backend}.json"
    if file.exists() and (found := json.loads(file.read_text(encoding="utf-8")))["key"] == key(
        args
    ):
        return found
    print(backend, file=sys.stderr, flush=True)
    environment = (
        os.environ
        | {"OMP_NUM_THREADS": "1"}
        | ({"FAIRSEQ_EXT_KERNELS": "off"} if backend == "torch" else {})
    )
    if subprocess.run(
        [sys.executable, *sys.argv, "--measure", backend], env=environment, check=False
    ).returncode:
        raise BenchError(
            f"{backend} could not be measured (see above); leave it out with --backends"
        )
    return json.loads(file.read_text(encoding="utf-8"))


def main() -> None:
    parse = command_line(__doc__)
    add_text_arguments(parse, 40)
    parse.add_argument(
        "--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS), help="(all)"
    )
    parse.add_argument(
        "--n", type=int, nargs="+", default=[4, 16], help="sentences of a batch (4 16)"
    )
    parse.add_argument("--k", type=int, default=5, help="beam (5)")
    parse.add_argument("--eps", type=float, default=1 / 2, help="--refill-threshold (1/2)")
    parse.add_argument("--delta", type=float, default=1.5, help="--prune-threshold (1.5)")
    parse.add_argument("--children", type=int, default=5, help="--prune-children (5)")
    parse.add_argument("--repeats", type=int, default=2, help="timed rounds (2)")
    parse.add_argument(
        "--bandwidth",
        type=float,
        default=H100["bandwidth"],
        help="bytes a second of the GPU (3.35e12)",
    )
    parse.add_argument(
        "--launch",
        type=float,
        default=H100["launch"],
        help="seconds of a short kernel on it (3.8e-6)",
    )
    parse.add_argument(
        "--measure",
        choices=BACKENDS,
        help="measure this backend only and write its file; no tables",
    )
    parse.add_argument("--out", type=Path, required=True, help="folder for the results")
    args = parse.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.measure:
        measure_backend(args.measure, args)
        return
    found = {backend: results(backend, args) for backend in args.backends}
    facts = next(iter(found.values()))["machine"]
    about = (
        f"Model {named(args.model)}, first {args.limit} lines of {named(args.text)}, k = {args.k}, "
        "processor time of one thread, "
    )
    lines_of = {backend: fitted(result) for backend, result in found.items()}
    lines = [about + f"{args.repeats} round(s); {made_by(facts)}", "", *backend_tables(lines_of)]
    if "torch" in found:
        lines += gpu_table(found["torch"], args.bandwidth, args.launch)
    text = "\n".join(lines)
    (args.out / "cost_model.md").write_text(text, encoding="utf-8")
    print(text)
    draw(lines_of, args.out / "cost_model")


if __name__ == "__main__":
    try:
        main()
    except (BenchError, ValueError) as error:
        sys.exit(f"error: {error}")
