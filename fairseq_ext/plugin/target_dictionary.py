"""The target dictionary of our tasks: fairseq's, with notes on unknown words and numbers for
alternative phrases."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.data.multilingual.multilingual_data_manager import TGT_DICT_NAME

from fairseq_ext.plugin.options import languages_of
from fairseq_ext.search.phrases.sentence import Phrase


class TargetDictionary(Dictionary):
    """A dictionary that can note unknown words (fairseq encodes typed phrases before we see them),
    and that has numbers beyond its words for alternative phrases."""

    records_unknown: bool  # whether unknown words are noted
    unknown: list[str]
    alternatives: list[tuple[Phrase, ...]]

    @classmethod
    def wrap(cls, dictionary: Dictionary) -> TargetDictionary:
        """Return a TargetDictionary with the same words, not copied; the same object if it is one
        already."""
        if isinstance(dictionary, cls):
            return dictionary
        ours = cls.__new__(cls)
        ours.__dict__ = {
            **dictionary.__dict__,
            "records_unknown": False,
            "unknown": [],
            "alternatives": [],
        }
        return ours

    def index(self, sym: str) -> int:
        found = super().index(sym)
        if self.records_unknown and found == self.unk_index:
            self.unknown.append(sym)
        return found

    def number_of(self, alternatives: tuple[Phrase, ...]) -> int:
        """Return a number that `string` writes as these phrases, joined by |."""
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
    """Replace a task's target dictionaries by ones that can note unknown words."""
    for name in ("tgt_dict", "output_dictionary"):  # the second: a language model's
        if isinstance(found := vars(task).get(name), Dictionary):
            setattr(task, name, TargetDictionary.wrap(found))
    languages, dictionaries = languages_of(task.flags()), vars(task).get("dicts", {})
    # tasks with a dictionary for each language
    for language in (TGT_DICT_NAME, languages.target):
        if language in dictionaries and language != languages.source:
            dictionaries[language] = TargetDictionary.wrap(dictionaries[language])
