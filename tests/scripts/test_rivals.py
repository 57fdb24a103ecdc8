"""The benchmark's rivals give fairseq's translations where their models can hold fairseq's, and a
comparison of two checkouts says where one is slower."""

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"
sys.path.insert(0, str(BENCH))

import firefox  # noqa: E402
import marian  # noqa: E402
import random_models  # noqa: E402
import speed  # noqa: E402
from contenders import build, ours  # noqa: E402
from text import prepare  # noqa: E402

TOKENS, LINES, WORDS = 8, 8, 400


@pytest.mark.parametrize("beam", [1, 3])
def test_bergamots_model_gives_the_same_translations(beam, tmp_path):
    if shutil.which(os.environ.get(firefox.PYTHON, "")) is None:
        pytest.skip(f"Bergamot is not installed: name a Python that has it in {firefox.PYTHON}")
    settings = random_models.sizes(2, 64, 128, 8)
    folder = firefox.make(tmp_path / "model", WORDS, settings)
    text = prepare(tmp_path / "text", folder, str(folder / "text"), "de", "en", LINES)
    flags = f"--cpu --beam {beam} --max-len-b {TOKENS}".split()
    for more, name, words, least in (
        ([], "bergamot float32", TOKENS, LINES - 1),
        (firefox.lexicon(folder), "bergamot float32 lexical", TOKENS, LINES - 1),
        ([], "bergamot int8shiftAlphaAll", 1, LINES // 2),  # later words are others in 8 bits
    ):
        own, rival = ours(text, [*flags, *more]), build(name, text, flags)
        expected = [best[0][0] for best in own.read(own.run())]
        assert len({tuple(each) for each in expected}) > LINES // 2, "weights tell lines apart"
        found = [best[0][0][:words] for best in rival.read(rival.run())]
        same = [a == b[:words] for a, b in zip(found, expected, strict=True)]
        assert sum(same) >= least, (name, same)


def test_marian_gives_the_same_translations_and_scores(tmp_path):
    """Where positions and the start are as in Marian."""
    pytest.importorskip("pymarian", reason="pymarian is not installed")
    made = {}
    for name, tokens in (("ours", TOKENS), ("marian float32", TOKENS - 1)):
        folder = random_models.make((60, random_models.sizes(2, 32, 64, 4)), tmp_path / name)
        saved = torch.load(folder / "checkpoint.pt", weights_only=False)
        random_models.distinguishing(saved["model"])
        saved = marian.with_marians_positions(saved, longest=64) if name == "ours" else saved
        torch.save(saved, folder / "checkpoint.pt")
        text = prepare(tmp_path / f"text-{name}", folder, str(folder / "text"), "de", "en", LINES)
        flags = f"--cpu --beam 1 --batch-size 4 --unnormalized --max-len-b {tokens}".split()
        made[name] = build(name, text, flags)
    pairs = [pair for batch in made["ours"].run() for pair in zip(*batch, strict=True)]
    expected = {number: nbest[0] for number, nbest in pairs}
    assert len({tuple(each["tokens"].tolist()) for each in expected.values()}) > 4
    rival = made["marian float32"]
    for i, ((tokens, score),) in enumerate(rival.read(rival.run())):
        assert tokens == expected[i]["tokens"][:-1].tolist()
        total = float(expected[i]["positional_scores"][:-1].sum())
        assert score == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize("lost", [0.0, 1e9], ids=["held", "lost"])
def test_a_cell_is_lost_where_its_whole_interval_is_below_the_bound(lost, tmp_path, monkeypatch):
    """This checkout on both sides."""
    monkeypatch.setattr(speed, "LOST", lost)
    monkeypatch.setattr(speed, "fix_threads", lambda threads: None)  # this process has other tests
    assert len(speed.CELLS) == len(set(speed.CELLS)) == 14
    cells = ["constrained, int8", "typed line, float32", "HTTP requests"] if lost else ["HTTP p95"]
    before = ["--before", str(BENCH.parents[1]), sys.executable]
    small = [*"--repeats 1 --limit 2 --seconds 0.2 --out".split(), str(tmp_path / "out")]
    assert speed.main([*before, *small, "--cells", *cells]) == int(lost > 0)
    lines = (tmp_path / "out.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]
    assert [row[0] for row in rows] == cells
    assert all(float(row[2].split()[0]) > 0 and "equal (" in row[3] for row in rows)
    assert all((row[-1] == "lost") == (lost > 0) for row in rows)
