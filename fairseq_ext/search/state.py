"""The state of a search (`Search`), which the functions of loop.py work on, and what all searches of a generator share (`SearchSetup`)."""

from __future__ import annotations

from fairseq_ext.search.batch_groups import Groups
from fairseq_ext.search.finished import Finished
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import SearchSetup


class Search:
    """One search over a pool, between two steps."""

    def __init__(self, setup: SearchSetup, pool: Pool):
        self.decoder, self.spec, self.strategies = setup.decoder, setup.spec, setup.strategies
        self.processors, self.stats = setup.processors, setup.stats
        self.pool = pool
        self.device = pool.length.device
        self.finished = Finished.empty(len(pool), setup.spec.nbest, self.device)
        # a language model reads rows of one length only
        self.groups = Groups(setup.decoder, setup.strategies.schedule, joins_any_step=setup.processors.lm is None)
        if not setup.strategies.softmax.is_full:
            pool.required = setup.strategies.select.required_ids(pool)

    @property
    def variable(self) -> bool:
        """Whether sentences may have fewer rows than the beam, as the strategies say of the sentences that have started."""
        return self.strategies.variable
