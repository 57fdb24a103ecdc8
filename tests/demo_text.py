"""Lines of the demo's test set, segmented, as raw data that fairseq-generate reads."""

import shutil
from pathlib import Path

import sentencepiece
from demo_model import MODEL as DEMO
from demo_model import ROOT


def raw_demo(folder: Path, lines: int, first: int = 0) -> Path:
    """Write both sides of `lines` lines, from line `first` (0: the first), into the folder, with
    the dictionaries; return the folder."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(DEMO / "spm.model"))
    for language in ("de", "en"):
        shutil.copy(DEMO / f"dict.{language}.txt", folder)
        text = (
            (ROOT / "data" / "demo" / f"test.{language}")
            .read_text(encoding="utf-8")
            .split("\n")[first : first + lines]
        )
        pieces = "".join(" ".join(processor.encode(line, out_type=str)) + "\n" for line in text)
        (folder / f"test.de-en.{language}").write_text(pieces, encoding="utf-8")
    return folder
