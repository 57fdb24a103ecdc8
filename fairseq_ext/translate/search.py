"""The compiled beam search on a model that is mapped from an image: what decoders/transformer/ and search/compiled.py do, without
torch. Those are the definition.

Shapes: S sentences, N tokens of all of them, T source width, L layers, H heads, h = d / H, P positions of a slot, k beam.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from fairseq_ext.kernels.beam import STEPS, CompiledBatch, CompiledSentence, Result, Rules
from fairseq_ext.kernels.library import loaded, struct
from fairseq_ext.translate.image import Image

Reader, Step, Cache = struct("reader.hpp", "Reader"), struct("step.hpp", "Step"), struct("step.hpp", "Cache")
TOGETHER, FIRST_POSITIONS, FIRST_STEPS = 64, 32, 8  # sentences of a batch; room for so many tokens in common, and so many of each row


def cache(of: np.ndarray) -> ctypes.Structure:
    """The address and strides of keys and values (L, 2, S, H, P, h)."""
    return Cache(of.ctypes.data, *(stride // of.itemsize for stride in of.strides[:4]), of.shape[4])


class SavedModel:
    """A model with the flags of its search, as state.py keeps them. Called with lines, it gives their translations."""

    def __init__(self, image: Image):
        import sentencepiece

        self.image, self.about = image, image.about
        self.rules, self.reader = Rules.from_address(image.address("rules")), Reader.from_address(image.address("reader"))
        self.address = image.address("reader")
        self.segment = sentencepiece.SentencePieceProcessor(model_file=self.about["segmentation"]).encode
        self.ids = {word: i for i, word in enumerate(self.about["source"])}

    def __call__(self, lines: Sequence[str]) -> list[str] | None:
        """None where one of the lines needs what only the model itself does."""
        about, text = self.about, [line if line.strip() else "" for line in lines]
        if any("\ud800" <= character <= "\udfff" for line in text if not line.isascii() for character in line):
            return None
        pieces = [" ".join(self.segment(line, out_type=str)).split() for line in text]
        tokens = [[*(self.ids.get(piece, about["unk"]) for piece in each), self.rules.eos] for each in pieces]
        limits = [min(int(about["max_len_a"] * len(each) + about["max_len_b"]), about["max_len"] - 1) for each in tokens]
        if max(map(len, tokens)) > about["longest"] or not all(self.rules.min_len <= limit < self.reader.room for limit in limits):
            return None
        order = sorted((i for i, each in enumerate(tokens) if len(each) > 1), key=lambda i: len(tokens[i]))
        out = [""] * len(lines)
        for some in (order[i : i + TOGETHER] for i in range(0, len(order), TOGETHER)):
            for i, found in zip(some, self.search([tokens[i] for i in some], [limits[i] for i in some]), strict=True):
                if not found:
                    return None
                words = (about["target"][token] for token in found if token not in about["left_out"])
                out[i] = "".join(words).replace(" ", "").replace("\u2581", " ").strip()
        return out

    def encode(self, sentences: Sequence[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        """The source's keys and values (L, 2, S, H, T, h), and its mask (S, T), -inf at padding."""
        image, compiled, lengths = self.image, loaded(), np.array([len(each) for each in sentences])
        position = np.concatenate([np.arange(n) for n in lengths])
        x = image.array("embedding")[np.concatenate(sentences)].astype(np.float64) * np.float32(self.about["scale"])
        x = (x + image.array("positions")[position]).astype(np.float32)  # (N, d) rounded once, as by torch
        start, both = np.concatenate([[0], lengths.cumsum()]), np.empty((len(x), 2 * self.reader.d), np.float32)
        compiled.encode(image.address("encoder"), x.ctypes.data, start.ctypes.data, len(sentences))
        is_word = np.arange(lengths.max()) < lengths[:, None]  # (S, T)
        source = np.zeros((self.about["layers"], *is_word.shape, 2, self.about["heads"], self.reader.d // self.about["heads"]), np.float32)
        for layer, block in enumerate(source):
            compiled.linear(image.address(f"cross{layer}"), x.ctypes.data, len(x), both.ctypes.data, 0)
            block[is_word] = both.reshape(-1, *block.shape[2:])
        return np.ascontiguousarray(source.transpose(0, 3, 1, 4, 2, 5)), np.where(is_word, np.float32(0), np.float32(-np.inf))

    def search(self, sentences: Sequence[list[int]], limits: Sequence[int]) -> list[list[int]]:
        """The best tokens of each sentence, EOS included; none where the compiled search ends without."""
        rules, reader, rows = self.rules, self.reader, len(sentences) * self.rules.k
        source, mask = self.encode(sentences)
        target = np.empty((*source.shape[:4], FIRST_POSITIONS + FIRST_STEPS * rules.k, source.shape[5]), np.float32)
        step = Step(sentences=len(sentences), source=cache(source), target=cache(target))
        step.source_mask = mask.ctypes.data if mask.any() else None
        x, logits = np.empty((rows, reader.d), np.float32), np.empty((rows, reader.vocabulary), np.float32)
        reader.step, reader.x, reader.logits, reader.width = ctypes.addressof(step), x.ctypes.data, logits.ctypes.data, rows
        searched, batch = [CompiledSentence(rules) for _ in sentences], CompiledBatch()
        for slot, (sentence, limit) in enumerate(zip(searched, limits, strict=True)):
            sentence.start_(rules.eos, limit, slot, 1, 0.0, (limit + 1.0) ** rules.lenpen, 0, 0)
        while live := [sentence for sentence in searched if sentence.is_live]:
            batch.keep_(live)
            if batch.go_on(STEPS, self, step) == Result.NO_ROOM and not any([sentence.lengthen_() for sentence in live]):
                target = np.concatenate([target, np.empty_like(target)], axis=4)
                step.target = cache(target)

        def score(hypothesis: tuple[np.ndarray, np.ndarray]) -> np.float32:
            tokens, total = hypothesis
            return total[-1] / np.float32(len(tokens) ** rules.lenpen) if rules.normalize else total[-1]

        found = [sentence.found() if sentence.result == Result.FOUND else [] for sentence in searched]
        return [max(each, key=score)[0].tolist() if each else [] for each in found]
