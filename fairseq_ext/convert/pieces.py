"""SentencePiece models made from tokenizer.json, the only file in which transformers 5 saves the
tokenizers of NLLB and mBART. They have the pieces and scores of the original SentencePiece file.

The file is a protocol buffer; the numbers of its fields are those of sentencepiece_model.proto.
"""

from __future__ import annotations

import base64
import struct
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import sentencepiece

from fairseq_ext.convert.source import HuggingFaceFolder
from fairseq_ext.core.errors import UsageError, cut

NAME = "tokenizer.json"
UNIGRAM, BPE = 1, 2  # TrainerSpec.model_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # SentencePiece.type
SPACE = "\u2581"  # a space in a piece
# characters that Python and Rust treat as white space
WHITE_SPACE = [
    code
    for code in range(0x3001)
    if chr(code).isspace() and code != ord(" ") and code not in range(0x1C, 0x20)
]


def sentencepiece_model(
    source: HuggingFaceFolder, special: Iterable[str]
) -> tuple[bytes, dict[str, int]]:
    """Return the content of a SentencePiece model, and the number of each piece in the tables of
    the translation model.

    special: tokens that are not pieces; they keep their numbers. Added tokens are left out.
    Errors: UsageError for a tokenizer whose result SentencePiece cannot reproduce.
    """
    whole = source.read_json(NAME)
    model = whole.get("model") or {}
    kind, vocabulary = model.get("type"), model.get("vocab")
    added = {each["content"] for each in whole.get("added_tokens") or []} - {*special}
    if kind == "Unigram" and isinstance(vocabulary, list):
        scores = {piece: float(score) for piece, score in vocabulary}
        numbers = {piece: i for i, (piece, _) in enumerate(vocabulary)}
    elif kind == "BPE" and isinstance(vocabulary, dict):
        numbers = dict(vocabulary)
        scores = merge_scores(source, numbers, model.get("merges") or [])
    else:
        raise tokenizer_error(source, "model", kind, "Unigram and BPE can be converted")
    if model.get("byte_fallback"):
        raise tokenizer_error(source, "byte_fallback", True, "models without it can be converted")
    numbers = {piece: number for piece, number in numbers.items() if piece not in added}
    charsmap, removes_extra_spaces = normalizer_of(
        source, whole.get("normalizer"), whole.get("pre_tokenizer")
    )
    content = b"".join(
        piece(name, 0.0, UNKNOWN if name == "<unk>" else CONTROL)
        for name in ("<unk>", "<s>", "</s>")
    )
    content += b"".join(
        piece(name, scores.get(name, 0.0)) for name in numbers if name not in special
    )
    content += field(2, field(3, UNIGRAM if kind == "Unigram" else BPE))
    content += field(3, field(2, charsmap) + field(4, int(removes_extra_spaces)))
    return content, numbers


def with_words(content: bytes, words: Iterable[str]) -> bytes:
    """Return a SentencePiece model with these words as additional pieces."""
    known = sentencepiece.SentencePieceProcessor(model_proto=content)
    pieces = {known.id_to_piece(i) for i in range(known.get_piece_size())}
    return content + b"".join(
        piece(word, 0.0, USER_DEFINED) for word in words if word not in pieces
    )


def merge_scores(
    source: HuggingFaceFolder, numbers: Mapping[str, int], merges: list
) -> dict[str, float]:
    """Return the score of each BPE piece: a piece that is merged earlier has a higher score.

    SentencePiece merges any two pieces that form a third one; the list of merges must contain all
    of these pairs. Errors: UsageError if one is missing.
    """
    pairs = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in merges]
    scores: dict[str, float] = {}
    for left, right in pairs:
        scores.setdefault(left + right, -float(len(scores)))
    listed = {*pairs}
    for whole in scores:
        for i in range(1, len(whole)):
            pair = whole[:i], whole[i:]
            if pair not in listed and pair[0] in numbers and pair[1] in numbers:
                raise tokenizer_error(source, "merges", pair, "SentencePiece would merge these two")
    return scores


def normalizer_of(
    source: HuggingFaceFolder, normalizer: object, pre_tokenizer: object
) -> tuple[bytes, bool]:
    """Return SentencePiece's equivalent of a normaliser and a pre-tokeniser: its table of
    characters, and whether extra spaces are removed (raises UsageError)."""
    charsmap, removes = b"", False
    for each in steps(normalizer, "normalizers"):
        if each.get("type") == "Precompiled":
            charsmap = base64.b64decode(each.get("precompiled_charsmap") or "")
        elif each.get("type") == "Replace" and each.get("pattern") == {"Regex": " {2,}"}:
            removes = True
        elif each.get("type") != "Strip":
            raise tokenizer_error(
                source, "normalizer", each.get("type"), "Precompiled can be converted"
            )
    is_split = False
    for each in steps(pre_tokenizer, "pretokenizers"):
        if each.get("type") == "WhitespaceSplit":
            removes = True
            charsmap = charsmap or white_as_spaces()
        elif each.get("type") == "Metaspace" and each.get("replacement") == SPACE:
            is_split = each.get("prepend_scheme", "always") == "always"
        else:
            raise tokenizer_error(
                source, "pre_tokenizer", each.get("type"), "Metaspace can be converted"
            )
    if not is_split:
        raise tokenizer_error(source, "pre_tokenizer", pre_tokenizer, "Metaspace can be converted")
    return charsmap, removes


def steps(given: Any, name: str) -> list[dict[str, Any]]:
    """Return the parts of a sequence, or a list of the single part."""
    if given is None:
        return []
    return given.get(name) or [] if given.get("type") == "Sequence" else [given]


def white_as_spaces() -> bytes:
    """Return SentencePiece's table of a normalisation that turns all white space into spaces.

    Only SentencePiece's trainer can write such a table.
    """
    with tempfile.TemporaryDirectory() as folder:
        rules, prefix = Path(folder, "rules.tsv"), Path(folder, "model")
        rules.write_text("".join(f"{code:X}\t20\n" for code in WHITE_SPACE), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a b", "b a"]),
            model_prefix=str(prefix),
            vocab_size=8,
            hard_vocab_limit=False,
            normalization_rule_tsv=str(rules),
            minloglevel=2,
        )
        content = Path(f"{prefix}.model").read_bytes()
    return first_field(first_field(content, 3), 2)


def tokenizer_error(source: HuggingFaceFolder, name: str, value: object, why: str) -> UsageError:
    """Return the error for a part of a tokenizer that SentencePiece does not support."""
    return UsageError(
        f"{source.folder / NAME} has {name}={cut(repr(value))}: {why}, or copy the model's own "
        "sentencepiece.bpe.model into the folder"
    )


# ---- Protocol buffers


def varint(number: int) -> bytes:
    """Return a number as 7 bits a byte, the lowest bits first."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: bytes | float | int) -> bytes:
    """Return a field of a message: bytes, a float of 32 bits, or an integer."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def piece(text: str, score: float, kind: int = NORMAL) -> bytes:
    """Return a piece of a model."""
    return field(1, field(1, text.encode()) + field(2, score) + field(3, kind))


def first_field(content: bytes, wanted: int) -> bytes:
    """Return the content of the first field with this number that holds bytes; b"" if there is
    none."""
    at = 0

    def number() -> int:
        nonlocal at
        found = shift = 0
        while (byte := content[at]) > 127:
            found |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
        at += 1
        return found | byte << shift

    while at < len(content):
        key = number()
        if key & 7 == 2:
            size = number()
            if key >> 3 == wanted:
                return content[at : at + size]
            at += size
        elif key & 7 == 0:
            number()
        else:
            at += 4 if key & 7 == 5 else 8
    return b""
