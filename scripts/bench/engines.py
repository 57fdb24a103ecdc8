"""Rivals that need packages of their own, each in a process of the Python of its environment: what
they pin (torch, transformers) is not what this project pins.

    PYTHON scripts/bench/engines.py < REQUESTS    what `Engine` starts: the first line makes
                                                  the engine, each other one decodes

OpenVINO (`pip install optimum-intel[openvino]`) and ONNX Runtime (`pip install
optimum-onnx[onnxruntime]`) on a Hugging Face folder, both under the beam search of `transformers`,
which optimum gives them; Bergamot (`pip install bergamot`), the translator that Firefox has, on
what marian.py writes. One thread each. The engine's process says what a call took of it.
"""

import gc
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

from harness import Child


class Requested(TypedDict):
    """What is to be decoded; bulk: in one batch, else a line at a time."""

    lines: list[str]
    beam: int
    bulk: bool


Decode = Callable[[Requested], list[str]]  # the best translation of each line


class Engine(Child):
    """The process. Called with what is to be decoded, it returns the best translations; `seconds`
    are those of the last call, on the clock that was chosen: wall or cpu."""

    def __init__(self, name: str, python: str, settings: dict[str, object], clock: str = "cpu"):
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        super().__init__(name, [python, __file__], env={**os.environ, **threads})
        self.clock, self.seconds = clock, 0.0
        self.version = self.request(settings)["version"]

    def __call__(self, **requested: object) -> list[str]:
        answer = self.request(requested)
        self.seconds = answer[self.clock]
        return answer["outputs"]


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
    makers = dict(openvino=openvino, onnxruntime=onnxruntime, bergamot=bergamot)
    decode, version = makers[first.pop("engine")](**first)
    print(json.dumps({"version": version}), file=channel, flush=True)
    for line in sys.stdin:
        requested = json.loads(line)
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        outputs = decode(requested)
        answer = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps(answer | {"outputs": outputs}), file=channel, flush=True)


if __name__ == "__main__":
    main()
