"""The demo's model, as a Translator's keywords."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "checkpoints" / "demo"
FLAGS = dict(
    path=str(MODEL / "checkpoint.pt"),
    data=str(MODEL),
    source_lang="de",
    target_lang="en",
    bpe="sentencepiece",
    sentencepiece_model=str(MODEL / "spm.model"),
    cpu=True,
)
