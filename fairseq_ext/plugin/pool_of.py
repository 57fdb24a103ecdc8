"""Encoded lines as the pool that a search takes, made as the task makes a batch of them, without the search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from fairseq import utils
from fairseq.data import RoundRobinZipDatasets
from fairseq.data.data_utils import collate_tokens
from torch import Tensor

from fairseq_ext.search.phrases.sentence import SentenceConstraints
from fairseq_ext.search.pool import Pool


def pool_of(translator: Any, tokens: Sequence[Tensor], wanted: Sequence[SentenceConstraints | None]) -> Pool:
    """The pool of a `Translator`'s encoded lines, each (L,), whose ids are their places here; wanted: the constraints of each, or None for
    all."""
    task, generator, caught = translator.task, translator.generator, []
    dataset = task.build_dataset_for_inference(list(tokens), [t.numel() for t in tokens])
    if isinstance(dataset, RoundRobinZipDatasets):
        dataset.ordered_indices()  # which it wants to have been asked for first
    batch = dataset.collater([dataset[i] for i in range(len(tokens))])
    vars(dataset).pop("collater", None)  # subtle: where the task has given it one, they refer to each other and would stay as garbage
    batch = utils.move_to_cuda(batch) if translator.cuda else batch
    numbers = batch["id"].tolist()
    if wanted[0] is not None:
        batch["sentence_constraints"] = [wanted[i] for i in numbers]

    def take(pool: Pool) -> list:
        caught.append(pool)
        return [[] for _ in numbers]

    generator.take = take
    try:
        task.inference_step(generator, translator.models, batch)
    finally:
        generator.take = None
    return caught[0]


def pool_without_constraints(translator: Any, tokens: Sequence[Tensor]) -> Pool:
    """As `pool_of`, of lines without constraints. A task that adds nothing to its lines is not asked, which would take longer than to
    collate them."""
    if translator.task.registered != "translation_ext":
        pool = pool_of(translator, tokens, [None] * len(tokens))
        pool.constraints = None  # a task that takes constraints gives every sentence some, if empty ones
        return pool
    generator = translator.generator
    source = collate_tokens(list(tokens), generator.spec.pad, left_pad=True)
    inputs = {"src_tokens": source, "src_lengths": torch.tensor([t.numel() for t in tokens])}
    return generator.pools.pool({"net_input": utils.move_to_cuda(inputs) if translator.cuda else inputs}, None, None)
