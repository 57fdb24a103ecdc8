"""What share of the processor's own rates do the linear maps of a model reach, on one thread?

    python scripts/bench/limit.py --model DIR --text PREFIX --limit 100

In bulk the measure is a loop of multiply-adds (int8: of products of 8 bits) in registers; one
sentence at a time it is a plain read of as many bytes as the weights of a decoder step have, again
and again. The operations of a run are two for each weight of a linear map and each row or source
token that it is applied to; its bytes are the weights of each call of encoder and decoder.
Attention, softmax, search and text are in the time, and so lower the share. The share of another
program is ours times its speed over ours (rivals.py). All times are CPU time, the least of
`--repeats`; the processor's rates are measured before each of them.

    --beam N       (5)
    --batch N      sentences of a batch in bulk (64)
    --repeats N    runs, of which the least counts (3)
    --out OUT      write OUT.md
"""

from __future__ import annotations

import ctypes
import os
import platform
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from harness import BenchError, least
from report import Page, named, table
from text import command_line, read_lines, run_script, text_arguments
from torch import nn

from fairseq_ext import Translator
from fairseq_ext.kernels.compiling import FLAGS, LEVELS, compile_files, compiler
from fairseq_ext.kernels.library import level

SUMS = 12  # in flight at once: more than any processor needs
SOURCE = """
#include "linear.hpp"

ENTRY int64_t lanes() { return LANES; }

ENTRY float multiply_adds(int64_t times, float a, float b) {
    floats sums[SUMS];
    for (int i = 0; i < SUMS; ++i) sums[i] = floats{} + b * i;
    for (int64_t t = 0; t < times; ++t)
        for (int i = 0; i < SUMS; ++i) sums[i] = sums[i] * a + b;
    float total = 0.0f;
    for (int i = 0; i < SUMS; ++i) total += sum(sums[i]);
    return total;
}

ENTRY int64_t byte_products(int64_t times, const int32_t* weight) {
    ints sums[SUMS] = {}, w[SUMS];
    for (int i = 0; i < SUMS; ++i) w[i] = *reinterpret_cast<const loose_ints*>(weight + i * LANES);
    for (int64_t t = 0; t < times; ++t)
        for (int i = 0; i < SUMS; ++i) sums[i] = dot4(sums[i], static_cast<int32_t>(t), w[i]);
    int64_t total = 0;
    for (int i = 0; i < SUMS; ++i) total += sums[i][0] + sums[i][LANES - 1];
    return total;
}

ENTRY float read_all(int64_t times, const float* from, int64_t size) {
    floats sums[8] = {};
    for (int64_t t = 0; t < times; ++t)
        for (int64_t k = 0; k + 8 * LANES <= size; k += 8 * LANES)
            for (int v = 0; v < 8; ++v) sums[v] += load(from + k + v * LANES);
    float total = 0.0f;
    for (int v = 0; v < 8; ++v) total += sum(sums[v]);
    return total;
}
"""


class Processor:
    """The rates of one core at the library's level, by loops that are compiled for it."""

    def __init__(self) -> None:
        command, name = compiler(), level()
        if command is None:
            raise BenchError("there is no C++ compiler: install g++")
        chosen = LEVELS.get(platform.machine(), {}).get(name, ("-march=native",))
        flags = (*FLAGS, *chosen, f"-DSUMS={SUMS}")
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder) / "rates.cpp", Path(folder) / "rates.so"
            source.write_text(SOURCE)
            compile_files(command, flags, [source], library, linking=flags)
            self.library = ctypes.CDLL(str(library))
        self.level, self.lanes = name, self.library.lanes()

    def multiply_adds(self) -> float:
        """Operations in float32 a second."""
        times, scale = 4_000_000, [ctypes.c_float(value) for value in (0.999, 1e-3)]
        seconds, _ = least(lambda: self.library.multiply_adds(ctypes.c_int64(times), *scale))
        return times * SUMS * self.lanes * 2 / seconds

    def byte_products(self) -> float:
        """Operations in 8 bits a second."""
        times, weight = 4_000_000, np.full(SUMS * self.lanes, 0x01020304, np.int32)
        at = ctypes.c_void_p(weight.ctypes.data)
        seconds, _ = least(lambda: self.library.byte_products(ctypes.c_int64(times), at))
        return times * SUMS * self.lanes * 8 / seconds

    def bandwidth(self, size: int) -> float:
        """Bytes a second of a memory of this size."""
        numbers = np.ones(size // 4, np.float32)
        times = max(1, (1 << 30) // size)
        given = ctypes.c_int64(times), ctypes.c_void_p(numbers.ctypes.data)
        seconds, _ = least(lambda: self.library.read_all(*given, ctypes.c_int64(numbers.size)))
        return times * numbers.nbytes / seconds


def weights_of(model: Any) -> tuple[int, int]:
    """Numbers of weights that are applied to each source token, and to each row of the decoder."""
    source = row = model.decoder.output_projection.weight.numel()
    source -= row
    for side in (model.encoder, model.decoder):
        for name, module in side.layers.named_modules():
            if isinstance(module, nn.Linear):
                reads_source = side is model.encoder or name.endswith(
                    ("encoder_attn.k_proj", "encoder_attn.v_proj")
                )
                source += module.weight.numel() * reads_source
                row += module.weight.numel() * (not reads_source)
    return source, row


def main(argv: list[str] | None = None) -> None:
    warnings.simplefilter("ignore")  # lines with several sentences
    parse = command_line(__doc__)
    text_arguments(parse)
    args, processor = parse.parse_args(argv), Processor()
    lines = read_lines(args.text, args.src, args.limit)
    pair = {"source_lang": args.src, "target_lang": args.tgt}
    rows = []
    for int8 in (False, True):
        translator = Translator.from_folder(
            args.model, beam=args.beam, batch_size=args.batch, cpu=True, int8=int8, **pair
        )
        source, row = weights_of(translator.models[0])
        tokens = sum(translator.encode(line).numel() for line in lines)
        width = 1 if int8 else 4  # bytes of a weight
        for name, groups in (("bulk", [lines]), ("one at a time", [[line] for line in lines])):

            def run(to=translator, groups=groups) -> None:
                for each in groups:
                    to.translate(each)

            run()
            before, peaks, taken = translator.stats.copy(), [], []
            run()
            work = translator.stats.since(before)
            if name == "bulk":
                done = 2.0 * (source * tokens + row * work.decoder_rows)
                peak, unit = processor.byte_products if int8 else processor.multiply_adds, "GOP/s"
            else:
                calls = source * work.encoder_calls + row * work.decoder_calls
                done, unit = float(calls * width), "GB/s"
                peak = partial(processor.bandwidth, row * width)
            for _ in range(args.repeats):
                peaks.append(peak())
                taken.append(least(run, 1)[0])
            rate, best = done / min(taken), max(peaks)
            assert 0 < rate < best, "more than the processor can do"
            shown = [f"{each / 1e9:.1f} {unit}" for each in (rate, best)]
            kind, speed = "int8" if int8 else "float32", f"{len(lines) / min(taken):.1f}"
            rows.append([kind, name, speed, *shown, f"{rate / best:.0%}"])
    note = f"Model {named(args.model)}, text {named(args.text)}.{args.src}, {len(lines)} lines, "
    page = Page(args.out, f"{note}beam {args.beam}, one thread, level {processor.level}.\n")
    head = ["weights", "run", "sentences/s", "reached", "the processor's rate", "share"]
    page.add(table(head, rows))


if __name__ == "__main__":
    run_script(main)
