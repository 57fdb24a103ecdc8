"""The target dictionary of our tasks. It is fairseq's, for messages and for the C- lines that
fairseq's commands write."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.data.multilingual.multilingual_data_manager import TGT_DICT_NAME

from fairseq_ext.plugin.options import languages_of
from fairseq_ext.search.phrases.sentence import Phrase


class TargetDictionary(Dictionary):
    """A dictionary that can remember the words it was asked for and lacks (fairseq encodes
    typed phrases before we see them), and that has numbers beyond its words which stand
    for alternative phrases."""

    noting: bool  # whether unknown words are remembered
    unknown: list[str]
    alternatives: list[tuple[Phrase, ...]]

    @classmethod
    def of(cls, dictionary: Dictionary) -> TargetDictionary:
        """The same dictionary, not a copy of its words; itself where it is one already."""
        if isinstance(dictionary, cls):
            return dictionary
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
        if (
            torch.is_tensor(tensor)
            and tensor.numel() == 1
            and (place := int(tensor) - len(self)) >= 0
        ):
            return "|".join(
                super(TargetDictionary, self).string(torch.tensor(phrase), *how, **more)
                for phrase in self.alternatives[place]
            )
        return super().string(tensor, *how, **more)


def note_unknown_words(task: Any) -> None:
    """Give a task target dictionaries that can take note of the words they lack."""
    for name in ("tgt_dict", "output_dictionary"):  # the second: a language model's
        if isinstance(found := vars(task).get(name), Dictionary):
            setattr(task, name, TargetDictionary.of(found))
    languages, dictionaries = languages_of(task.flags()), vars(task).get("dicts", {})
    # of tasks with a dictionary for each language
    for language in (TGT_DICT_NAME, languages.target):
        if language in dictionaries and language != languages.source:
            dictionaries[language] = TargetDictionary.of(dictionaries[language])
