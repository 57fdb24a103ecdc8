"""CTranslate2 called in this process, or in one of its own: settings such as CT2_USE_MKL are read
once a process, when it is loaded. A process of its own says what each call took of it.

    CT2_USE_MKL=1 python scripts/bench/ct2_process.py < REQUEST      what `Apart` starts: it decodes
                                                                     once for each line that
                                                                     it is given
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from harness import BenchError

Found = list[list[tuple[list[str], float]]]  # of each sentence the hypotheses' pieces and scores


class Here:
    """Called, it decodes all batches; `results` gives the result of it."""

    def __init__(self, requested: Mapping[str, Any]):
        import ctranslate2 as engine

        self.requested, self.found = requested, []
        self.translator = engine.Translator(requested["folder"], **requested["made"])

    def __call__(self) -> None:
        decoding = self.requested["decoding"]
        waiting = [
            self.translator.translate_batch(batch, asynchronous=True, **decoding)
            for batch in self.requested["batches"]
        ]
        self.found = [result.result() for batch in waiting for result in batch]

    def results(self) -> Found:
        return [list(zip(result.hypotheses, result.scores, strict=True)) for result in self.found]


class Apart:
    """The same in a process with settings; what its results take to travel is not in the call."""

    def __init__(self, requested: Mapping[str, Any], settings: Mapping[str, str]):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, "CT2_VERBOSE": "1", **settings},
        )
        self.query(json.dumps(requested))
        self.errors.seek(0)
        self.instructions = instructions(self.errors.read(), requested["made"]["compute_type"])

    def query(self, line: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            self.errors.seek(0)
            raise BenchError(
                "CTranslate2 in a process of its own ended: "
                f"{(self.errors.read().strip() or '?').splitlines()[-1]}"
            )
        return answer

    def __call__(self) -> dict[str, float]:
        """Decode; the seconds of each clock."""
        return json.loads(self.query("decode"))

    def results(self) -> Found:
        return json.loads(self.query("results"))

    def __del__(self) -> None:
        self.process.kill()
        self.process.communicate()


def instructions(log: str, compute_type: str) -> str:
    """Of what CTranslate2 logs when it is loaded: its own instructions, and whose products it
    calls, which choose theirs by themselves."""
    products = "GEMM_S8" if compute_type == "int8" else "SGEMM"
    found = re.search(r"Selected ISA: (\S+)", log), re.search(rf"{products} backend: (.+)", log)
    own, theirs = (match[1] if match else "?" for match in found)
    packed = ", packed" * ("packed: true" in theirs)
    return f"{own}; products {theirs.partition(' ')[0]}{packed}"


def main() -> None:
    """Answer each line of standard input with one line."""
    translator = Here(json.loads(sys.stdin.readline()))
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "results":
            print(json.dumps(translator.results()), flush=True)
        else:
            wall, cpu = time.perf_counter(), time.process_time()
            translator()
            taken = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
            print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    main()
