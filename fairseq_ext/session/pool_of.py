"""Encoded lines as the pool that a search takes, made as the task makes a batch of them, without the search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairseq import utils
from fairseq.data import RoundRobinZipDatasets
from torch import Tensor

from fairseq_ext.constraints.sentence import SentenceConstraints
from fairseq_ext.search.pool import Pool


def pool_of(translator: Any, tokens: Sequence[Tensor], wanted: Sequence[SentenceConstraints | None]) -> Pool:
    """The pool of a `Translator`'s encoded lines, each (L,), whose ids are their places here; wanted: the constraints of each, or None for
    all."""
    task, generator, caught = translator.task, translator.generator, []
    dataset = task.build_dataset_for_inference(list(tokens), [t.numel() for t in tokens])
    if isinstance(dataset, RoundRobinZipDatasets):
        dataset.ordered_indices()  # which it wants to have been asked for first
    batch = dataset.collater([dataset[i] for i in range(len(tokens))])
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
