"""A stop strategy from outside the package: fairseq's own, and the death of the process or an error
where a source has a certain length."""

import os
import signal

from fairseq_ext.search.registry import register
from fairseq_ext.search.strategies.stop.count import Count, CountFlags

DIES, FAILS = 4, 5  # source tokens with EOS


class Deadly(Count):
    def start(self, beam, pool):
        lengths = pool.length[beam.live_index()].tolist()
        if DIES in lengths:
            os.kill(os.getpid(), signal.SIGKILL)
        if FAILS in lengths:
            raise LookupError("no room for this one")


@register("stop", "deadly", CountFlags, example=({"stop": "deadly"},))
def build(flags, setup):
    return Deadly(setup.eos)
