"""The driver of --decoding beam: a compiled search (compiled_search.py, constrained.py) that knows all that is asked for, else the loop."""

from __future__ import annotations

from dataclasses import replace

from fairseq_ext.kernels.search.beam import STEPS
from fairseq_ext.search.compiled_search import CompiledSearch, is_plain, knows
from fairseq_ext.search.constrained import ConstrainedSearch
from fairseq_ext.search.finished import OnFinal
from fairseq_ext.search.loop import beam_search
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.state import SearchSetup


class BeamSearch:
    """The driver of --decoding beam."""

    def __init__(self, setup: SearchSetup):
        self.setup = setup
        self.compiled = CompiledSearch(setup) if knows(setup) else None
        self.constrained = ConstrainedSearch(setup)

    def __call__(self, pool: Pool, answer: OnFinal) -> None:
        """Decode the sentences of the pool that are wanted; give `answer` each of them as soon as it is final."""
        is_compiled = self.setup.decoder.is_compiled
        if self.compiled is not None and is_compiled and is_plain(pool):
            search = self.compiled
            try:
                left = self.search(search, pool, answer)
            finally:
                search.clear()
            if not left:
                return
            pool = replace(pool, wanted=left)
        elif is_compiled and (banks := self.constrained.banks(pool)) is not None:
            self.constrained(pool, banks, answer)
            return
        beam_search(self.setup, pool, answer)

    def search(self, search: CompiledSearch, pool: Pool, answer: OnFinal) -> list[int]:
        """Decode the sentences that are wanted in compiled steps; return those that are for the loop.

        Raises NotANumber where the model gives NaN.
        """
        schedule, started = self.setup.plugs.schedule, 0
        left: list[int] = []
        at: dict[int, int] = {}  # the sentence at each place
        while True:
            if sentences := list(schedule(pool, started, len(search.live), search.rows)):
                if started and self.setup.refills:
                    self.setup.stats.refill()
                started += len(sentences)
                for part in pool.together(sentences):
                    at |= zip(search.admit(pool, part), part, strict=True)
            if not search.live:
                return left
            # where rows are counted, any step may make room for a new sentence
            waits = schedule.most_rows is not None and len(pool.queue(started))
            most = 1 if waits or schedule(pool, started, len(search.live), search.rows) else STEPS
            for place in search.step_some(most, schedule.level, schedule.most_rows):
                found = search.take(place)
                if found is None:
                    left.append(at[place])
                else:
                    answer(at[place], found)
