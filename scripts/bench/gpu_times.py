"""What the scripts of a GPU share: their command line, and times until the device is done."""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from text import command_line

SHARED = """
    --device DEVICE    cuda or cpu (cuda)
    --quick            small sizes: to try the script
"""


def parsed(doc: str | None, argv: list[str] | None = None, **choices: Any) -> argparse.Namespace:
    """The arguments, --device and --quick among them. Raises SystemExit where they name a GPU and
    there is none."""
    args = command_line(f"{doc}{SHARED}", {"device": ["cuda", "cpu"], **choices}).parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "there is no GPU here (torch.cuda.is_available() is False); --device cpu --quick tries "
            "the script"
        )
    return args


def waiting(device: str) -> Callable[[], None]:
    """What returns when the device has done its work."""
    return torch.cuda.synchronize if device == "cuda" else lambda: None


def seconds(act: Callable[[], Any], device: str, times: int, warmup: int = 0) -> list[float]:
    """Of each call after the warm-up, until the device is done."""
    wait, spent = waiting(device), []
    for _ in range(warmup + times):
        wait()
        start = time.perf_counter()
        act()
        wait()
        spent.append(time.perf_counter() - start)
    return spent[warmup:]


def median_us(act: Callable[[], Any], device: str, times: int) -> float:
    """Microseconds, host included: a decoder waits for what follows."""
    return 1e6 * statistics.median(seconds(act, device, times, warmup=5))


def ms_of_a_step(runs: list[tuple[Callable[[], Any], int]], device: str, times: int = 3) -> float:
    """The least milliseconds of a long run less those of a short one, divided by the steps that it
    takes more; runs: the short one and the long one, each with its number of steps."""
    (short, few), (long, many) = [
        (min(seconds(act, device, times, warmup=1)), steps) for act, steps in runs
    ]
    return 1e3 * (long - short) / (many - few)
