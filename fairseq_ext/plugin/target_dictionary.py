"""The target dictionary of our tasks: fairseq's, for messages and C- lines that fairseq's commands write from it."""

from __future__ import annotations

import torch
from fairseq.data import Dictionary

from fairseq_ext.search.phrases.sentence import Phrase


class TargetDictionary(Dictionary):
    """A dictionary that can remember the words it was asked for and lacks (fairseq encodes typed phrases before we see them), and
    that has numbers beyond its words which stand for alternative phrases."""

    noting: bool  # whether unknown words are remembered
    unknown: list[str]
    alternatives: list[tuple[Phrase, ...]]

    @classmethod
    def of(cls, dictionary: Dictionary) -> TargetDictionary:
        """The same dictionary, not a copy of its words."""
        ours = cls.__new__(cls)
        ours.__dict__ = {**dictionary.__dict__, "noting": False, "unknown": [], "alternatives": []}
        return ours

    def index(self, sym: str) -> int:
        found = super().index(sym)
        if self.noting and found == self.unk_index:
            self.unknown.append(sym)
        return found

    def number_of(self, alternatives: tuple[Phrase, ...]) -> int:
        """A number that `string` writes as these phrases, joined by |."""
        self.alternatives.append(alternatives)
        return len(self) + len(self.alternatives) - 1

    def string(self, tensor, *how, **more):
        if torch.is_tensor(tensor) and tensor.numel() == 1 and (place := int(tensor) - len(self)) >= 0:
            return "|".join(super(TargetDictionary, self).string(torch.tensor(phrase), *how, **more) for phrase in self.alternatives[place])
        return super().string(tensor, *how, **more)
