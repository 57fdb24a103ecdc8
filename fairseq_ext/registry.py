"""For strategies of others: what a file that FAIRSEQ_EXT_STRATEGIES names registers with
(docs/strategy.md)."""

from fairseq_ext.search.candidates import Candidates, StopDecision
from fairseq_ext.search.protocols import Prune, Schedule, Select, Softmax, Stop
from fairseq_ext.search.registry import register
from fairseq_ext.search.strategies.stop.length_reward import LengthFlags, check_length

__all__ = [
    "Candidates",
    "LengthFlags",
    "Prune",
    "Schedule",
    "Select",
    "Softmax",
    "Stop",
    "StopDecision",
    "check_length",
    "register",
]
