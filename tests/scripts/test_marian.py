"""Checkpoints as Marian's, for the benchmark: Marian finds what fairseq does where positions and
the start are as in Marian."""

import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"
sys.path.insert(0, str(BENCH))

import shapes  # noqa: E402
from contenders import ours, quiet  # noqa: E402
from harness import BenchError  # noqa: E402
from marian import marian, settings, with_marians_positions  # noqa: E402
from text import prepare  # noqa: E402

TOKENS = 8  # of a translation, without fairseq's </s>
SMALL = {
    f"{side}_{name}": n
    for side in ("encoder", "decoder")
    for name, n in {"layers": 2, "embed_dim": 32, "ffn_embed_dim": 64, "attention_heads": 4}.items()
}


def test_marian_gives_the_same_translations_and_scores(tmp_path, monkeypatch):
    pytest.importorskip("pymarian", reason="pymarian is not installed")
    monkeypatch.setitem(shapes.SHAPES, "small", (60, shapes.BASE | SMALL))
    with quiet():
        shapes.make("small", tmp_path / "fairseqs", spread=0)
        shapes.make("small", tmp_path / "marians", spread=0)
    for name, change in (
        ("fairseqs", dict),
        ("marians", partial(with_marians_positions, longest=64)),
    ):
        saved = torch.load(tmp_path / name / "checkpoint.pt", weights_only=False)
        for key, weight in saved["model"].items():
            # as they are made, all sentences have one translation
            weight *= 4 if "attn" in key and key.endswith("proj.weight") else 1
        torch.save(change(saved), tmp_path / name / "checkpoint.pt")
    made = []
    for kind, name, tokens in ((ours, "marians", TOKENS), (marian, "fairseqs", TOKENS - 1)):
        (place := tmp_path / f"text-{name}").mkdir()
        text = prepare(place, tmp_path / name, str(tmp_path / name / "text"), "de", "en", 8)
        made.append(
            kind(
                text,
                [
                    *"--cpu --beam 1 --batch-size 4 --unnormalized --max-len-b".split(),
                    str(tokens),
                ],
            )
        )
    of = {
        i: found[0]
        for numbers, batch in made[0].run()
        for i, found in zip(numbers, batch, strict=True)
    }
    assert len({tuple(each["tokens"].tolist()) for each in of.values()}) > 4, (
        "these weights tell sentences apart"
    )
    for i, ((tokens, score),) in enumerate(made[1].read(made[1].run())):
        assert tokens == of[i]["tokens"][:-1].tolist()
        assert score == pytest.approx(float(of[i]["positional_scores"][:-1].sum()), abs=1e-3)


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        ({"encoder_normalize_before": True}, "in front of its layers"),
        ({"share_all_embeddings": False}, "one table of embeddings"),
        ({"decoder_attention_heads": 4}, "heads or feed-forward width"),
    ],
)
def test_what_marian_cannot_hold_is_refused(changed, reported):
    plain = dict(encoder_normalize_before=False, decoder_normalize_before=False)
    assert settings(Namespace(**shapes.BASE | plain), 60)["dim-vocabs"] == [60, 60]
    with pytest.raises(BenchError, match=reported):
        settings(Namespace(**shapes.BASE | plain | changed), 60)
