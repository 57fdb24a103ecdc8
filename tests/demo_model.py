"""The demo's model, as a Translator's keywords and as flags of a command."""

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
# behind the data directory; with our task
STOCK = ("--path", MODEL / "checkpoint.pt", "-s", "de", "-t", "en", "--cpu")
STOCK += ("--bpe", "sentencepiece", "--sentencepiece-model", MODEL / "spm.model")
OURS = (*STOCK, "--task", "translation_ext")
