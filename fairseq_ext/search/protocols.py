"""The extension points of the loop as base classes, and what all searches of a generator share.

Each has one abstract method and explicit defaults for what few strategies need.
A strategy subclasses one of them; search/strategies/ holds them, fairseq's own behaviour included
(topk, count, batch, full). The sixth point, the driver, is the loop itself (loop.py): a parallel
driver replaces it.

Shapes: N sentences in the pool, S live sentences, n live rows, c candidates a sentence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fairseq_ext.core.stats import Stats
from fairseq_ext.kernels.banks import Banks, Estimate
from fairseq_ext.kernels.beam import StrategyRules
from fairseq_ext.model.protocol import Decoder, Regroupable
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates, StopDecision
from fairseq_ext.search.finished import Ending, Finished, Hypothesis, Scoring
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.processors import LogitsProcessors


class Schedule(ABC):
    """When sentences that wait start (`--schedule`)."""

    # the sentences with the fewest tokens continue first, until the others are level with
    # them; else all in turn
    level: bool = True
    most_rows: int | None = None  # of one decoder call; None: no limit

    @abstractmethod
    def __call__(self, waiting: int, live: int, rows: int, since: int) -> int:
        """How many of those that wait start now, beside so many live sentences and their rows, so
        many steps after the last start."""


class Softmax(ABC):
    """Which words are scored, and how (`--softmax`)."""

    temperature: float = 1.0
    is_full: bool = False  # every word has the decoder's own log-probability

    @abstractmethod
    def __call__(
        self,
        decoder: Decoder,
        features: list[Tensor],
        beam: Beam | None = None,
        pool: Pool | None = None,
    ) -> LogProbs:
        """Log-probabilities of the next token of rows; beam and pool (None: not known) say what
        else must be scored for them."""

    def rescore(
        self, sentence: int, found: list[Hypothesis], pool: Pool, scoring: Scoring
    ) -> list[Hypothesis]:
        """A sentence's finished hypotheses with their final scores, best first;
        unchanged by default."""
        return found


class Replaceable:
    """A strategy that the compiled search (kernels/beam.cpp) may stand in for."""

    @property
    def rules(self) -> StrategyRules | None:
        """What the compiled search does in its place; None: it cannot stand in
        for this strategy."""
        return None

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "rules" not in vars(cls):
            # whoever derives from a strategy does something else
            cls.rules = Replaceable.rules  # type: ignore[method-assign]


class Select(Replaceable, ABC):
    """Which continuations of a sentence go on (`--select`)."""

    variable: bool = False  # a sentence may continue with fewer rows than the beam
    soft: bool = False  # required phrases are preferred, not forced

    def start(self, beam: Beam, pool: Pool) -> None:  # noqa: B027  most keep no row state
        """Add row state (`beam.aux`) to a beam whose sentences start now; none by default."""

    def follow(self, beams: Sequence[Beam], pool: Pool, change: Callable[[], None]) -> None:
        """Call `change`, which replaces sentences of the pool that no beam holds; then fit the row
        state of these beams to the pool."""
        change()

    def unconstrained(self) -> Select:
        """Return a faster strategy that selects the same while no sentence of the pool has
        constraints; by default this one."""
        return self

    def ending(self, stop: Stop) -> Stop:
        """The stop strategy to use with this one: by default the one that --stop names."""
        return stop

    def required_ids(self, pool: Pool) -> list[Collection[int]] | None:
        """Ids that every softmax must score for each of the N sentences, EOS apart; None
        (the default): no more."""
        return None

    def banks(self, pool: Pool) -> Banks | None:
        """What kernels/constrained.cpp must know to select as this strategy does; None
        (the default): it cannot."""
        return None

    @abstractmethod
    def __call__(self, beam: Beam, log_probs: LogProbs, pool: Pool) -> Candidates:
        """The best continuations of each sentence, best first."""


class Prune(Replaceable, ABC):
    """Which candidates are dropped (`--prune-*`)."""

    @abstractmethod
    def __call__(
        self, candidates: Candidates, beam: Beam, pool: Pool, finished: Finished
    ) -> Tensor:
        """(S, c): which candidates stay.

        Where candidates are in banks (`candidates.group`), drop none for what those of other banks
        have: a sentence that loses a bank may lose its required phrases.
        """


class Stop(Replaceable, ABC):
    """When a sentence is final (`--stop`)."""

    variable: bool = False  # a sentence may continue with fewer rows than the beam
    # by which kernels/constrained.cpp decides as this strategy does; None: it cannot
    estimate: Estimate | None = None

    def start(self, beam: Beam, pool: Pool) -> None:  # noqa: B027  most keep no state of their own
        """Prepare the strategy's state for the sentences of a beam, which start now;
        nothing by default."""

    def unconstrained(self) -> Stop:
        """Return a strategy that stops the same while no sentence of the pool has constraints;
        by default this one."""
        return self

    def answers(self, sentence: int) -> list[int] | None:
        """Which of a sentence's finished hypotheses, numbered as they finished, are its answer;
        None (the default): all."""
        return None

    def ended(self, ending: Ending) -> None:  # noqa: B027  most prove nothing
        """Count how the search of a sentence ended whose answer is kept; nothing by default."""

    @abstractmethod
    def __call__(
        self,
        candidates: Candidates,
        beam: Beam,
        pool: Pool,
        finished: Finished,
        at_limit: Tensor | None,
    ) -> StopDecision:
        """What becomes of the candidates.

        at_limit (S,): sentences that may not grow any more; None when there is none.
        """


@dataclass
class Strategies:
    """The strategies of a search, one for each extension point but the driver,
    any number of pruners."""

    select: Select
    stop: Stop
    schedule: Schedule
    softmax: Softmax
    prune: list[Prune] = field(default_factory=list)

    @property
    def variable(self) -> bool:
        """Whether sentences may have fewer rows than the beam."""
        return bool(self.prune) or self.select.variable or self.stop.variable

    def rules(self) -> list[StrategyRules | None]:
        """What kernels/beam.cpp does as those that choose, drop and end; None for each
        that it cannot replace."""
        return [self.select.rules, self.stop.rules, *(prune.rules for prune in self.prune)]


@dataclass
class SearchSetup:
    """What all searches of a generator share."""

    decoder: Regroupable
    spec: SearchSpec
    strategies: Strategies
    processors: LogitsProcessors
    stats: Stats
    refills: bool = False  # whether the schedule starts sentences beside live ones


# ---- What a search is asked for, whatever its strategies


@dataclass(frozen=True)
class SearchSpec:
    """The settings that every part of a search reads; `search_spec` of plugin/options.py builds
    it from the flags, once."""

    k: int  # beam
    nbest: int  # hypotheses of each sentence that are asked for, at most k
    pad: int
    unk: int
    eos: int
    # a sentence of n source tokens, EOS included, has at most a n + b target tokens before EOS,
    max_len_a: float
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
