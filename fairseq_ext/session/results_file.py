"""Results on disk as sentences finish (`--results-file`), so that an interrupted run can go on (`--resume`).

JSON lines, each with a digest of its content: the first has the format, its version and the run's signature, each other one a sentence:
its number, a checksum of its source tokens, its translation, and its hypotheses with all that the commands print of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from fairseq_ext.errors import UsageError
from fairseq_ext.files import is_stream, sealed, unsealed

ONLY_OUTPUT = ("_name", "print_step", "score_reference", "retain_iter_history")  # flags that change no hypothesis
FORMAT = {"format": "fairseq_ext results", "version": 1}
EACH = 4096  # numbers of each weight that the fingerprint of a model takes in


class ResultsFile:
    """One file, written line by line."""

    def __init__(self, path: str, resume: bool, signature: str):
        self.path = Path(path)
        self.done: dict[int, dict[str, Any]] = {}
        whole = 0
        if self.path.is_dir():
            raise UsageError(f"--results-file {path} is a directory: name a file")
        if self.path.exists() and self.path.stat().st_size:
            if not resume:
                raise UsageError(f"{path} has results already: add --resume to go on with it, or name another file")
            whole = self.read(signature)
        try:
            self.file: IO[str] = open(self.path, "a", encoding="utf-8")
            if not is_stream(self.path):
                self.file.truncate(whole)  # a line that was cut short is done again
        except OSError as error:
            raise UsageError(f"--results-file {path} cannot be written ({error.strerror}): name another file") from error
        if not whole:
            self.write({**FORMAT, "signature": signature})

    def read(self, signature: str) -> int:
        """Take in the sentences that are done; return how many bytes of the file are whole lines."""
        whole = 0
        with open(self.path, "rb") as lines:
            for number, line in enumerate(lines):
                try:
                    record = unsealed(line)
                    check_sentence(record) if number else check_head(record)
                except ValueError as error:
                    if number and not lines.read(1):
                        break  # the last line was cut short
                    raise UsageError(
                        f"{self.path}, line {number + 1}, is no result of ours, because {error}: name another --results-file"
                    ) from None
                if not line.endswith(b"\n"):
                    break
                if number == 0 and record["signature"] != signature:
                    raise UsageError(
                        f"{self.path} is of another search ({record['signature']}): use the same flags, or name another --results-file"
                    )
                if number:
                    self.done[record["id"]] = record
                whole += len(line)
        return whole

    def write(self, record: dict[str, Any]) -> None:
        """Add one line, on disk as far as this process goes."""
        try:
            self.file.write(json.dumps(sealed(record), ensure_ascii=False) + "\n")
            self.file.flush()
        except OSError as error:
            raise UsageError(f"--results-file {self.path} takes no more ({error.strerror}): make room, and go on with --resume") from error

    def add(self, number: int, source: str, text: str, hypotheses: list[dict[str, Any]]) -> None:
        """A sentence is done: its checksum, the best translation as text, its hypotheses as fairseq's commands read them."""
        kept = [
            {"tokens": h["tokens"].tolist(), "score": float(h["score"]), "positional_scores": h["positional_scores"].tolist()}
            | ({"unmet": h["unmet"]} if "unmet" in h else {})
            for h in hypotheses
        ]
        self.write({"id": number, "source": source, "text": text, "hypotheses": kept})

    def hypotheses(self, number: int, source: str, device: torch.device) -> list[dict[str, Any]] | None:
        """The hypotheses of a sentence, given its checksum, that is done already; None if it is not."""
        record = self.done.get(number)
        if record is None:
            return None
        if record["source"] != source:
            raise UsageError(
                f"sentence {number} in {self.path} has another source, constraints or prefix than here: use the same data, or another file"
            )
        nothing = torch.empty(0)
        return [
            {
                "tokens": torch.tensor(h["tokens"], device=device),
                "score": torch.tensor(h["score"], device=device),
                "attention": nothing,
                "alignment": nothing,
                "positional_scores": torch.tensor(h["positional_scores"], device=device),
            }
            | ({"unmet": [tuple(each) for each in h["unmet"]]} if "unmet" in h else {})
            for h in record["hypotheses"]
        ]


def check_head(record: dict[str, Any]) -> None:
    """Raise ValueError unless a record is a first line."""
    if {name: record.get(name) for name in FORMAT} != FORMAT or not isinstance(record.get("signature"), str):
        raise ValueError("it does not tell the format and version of such a file")


def check_sentence(record: dict[str, Any]) -> None:
    """Raise ValueError unless a record is a sentence's."""

    def numbers(value: Any, *kinds: type) -> bool:
        return isinstance(value, list) and all(type(each) in kinds for each in value)

    hypotheses = record.get("hypotheses")
    good = type(record.get("id")) is int and all(isinstance(record.get(name), str) for name in ("source", "text"))
    if not good or not isinstance(hypotheses, list) or not hypotheses:
        raise ValueError("it lacks what a sentence has")
    for each in hypotheses:
        if not isinstance(each, dict) or type(each.get("score")) not in (int, float) or not numbers(each.get("tokens"), int):
            raise ValueError("a hypothesis has no tokens and score")
        if not all(0 <= token < 1 << 31 for token in each["tokens"]) or not numbers(each.get("positional_scores"), int, float):
            raise ValueError("a hypothesis has tokens or scores that are none")
        if not isinstance(each.get("unmet", []), list) or not all(isinstance(phrase, list) for phrase in each.get("unmet", [])):
            raise ValueError("a hypothesis has constraints that are none")


def checksum(*given: Any) -> str:
    """Of what a sentence's results depend on: tensors of tokens, and what else its representation tells."""
    parts = [x.cpu().numpy().tobytes() if isinstance(x, Tensor) else repr(x).encode("utf-8", "surrogatepass") for x in given]
    return hashlib.sha256(b"|".join(parts)).hexdigest()[:16]


def run_key(signature: str, generation: Any, models: list) -> str:
    """One line for all that results depend on besides the sentences: the signature, fairseq's own generation flags, the weights.

    Not the schedule: a run that was too large for the machine may go on with fewer sentences at once.
    """
    signature = "|".join(part for part in signature.split("|") if not part.startswith("schedule:"))
    settings = generation if isinstance(generation, Mapping) else vars(generation)
    told = {name: str(value) for name, value in sorted(settings.items()) if name not in ONLY_OUTPUT}
    digest = hashlib.sha256()
    for model in models:
        for weight in model.parameters():
            digest.update(weight.detach().flatten()[:EACH].float().cpu().numpy().tobytes())
    return f"{signature}|{checksum(told)}|{digest.hexdigest()[:16]}"
