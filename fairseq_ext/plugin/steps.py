"""What stands around the search, as one list (`STEPS`).

A driver is a function of a pool and of a callback for each sentence that is final. The first one is
the search that --decoding names. Each step that the flags need is a driver around it, which calls
the one before with other constraints or another length limit.

| step | when |
| --- | --- |
| LengthRetry | --select dba with --stop early: the best hypothesis has reached the length limit |
| TwoSearches | --constraint-compete search: a sentence has required phrases |
| GlossaryPlacement | --glossary-placement align: a sentence has terms |
| GraphWriter | --ddg-dir: always |

`SentenceSteps` takes the same steps for sentences that come one by one, as those of an engine do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fairseq_ext.model.stock import FairseqBackend
from fairseq_ext.plugin.search_setup import build
from fairseq_ext.search.compiled import without_constraints
from fairseq_ext.search.constraints.drafts import SEARCHED, elsewhere
from fairseq_ext.search.constraints.forced_decoding import ForcedDecoding
from fairseq_ext.search.constraints.placement import GlossaryPlacement, Searches
from fairseq_ext.search.finished import Hypothesis, OnFinal
from fairseq_ext.search.parallel.driver import ParallelSearch
from fairseq_ext.search.phrases.segmenter import TargetText
from fairseq_ext.search.phrases.sentence import Meets, SentenceConstraints, met_with_prefix
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Setup
from fairseq_ext.search.registry import chosen
from fairseq_ext.search.request import Request
from fairseq_ext.search.scheduler import Entry
from fairseq_ext.search.strategies.decoding._parallel import ParallelFlags
from fairseq_ext.search.strategies.select.dba import DBAFlags
from fairseq_ext.search.strategies.stop.early import LengthRetry

# ---- Searches without some of the required phrases (`--constraint-compete search`)
#
# Where the best hypotheses of beam search meet every phrase by themselves, they are the answer, and
# the sentence is not searched again. Else it is searched with its phrases, and without each one of
# them: each may come by itself, and a search with fewer banks finds more probable hypotheses. Those
# of all searches that meet every phrase are in the n-best list.


Driver = Callable[[Pool, OnFinal], None]


class TwoSearches:
    """A driver of two others: `unconstrained` for sentences without their required phrases, and
    `constrained`, with all of them or all but one.

    meets: returns the function that counts the constraints that a hypothesis of a pool meets;
    nbest: length of the n-best lists.
    """

    def __init__(
        self,
        unconstrained: Driver,
        constrained: Driver,
        meets: Callable[[Pool], Meets],
        nbest: int,
    ):
        self.unconstrained, self.constrained = unconstrained, constrained
        self.meets, self.nbest = meets, nbest

    def __call__(self, pool: Pool, answer: OnFinal) -> None:
        """Call `answer` with each sentence's hypotheses."""
        given = pool.constraints or []
        numbers = [i for i in pool.sentences_to_decode() if given and given[i].required]
        meeting = dict[int, list[Hypothesis]]()
        done = set[int]()

        def keep(number: int, found: list[Hypothesis]) -> None:
            meets = [self.meets_all(pool, number, h) for h in found]
            if found and all(meets[: self.nbest]) and number not in meeting:
                done.add(number)
                answer(number, found)
            else:
                more = [h for h, meets_all in zip(found, meets, strict=True) if meets_all]
                meeting[number] = best_of(meeting.get(number, []), more)

        def searched(driver: Driver, numbers: list[int], left_out: int | None = None) -> None:
            others = [without_phrases(each, left_out) for each in given]
            constraints = None if all(each.is_empty for each in others) else others
            driver(replace(pool, constraints=constraints, to_decode=numbers), keep)

        if numbers:
            searched(self.unconstrained, numbers)
        left = [i for i in numbers if i not in done]
        for place in range(max((len(given[i].required) for i in left), default=0)):
            if several := [i for i in left if len(given[i].required) > max(1, place)]:
                searched(self.constrained, several, place)
        left = [i for i in pool.sentences_to_decode() if i not in done]
        if left:
            self.constrained(
                replace(pool, to_decode=left) if done else pool,
                lambda number, found: answer(number, best_of(found, meeting.get(number, []))),
            )

    def meets_all(self, pool: Pool, number: int, hypothesis: Hypothesis) -> bool:
        """Return whether a hypothesis of a sentence meets all its constraints."""
        assert pool.constraints is not None
        lead = pool.lead_of(number)
        tokens = hypothesis.tokens.tolist()
        return all(
            met_with_prefix(tokens, pool.constraints[number], pool.ordered, self.meets(pool), lead)
        )


def without_phrases(given: SentenceConstraints, left_out: int | None) -> SentenceConstraints:
    """Return the constraints of a sentence without one of its required phrases; None: all."""
    kept = [each for i, each in enumerate(given.required) if left_out is not None and i != left_out]
    return replace(given, required=tuple(kept), dropped=(), unmet=())


def best_of(found: list[Hypothesis], more: list[Hypothesis]) -> list[Hypothesis]:
    """Return the hypotheses of two searches, best first, each once; of equals those of `found`."""
    known = {tuple(h.tokens.tolist()) for h in found}
    more = [h for h in more if tuple(h.tokens.tolist()) not in known]
    return sorted([*found, *more], key=lambda h: -h.score)


D = TypeVar("D")
Hypotheses = list[Hypothesis]
Result = tuple[Pool, int, Hypotheses]  # of a search: the pool, the sentence in it, its hypotheses


class Steps(list[Driver]):
    """The search that --decoding names, then the steps around it."""

    @property
    def search(self) -> Driver:
        """The search."""
        return self[0]

    @property
    def driver(self) -> Driver:
        """The last step, which calls those before it."""
        return self[-1]

    def find(self, kind: type[D]) -> D | None:
        """Return the step of a kind, None if the flags do not need it."""
        return next((each for each in self if isinstance(each, kind)), None)


@dataclass
class Parts:
    """What steps are made of.

    meets: returns the function that counts the constraints that a hypothesis of a pool meets;
    decoded: returns target symbols as text; text: returns the generator's `target_text`, None if no
    terms are placed.
    """

    setup: Setup
    meets: Callable[[Pool], Meets]
    decoded: Callable[[str], str]
    text: Callable[[], TargetText] | None


def steps_of(parts: Parts, until: Step | None = None) -> Steps:
    """Return the steps. until: leave out this one and those around it."""
    steps = Steps([build(chosen(parts.setup.settings, "decoding"), parts.setup)])
    for step in STEPS:
        if step is until:
            break
        if (driver := step(steps, parts)) is not None:
            steps.append(driver)
    return steps


# ---- Each step is a function of those so far, which returns None if the flags do not need it


def length_retry(steps: Steps, parts: Parts) -> Driver | None:
    """Return the step where required phrases are forced into hypotheses that may end too late."""
    names = [parts.setup.settings.choice(point) for point in ("select", "stop", "decoding")]
    if names != ["dba", "early", "beam"]:
        return None
    return LengthRetry(steps.search, parts.meets, parts.setup.min_len)


def two_searches(steps: Steps, parts: Parts) -> Driver | None:
    """Return the step where sentences are searched without some of their phrases, too."""
    settings = parts.setup.settings
    compete = settings.get(DBAFlags).constraint_compete
    if settings.choice("select") != "dba" or compete != "search":
        return None
    return TwoSearches(steps.search, steps.driver, parts.meets, parts.setup.nbest)


def placement(steps: Steps, parts: Parts) -> GlossaryPlacement | None:
    """Return the placement of terms: drafts are searched with longer n-best lists, to choose
    from."""
    if parts.text is None:
        return None
    setup = parts.setup
    drafts = replace(setup, nbest=min(setup.k, max(setup.nbest, SEARCHED)))
    searches = Searches(
        steps_of(replace(parts, setup=without_constraints(drafts)), length_retry).search,
        steps_of(replace(parts, setup=drafts), placement).driver,
        steps.driver,
    )
    attending = setup.decoder.attending_copy()
    reading = FairseqBackend(setup.models, cached=False) if attending is None else attending
    score = ForcedDecoding(
        reading,
        attending is not None,
        setup.dictionary,
        setup.settings.command.left_pad_source,
        setup.stats,
        setup.temperature,
    )
    return GlossaryPlacement(searches, score, setup, parts.text, parts.meets)


def graph_writer(steps: Steps, parts: Parts) -> Driver | None:
    """Return the writer of graphs, which needs source tokens and belongs to parallel decoding."""
    setup, search = parts.setup, steps.driver
    settings, source = setup.settings, setup.source_dictionary
    folder, method = settings.get(ParallelFlags).ddg_dir, settings.choice("decoding")
    if folder is None:
        return None
    from fairseq_ext.search.parallel.graph import GraphWriter  # few runs need it

    assert source is not None and isinstance(search, ParallelSearch)
    return GraphWriter(search, folder, method, source, setup.dictionary, parts.decoded)


Step = Callable[[Steps, Parts], Driver | None]
STEPS: tuple[Step, ...] = (length_retry, two_searches, placement, graph_writer)


# ---- One sentence at a time


@dataclass(eq=False, kw_only=True)
class RequestEntry(Entry):
    """A request in the search. searched: the request as the search has it, with fewer constraints
    while a draft is searched."""

    request: Request
    searched: Request
    requested: int  # hypotheses of its answer; its search may keep more
    started: float = 0.0  # time.monotonic()
    reported: int = 0  # tokens of the prefix that has been reported
    room: int | None = None  # most tokens of a search that is repeated (LengthRetry)
    long: list[Hypothesis] = field(default_factory=list)  # what the first one has returned

    @property
    def is_draft(self) -> bool:
        """Whether the search leaves out terms that are placed afterwards."""
        return self.searched is not self.request


class SentenceSteps:
    """The steps of a generator for sentences that are searched one by one. pool_of: returns a
    request as a pool of its own."""

    def __init__(self, generator: Any, pool_of: Callable[[Request], Pool]):
        self.generator, self.pool_of = generator, pool_of
        self.shorter: LengthRetry | None = generator.steps.find(LengthRetry)
        self.leaves: dict[type, Callable[..., Result | None]] = {
            LengthRetry: self.shortened,
            GlossaryPlacement: self.with_terms,
        }

    def entry(self, number: int, request: Request, nbest: int) -> RequestEntry:
        """Return the entry of a request that is `prepared`, with which its first search begins."""
        k = self.generator.setup.k
        searched, constraints = request, request.all_constraints
        most = nbest if self.generator.bayes_risk is None else k
        if constraints.is_placed:
            searched = replace(request, constraints=constraints.without_terms())
            most = min(k, max(nbest, SEARCHED))
        return RequestEntry(number, most, most, request=request, searched=searched, requested=nbest)

    def may_repeat(self, entry: RequestEntry) -> bool:
        """Return whether a sentence may be searched again after this search."""
        repeats = self.shorter is not None and bool(entry.request.all_constraints.required)
        return entry.is_draft or repeats

    def settle(
        self, entry: RequestEntry, pool: Pool, sentence: int, found: list[Hypothesis]
    ) -> list[Hypothesis] | None:
        """Return the hypotheses of a sentence, with their outcomes, after a search has found these;
        None if the entry is to be searched again, as it is now."""
        result = pool, sentence, found
        for step in self.generator.steps:
            if (leaves := self.leaves.get(type(step))) is not None:
                if (left := leaves(step, entry, *result)) is None:
                    return None
                result = left
        return self.generator.answer(*result)

    def shortened(
        self, step: LengthRetry, entry: RequestEntry, pool: Pool, sentence: int, found: Hypotheses
    ) -> Result | None:
        """Return what LengthRetry leaves of a search, which may be its second one."""
        if entry.room is not None:
            entry.room = None
            return pool, sentence, step.choose(pool, sentence, entry.long, found)
        entry.room, entry.long = step.retry_limit(pool, sentence, found), found
        return (pool, sentence, found) if entry.room is None else None

    def with_terms(
        self,
        step: GlossaryPlacement,
        entry: RequestEntry,
        pool: Pool,
        sentence: int,
        found: Hypotheses,
    ) -> Result | None:
        """Return what GlossaryPlacement leaves of a search: drafts get their terms."""
        constraints = entry.request.all_constraints
        if entry.is_draft and found:
            pool = self.pool_of(entry.request)
            drafts = step.sentence(pool, 0, found, entry.requested)
            placed = step.placed(pool, [drafts])[0]
            if placed is not None:
                return pool, 0, placed
            entry.searched = entry.request
            entry.nbest = entry.most = entry.requested
            return None
        return pool, sentence, elsewhere(constraints, found) if constraints.is_placed else found
