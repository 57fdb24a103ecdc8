"""Rivals in processes of their own: CTranslate2 on a converted copy of a fairseq checkpoint, and
those that need packages of their own, each with the Python of its environment: what they pin
(torch, transformers) is not what this project pins.

    PYTHON scripts/bench/engines.py < REQUESTS    what `Engine` starts: the first line makes
                                                  the engine, each other one decodes
    python scripts/bench/engines.py JSON          CTranslate2's server, which programs.py starts

fairseq's score is (sum of log-probs) / (length with EOS)^lenpen, and so is CTranslate2's with
`length_penalty` = lenpen; `--unnormalized` is its `length_penalty` 0. Its beam search ends and
breaks ties a little differently, so it is not an exact contender. On two cores two workers of one
thread beat one worker of two threads; both belong into a fair table. Settings such as CT2_USE_MKL
are read once a process, when it is loaded.

OpenVINO (`pip install optimum-intel[openvino]`) and ONNX Runtime (`pip install
optimum-onnx[onnxruntime]`) on a Hugging Face folder, both under the beam search of `transformers`,
which optimum gives them; Bergamot (`pip install bergamot`), the translator that Firefox has, on
what marian.py writes. One thread each. The engine's process says what a call took of it.
"""

import gc
import importlib.util
import json
import os
import pickle
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness import BenchError, Child, Contender, Outputs
from text import Text

SUPPORTED = ("float32", "int8")  # of CTranslate2's types
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# what is to be decoded, where the engine has not got it before: lines, beam, and whether in bulk,
# in one batch, or a line at a time
Requested = Mapping[str, Any]
Decode = Callable[[Requested], list]  # the best translation of each line


class Engine(Child):
    """The process. Called with what is to be decoded, it returns the best translations; `seconds`
    are those of the last call, on the clock that was chosen: wall or cpu."""

    def __init__(
        self,
        name: str,
        python: str,
        settings: Requested,
        clock: str = "cpu",
        variables: Mapping[str, str] = ONE_THREAD,
    ):
        super().__init__(name, [python, __file__], env={**os.environ, **variables})
        self.clock, self.seconds = clock, 0.0
        self.version = self.request(settings)["version"]

    def __call__(self, **requested: object) -> list:
        answer = self.request(requested)
        self.seconds = answer[self.clock]
        return answer["outputs"]


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
    given = dict(folder=str(directory), made=made, decoding=decoding, batches=batches)
    signature = f"{'|'.join([kind, shape, *settings])} ({' '.join(flags)})"
    own = dict(exact=False, signature=f"ctranslate2:{version('ctranslate2')}|{signature}")
    rows: Callable[[list], Any] = list
    if apart:
        variables = {"CT2_VERBOSE": "1", **settings}
        run = Engine(name, sys.executable, {"engine": "ctranslate2"} | given, clock, variables)
        own |= dict(taken=lambda _: run.seconds, instructions=instructions(run.log(), kind))
    else:
        os.environ.update(settings)
        decode, _ = ctranslate2(**given)
        run, rows = partial(decode, {}), partial(map, scored)

    def read(found: list) -> Outputs:
        return [
            [([*map(target.index, pieces), target.eos()], score) for pieces, score in each]
            for each in in_order(numbers, list(rows(found)))
        ]

    return Contender(name, run, read, **own)


def ctranslate2(folder: str, made: dict, decoding: dict, batches: list) -> tuple[Decode, str]:
    """CTranslate2 on batches, which no request changes; it returns its results."""
    import ctranslate2 as library

    translator = library.Translator(folder, **made)
    translate = partial(translator.translate_batch, asynchronous=True, **decoding)

    def decode(_: Requested) -> list:
        waiting = [translate(batch) for batch in batches]
        return [result.result() for each in waiting for result in each]

    return decode, library.__version__


def scored(result: Any) -> list[tuple[list[str], float]]:
    """The hypotheses of a result of CTranslate2, pieces and score; that is not timed."""
    return list(zip(result.hypotheses, result.scores, strict=True))


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


def groups(requested: Requested) -> list[list[str]]:
    """The batches of a request's lines: one, or one a line."""
    lines = requested["lines"]
    return [lines] if requested["bulk"] else [[line] for line in lines]


def named(tokenizer: Any, ids: list[int]) -> str:
    """The words of ids, joined by spaces; a random model gives some that have no piece."""
    words = zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True)
    return " ".join(word or f"madeupword{number:04d}" for number, word in words)


def with_transformers(
    model: Any, folder: str, target: str, tokens: int, tokenizer: Any = None
) -> Decode:
    """transformers' generate on an engine's model: greedy at beam 1; translations are its pieces,
    joined by spaces. tokenizer: the folder's, unless it is given."""
    if tokenizer is None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
    first = {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(target)} if target else {}
    how = dict(max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, **first)

    def decode(requested: Requested) -> list[str]:
        outputs = []
        for group in groups(requested):
            batch = tokenizer(group, return_tensors="pt", padding=True)
            rows = model.generate(**batch, num_beams=requested["beam"], **how)
            outputs += [named(tokenizer, row.tolist()[1:]) for row in rows]
        return outputs

    return decode


def openvino(folder: str, numbers: str, target: str, tokens: int) -> tuple[Decode, str]:
    """numbers: f32, bf16, or int8, whose weights are of 8 bits and whose products the processor's
    plug-in makes of 8-bit activations."""
    import openvino as library
    from optimum.intel import OVModelForSeq2SeqLM

    config = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    config["INFERENCE_PRECISION_HINT"] = "bf16" if numbers == "bf16" else "f32"
    if numbers == "int8":
        config["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 64
    model = OVModelForSeq2SeqLM.from_pretrained(
        folder, export=True, load_in_8bit=numbers == "int8", ov_config=config
    )
    return with_transformers(model, folder, target, tokens), f"openvino:{library.__version__}"


def onnxruntime(folder: str, numbers: str, target: str, tokens: int) -> tuple[Decode, str]:
    """numbers: float32, or int8: weights of 8 bits, and activations as they come (VNNI)."""
    import onnxruntime as library
    from optimum.onnxruntime import ORTModelForSeq2SeqLM, ORTQuantizer
    from optimum.onnxruntime.configuration import AutoQuantizationConfig

    options = library.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = library.GraphOptimizationLevel.ORT_ENABLE_ALL
    made = {"session_options": options, "use_merged": False}
    model = ORTModelForSeq2SeqLM.from_pretrained(folder, export=True, **made)
    if numbers == "int8":
        with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as packed:
            model.save_pretrained(place)
            how = AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=True)
            for file in sorted(Path(place).glob("*.onnx")):
                quantizer = ORTQuantizer.from_pretrained(place, file_name=file.name)
                quantizer.quantize(save_dir=packed, quantization_config=how, file_suffix="")
            model.config.save_pretrained(packed)
            model.generation_config.save_pretrained(packed)
            model = ORTModelForSeq2SeqLM.from_pretrained(packed, **made)
    return with_transformers(model, folder, target, tokens), f"onnxruntime:{library.__version__}"


def bergamot(config: dict[str, object]) -> tuple[Decode, str]:
    """config: its settings. A request's lines, in its own batches or one at a time."""
    spec = importlib.util.find_spec("bergamot")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("this Python has no bergamot: pip install bergamot")
    # the package itself requests a list of models from a server when it is imported
    file = next(Path(spec.submodule_search_locations[0]).glob("_bergamot*"))
    extension = importlib.util.spec_from_file_location("_bergamot", file)
    assert extension is not None and extension.loader is not None
    library = importlib.util.module_from_spec(extension)
    extension.loader.exec_module(library)
    service = library.Service(library.ServiceConfig(numWorkers=1, cacheSize=0, logLevel="off"))
    model = service.modelFromConfig(json.dumps(config))
    options = library.ResponseOptions(False, False, False, False)

    def decode(requested: Requested) -> list[str]:
        lists = (library.VectorString(group) for group in groups(requested))
        answers = (service.translate(model, group, options) for group in lists)
        return [answer.target.text for each in answers for answer in each]

    return decode, f"bergamot:{library.__version__}"


def main() -> None:
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what others print is no answer
    sys.path.pop(0)  # this folder's modules have names that the packages may have too
    first = json.loads(sys.stdin.readline())
    decode, library = globals()[first.pop("engine")](**first)
    print(json.dumps({"version": library}), file=channel, flush=True)
    for line in sys.stdin:
        requested = json.loads(line)
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        outputs = decode(requested)
        answer = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        answer["outputs"] = outputs
        print(json.dumps(answer, default=scored), file=channel, flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1])) if sys.argv[1:] else main()
