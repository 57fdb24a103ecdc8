"""The bounded length reward, which every stop strategy supports (`--length-reward`).

    L. Huang, K. Zhao and M. Ma. When to Finish? Optimal Beam Search for Neural Text Generation
    (modulo beam size).
    EMNLP 2017. https://aclanthology.org/D17-1227/
    Section 4

search/finished.py computes it. Neutral setting: --length-reward 0.
"""

from dataclasses import dataclass, field

from fairseq_ext.core.errors import UsageError
from fairseq_ext.search.settings import Generation

MOST = 1000  # nats, and target tokens for each source token
LONGEST = 1_000_000  # subwords


@dataclass
class LengthFlags:
    length_reward: float = field(
        default=0.0,
        metadata={
            "help": "added for each target token up to the target length, in nats (default: 0; "
            "needs --unnormalized)",
            "implemented": "search/finished.py",
            "range": (0, MOST, "nats"),
        },
    )
    length_ratio: float = field(
        default=1.0,
        metadata={
            "help": "target length over source length, in subwords without EOS (default: 1; "
            "measure it on a dev set)",
            "implemented": "search/finished.py",
        },
    )
    length_offset: float = field(
        default=0.0,
        metadata={
            "help": "added to the target length, in subwords (default: 0; "
            "scripts/tune_length_reward.py fits both)",
            "implemented": "search/finished.py",
            "range": (-LONGEST, LONGEST, "number of subwords"),
        },
    )
    length_reward_unbounded: bool = field(
        default=False,
        metadata={
            "help": "reward every target token, however many (default: off)",
            "implemented": "search/finished.py",
        },
    )


def check_length(flags: LengthFlags, generation: Generation) -> None:
    """Refuse a reward without a bound, and parameters of a reward of 0 (raises UsageError)."""
    if flags.length_reward and not generation.unnormalized:
        raise UsageError(
            "--length-reward adds to unnormalised scores: add --unnormalized, or leave it out"
        )
    if not 0 < flags.length_ratio <= MOST:
        raise UsageError(
            f"--length-ratio {flags.length_ratio} is not a length ratio: use a number above "
            f"0, at most {MOST}"
        )
    parameters = {
        "--length-ratio": flags.length_ratio != 1.0,
        "--length-offset": flags.length_offset != 0.0,
        "--length-reward-unbounded": flags.length_reward_unbounded,
    }
    unused = [flag for flag, given in parameters.items() if given]
    if unused and not flags.length_reward:
        raise UsageError(
            f"{unused[0]} applies to --length-reward, which is 0: set it or leave {unused[0]} out"
        )
