"""The extension points of the loop as base classes, and the common settings of all searches.

Each of the five has one abstract method, and defaults for what few strategies need. A strategy is a
subclass of one of them; search/strategies/ has the strategies, fairseq's own behaviour included
(topk, count, batch, full). The sixth point, the driver (`--decoding`), is a function of a pool and
a callback: by default `BeamSearch` of scheduler.py, which runs the loop or its compiled twin.

Shapes: N sentences in the pool, S live sentences, n live rows, c candidates a sentence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fairseq_ext.core.stats import Stats
from fairseq_ext.kernels.banks import Banks
from fairseq_ext.model.protocol import Decoder
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates, StopDecision
from fairseq_ext.search.finished import Finished, Scoring
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.phrases.sentence import Dictionary
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.processors import LogitsProcessors
from fairseq_ext.search.registry import refills
from fairseq_ext.search.report import Ending
from fairseq_ext.search.settings import Settings


class Schedule(ABC):
    """Decides when waiting sentences start (`--schedule`)."""

    # the sentences with the fewest tokens continue first, until the others have as few; else all in
    # turn
    level: bool = True
    most_rows: int | None = None  # of one decoder call; None: no limit
    # where not all rows fit into a call, the sentences with the most tokens are in it
    longest_first: bool = False
    # after N sentences have started, all live ones are finished before others start; None: no
    flush: int | None = None

    @abstractmethod
    def __call__(self, waiting: int, live: int, rows: int, since: int) -> int:
        """Return how many waiting sentences start now. live, rows: of the sentences that are being
        decoded; since: steps since the last start."""


class Softmax(ABC):
    """Scores the words of the next token (`--softmax`)."""

    temperature: float = 1.0
    is_full: bool = False  # every word has the decoder's own log-probability
    is_own: bool = False  # each sentence has a list of words, the same at all steps (shortlists.py)

    @abstractmethod
    def __call__(
        self,
        decoder: Decoder,
        features: list[Tensor],
        beam: Beam | None = None,
        pool: Pool | None = None,
    ) -> LogProbs:
        """Return log-probabilities of the next token of rows; beam and pool (None: not known) name
        the words that must be scored."""


class Replaceable:
    """A strategy that the compiled search (kernels/beam.cpp) may replace."""

    @property
    def rules(self) -> dict[str, object] | None:
        """The fields of `Rules` (kernels/abi.h) by which the compiled search replaces this
        strategy; None: it cannot."""
        return None

    def __init_subclass__(cls, **named: object) -> None:
        super().__init_subclass__(**named)
        if "rules" not in vars(cls):
            # a subclass of a strategy may behave differently
            cls.rules = Replaceable.rules  # type: ignore[method-assign]


class Select(Replaceable, ABC):
    """Chooses the continuations of a sentence (`--select`)."""

    variable: bool = False  # a sentence may continue with fewer rows than the beam
    soft: bool = False  # required phrases are preferred, not forced

    def start(self, beam: Beam, pool: Pool) -> None:  # noqa: B027  most keep no row state
        """Add row state (`beam.aux`) to a beam whose sentences start now; none by default."""

    def follow(self, beams: Sequence[Beam], pool: Pool, change: Callable[[], None]) -> None:
        """Call `change`, which replaces sentences of the pool that no beam holds; then adapt the
        row state of these beams to the pool."""
        change()

    def unconstrained(self) -> Select:
        """Return a faster strategy that selects the same while no sentence of the pool has
        constraints; by default this one."""
        return self

    def required_ids(self, pool: Pool) -> list[Collection[int]] | None:
        """Return ids that every softmax must score for each of the N sentences, in addition to EOS;
        None (the default): no others."""
        return None

    def banks(self, pool: Pool) -> Banks | None:
        """Return the required phrases of a pool as kernels/beam.cpp reads them; None (the default):
        it cannot search with them."""
        return None

    @abstractmethod
    def __call__(self, beam: Beam, log_probs: LogProbs, pool: Pool) -> Candidates:
        """Return the best continuations of each sentence, best first."""


class Prune(Replaceable, ABC):
    """Drops candidates (`--prune-*`)."""

    @abstractmethod
    def __call__(
        self, candidates: Candidates, beam: Beam, pool: Pool, finished: Finished
    ) -> Tensor:
        """Return (S, c): candidates that stay.

        If candidates are in banks (`candidates.group`), compare only those of the same bank: a
        sentence that loses a bank may lose its required phrases.
        """


class Stop(Replaceable, ABC):
    """Decides when a sentence is final (`--stop`)."""

    variable: bool = False  # a sentence may continue with fewer rows than the beam

    def start(self, beam: Beam, pool: Pool) -> None:  # noqa: B027  most keep no state of their own
        """Prepare the strategy's state for the sentences of a beam that start now; nothing by
        default."""

    def unconstrained(self) -> Stop:
        """Return a strategy that stops the same while no sentence of the pool has constraints;
        by default this one."""
        return self

    def answers(self, sentence: int) -> list[int] | None:
        """Return the numbers, in the order of finishing, of the finished hypotheses that are a
        sentence's answer; None (the default): all."""
        return None

    def count_ending(self, ending: Ending) -> None:  # noqa: B027  most prove nothing
        """Count how the search of an answered sentence ended; nothing by default."""

    @abstractmethod
    def __call__(
        self,
        candidates: Candidates,
        beam: Beam,
        pool: Pool,
        finished: Finished,
        at_limit: Tensor | None,
    ) -> StopDecision:
        """Decide which candidates finish, which continue, and which sentences are final.

        at_limit (S,): sentences at their length limit; None for none.
        """


@dataclass
class Strategies:
    """The strategies of a search: one for each extension point but the driver, and any number of
    pruners."""

    select: Select
    stop: Stop
    schedule: Schedule
    softmax: Softmax
    prune: list[Prune] = field(default_factory=list)

    @property
    def variable(self) -> bool:
        """Whether sentences may have fewer rows than the beam."""
        return bool(self.prune) or self.select.variable or self.stop.variable

    def rules(self) -> list[dict[str, object] | None]:
        """Return the rules by which kernels/beam.cpp replaces the select, prune and stop
        strategies; None for each that it cannot replace."""
        return [self.select.rules, self.stop.rules, *(prune.rules for prune in self.prune)]


# ---- The settings of a search, whatever its strategies


@dataclass
class SearchSpec:
    """The settings that every part of a search reads; `search_spec` of plugin/options.py builds
    them from the flags, once."""

    k: int  # beam
    nbest: int  # requested hypotheses of each sentence, at most k
    pad: int
    unk: int
    eos: int
    # a sentence of n source tokens, EOS included, has at most a n + b target tokens before EOS
    max_len_a: float
    max_len_b: int
    max_len: int  # the model's limit, EOS included
    min_len: int  # target tokens before EOS, at least
    temperature: float
    unk_penalty: float  # subtracted from the log-probability of unk
    scoring: Scoring
    children: int | None = None  # the largest number of continuations of one row; None: no limit
    seed: int = 1


@dataclass(kw_only=True)
class Setup(SearchSpec):
    """The live objects of all searches of a generator, with the settings that every part reads.

    A strategy is built with a setup that has no strategies yet; a driver, with all of them.
    """

    settings: Settings
    decoder: Decoder
    models: list
    dictionary: Dictionary  # target side
    source_dictionary: Dictionary | None
    processors: LogitsProcessors
    stats: Stats
    strategies: Strategies = None  # type: ignore[assignment]
    # checks of the first result of strategies from outside the package, by their identity
    checks: dict[int, Callable] = field(default_factory=dict)

    @property
    def refills(self) -> bool:
        """Whether the schedule starts sentences while others are live."""
        return refills(self.settings)

    def check_result(
        self, strategy: object, result: object, beam: Beam, candidates: Candidates | None = None
    ) -> None:
        """Check the result of a strategy if that is due (plugin/search_setup.py)."""
        if self.checks and (check := self.checks.pop(id(strategy), None)):
            check(result, beam, candidates)
