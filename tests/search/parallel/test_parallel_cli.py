"""Parallel decoding through the commands: the same lines as --beam 1, draft files, statistics,
one-sentence errors."""

import json
import math
from pathlib import Path

import conftest
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


def generate(tiny, *flags, run=command) -> str:
    return run(
        "fairseq-generate",
        tiny / "data",
        "--path",
        tiny / "model.pt",
        "--cpu",
        "--max-len-b",
        15,
        *flags,
    ).stdout


@pytest.fixture(scope="module")
def greedy(tiny) -> dict:
    """What stock gives."""
    return hypotheses(generate(tiny, "--beam", 1, run=conftest.command))


def test_the_earlier_output_makes_one_call_a_batch(tiny, greedy, tmp_path):
    old, stats = tmp_path / "old.txt", tmp_path / "stats.json"
    old.write_text("".join(greedy[n][1] + "\n" for n in sorted(greedy)))
    flags = [
        "--decoding",
        "window",
        "--draft-file",
        old,
        "--draft-cost",
        0,
        "--max-tokens",
        30,
        "--stats-file",
        stats,
    ]
    same(greedy, hypotheses(generate(tiny, *OURS, *flags)))
    found = json.loads(stats.read_text())
    assert found["decoder_calls"] == found["encoder_calls"]
    assert set(found["parallel"]) == {
        "calls",
        "tokens",
        "tokens_per_call",
        "drafts_offered",
        "drafts_taken",
    }
    assert found["parallel"]["tokens"] == found["target_tokens"]
    assert "decoding:window,draft_file=" in found["signature"]


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
