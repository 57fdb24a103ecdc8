"""Builds the table of `--draft ngram` from text in the model's own segmentation, and stores
it next to the checkpoint.

    python scripts/build_drafts.py --data DATA -s de -t en --path checkpoint.pt
        --target train.spm.en [--source train.spm.de]

`--target` is target-side text, one segmented sentence a line (what the model was trained on,
or its own translations); with `--source`, the lines that it translates, drafts also look at
the source sentence, which is worth much. DATA holds the dictionaries. The table is written to
checkpoint.drafts.npz, where decoding finds it (`--output` names another place, for --draft-table).
With `--spm spm.model` the text is plain and is segmented first.

Next-word probabilities come from the target text, word translations from parallel text by IBM model
1 (P. F. Brown et al. 1993, https://aclanthology.org/J93-2003/).
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import Dictionary

import fairseq_ext  # noqa: F401  lets fairseq be imported
from fairseq_ext.search.parallel.ngram import Table, fingerprint

# Shapes: t target tokens of the whole text, V target vocabulary, K words listed for a history
LISTED = 32  # K
ROUNDS = 6  # of expectation maximisation
ENTRIES = 20  # translations kept of each source word


def read(
    path: Path, dictionary: Dictionary, spm: Path | None, limit: int | None
) -> list[list[int]]:
    """Lines as token ids with EOS."""
    encode = str.split
    if spm is not None:
        import sentencepiece

        pieces = sentencepiece.SentencePieceProcessor(model_file=str(spm))
        encode = lambda line: pieces.encode(line, out_type=str)  # noqa: E731
    with path.open(encoding="utf-8") as lines:
        taken = (line for line, _ in zip(lines, range(limit or sys.maxsize), strict=False))
        return [[*map(dictionary.index, encode(line)), dictionary.eos()] for line in taken]


def estimate(
    target: Sequence[Sequence[int]],
    source: Sequence[Sequence[int]] | None,
    target_dict: Any,
    source_dict: Any,
) -> Table:
    """The table. target: lines of token ids that end in EOS; source: the lines that they
    translate, or None."""
    V, pad, eos = len(target_dict), target_dict.pad(), target_dict.eos()
    text = np.concatenate([[pad, eos, *line] for line in target]).astype(np.int64)
    is_word = np.concatenate([[False, False, *[True] * len(line)] for line in target])
    at = is_word.nonzero()[0]
    word, last, before = text[at], text[at - 1], text[at - 2]
    unigram = np.bincount(word, minlength=V) / len(word)
    any_token = np.argsort(-unigram, kind="stable")[:LISTED]
    short = distributions(last, word, V, lambda history: unigram[None].repeat(len(history), 0))
    place_of = {int(h): i for i, h in enumerate(short[0])}

    def back_off(history: np.ndarray) -> np.ndarray:
        """(m, V) from the lists of the last token."""
        out = np.zeros((len(history), V), np.float32)
        index = np.array([place_of[int(h)] for h in history % V])
        out[np.arange(len(history))[:, None], short[1][index]] = short[2][index]
        return out

    long = distributions(before * V + last, word, V, back_off)
    key = np.concatenate([long[0], V * V + short[0]])
    dtype = np.uint16 if V <= 1 << 16 else np.int32
    empty = np.zeros(0, np.int64)
    lexical = (
        (empty, empty, empty)
        if source is None
        else translations(source, target, len(source_dict), V, eos)
    )
    return Table(
        key,
        np.concatenate([long[1], short[1]]).astype(dtype),
        np.concatenate([long[2], short[2]]).astype(np.float16),
        unigram.astype(np.float32),
        any_token,
        lexical[0],
        lexical[1].astype(dtype),
        lexical[2].astype(np.float16),
        fingerprint(target_dict),
        fingerprint(source_dict) if source is not None else "",
        digest_of(target, source or []),
    )


def digest_of(*texts: Sequence[Sequence[int]]) -> str:
    """SHA-256 of lines of token ids."""
    out = hashlib.sha256()
    for text in texts:
        for line in text:
            out.update(np.array([len(line), *line], np.int64).tobytes())
        out.update(b"|")
    return out.hexdigest()


def distributions(
    history: np.ndarray, word: np.ndarray, V: int, back_off: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Interpolated Witten-Bell: histories (m,) ascending, their likeliest next words (m, K)
    and probabilities (m, K).

    history (t,), word (t,): what follows what; back_off: histories (m,) -> probabilities (m,
    V) of the shorter history.
    """
    known, inverse = np.unique(history, return_inverse=True)
    pair, count = np.unique(inverse * V + word, return_counts=True)
    owner, following = pair // V, pair % V
    total, kinds = np.bincount(owner, count), np.bincount(owner)
    start = np.searchsorted(owner, np.arange(len(known) + 1))
    tokens, probs = (
        np.empty((len(known), min(LISTED, V)), np.int64),
        np.empty((len(known), min(LISTED, V)), np.float32),
    )
    m = max(1, 8_000_000 // V)
    for first in range(0, len(known), m):
        end = min(first + m, len(known))
        weight = (total / (total + kinds))[first:end, None]
        p = back_off(known[first:end]) * (1 - weight)
        inside = slice(start[first], start[end])
        p[owner[inside] - first, following[inside]] += (weight[:, 0] / total[first:end])[
            owner[inside] - first
        ] * count[inside]
        best = np.argpartition(-p, tokens.shape[1] - 1, 1)[:, : tokens.shape[1]]
        tokens[first:end], probs[first:end] = best, np.take_along_axis(p, best, 1)
    return known, tokens, probs


def translations(
    source: Sequence[Sequence[int]], target: Sequence[Sequence[int]], S: int, V: int, eos: int
) -> tuple:
    """t(e | f) of IBM model 1 as rows of entries: start (S + 1,), token (entries,),
    probability (entries,).

    Source token eos, which every sentence ends in, is the empty word.
    """
    pieces, links = [], 0
    for f, e in zip(source, target, strict=True):
        pieces.append(
            (
                np.repeat(np.array([f]), len(e), 0).ravel() * V + np.repeat(np.array(e), len(f)),
                len(f),
                len(e),
            )
        )
        links += len(f) * len(e)
    pair, inverse = np.unique(np.concatenate([p for p, _, _ in pieces]), return_inverse=True)
    position = np.repeat(
        np.arange(sum(e for _, _, e in pieces)), np.concatenate([[f] * e for _, f, e in pieces])
    )
    word = pair // V
    t = np.ones(len(pair))
    for _ in range(ROUNDS):
        share = t[inverse]
        share /= np.bincount(position, share)[position]
        count = np.bincount(inverse, share, len(pair))
        t = count / np.bincount(word, count)[word]
    # the likeliest entries of each source word
    order = np.lexsort((-t, word))
    rank = np.arange(len(order)) - np.searchsorted(word[order], word[order])
    order = order[(rank < ENTRIES) & (t[order] > 1e-3)]
    return np.searchsorted(word[order], np.arange(S + 1)), pair[order] % V, t[order]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="directory with dict.SOURCE.txt and dict.TARGET.txt",
    )
    parser.add_argument("-s", "--source-lang", required=True)
    parser.add_argument("-t", "--target-lang", required=True)
    parser.add_argument("--path", type=Path, help="checkpoint beside which the table is stored")
    parser.add_argument("--output", type=Path, help="where to store it instead")
    parser.add_argument("--target", type=Path, required=True, metavar="FILE")
    parser.add_argument("--source", type=Path, metavar="FILE")
    parser.add_argument(
        "--spm",
        type=Path,
        metavar="MODEL",
        help="SentencePiece model, when the text is not segmented",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="the first N lines only")
    args = parser.parse_args()
    if (args.path is None) == (args.output is None):
        parser.error("one of --path and --output is needed")
    start = time.perf_counter()
    dictionaries = {}
    for language in (args.source_lang, args.target_lang):
        file = args.data / f"dict.{language}.txt"
        if not file.is_file():
            parser.error(f"no dictionary at {file}")
        dictionaries[language] = Dictionary.load(str(file))
    for file in (args.target, args.source):
        if file is not None and not file.is_file():
            parser.error(f"no text at {file}")
    target = read(args.target, dictionaries[args.target_lang], args.spm, args.limit)
    source = (
        read(args.source, dictionaries[args.source_lang], args.spm, args.limit)
        if args.source
        else None
    )
    if not target:
        parser.error(f"{args.target} is empty")
    if source is not None and len(source) != len(target):
        parser.error(
            f"{args.source} has {len(source)} lines and {args.target} {len(target)}: they "
            "must be parallel"
        )
    for file, text, language in (
        (args.target, target, args.target_lang),
        (args.source, source, args.source_lang),
    ):
        words = [token for line in text or () for token in line[:-1]]
        unknown = words.count(dictionaries[language].unk())
        if 2 * unknown > len(words):
            parser.error(
                f"{unknown:,} of {len(words):,} words of {file} are unknown to the model: segment "
                "the text as it does (--spm)"
            )
    table = estimate(target, source, dictionaries[args.target_lang], dictionaries[args.source_lang])
    output = args.output or args.path.with_suffix(".drafts.npz")
    table.save(str(output))
    loaded = Table.load(str(output))
    print(
        f"{output}: {len(loaded.key):,} histories and {len(loaded.lexical_token):,} word "
        f"translations from {len(target):,} lines, {output.stat().st_size / 1e6:.1f} MB, "
        f"{time.perf_counter() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
