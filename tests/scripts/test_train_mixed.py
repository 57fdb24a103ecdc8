"""scripts/train_mixed.sh on a few lines: two texts become one, training goes on from a model, and
from where it was stopped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sizes

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "checkpoints" / "demo"


def run(*arguments) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHON": sys.executable}
    command = [str(ROOT / "scripts" / "train_mixed.sh"), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.fixture
def texts(tmp_path) -> list:
    """Two folders as Multi30k and Europarl name their parts: --data arguments."""
    flags = []
    for folder, parts, first in (
        ("captions", ("train", "val", "test_2016_flickr"), 0),
        ("parliament", ("train", "dev", "test"), 40),
    ):
        (tmp_path / folder).mkdir()
        for language in ("de", "en"):
            lines = (
                (ROOT / "data" / "demo" / f"test.{language}")
                .read_text(encoding="utf-8")
                .split("\n")[first : first + 20]
            )
            for part in parts:
                (tmp_path / folder / f"{part}.{language}").write_text(
                    "".join(line + "\n" for line in lines), encoding="utf-8"
                )
        flags += ["--data", tmp_path / folder]
    return flags


@pytest.mark.skipif(not os.environ.get(sizes.ALL), reason="twenty seconds of training: --all")
def test_training_goes_on_where_it_was_stopped(texts, tmp_path):
    wanted = [*texts, "--out", tmp_path / "out", "--model", DEMO, "--updates", "4"]
    first = run(*wanted, "--", "--max-tokens", "500", "--max-update", "2")
    assert first.returncode == 0, first.stderr
    assert len((tmp_path / "out/data/train.de").read_text().splitlines()) == 40
    weights = (tmp_path / "out/model/checkpoint.pt").read_bytes()
    done = run(*wanted, "--minutes", "9", "--", "--max-tokens", "500")
    assert done.returncode == 0, done.stderr
    assert "checkpoint_last.pt (epoch 1 @ 2 updates)" in done.stdout + done.stderr
    assert (tmp_path / "out/model/checkpoint.pt").read_bytes() != weights
    for name in ("dict.de.txt", "dict.en.txt", "spm.model"):
        assert (tmp_path / "out/model" / name).read_bytes() == (DEMO / name).read_bytes()


def test_what_cannot_work_is_refused_in_a_sentence(texts, tmp_path):
    for arguments, said in [
        ([], "--data DIR and --out DIR are needed"),
        (
            [*texts, "--out", tmp_path / "out", "--updates", "0"],
            "want whole numbers above 0, not '0'",
        ),
        (
            [*texts, "--data", tmp_path, "--out", tmp_path / "out"],
            f"{tmp_path} has no train in de and en",
        ),
        ([*texts, "--out"], "--out wants a value"),
    ]:
        done = run(*arguments)
        assert said in done.stderr
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
