"""The demo's model, as a Translator's keywords and as flags of a command, and its test set as raw
data."""

import shutil
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


def raw_demo(folder, lines, first=0):
    """Write both sides of `lines` lines, from line `first` (0: the first), into the folder, with
    the dictionaries; return the folder."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(MODEL / "spm.model"))
    for language in ("de", "en"):
        shutil.copy(MODEL / f"dict.{language}.txt", folder)
        text = (
            (ROOT / "data" / "demo" / f"test.{language}")
            .read_text(encoding="utf-8")
            .split("\n")[first : first + lines]
        )
        pieces = "".join(" ".join(processor.encode(line, out_type=str)) + "\n" for line in text)
        (folder / f"test.de-en.{language}").write_text(pieces, encoding="utf-8")
    return folder
