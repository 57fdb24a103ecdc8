"""LibreTranslate's own tests of its API, by the script that runs them over HTTP."""

import os
import subprocess
import sys

import pytest
from serving import ROOT
from sizes import ALL


@pytest.mark.skipif(not os.environ.get(ALL), reason="pip fetches them: --all")
def test_they_pass_as_they_are(tmp_path):
    fetch = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        tmp_path,
        "libretranslate==1.9.6",
    ]
    if subprocess.run(fetch, capture_output=True).returncode:
        pytest.skip("pip does not reach a package index")
    (wheel,) = tmp_path.glob("*.whl")
    command = [sys.executable, ROOT / "scripts" / "libretranslate_tests.py", "--wheel", wheel]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0 and "14 passed" in done.stdout, done.stdout + done.stderr
