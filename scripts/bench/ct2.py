"""CTranslate2 on a converted copy of the same fairseq checkpoint: the rival to name when
a speed is claimed.

    CT2_USE_MKL=1 python scripts/bench/ct2.py < REQUESTS    the process that `Apart` starts
    python scripts/bench/ct2.py JSON                        the server of programs.py

fairseq's score is (sum of log-probs) / (length with EOS)^lenpen, and so is CTranslate2's with
`length_penalty` = lenpen; `--unnormalized` is its `length_penalty` 0. Its beam search ends and
breaks ties a little differently, so it is not an exact contender: the report shows its BLEU and how
many best hypotheses equal the reference's.
On two cores two workers of one thread beat one worker of two threads; both belong
into a fair table. Settings such as CT2_USE_MKL are read once a process, when it is loaded.
"""

import json
import os
import pickle
import re
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness import BenchError, Child, Contender, Outputs
from text import Text

SUPPORTED = ("float32", "int8")


def convert(text: Any, kind: str = "float32") -> Path:
    """Convert the checkpoint once per test folder and type; returns the converted model's
    folder. An int8 model is saved as such, so that nothing is left to convert when it is loaded."""
    from contenders import quiet

    from fairseq_ext.plugin.compat import checkpoints

    folder = text.folder / f"ctranslate2-{kind}"
    if folder.exists():
        return folder
    try:
        from ctranslate2.converters import FairseqConverter
    except ImportError as error:
        raise BenchError("CTranslate2 is not installed: pip install ctranslate2") from error
    names = (text.model / "checkpoint.pt", text.model, text.source, text.target)
    try:
        with quiet(), checkpoints.safe_globals():  # the converter loads with weights_only
            return Path(FairseqConverter(*map(str, names)).convert(str(folder), quantization=kind))
    except (ValueError, RuntimeError, KeyError, TypeError, pickle.UnpicklingError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BenchError(f"CTranslate2 does not convert {text.model}: {reason}") from error


def build(
    text: Text, flags: Sequence[str], name: str, words: Sequence[str], clock: str, apart: bool
) -> Contender:
    """The contender of a name, "ctranslate2 float32 2x1 CT2_USE_MKL=1": the same batches, beam and
    length penalty; 2 workers translate batches at the same time with 1 thread each. It reads its
    settings once a process: apart, it runs in one of its own, whose time is that of `clock`."""
    from contenders import in_order, load, pieces_of

    settings = dict(word.split("=", 1) for word in words if "=" in word)
    words = [word for word in words if "=" not in word]
    kind, shape = [*words, *("float32", "1x1")[len(words) :]]
    if kind not in SUPPORTED or not re.fullmatch(r"\d+x\d+", shape):
        raise BenchError(f"{name!r} wants {' or '.join(SUPPORTED)}, then workers x threads (2x1)")
    workers, threads = map(int, shape.split("x"))
    directory, loaded = convert(text, kind), load([*text.flags, *flags])
    generation, target = loaded.cfg.generation, loaded.task.target_dictionary
    if generation.max_len_a or generation.diverse_beam_groups > 0 or generation.unkpen:
        raise BenchError(
            "CTranslate2 has no counterpart of --max-len-a, --diverse-beam-groups and --unkpen"
        )
    numbers, batches = pieces_of(loaded)  # the converted model adds EOS itself
    del loaded
    made = dict(device="cpu", compute_type=kind, max_queued_batches=-1)
    made |= dict(inter_threads=workers, intra_threads=threads)
    decoding = dict(
        beam_size=generation.beam,
        length_penalty=0 if generation.unnormalized else generation.lenpen,
        num_hypotheses=generation.nbest,
        no_repeat_ngram_size=generation.no_repeat_ngram_size,
        max_input_length=0,
        min_decoding_length=generation.min_len,
        max_decoding_length=generation.max_len_b,
        return_scores=True,
    )
    if generation.sampling:
        decoding |= dict(
            beam_size=1,
            num_hypotheses=generation.beam,
            sampling_temperature=generation.temperature,
            sampling_topk=max(0, generation.sampling_topk),
            sampling_topp=min(1.0, abs(generation.sampling_topp)),
        )
    requested = dict(folder=str(directory), made=made, decoding=decoding, batches=batches)
    if not apart:
        os.environ.update(settings)
    translator = Apart(requested, settings) if apart else Here(requested)

    def read(_: object) -> Outputs:
        return [
            [([*map(target.index, pieces), target.eos()], score) for pieces, score in each]
            for each in in_order(numbers, translator.results())
        ]

    return Contender(
        name,
        translator,
        read,
        exact=False,
        signature=f"ctranslate2:{version('ctranslate2')}|{'|'.join([kind, shape, *settings])} "
        f"({' '.join(flags)})",
        taken=(lambda seconds: seconds[clock]) if apart else None,
        instructions=getattr(translator, "instructions", ""),
    )


class Here:
    """Called, it decodes all batches; `results` gives each sentence's pieces and scores."""

    def __init__(self, requested: Mapping[str, Any]):
        import ctranslate2 as engine

        self.requested, self.found = requested, []
        self.translator = engine.Translator(requested["folder"], **requested["made"])

    def __call__(self) -> None:
        translate, how = self.translator.translate_batch, self.requested["decoding"]
        waiting = [translate(each, asynchronous=True, **how) for each in self.requested["batches"]]
        self.found = [result.result() for batch in waiting for result in batch]

    def results(self) -> list[list[tuple[list[str], float]]]:
        return [list(zip(result.hypotheses, result.scores, strict=True)) for result in self.found]


class Apart(Child):
    """The same in a process with settings; what its results take to travel is not in the call."""

    def __init__(self, requested: Mapping[str, Any], settings: Mapping[str, str]):
        environment = {**os.environ, "CT2_VERBOSE": "1", **settings}
        super().__init__("CTranslate2", [sys.executable, __file__], env=environment)
        self.request(requested)
        self.instructions = instructions(self.log(), requested["made"]["compute_type"])

    def __call__(self) -> dict[str, float]:
        """Decode; the seconds of each clock."""
        return self.request("decode")

    def results(self) -> list:
        return self.request("results")


def instructions(log: str, compute_type: str) -> str:
    """Of what CTranslate2 logs when it is loaded: its own instructions, and whose products it
    calls, which choose theirs by themselves."""
    products = "GEMM_S8" if compute_type == "int8" else "SGEMM"
    found = re.search(r"Selected ISA: (\S+)", log), re.search(rf"{products} backend: (.+)", log)
    own, theirs = (match[1] if match else "?" for match in found)
    return f"{own}; products {theirs.partition(' ')[0]}{', packed' * ('packed: true' in theirs)}"


def serve(how: dict[str, Any]) -> None:
    """CTranslate2 behind FastAPI with micro-batches: POST /v1/translate {"source": ...} ->
    {"text": ...}. Requests that wait are translated together, up to `batch` of them, by whichever
    of `workers` threads of one core each is free. how: model, folder, src, tgt, port, beam too."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor
    from contextlib import asynccontextmanager

    import ctranslate2 as engine
    import sentencepiece
    import uvicorn
    from fastapi import FastAPI, Request

    model, workers = Path(how["model"]), how["workers"]
    text = SimpleNamespace(model=model, source=how["src"], target=how["tgt"])
    text.folder = Path(how["folder"])
    folder = convert(text)
    threads = dict(inter_threads=workers, intra_threads=1)
    translator = engine.Translator(str(folder), device="cpu", **threads)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model / "spm.model"))
    limits = dict(length_penalty=1, max_input_length=0, max_decoding_length=200)
    waiting: asyncio.Queue[tuple[str, asyncio.Future[str]]] = asyncio.Queue()
    pool = ThreadPoolExecutor(workers)

    def translate(lines: list[str]) -> list[str]:
        batch = pieces.encode(lines, out_type=str)
        found = translator.translate_batch(batch, beam_size=how["beam"], **limits)
        return [pieces.decode(result.hypotheses[0]) for result in found]

    async def work() -> None:
        """One of the loops that take what waits."""
        loop = asyncio.get_running_loop()
        while True:
            taken = [await waiting.get()]
            while len(taken) < how["batch"] and not waiting.empty():
                taken.append(waiting.get_nowait())
            texts = await loop.run_in_executor(pool, translate, [line for line, _ in taken])
            for (_, future), text in zip(taken, texts, strict=True):
                if not future.done():
                    future.set_result(text)

    @asynccontextmanager
    async def lifespan(app: FastAPI):
        loops = [asyncio.create_task(work()) for _ in range(workers)]
        yield
        for each in loops:
            each.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.get("/ready")
    async def ready() -> dict[str, str]:
        return {"status": "ready"}

    @app.post("/v1/translate")
    async def answer(request: Request) -> dict[str, str]:
        future = asyncio.get_running_loop().create_future()
        waiting.put_nowait(((await request.json())["source"], future))
        return {"text": await future}

    uvicorn.run(app, port=how["port"], log_level="warning")


def decode() -> None:
    """Answer each line of standard input with one line."""
    translator = Here(json.loads(sys.stdin.readline()))
    print(1, flush=True)
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        if json.loads(line) == "results":
            answer: object = translator.results()
        else:
            translator()
            answer = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1])) if sys.argv[1:] else decode()
