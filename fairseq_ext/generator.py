"""`BeamSearchGenerator`: fairseq's SequenceGenerator on the outside, the loop of `search/` on the inside.

What fairseq's commands, tasks and scorers expect of a generator stays as it is: the constructor, `generate(models, sample,
prefix_tokens, constraints)`, and the dictionaries it returns.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from fairseq import search as stock_search
from fairseq.sequence_generator import EnsembleModelWithAlignment, SequenceGenerator, SequenceGeneratorWithAlignment
from torch import Tensor

from fairseq_ext import config
from fairseq_ext.decoders.fairseq import FairseqDecoder
from fairseq_ext.errors import UsageError
from fairseq_ext.registry import PRUNERS, STRATEGIES
from fairseq_ext.search.beam import Finished, Hypothesis, Pool, Scoring
from fairseq_ext.search.loop import beam_search
from fairseq_ext.search.plugs import Plugs
from fairseq_ext.search.rules import Rules
from fairseq_ext.stats import Stats

logger = logging.getLogger("fairseq_ext")


class BeamSearchGenerator(SequenceGenerator):
    """Beam search with the strategies that the flags name; without any, fairseq's results token for token.

    One deliberate difference: with `--max-len-a` above 0, fairseq takes the length limit from the padded width of the batch, so
    that its output depends on how sentences were batched. Here every sentence has its own limit, from its own length.
    """

    def __init__(self, models, tgt_dict, *, flags: Any = None, generation: Any = None, **stock):
        super().__init__(models, tgt_dict, **stock)
        self.flags = flags
        self.generation = generation
        self.stats = Stats()
        self.scoring = Scoring(self.normalize_scores, self.len_penalty)
        self.need_attention = isinstance(self.model, EnsembleModelWithAlignment)
        # sampling, diverse beams and the like are searches of fairseq's own: its own loop runs them
        self.runs_stock_loop = type(self.search) is not stock_search.BeamSearch or getattr(self.search, "needs_src_lengths", False)
        self.decoder = FairseqDecoder(list(self.model.models), self.need_attention)
        self.rules = Rules(
            self.pad,
            self.unk,
            self.eos,
            self.unk_penalty,
            self.min_len,
            self.repeat_ngram_blocker.no_repeat_ngram_size if self.repeat_ngram_blocker is not None else 0,
            self.token_indices_to_suppress,
            self.lm_model,
            self.lm_weight,
        )
        self.plugs = self.build_plugs(tgt_dict)
        backend = "stock" if self.runs_stock_loop else self.decoder.name
        self.stats.signature = config.signature(flags, generation, backend)

    def build_plugs(self, tgt_dict) -> Plugs:
        """Build the strategies that the flags name."""
        context = config.Context(
            k=self.beam_size,
            nbest=getattr(self.generation, "nbest", 1),
            pad=self.pad,
            unk=self.unk,
            eos=self.eos,
            dictionary=tgt_dict,
            scoring=self.scoring,
            generation=self.generation,
            models=list(self.model.models),
            stats=self.stats,
        )

        def build(point: str):
            return STRATEGIES[point][config.choice(self.flags, point)].build(self.flags, context)

        pruner = next((s.build(self.flags, context) for s in PRUNERS.values() if config.changed(self.flags, s)), None)
        return Plugs(build("select"), build("stop"), build("schedule"), build("softmax"), pruner)

    @torch.no_grad()
    def _generate(self, sample, prefix_tokens=None, constraints=None, bos_token=None) -> list[list[dict[str, Tensor]]]:
        start = time.perf_counter()
        if self.runs_stock_loop or "src_tokens" not in sample["net_input"]:
            out = super()._generate(sample, prefix_tokens, constraints, bos_token)
        else:
            pool = self.pool(sample, prefix_tokens, bos_token)
            finished = beam_search(self.decoder, pool, self.beam_size, self.plugs, self.rules, self.scoring, self.stats)
            out = self.as_dictionaries(finished, pool)
        self.stats.sentences += len(out)
        self.stats.target_tokens += sum(hypotheses[0]["tokens"].numel() for hypotheses in out)
        self.stats.seconds += time.perf_counter() - start
        return out

    def pool(self, sample, prefix_tokens: Tensor | None, bos_token: int | None) -> Pool:
        """The command's batch as a pool of sentences."""
        net_input = sample["net_input"]
        length = net_input["src_tokens"].ne(self.pad).sum(1)  # EOS counts
        lengths = length.tolist()
        max_len = [min(int(self.max_len_a * n + self.max_len_b), self.max_len - 1) for n in lengths]
        for n, limit in zip(lengths, max_len, strict=True):
            if self.min_len > limit:
                raise UsageError(
                    f"--min-len {self.min_len} is above the length limit {limit} of a sentence of {n} tokens: "
                    "raise --max-len-b or lower --min-len"
                )
        ids = sample["id"] if isinstance(sample.get("id"), Tensor) else torch.arange(len(lengths))
        bos = self.eos if bos_token is None else bos_token
        return Pool(net_input, length, max_len, ids, bos, prefix_tokens)

    def as_dictionaries(self, finished: Finished, pool: Pool) -> list[list[dict[str, Tensor]]]:
        """Hypotheses as fairseq's commands read them."""
        nothing = torch.empty(0)
        device = pool.length.device

        def dictionary(h: Hypothesis) -> dict[str, Tensor]:
            return {
                "tokens": h.tokens,
                "score": torch.tensor(h.score, device=device),
                "attention": nothing if h.attention is None else h.attention,
                "alignment": nothing,
                "positional_scores": h.positional_scores,
            }

        # a sentence whose every continuation was forbidden still has an answer: an empty one that nothing can prefer
        lost = Hypothesis(torch.tensor([self.eos], device=device), -float("inf"), torch.tensor([-float("inf")], device=device))
        return [[dictionary(h) for h in hypotheses or [lost]] for hypotheses in finished.lists(len(pool))]


class AlignedBeamSearchGenerator(SequenceGeneratorWithAlignment, BeamSearchGenerator):
    """The same with `--print-alignment`: alignments from the attention, or from a model trained to align."""

    @torch.no_grad()
    def generate(self, models, sample, **kwargs):
        hypotheses = self._generate(sample, **kwargs)
        source = sample["net_input"]["src_tokens"]
        flat = [h for sentence in hypotheses for h in sentence]
        owner = torch.tensor([i for i, sentence in enumerate(hypotheses) for _ in sentence], device=source.device)
        if any(getattr(m, "full_context_alignment", False) for m in self.model.models):
            attention = self.align_again(source[owner], sample["net_input"]["src_lengths"][owner], flat)
        else:
            attention = [h["attention"].t().cpu() for h in flat]  # (source, L) -> (L, source)
        for hypothesis, weights, i in zip(flat, attention, owner.tolist(), strict=True):
            tokens = hypothesis["tokens"].cpu()
            hypothesis["alignment"] = self.extract_alignment(weights[: len(tokens)], source[i].cpu(), tokens, self.pad, self.eos)
        return hypotheses

    def align_again(self, source: Tensor, lengths: Tensor, hypotheses: list[dict[str, Tensor]]) -> list[Tensor]:
        """Attention (L, source) of each hypothesis from one forced pass, for models trained to align with full context."""
        width = max(h["tokens"].numel() for h in hypotheses)
        previous = torch.full((len(hypotheses), width), self.pad, dtype=torch.long, device=source.device)
        for row, h in zip(previous, hypotheses, strict=True):
            row[0] = self.eos
            row[1 : h["tokens"].numel()] = h["tokens"][:-1]
        return list(self.model.forward_align(source, lengths, previous).cpu())


def generator_class(print_alignment: Any) -> type[SequenceGenerator]:
    """The generator that serves --print-alignment or its absence."""
    return AlignedBeamSearchGenerator if print_alignment else BeamSearchGenerator
