"""Interfaces between a search and a decoder, which the backends of this folder implement.

A decoder holds live rows. A row reads one token a step, or a block of tokens. The rows of a
sentence are neighbours.

Shapes: S sentences, n rows, w new tokens a row, L tokens, d features, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from fairseq_ext.kernels.transformer import CompiledRows, PackedLinear
from fairseq_ext.model.transformer.lines import LineReader


class Decoder(Protocol):
    """One fairseq model, or an ensemble, whose rows read one token or a block of them a call."""

    name: str  # of the backend, for the signature

    def admit(self, inputs: dict[str, Tensor]) -> None:
        """Encode sentences, given as the encoder's input. They replace the live rows, one row a
        sentence."""

    def step(
        self, tokens: Tensor, new: int = 1, length: int | Tensor | None = None
    ) -> list[Tensor]:
        """Forget all but the first length (n,) tokens of each row (None: keep all), then read the
        last `new` columns of tokens (n, L). Rows of which several tokens are read, or some
        forgotten, are one a sentence.

        Return the features of each model: (n, d) for one new token, (n, new, d) for more.
        """

    @property
    def compiled_output(self) -> PackedLinear | None:
        """The output layer of one model, all parts of which are compiled; None for others."""

    def log_probs(self, features: list[Tensor], temperature: float) -> Tensor:
        """Return the log-probabilities (n, V) of the next token, in float32 or better."""

    def select(
        self, row: Tensor, sentence: Tensor | None, width: int, sentence_of_row: Tensor
    ) -> None:
        """Reorder the rows: new row i continues what row[i] (n',) has read.

        sentence (S',): indices of the sentences that stay, in ascending order; None keeps all.
        sentence_of_row (n',): index of each new row's sentence among the sentences that stay.
        width: number of rows of every sentence. If the numbers differ: minus the largest, or 0,
        for which a decoder may have to wait for the device.
        """

    # ---- rows can be divided into groups and joined again; one group is stepped at a time

    joins: bool  # groups whose rows have read the same number of tokens can be joined
    joins_any_step: bool  # groups whose rows have read different numbers of tokens can be joined

    @property
    def is_compiled(self) -> bool:
        """Whether `batch_reader` can read sentences."""

    def set_aside(self) -> Any:
        """Return the live rows as a group. The decoder holds no rows afterwards."""

    def resume(self, group: Any) -> None:
        """Make a group that was set aside the live rows."""

    def join(self, group: Any) -> None:
        """Append the rows of a group to the live rows."""

    def part(self, row: Tensor, sentence: Tensor, width: int, sentence_of_row: Tensor) -> Any:
        """Return a copy of some rows as a group; arguments as in `select`. The live rows stay."""

    def release_(self) -> bool:
        """Free the models' weights of which the decoder has packed copies; the models cannot run
        afterwards. Return whether weights were freed."""

    def attending_copy(self) -> AttendingDecoder | None:
        """Return a decoder with the same weights and its own rows, which reads blocks and returns
        their attention to the source; None if the backend has none."""

    def row_reader(self) -> CompiledRows | None:
        """Return a compiled reader of the single live row, which it takes over; None if the backend
        has none."""

    def batch_reader(self, positions: int) -> CompiledRows:
        """Return a compiled reader of the sentences just admitted, which it takes over. Only if
        `is_compiled`.

        positions: initial capacity of each sentence.
        """


class AttendingDecoder(Decoder, Protocol):
    """A decoder that returns the attention of its blocks.

    source_cache: keys and values by source without padding, by model, for sources that are admitted
    again, here or in the decoder of which this is the `attending_copy`. They are stored only for
    sources that are keys, until the key is removed.
    """

    source_cache: dict[tuple[int, ...], dict[int, Tensor]]

    def source_attention(self, tokens: Tensor) -> Tensor:
        """Read tokens (n, b), a block for each row; return their attention to the source (n, b,
        source), averaged over models, layers and heads."""

    def line_reader(self) -> LineReader | None:
        """Return a reader of targets of the sentences just admitted; None if the backend has none
        for these models."""
