"""What a search is asked for, whatever its strategies."""

from __future__ import annotations

from dataclasses import dataclass

from fairseq_ext.search.scoring import Scoring


@dataclass(frozen=True)
class SearchSpec:
    """The settings that every part of a search reads; `config.search_spec` builds it from the flags, once."""

    k: int  # beam
    nbest: int  # hypotheses of each sentence that are asked for, at most k
    pad: int
    unk: int
    eos: int
    max_len_a: float  # a sentence of n source tokens, EOS included, has at most a n + b target tokens before EOS,
    max_len_b: int
    max_len: int  # and with EOS no more than this, the model's limit
    min_len: int  # target tokens before EOS, at least
    temperature: float
    unk_penalty: float  # taken from the log-probability of unk
    scoring: Scoring
    children: int | None = None  # most continuations of one row; None: no limit
    seed: int = 1
    diverse_groups: int = 1
    diverse_strength: float = 0.0
    sampling_topk: int = -1  # most likely words that are sampled; not above 0: all
    sampling_topp: float = -1.0  # the probability that these make up; not above 0: all

    def limit(self, tokens: int) -> int:
        """Most target tokens before EOS of a sentence of so many source tokens, EOS included."""
        return min(int(self.max_len_a * tokens + self.max_len_b), self.max_len - 1)
