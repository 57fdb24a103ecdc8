"""`BeamSearchGenerator`: fairseq's SequenceGenerator on the outside, the loop of `search/` on the inside.

What fairseq's commands, tasks and scorers expect of a generator stays as it is: the constructor, `generate(models, sample,
prefix_tokens, constraints)`, and the dictionaries it returns.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from fairseq import search as stock_search
from fairseq.sequence_generator import EnsembleModelWithAlignment, SequenceGenerator
from torch import Tensor

from fairseq_ext import config
from fairseq_ext.constraints import files as constraint_io
from fairseq_ext.constraints.flags import is_ordered
from fairseq_ext.constraints.report import report_constraints
from fairseq_ext.decoders.factory import make_decoder
from fairseq_ext.decoders.refused import refuse_other_batches
from fairseq_ext.errors import UsageError
from fairseq_ext.registry import PRUNERS, STRATEGIES, changed, choice
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.logits_processors import Rules
from fairseq_ext.search.loop import beam_search
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Plugs
from fairseq_ext.search.scoring import Scoring
from fairseq_ext.session.progress import Progress
from fairseq_ext.session.results_file import ResultsFile, checksum
from fairseq_ext.stats import Stats

logger = logging.getLogger("fairseq_ext")


class BeamSearchGenerator(SequenceGenerator):
    """Beam search with the strategies that the flags name; without any, fairseq's results token for token.

    One deliberate difference: with `--max-len-a` above 0, fairseq takes the length limit from the padded width of the batch, so
    that its output depends on how sentences were batched. Here every sentence has its own limit, from its own length.
    """

    def __init__(
        self, models, tgt_dict, *, flags: Any = None, generation: Any = None, stats: Stats | None = None, task: Any = None, **stock
    ):
        super().__init__(models, tgt_dict, **stock)
        self.flags = flags
        self.task = task
        self.generation = generation
        self.stats = stats if stats is not None else Stats()
        self.scoring = Scoring(
            self.normalize_scores,
            self.len_penalty,
            reward=getattr(flags, "length_reward", 0.0),
            ratio=getattr(flags, "length_ratio", 1.0),
            offset=getattr(flags, "length_offset", 0.0),
            bounded=not getattr(flags, "length_reward_unbounded", False),
        )
        self.nbest = min(getattr(generation, "nbest", 1), self.beam_size)
        self.need_attention = isinstance(self.model, EnsembleModelWithAlignment)
        # sampling, diverse beams and the like are searches of fairseq's own: its own loop runs them
        ours = (stock_search.BeamSearch, stock_search.LexicallyConstrainedBeamSearch)
        self.runs_stock_loop = type(self.search) not in ours
        backend = "fairseq" if self.runs_stock_loop else str(getattr(flags, "decoder_backend", None) or "auto")
        int8, graphs = bool(getattr(flags, "int8", False)), str(getattr(flags, "cuda_graphs", "auto"))
        refuse_other_batches(list(self.model.models), flags)
        self.decoder, _ = make_decoder(list(self.model.models), self.need_attention, backend, int8, graphs)
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
        self.stats.signature = config.signature(flags, generation, "stock" if self.runs_stock_loop else self.decoder.name)
        if self.runs_stock_loop:
            self.stats.leave_out_decoder()
        self.results: ResultsFile | None = None  # where results go as they are found
        self.text: Callable[[Tensor], str] = str  # from tokens to what a reader of that file sees

    def build_plugs(self, tgt_dict) -> Plugs:
        """Build the strategies that the flags name."""
        self.context = context = config.Context(
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
            children=self.children(),
            task=self.task,
        )

        def build(point: str):
            return STRATEGIES[point][choice(self.flags, point)].build(self.flags, context)

        pruners = [s for s in PRUNERS.values() if changed(self.flags, s)]
        prune = [s.build(self.flags, context) for s in pruners]
        select, stop = build("select"), build("stop")
        return Plugs(select, stop, build("schedule"), build("softmax"), [p for p in prune if p is not None])

    def children(self) -> int | None:
        """Most continuations of one row: as many as the beam is no limit."""
        most = getattr(self.flags, "prune_children", None)
        return most if most is not None and most < self.beam_size else None

    @torch.no_grad()
    def _generate(self, sample, prefix_tokens=None, constraints=None, bos_token=None) -> list[list[dict[str, Any]]]:
        start = time.perf_counter()
        if self.runs_stock_loop:
            out = super()._generate(sample, prefix_tokens, constraints, bos_token)
            self.stats.sentences += len(out)
            self.stats.target_tokens += sum(hypotheses[0]["tokens"].numel() for hypotheses in out)
        else:
            pool = self.pool(sample, prefix_tokens, bos_token)
            self.add_constraints(pool, sample, constraints)
            out = self.search_pool(pool)
            # fairseq's sharing of source keys (BART), which the decoder switches off, as the constructor left it: others use the model
            self.model.set_decoder_beam_size(self.beam_size)
        self.stats.seconds += time.perf_counter() - start
        return out

    def search_pool(self, pool: Pool) -> list[list[dict[str, Any]]]:
        """Every sentence's hypotheses as fairseq's commands read them; those of an earlier run come from the results file."""
        device = pool.length.device
        ids = pool.ids.tolist()
        out: list[list[dict[str, Any]]] = [[] for _ in ids]
        if self.results is not None:
            for i, number in enumerate(ids):
                out[i] = self.results.hypotheses(number, self.checksum(pool, i), device) or []
            pool.wanted = [i for i, found in enumerate(out) if not found]
        wanted = len(pool.queue(0))
        progress = Progress(wanted, self.stats) if self.stats.refills is not None and wanted > 1 else None

        def answer(sentence: int, found: list[Hypothesis]) -> None:
            found = self.plugs.softmax.rescore(sentence, found, pool, self.scoring)
            constraints = pool.aux["constraints"][sentence] if "constraints" in pool.aux else None
            if constraints is not None:
                limit = pool.max_len[sentence]
                found = report_constraints(ids[sentence], found, constraints, pool.aux["ordered"], limit, self.stats)
            out[sentence] = self.as_dictionaries(found, device)
            self.stats.sentences += 1
            self.stats.target_tokens += out[sentence][0]["tokens"].numel()
            if self.results is not None:
                text = self.text(out[sentence][0]["tokens"])
                self.results.add(ids[sentence], self.checksum(pool, sentence), text, out[sentence])
            if progress is not None:
                progress.add()

        self.decode(pool, answer)
        if progress is not None:
            progress.close()
        return out

    def decode(self, pool: Pool, answer: Callable[[int, list[Hypothesis]], None]) -> None:
        """Decode the sentences that are wanted; answer(sentence, hypotheses) takes each as soon as it is final."""
        beam_search(self.decoder, pool, self.nbest, self.plugs, self.rules, self.scoring, self.stats, answer)

    def checksum(self, pool: Pool, sentence: int) -> str:
        """Of what a sentence's results depend on: source, constraints, prefix."""
        source = pool.net_input["src_tokens"][sentence]
        constraints = pool.aux["constraints"][sentence] if "constraints" in pool.aux else None
        prefix = pool.prefix[sentence] if pool.prefix is not None and constraints is None else None
        return checksum(source[source != self.pad], constraints, None if prefix is None else prefix[prefix != self.pad])

    @staticmethod
    def source(sample) -> Tensor:
        """The batch's source tokens (N, T); UsageError for a batch of something else."""
        if "src_tokens" not in sample["net_input"]:
            found = ", ".join(sample["net_input"])
            raise UsageError(f"this search reads source tokens (src_tokens), and the batch has {found}: use fairseq's task for such data")
        return sample["net_input"]["src_tokens"]

    def pool(self, sample, prefix_tokens: Tensor | None, bos_token: int | None) -> Pool:
        """The command's batch as a pool of sentences."""
        net_input = sample["net_input"]
        length = self.source(sample).ne(self.pad).sum(1)  # EOS counts
        lengths = length.tolist()
        max_len = [min(int(self.max_len_a * n + self.max_len_b), self.max_len - 1) for n in lengths]
        for n, limit in zip(lengths, max_len, strict=True):
            if self.min_len > limit:
                raise UsageError(
                    f"--min-len {self.min_len} is above the length limit {limit} of a sentence of {n} tokens: "
                    "raise --max-len-b or lower --min-len"
                )
        ids = sample.get("sentence_numbers", sample.get("id"))
        self.numbered = isinstance(ids, Tensor)  # an interactive command or the API gives no numbers
        ids = ids if isinstance(ids, Tensor) else torch.arange(len(lengths))
        bos = self.eos if bos_token is None else bos_token
        return Pool(net_input, length, max_len, ids, bos, prefix_tokens, pad=self.pad)

    def add_constraints(self, pool: Pool, sample, packed: Tensor | None) -> None:
        """Give the pool its sentences' constraints: from the task, or packed as fairseq's commands pass them."""
        given = sample.get("sentence_constraints")
        if given is None and packed is not None:
            given = [constraint_io.from_packed(row, self.tgt_dict, number) for row, number in zip(packed, pool.ids.tolist(), strict=True)]
        if given is None:
            return
        pool.aux["constraints"] = given
        pool.aux["ordered"] = is_ordered(self.flags, self.generation)
        if any(c.prefix for c in given):
            width = max(len(c.prefix) for c in given)
            prefix = torch.tensor([[*c.prefix, *[self.pad] * (width - len(c.prefix))] for c in given], device=pool.length.device)
            pool.prefix, pool.min_len_beside_prefix = prefix, True

    def as_dictionaries(self, found: list[Hypothesis], device: torch.device) -> list[dict[str, Any]]:
        """A sentence's hypotheses as fairseq's commands read them; one that lacks constraints is flagged, "unmet": [(text, reason)]."""
        nothing = torch.empty(0)

        def dictionary(h: Hypothesis) -> dict[str, Any]:
            flag = {"unmet": list(h.unmet)} if h.unmet else {}  # a key that fairseq's commands do not look at
            return flag | {
                "tokens": h.tokens,
                "score": torch.tensor(h.score, dtype=h.positional_scores.dtype, device=device),
                "attention": nothing if h.attention is None else h.attention,
                "alignment": nothing,
                "positional_scores": h.positional_scores,
            }

        # a sentence whose every continuation was forbidden still has an answer: an empty one that nothing can prefer
        lost = Hypothesis(torch.tensor([self.eos], device=device), -float("inf"), torch.tensor([-float("inf")], device=device))
        return [dictionary(h) for h in found or [lost]]
