"""`--print-alignment`: which source token each target token comes from."""

from __future__ import annotations

import torch
from fairseq.sequence_generator import SequenceGeneratorWithAlignment
from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.plugin.generator import BeamSearchGenerator


class WithAlignment(SequenceGeneratorWithAlignment):
    """Adds the alignment of each hypothesis, from the attention of the search or from a
    model trained to align."""

    @torch.no_grad()
    def generate(self, models, sample, **kwargs):
        hypotheses = self._generate(sample, **kwargs)
        source = sample["net_input"]["src_tokens"]
        flat = [h for sentence in hypotheses for h in sentence]
        owner = torch.tensor(
            [i for i, sentence in enumerate(hypotheses) for _ in sentence], device=source.device
        )
        if any(getattr(m, "full_context_alignment", False) for m in self.model.models):
            attention = self.align_again(
                source[owner], sample["net_input"]["src_lengths"][owner], flat
            )
        else:
            if any(h["attention"].dim() < 2 and h["score"] > -torch.inf for h in flat):
                raise UsageError(
                    "--print-alignment reads a model's attention to the source, and this model "
                    "has none: leave it out"
                )
            attention = [h["attention"].t().cpu() for h in flat]  # (source, L) -> (L, source)
        for hypothesis, weights, i in zip(flat, attention, owner.tolist(), strict=True):
            tokens = hypothesis["tokens"].cpu()
            hypothesis["alignment"] = self.extract_alignment(
                weights[: len(tokens)], source[i].cpu(), tokens, self.pad, self.eos
            )
        return hypotheses

    def align_again(
        self, source: Tensor, lengths: Tensor, hypotheses: list[dict[str, Tensor]]
    ) -> list[Tensor]:
        """Return the attention (L, source) of each hypothesis from one forced pass, for models
        trained to align with full context."""
        width = max(h["tokens"].numel() for h in hypotheses)
        previous = torch.full(
            (len(hypotheses), width), self.pad, dtype=torch.long, device=source.device
        )
        for row, h in zip(previous, hypotheses, strict=True):
            row[0] = self.eos
            row[1 : h["tokens"].numel()] = h["tokens"][:-1]
        return list(self.model.forward_align(source, lengths, previous).cpu())


class AlignedBeamSearchGenerator(WithAlignment, BeamSearchGenerator):
    """`BeamSearchGenerator` with `--print-alignment`."""
