"""Exact scores for hypotheses that a shortlist has found: one pass of the model over the whole vocabulary."""

from __future__ import annotations

from typing import Any

import torch

from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.scoring import Scoring
from fairseq_ext.search.spec import SearchSpec


class FullScorer:
    """Scores finished hypotheses as the full softmax does. model: one of fairseq's; spec: the search's temperature, penalty and ids."""

    def __init__(self, model: Any, spec: SearchSpec):
        self.model, self.spec = model, spec

    def __call__(self, sentence: int, found: list[Hypothesis], pool: Pool, scoring: Scoring) -> list[Hypothesis]:
        """A sentence's hypotheses with their exact scores, best first."""
        if not found:
            return found
        spec = self.spec
        if hasattr(self.model, "set_beam_size"):
            self.model.set_beam_size(1)  # a stock generator may have left BART's sharing of source keys switched on
        tokens = torch.nn.utils.rnn.pad_sequence([h.tokens for h in found], batch_first=True, padding_value=spec.pad)
        previous = torch.cat([torch.full_like(tokens[:, :1], pool.bos), tokens[:, :-1]], dim=1)
        owner = torch.full((len(found),), sentence, device=tokens.device)
        inputs = {name: value[owner] for name, value in pool.net_input.items() if name != "prev_output_tokens"}
        logits = self.model(**inputs, prev_output_tokens=previous)[0]  # (hypotheses, L, V)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / spec.temperature
        exact = logits.log_softmax(-1).gather(2, tokens[:, :, None])[:, :, 0] - spec.unk_penalty * (tokens == spec.unk)
        out = []
        rewarded = scoring.rewarded(pool, owner[:1])
        for h, row in zip(found, exact, strict=True):
            positional = row[: h.tokens.numel()].clone()
            score = float(scoring(positional.double().sum(), h.tokens.numel(), rewarded))
            out.append(Hypothesis(h.tokens, score, positional, h.attention))
        return sorted(out, key=lambda h: -h.score)
