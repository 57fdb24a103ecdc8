"""The script that scripts/test.sh fuzzes the compiled functions with still fits them."""

import subprocess
import sys
from pathlib import Path

import pytest
from sizes import drawn

from fairseq_ext.kernels import library as building

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fuzz_kernels.py"


@drawn(0)  # long
@pytest.mark.skipif(building.compiler() is None, reason="there is no C++ compiler")
def test_a_second_of_damaged_files_under_sanitizers():
    done = subprocess.run(
        [sys.executable, SCRIPT, "--seconds", "1", "--seed", "1"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "seed 1\n" in done.stdout and "tables taken" in done.stdout
