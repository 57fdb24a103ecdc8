"""Which subword segmentation a folder holds the model of, and what its dictionaries tell of the text they were made from."""

from __future__ import annotations

import filecmp
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_ext.core.errors import UsageError

SAVED = ("sentencepiece_model", "target_sentencepiece_model", "bpe_codes", "gpt2_encoder_json", "gpt2_vocab_bpe")  # flags of files
CODES = ("bpecodes", "code", "codes")  # merges, as fairseq's archives and others name them
CODE_SUFFIXES = (".code", ".codes")  # ende30k.fastbpe.code, of an archive of WMT19
SUFFIX = ".model"  # of SentencePiece's
ESCAPED = re.compile(r"^&(apos|quot|amp|lt|gt|#91|#93|#124);", re.MULTILINE)  # as Moses writes ' " & < > [ ] |


def segmentation_files(folder: str) -> list[str]:
    """The names of a folder's SentencePiece models and lists of BPE merges; of equal files the first."""
    out: list[str] = []
    for name in sorted(name for name in os.listdir(folder) if name.endswith((SUFFIX, *CODE_SUFFIXES)) or name in CODES):
        if not any(filecmp.cmp(os.path.join(folder, name), os.path.join(folder, other), shallow=False) for other in out):
            out.append(name)
    return out


def flag_of(name: str) -> str:
    """The flag that takes such a file."""
    return "sentencepiece_model" if name.endswith(SUFFIX) else "bpe_codes"


def kind_of_codes(path: str) -> str:
    """The --bpe of a list of merges: fastBPE writes how often each pair was seen behind it."""
    with open(path, encoding="utf-8") as lines:
        first = next(lines, "").split()
    return "fastbpe" if len(first) == 3 and first[2].isdigit() and not first[0].startswith("#version") else "subword_nmt"


def is_moses(folder: str) -> bool:
    """Whether a folder's dictionaries have what Moses' tokenizer makes of quotes and brackets."""
    return any(ESCAPED.search(path.read_text(encoding="utf-8", errors="replace")) for path in Path(folder).glob("dict.*txt"))


def segmentation_flags(folder: str, given: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of a folder's segmentation (bpe, its file, tokenizer) that are not given; {} where the folder has no file for one.

    saved: the checkpoint's settings, which may name files of the folder. Errors: UsageError, naming the choices, where it has several.
    """
    files = {name: os.path.join(folder, str(saved[name])) for name in SAVED if saved.get(name)}
    if files and not any(given.get(name) for name in ("bpe", "tokenizer", *SAVED)) and all(map(os.path.isfile, files.values())):
        return files | {name: saved[name] for name in ("bpe", "tokenizer") if saved.get(name)}
    if given.get("sentencepiece_model"):
        return {} if given.get("bpe") else {"bpe": "sentencepiece"}
    needs = {"sentencepiece": "sentencepiece_model", "subword_nmt": "bpe_codes", "fastbpe": "bpe_codes"}.get(given.get("bpe") or "")
    if given.get("bpe") and (needs is None or given.get(needs)):
        return {}
    names = [name for name in segmentation_files(folder) if needs in (None, flag_of(name))]
    codes = given.get("bpe_codes")
    if codes is None and len(names) > 1:
        ways = [f"--{flag_of(name).replace('_', '-')} {os.path.join(folder, name)}" for name in names]
        raise UsageError(f"{folder} has {len(names)} segmentation models: add {' or '.join(ways)}")
    if codes is None and not names:
        return {}
    file = codes or os.path.join(folder, names[0])
    if flag_of(file) == "sentencepiece_model" and codes is None:
        return {"bpe": "sentencepiece", "sentencepiece_model": file}
    found = {"bpe_codes": file} | ({} if given.get("bpe") else {"bpe": kind_of_codes(file)})
    return found | ({"tokenizer": "moses"} if not given.get("tokenizer") and is_moses(folder) else {})
