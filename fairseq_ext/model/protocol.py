"""What a search asks of a decoder: the interfaces of the backends of this folder.

A decoder holds live rows. A row reads one token a step, or a block of them. Rows of one sentence
stand side by side.

Shapes: S sentences, n rows, w new tokens a row, L tokens, d features, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from fairseq_ext.kernels.transformer import CompiledRows


class Decoder(Protocol):
    """One fairseq model, or an ensemble, whose rows grow by one token a step."""

    name: str  # of the backend, for the signature
    need_attention: bool  # whether `attention` is asked for

    @property
    def rows(self) -> int:
        """Number of live rows."""

    def admit(self, inputs: dict[str, Tensor]) -> None:
        """Encode these sentences, given as the encoder's input.

        They replace the live rows, with one row each.
        """

    def step(self, tokens: Tensor) -> list[Tensor]:
        """Read the last column of tokens (n, L); return the features (n, d) of each model."""

    def log_probs(self, features: list[Tensor], temperature: float) -> Tensor:
        """Return the log-probabilities (n, V) of the next token, in float32 or better."""

    def select(
        self, row: Tensor, sentence: Tensor | None, width: int, sentence_of_row: Tensor
    ) -> None:
        """Reorder the rows: new row i continues what row[i] (n',) has read.

        sentence (S',): which of the sentences stay, in ascending order; None keeps all.
        sentence_of_row (n',): the place of each new row's sentence among those that stay. width:
        number of rows of every sentence, 0 when the numbers differ.
        """

    def attention(self) -> Tensor | None:
        """Return the attention of the last step to the source (n, source), averaged over models;
        None unless `need_attention`."""


class Regroupable(Decoder, Protocol):
    """A decoder whose rows can be divided into groups and joined again.

    It steps one group at a time.
    """

    joins: bool  # groups whose rows have read equally many tokens can be joined
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
        """Return a copy of some rows as a group; arguments as of `select`. The live rows stay."""

    def release_(self) -> bool:
        """Let go of the models' own weights, where the decoder holds them packed; the models cannot
        run then. Return whether it did."""

    def beside(self) -> AttendingDecoder | None:
        """Return a decoder of the same weights for rows of its own, which reads blocks and says how
        they attend to the source; None where there is none."""

    def row_reader(self) -> CompiledRows | None:
        """Return a compiled reader of the only sentence, which has one row and owns it from then
        on; None where there is none."""

    def batch_reader(self, positions: int) -> CompiledRows:
        """Return a compiled reader of the sentences that have just been admitted, which it owns
        from then on; only where `is_compiled`.

        positions: that each has room for at first.
        """


class BlockDecoder(Regroupable, Protocol):
    """A decoder whose rows, one a sentence, read several tokens a call and may stand
    at different lengths."""

    def step(
        self, tokens: Tensor, new: int = 1, length: int | Tensor | None = None
    ) -> list[Tensor]:
        """Keep the first length (n,) tokens that each row has read (None: all), then read the
        last `new` columns of tokens.

        Return the features of each model: (n, d) for one new token, (n, new, d) for more.
        """


class AttendingDecoder(BlockDecoder, Protocol):
    """A decoder that says what its blocks attend to.

    kept: what the encoders made of sources, for those who admit them again, here or in the
    decoder that this one is `beside`. A source without padding that is given as a key is
    kept until it is taken out.
    """

    kept: dict[tuple[int, ...], dict[int, Tensor]]

    def source_attention(self, tokens: Tensor) -> Tensor:
        """Read tokens (n, b) in every row; return how much each attends to the source (n, b,
        source), averaged over models, layers and heads."""
