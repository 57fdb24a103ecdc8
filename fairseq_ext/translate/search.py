"""The compiled beam search of lines on a model that is mapped from an image: what decoders/transformer/ and search/searchers/compiled.py do,
without torch. Those are the definition; results are the same to the last bit.

Shapes: S sentences, N tokens of all of them, T source width, L layers, H heads, h = d / H, P positions of a slot, k beam.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fairseq_ext.kernels.declarations import struct
from fairseq_ext.kernels.library import loaded
from fairseq_ext.kernels.search.beam import STEPS, CompiledBatch, CompiledSentence, Result, Rules
from fairseq_ext.translate.image import Image

Reader, Step, Cache = (struct(f"decoder/{file}.hpp", name) for file, name in (("reader", "Reader"), ("step", "Step"), ("step", "Cache")))
FIRST_POSITIONS, FIRST_STEPS = 32, 8  # room for as many tokens in common, and so many of each row


def cache(of: np.ndarray) -> ctypes.Structure:
    """The address and strides of keys and values (L, 2, S, H, P, h)."""
    layer, pair, sentence, head = (stride // of.itemsize for stride in of.strides[:4])
    return Cache(of.ctypes.data, layer, pair, sentence, head, of.shape[4])


class SavedModel:
    """A model with the flags of its search. about: what state.py keeps of them. Called with lines, it gives their translations."""

    def __init__(self, about: dict[str, Any], image: Image):
        import sentencepiece

        self.about, self.image = about, image
        self.rules = Rules.from_buffer_copy(bytes.fromhex(about["rules"]))
        self.reader = Reader.from_address(image.address("reader"))
        self.segment = sentencepiece.SentencePieceProcessor(model_file=about["segmentation"]).encode
        self.ids = {word: i for i, word in enumerate(image.about["source"])}
        self.words: list[str] = image.about["target"]

    def __call__(self, lines: Sequence[str], first: int = 0) -> list[str] | None:
        """None where one of them needs what only the model itself does. first: the number of the first line, from 0."""
        if any("\ud800" <= character <= "\udfff" for line in lines if not line.isascii() for character in line):
            return None
        about, unknown = self.about, self.image.about["unk"]
        tokens = [[*(self.ids.get(piece, unknown) for piece in self.pieces(line)), self.rules.eos] for line in lines]
        limits = [min(int(about["max_len_a"] * len(each) + about["max_len_b"]), about["max_len"] - 1) for each in tokens]
        longest = max(map(len, tokens), default=0)
        if longest > about["longest"] or not all(self.rules.min_len <= limit <= self.reader.room for limit in limits):
            return None
        for number, line in enumerate(lines, first + 1):
            if any(end in line[:-1] for end in ".?!。！？"):
                from fairseq_ext.loading.several_sentences import warning

                if said := warning(line, f"line {number}"):
                    warnings.warn(said, stacklevel=2)
        out, full = [""] * len(lines), sorted((i for i, each in enumerate(tokens) if len(each) > 1), key=lambda i: -len(tokens[i]))
        for some in self.batches(full, tokens):
            for i, found in zip(some, self.search([tokens[i] for i in some], [limits[i] for i in some]), strict=True):
                if found is None:
                    return None
                words = (self.words[token] for token in found if token not in about["left_out"])
                out[i] = " ".join(words).replace(" ", "").replace("\u2581", " ").strip()
        return out

    def pieces(self, line: str) -> list[str]:
        """As LoadedModel.pieces (loading/model.py)."""
        return " ".join(self.segment(line, out_type=str)).split() if line.strip() else []

    def batches(self, order: list[int], tokens: list[list[int]]) -> Iterator[list[int]]:
        """Lines in batches that the flags allow, the longest first."""
        most, room = self.about["batch_size"], self.about["max_tokens"]
        while order:
            fit = min(most or len(order), room // len(tokens[order[0]]) if room else len(order))
            yield order[: max(1, fit)]
            order = order[max(1, fit) :]

    def encode(self, sentences: Sequence[list[int]]) -> tuple[np.ndarray, np.ndarray | None]:
        """The source's keys and values (L, 2, S, H, T, h), and its mask (S, T), -inf at padding; None where there is none."""
        image, compiled, lengths = self.image, loaded(), np.array([len(each) for each in sentences])
        embedding, position = image.array("source_embedding"), np.concatenate([np.arange(n) for n in lengths])
        scaled = embedding[np.concatenate(sentences)].astype(np.float64) * np.float32(image.about["scale"])
        x = (scaled + image.array("source_positions")[position]).astype(np.float32)  # rounded once, as by torch
        N, L, S, T, H = len(x), image.about["layers"], len(sentences), lengths.max(), image.about["heads"]
        start = np.concatenate([[0], lengths.cumsum()])
        compiled.encode(image.address("encoder"), x.ctypes.data, start.ctypes.data, S)
        both = np.empty((N, 2 * self.reader.d), np.float32)
        source, is_word = np.zeros((L, S, T, 2, H, self.reader.d // H), np.float32), np.arange(T) < lengths[:, None]
        for layer in range(L):
            compiled.linear(image.address(f"cross{layer}"), x.ctypes.data, N, both.ctypes.data, 0)
            source[layer][is_word] = both.reshape(N, *source.shape[3:])
        source = np.ascontiguousarray(source.transpose(0, 3, 1, 4, 2, 5))
        return source, None if is_word.all() else np.where(is_word, np.float32(0), np.float32(-np.inf))

    def search(self, sentences: Sequence[list[int]], limits: Sequence[int]) -> list[list[int] | None]:
        """The best tokens of each sentence; None where the compiled search ends without."""
        rules, reader, about = self.rules, self.reader, self.about
        source, mask = self.encode(sentences)
        S, rows = len(sentences), len(sentences) * rules.k
        target = np.empty((*source.shape[:4], FIRST_POSITIONS + FIRST_STEPS * rules.k, source.shape[5]), np.float32)
        step = Step(sentences=S, source=cache(source), target=cache(target), source_mask=None if mask is None else mask.ctypes.data)
        x, logits = np.empty((rows, reader.d), np.float32), np.empty((rows, reader.vocabulary), np.float32)
        reader.step, reader.x, reader.logits, reader.width = ctypes.addressof(step), x.ctypes.data, logits.ctypes.data, rows
        live = [CompiledSentence(rules) for _ in sentences]
        for slot, (sentence, limit) in enumerate(zip(live, limits, strict=True)):
            sentence.start_(rules.eos, limit, slot, 1, 0.0, (limit + 1.0) ** rules.lenpen, slot)
        all_of_them, batch = live, CompiledBatch()
        at = type("At", (), {"address": ctypes.addressof(reader)})
        while live:
            batch.keep_(live)
            while batch.go_on(STEPS, at, step) == Result.NO_ROOM:
                if not any([sentence.lengthen_() for sentence in live]):
                    before, P = target, target.shape[4]
                    target = np.empty((*before.shape[:4], 2 * P, before.shape[5]), np.float32)
                    target[:, :, :, :, :P] = before
                    step.target = cache(target)
            live = [sentence for sentence in live if sentence.is_live]
        found = [sentence.found() if sentence.result == Result.FOUND else [] for sentence in all_of_them]
        lenpen = rules.lenpen if rules.normalize else 0.0
        best = [max(each, key=lambda one: one[1][-1] / np.float32(len(one[0]) ** lenpen), default=None) for each in found]
        return [None if each is None else each[0].tolist() for each in best]
