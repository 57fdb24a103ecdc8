"""A command's batch as the pool of sentences that a search takes, with their constraints.

Shapes: N sentences, T source columns, F features of a speech frame, P tokens of a prefix.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_ext.core.errors import SentenceError, UsageError, counted
from fairseq_ext.search.constraints.lines import from_packed
from fairseq_ext.search.constraints.sentence_end import EndsOfSources
from fairseq_ext.search.phrases.segmenter import TargetText
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import SearchSpec
from fairseq_ext.search.registry import refills


def source_of(sample: dict[str, Any]) -> Tensor:
    """The batch's source tokens (N, T), or features of speech (N, T, F); UsageError for a batch of something else."""
    if "src_tokens" not in sample["net_input"]:
        found = ", ".join(sample["net_input"])
        raise UsageError(f"this search reads source tokens (src_tokens), and the batch has {found}: use fairseq's task for such data")
    return sample["net_input"]["src_tokens"]


class Pools:
    """Makes pools of batches. flags: ours; ordered: whether required phrases must come in the order given; source, target: dictionaries,
    the first of tasks that have one."""

    def __init__(self, flags: Any, spec: SearchSpec, ordered: bool, source: Dictionary | None, target: Dictionary):
        self.flags, self.spec, self.ordered = flags, spec, ordered
        self.source, self.target = source, target
        self.ends: EndsOfSources | None = None

    def pool(self, sample: dict[str, Any], prefix_tokens: Tensor | None, bos_token: int | None) -> Pool:
        """The batch as a pool. prefix_tokens (N, P): forced first. Errors: SentenceError for a minimum length above a sentence's limit."""
        spec, net_input, source = self.spec, sample["net_input"], source_of(sample)
        length = source.ne(spec.pad).sum(1) if source.dim() == 2 else net_input["src_lengths"]  # EOS counts
        lengths = length.tolist()
        max_len = [spec.limit(n) for n in lengths]
        for n, limit in zip(lengths, max_len, strict=True):
            if spec.min_len > limit:
                raise SentenceError(
                    f"--min-len {spec.min_len} is above the length limit {limit} of a sentence of {counted(n, 'token')}: "
                    "raise --max-len-b or lower --min-len"
                )
        found = sample.get("sentence_numbers", sample.get("id"))  # an interactive command or the API gives no numbers
        ids, numbered = (found, True) if isinstance(found, Tensor) else (torch.arange(len(lengths)), False)
        bos = spec.eos if bos_token is None else bos_token
        pool = Pool(net_input, length, max_len, ids, bos, prefix_tokens, pad=spec.pad, numbered=numbered)
        pool.alone = source.dim() == 3 and refills(self.flags)  # else the stream would change results
        pool.draft_lines = sample.get("draft_lines")  # of an interactive session
        pool.seeds = sample.get("seeds", [spec.seed] * len(lengths))  # a call of the API may have its own
        return pool

    def constrain_(self, pool: Pool, sample: dict[str, Any], packed: Tensor | None, text: TargetText) -> None:
        """Give the pool its sentences' constraints: from the task, or packed as fairseq's commands pass them. text: how the target side is
        read."""
        given = sample.get("sentence_constraints")
        if given is None and packed is not None:
            given = [from_packed(row, self.target, number) for row, number in zip(packed, pool.ids.tolist(), strict=True)]
        if given is None:
            return
        pool.constraints, pool.ordered = given, self.ordered
        pool.boundaries, pool.banned_in_any_case = text.boundaries, str(self.flags.avoid_case) == "any"
        if self.flags.constraint_end:
            pool.ends = self.ends_in(text)([row[row != self.spec.pad].tolist() for row in pool.net_input["src_tokens"].cpu()])
        pool.lead = None if pool.prefix is None else [len(pool.forced(i)) for i in range(len(pool))]
        if any(c.prefix for c in given):
            pool.force_behind_([c.prefix for c in given])
            pool.min_len_beside_prefix = True

    def ends_in(self, text: TargetText) -> EndsOfSources:
        """What translations keep to under --constraint-end."""
        if self.ends is None:
            segmenter = text.segmenter()
            self.ends = EndsOfSources(segmenter.dictionary, self.source, segmenter.bpe)
        return self.ends
