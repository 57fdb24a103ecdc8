"""CTranslate2 called in this process, or in one of its own: settings such as CT2_USE_MKL are read
once a process, when it is loaded.

    CT2_USE_MKL=1 python scripts/bench/ct2_process.py < REQUEST      what `Apart` starts: it decodes
                                                                     once for each line that
                                                                     it is given
"""

import json
import os
import subprocess
import sys
import tempfile
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
            env={**os.environ, **settings},
        )
        self.query(json.dumps(requested))

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

    def __call__(self) -> None:
        self.query("decode")

    def results(self) -> Found:
        return json.loads(self.query("results"))

    def __del__(self) -> None:
        self.process.kill()
        self.process.communicate()


def main() -> None:
    """Answer each line of standard input with one line."""
    translator = Here(json.loads(sys.stdin.readline()))
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "results":
            print(json.dumps(translator.results()), flush=True)
        else:
            translator()
            print("done", flush=True)


if __name__ == "__main__":
    main()
