"""The languages of a request to a model with many (`LanguagesOfRequests`).

Their tokens are part of source and translation (M2M-100, NLLB-200, mBART), or the target's token
is the first of the source (OPUS-MT). fairseq's task reads both languages from its settings
whenever it makes a batch, so the settings are changed for each batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.core.language_codes import two_letters
from fairseq_ext.plugin.loading.settings import languages_of
from fairseq_ext.search.constraints.placement import GlossaryPlacement

Pair = tuple[str, str]  # source and target language


class LanguagesOfRequests:
    """The languages that requests of one translator may name.

    targets, sources: codes that may be target and source, in the model's order; none if the model
    has one pair.
    """

    def __init__(self, translator: Any):
        task, generator = translator.task, translator.generator
        self.settings, self.placement = task.flags(), generator.steps.find(GlossaryPlacement)
        self.targets = tuple(word[2:-2] for word in translator.sentences.language_words)
        self.sources: tuple[str, ...] = (self.settings.source_lang,) if self.targets else ()
        if isinstance(task, TranslationMultiSimpleEpochTask) and self.settings.fixed_dictionary:
            self.targets = self.sources = tuple(task.langs)
            for each in self.targets:
                task.dicts.setdefault(each, task.target_dictionary)
            spec = self.settings.langtoks["main"][1]
            if spec and not generator.settings.command.keeps_language_token:
                generator.symbols_to_strip_from_output.update(
                    task.data_manager.get_decoder_langtok(each, spec) for each in self.targets
                )

    @contextlib.contextmanager
    def selected(self, pair: Pair | None) -> Iterator[None]:
        """Return a context in which the task has this pair of languages; None: that of its flags
        (raises UsageError for a language that the model does not have)."""
        own = dataclasses.astuple(languages_of(self.settings))
        if pair is None or pair == own:
            yield
            return
        for each, known in zip(pair, (self.sources, self.targets), strict=True):
            if each not in known:
                there = (
                    f"use one of {cut(', '.join(known))}"
                    if known
                    else f"it translates from {own[0]} to {own[1]} alone"
                )
                raise UsageError(f"the model does not have the language '{cut(each)}': {there}")
        try:
            self.use(pair)
            yield
        finally:
            self.use(own)

    def use(self, pair: tuple) -> None:
        self.settings.source_lang, self.settings.target_lang = pair
        if self.placement is not None:
            self.placement.use_languages(*(two_letters(each or "") for each in pair))
