"""Log probabilities of translations that are there already, as `fairseq-generate --score-reference` computes them."""

from __future__ import annotations

from typing import Any

from fairseq import utils
from fairseq.data import LanguagePairDataset
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks.translation import TranslationTask
from torch import Tensor

from fairseq_ext.core.errors import UsageError

MAX_TOKENS = 12_000  # of a batch, where the flags name no size: that of fairseq-generate


def check_task(task: Any) -> None:
    """Refuse a task whose sentence pairs have more in them than the two texts (raises UsageError)."""
    theirs = (kind for kind in type(task).__mro__ if not kind.__module__.startswith("fairseq_ext."))
    if next((vars(kind)["load_dataset"] for kind in theirs if "load_dataset" in vars(kind)), None) is not TranslationTask.load_dataset:
        name = type(task).__name__.removesuffix("Ext")
        raise UsageError(f"score() pairs plain sentences, and {name} adds tokens of its own: use fairseq-generate --score-reference")


def score_pairs(task: Any, models: list, sources: list[Tensor], targets: list[Tensor], sizes: Any, cuda: bool) -> list[dict[str, Any]]:
    """fairseq's dictionary of each pair: tokens (L,) and positional_scores (L,), EOS included, and score, their mean.

    sources, targets: tokens of each sentence, EOS included, (T,) and (L,). sizes: fairseq's DatasetConfig, which limits batches.
    """
    settings = task.flags()
    pairs = LanguagePairDataset(
        sources,
        [tokens.numel() for tokens in sources],
        task.source_dictionary,
        targets,
        [tokens.numel() for tokens in targets],
        task.target_dictionary,
        left_pad_source=settings.left_pad_source,
        left_pad_target=settings.left_pad_target,
        shuffle=False,
    )
    max_tokens = sizes.max_tokens or (None if sizes.batch_size else MAX_TOKENS)
    scorer = SequenceScorer(task.target_dictionary)
    out: list[dict[str, Any]] = [{} for _ in sources]
    for index in pairs.batch_by_size(pairs.ordered_indices(), max_tokens=max_tokens, max_sentences=sizes.batch_size):
        batch = pairs.collater([pairs[int(i)] for i in index])
        batch = utils.move_to_cuda(batch) if cuda else batch
        for number, (found,) in zip(batch["id"].tolist(), scorer.generate(models, batch), strict=True):
            out[number] = found
    return out
