"""Programs that run for long: forks, forgotten engines, closed streams."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sizes import drawn

HERE = Path(__file__).parent
DEMO = HERE.parents[1] / "checkpoints" / "demo"
TEXTS = ["The offer is checked tomorrow.", "The doctor opens the folder."]  # docs/python.md


def run(folder: Path, *parts: str, streams: str = "") -> dict:
    """What long_lived.py finds; streams: what the shell does to its standard streams."""
    words = [sys.executable, str(HERE / "long_lived.py"), str(DEMO), str(folder / "found"), *parts]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {streams}', "sh", *words],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((folder / "found").read_text())
    assert "error" not in found, found["error"]
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    return run(tmp_path_factory.mktemp("found"), "forks", "engines")


@pytest.mark.parametrize("when", ["after a load", "made in a child", "during a call, another"])
def test_a_child_of_a_process_with_two_threads_translates(found, when):
    forks = found["forks"]
    assert forks["expected"] == TEXTS and forks[when][0] == TEXTS


def test_two_threads_of_a_child_share_a_translator(found):
    assert found["forks"]["two threads of a child"][0] == [TEXTS, TEXTS]


def test_a_child_that_was_forked_during_a_call_is_reported_at_once(found):
    forks = found["forks"]
    (kind, said), seconds = forks["during a call"]
    assert kind == "UsageError" and seconds < 20
    assert said == (
        "this process was forked while another thread used the Translator: make a Translator in "
        "this process, or fork while no call is under way"
    )
    assert forks["the parent"] == sorted(TEXTS)


def test_a_child_cannot_use_an_engine_and_does_not_end_it(found):
    engines = found["engines"]
    for use in ("in a child", "waits in a child"):
        (kind, said), seconds = engines[use]
        assert kind == "UsageError" and said.startswith("the engine belongs to the process that")
        assert seconds < 20
    assert engines["closed in a child"][0] is None
    assert engines["afterwards"] == engines["expected"] == TEXTS[0] and engines["restarts"] == 0


def test_an_engine_that_is_forgotten_answers_what_is_open_and_ends_its_processes(found):
    assert found["engines"]["a future alone"] == TEXTS[1]
    assert found["engines"]["left"] == []


@drawn(1)
@pytest.mark.parametrize(
    ("part", "closed"),
    [
        ("streams", "<&- >&- 2>&-"),
        ("daemon", ""),
        ("streams", ">&-"),
        ("no_streams", ""),
    ],
)
def test_closed_standard_streams_are_no_obstacle(tmp_path, part, closed):
    streams = run(tmp_path, part, streams=closed)[part]
    is_none = [part == "no_streams" or each in closed for each in (">&-", "2>&-")]
    assert streams["streams"] == is_none
    assert streams["translator"] == streams["workers"] == streams["engine"] == TEXTS
    assert streams.get("progress", TEXTS[0]) == TEXTS[0]
    assert streams["text"] == " ".join(TEXTS)
