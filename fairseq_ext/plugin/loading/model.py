"""A checkpoint with its task, tokenizer and segmentation, as a command loads them: `LoadedModel`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from fairseq import checkpoint_utils, options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from torch import Tensor

from fairseq_ext.core.errors import SentenceError, UsageError, cut
from fairseq_ext.plugin.loading.arguments import parse
from fairseq_ext.plugin.loading.lengths import source_limit, too_long


def configuration(arguments: list[str]) -> Any:
    """fairseq's configuration of fairseq-interactive, given its arguments (raises UsageError)."""
    return convert_namespace_to_omegaconf(parse(options.get_interactive_generation_parser(), arguments))


class LoadedModel:
    """A checkpoint, or an ensemble, and what makes tokens of text and text of tokens. cfg: of `configuration`.

    Errors: UsageError for a task that reads no text; what fairseq raises for files it cannot read.
    """

    def __init__(self, cfg: Any):
        self.cfg = cfg
        # plain values, since a look into fairseq's configuration takes 10 us
        self.max_tokens = cfg.dataset.max_tokens
        self.max_sentences = cfg.dataset.batch_size or (None if self.max_tokens else 64)
        self.cuda = torch.cuda.is_available() and not cfg.common.cpu
        if cfg.common.seed is not None and not cfg.generation.no_seed_provided:
            utils.set_torch_seed(cfg.common.seed)
        self.task = tasks.setup_task(cfg.task)
        if self.task.source_dictionary is None:
            raise UsageError(
                f"a Translator takes lines of text, and --task {cfg.task._name} reads speech: use fairseq-generate or fairseq-interactive"
            )
        overrides = ast.literal_eval(cfg.common_eval.model_overrides)
        self.models, _ = checkpoint_utils.load_model_ensemble(
            utils.split_paths(cfg.common_eval.path),
            overrides,
            self.task,
            strict=cfg.checkpoint.checkpoint_shard_count == 1,
            suffix=cfg.checkpoint.checkpoint_suffix,
            num_shards=cfg.checkpoint.checkpoint_shard_count,
        )
        for model in self.models:
            if cfg.common.fp16:
                model.half()
            elif cfg.common.bf16:  # which fairseq's commands take no notice of
                model.bfloat16()
            if self.cuda:
                model.cuda()
            model.prepare_for_inference_(cfg)
        self.tokenizer = self.task.build_tokenizer(cfg.tokenizer)
        self.bpe = self.task.build_bpe(cfg.bpe)
        self.max_positions = utils.resolve_max_positions(self.task.max_positions(), *[m.max_positions() for m in self.models])

    def encode(self, line: str) -> Tensor:
        """Source tokens of a line of text, EOS included."""
        return self.tokens(line, self.task.source_dictionary, self.bpe)

    def target_tokens(self, line: str) -> Tensor:
        """The same of the target."""
        return self.tokens(line, self.task.target_dictionary, self.task.session.sentences.segmenter.bpe)

    def tokens(self, line: str, dictionary: Any, bpe: Any) -> Tensor:
        """Tokens of a line of text, EOS included; EOS alone for a line of nothing but spaces."""
        # as the dictionary's encode_line, which puts numbers into a tensor one by one
        return torch.tensor([*map(dictionary.index, self.pieces(line, bpe)), dictionary.eos()])

    def pieces(self, line: str, bpe: Any) -> list[str]:
        """Subword pieces of a line of text, segmented by `bpe`; none for one of nothing but spaces."""
        line = line if line.strip() else ""
        for step in (self.tokenizer, bpe) if line else ():
            line = step.encode(line) if step is not None else line
        return line.split()

    def decode(self, text: str) -> str:
        """Plain text from subword text."""
        return self.task.session.sentences.segmenter.decode(text)

    def checked(self, line: str, where: str) -> Tensor:
        """Source tokens of a line, EOS included. Errors: SentenceError for what cannot be translated."""
        if not isinstance(line, str):
            raise SentenceError(f"{where} is {cut(repr(line))}: give text")
        if not line.isascii() and any("\ud800" <= character <= "\udfff" for character in line):
            raise SentenceError(f"{where} is not valid Unicode ({cut(ascii(line))}): read it with errors='replace', or leave it out")
        encoded = self.encode(line)
        self.check_length(encoded, where)
        return encoded

    def check_length(self, tokens: Tensor, where: str, side: int = 0) -> None:
        """SentenceError for source tokens (L,), or target tokens (side 1), that are more than the model takes."""
        limit = self.max_positions[1] if side else source_limit(self.max_positions)
        if (error := too_long(where, tokens.numel(), limit, self.batch_limit)) is not None:
            raise error

    @cached_property
    def batch_limit(self) -> int | None:
        """--max-tokens, where a sentence has to fit into a batch."""
        return None if str(self.task.flags().schedule) == "stream" else self.max_tokens

    def batches(self, tokens: list[Tensor]) -> Iterator[dict[str, Any]]:
        """fairseq's batches of encoded lines, each (L,)."""
        dataset = self.task.build_dataset_for_inference(tokens, [t.numel() for t in tokens])
        return self.task.get_batch_iterator(
            dataset=dataset,
            max_tokens=self.max_tokens,
            max_sentences=self.max_sentences,
            max_positions=self.max_positions,
        ).next_epoch_itr(shuffle=False)
