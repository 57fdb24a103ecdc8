"""Parallel decoding through the commands: draft files, statistics, one-sentence errors."""

import json
import math
from pathlib import Path

import pytest
from forked import command

ROOT = Path(__file__).resolve().parents[3]
OURS = ["--user-dir", ROOT / "fairseq_ext", "--task", "translation_ext", "--beam", 1]


def hypotheses(output: str) -> dict[int, tuple[float, str]]:
    lines = (line.split("\t") for line in output.splitlines() if line.startswith("H-"))
    return {int(number[2:]): (float(score), text) for number, score, text in lines}


def same(a: dict, b: dict) -> None:
    assert a and {n: text for n, (_, text) in a.items()} == {n: text for n, (_, text) in b.items()}
    assert all(math.isclose(a[n][0], b[n][0], abs_tol=1e-4) for n in a)


def test_draft_files_follow_the_lines_of_an_interactive_session(tiny, tmp_path):
    """Two buffers, and lines that the batches reorder by length."""
    lines = (tiny / "test.de").read_text().splitlines()[:5]
    talk = [
        "fairseq-interactive",
        tiny / "data",
        "--path",
        tiny / "model.pt",
        "--cpu",
        "--max-len-b",
        15,
    ]
    talk += ["--buffer-size", 3, "--batch-size", 3]
    before = hypotheses(command(*talk, *OURS, stdin="\n".join(lines) + "\n").stdout)
    old, stats = tmp_path / "old.txt", tmp_path / "stats.json"
    old.write_text("".join(before[n][1] + "\n" for n in sorted(before)))
    flags = ["--decoding", "window", "--draft-file", old, "--draft-cost", 0, "--stats-file", stats]
    same(before, hypotheses(command(*talk, *OURS, *flags, stdin="\n".join(lines) + "\n").stdout))
    assert json.loads(stats.read_text())["decoder_calls"] == 2


@pytest.mark.parametrize(
    "flags, said", [(["--beam", "2"], "--beam 1"), (["--draft-file", "no.txt"], "no.txt")]
)
def test_errors_are_one_sentence(tiny, flags, said):
    arguments = [
        tiny / "data",
        "--path",
        tiny / "model.pt",
        "--cpu",
        *OURS,
        "--decoding",
        "window",
        *flags,
    ]
    done = command("fairseq-generate", *arguments, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ") and said in last and "Traceback" not in done.stderr
