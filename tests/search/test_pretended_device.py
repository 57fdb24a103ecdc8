"""Every strategy gives on a GPU, here a pretended one (pretended_device.py), what it gives on the CPU, and waits for it once a step."""

from __future__ import annotations

import pytest
from models import batch, build, generators, on_device, parted, run, same, with_files
from test_compose import CONSTRAINTS, EXAMPLES, LENGTHS, TAKE_CONSTRAINTS


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_strategy_gives_on_the_device_what_it_gives_on_the_cpu(name, pretended, tmp_path):
    flags, needed = parted(with_files(EXAMPLES[name], tmp_path))
    generation = {"beam": 4, "max_len_b": 10, **needed}
    sample = batch(LENGTHS)
    if flags.get("select") in TAKE_CONSTRAINTS:
        sample["sentence_constraints"] = CONSTRAINTS
    found = []
    for device in ("cpu", pretended):
        generator = generators([build("transformer", seed=2).to(device)], flags, **generation).ours
        found.append(run(generator, on_device(sample, device)))
    same(*found)
