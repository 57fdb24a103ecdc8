"""Each search, once for each allocation of compiled code, which fails: MemoryError, and then the
search is right. kernels/test_levels.py runs it on a library that can do so."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from models import build, run
from test_nan import NUMBERS, SEARCHES, generator, sample_of

from fairseq_ext.kernels import library as building


def hypotheses(searching: Any, search: str, after: int) -> list:
    """Its tokens. after: this number of allocations is made before one fails; -1: none fails."""
    sample = sample_of(search)
    starve = ctypes.CDLL(str(building.build())).starve
    starve(ctypes.c_int64(after))
    try:
        found = run(searching, sample)
    finally:
        starve(ctypes.c_int64(-1))
    return [[each["tokens"].tolist() for each in some] for some in found]


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("search", SEARCHES)
def test_each_allocation_that_fails_is_a_memory_error(search, numbers):
    searching = generator(build("transformer", 3, torch.float32), search, **NUMBERS[numbers])
    expected = hypotheses(searching, search, -1)
    for after in range(1000):
        with ThreadPoolExecutor(1) as fresh:  # without scratch memory from earlier calls
            try:
                found = fresh.submit(partial(hypotheses, searching, search, after)).result()
            except MemoryError:
                assert hypotheses(searching, search, -1) == expected
                continue
        assert found == expected and after > 5
        return
    raise AssertionError("the allocations do not end")
