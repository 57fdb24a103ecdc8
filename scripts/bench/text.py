"""A test set and a model laid out as fairseq-generate wants them, without fairseq-preprocess:
`--dataset-impl raw` reads text."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from equality import Outputs
from harness import BenchError


@dataclass
class Text:
    """`flags` is the part of a fairseq-generate command line that names data and model."""

    folder: Path
    flags: list[str]
    model: Path
    source: str
    target: str
    references: list[str]

    def bleu(self, outputs: Outputs) -> float:
        """sacrebleu of the best hypotheses; tokens are ids of the target dictionary."""
        import sacrebleu

        lines = self.lines(outputs)
        return sacrebleu.corpus_bleu(lines, [self.references[: len(lines)]]).score

    def lines(self, outputs: Outputs) -> list[str]:
        """The best hypotheses as plain text."""
        from fairseq.data import Dictionary

        dictionary = Dictionary.load(str(self.folder / f"dict.{self.target}.txt"))
        return [
            self.plain(dictionary[token] for token in best[0][0] if token != dictionary.eos())
            for best in outputs
        ]

    def plain(self, pieces: Iterable[str]) -> str:
        """Words again, from SentencePiece pieces or from words cut with @@."""
        joined = " ".join(pieces)
        if "▁" in joined:
            return joined.replace(" ", "").replace("▁", " ").strip()
        return (joined + " ").replace("@@ ", "").strip()


def prepare(
    folder: Path, model: Path, text: str, source: str, target: str, limit: int | None = None
) -> Text:
    """Lay out the first `limit` lines of TEXT.source and TEXT.target in `folder`, segmented by
    MODEL/spm.model if there is one."""
    for file in (
        model / "checkpoint.pt",
        model / f"dict.{source}.txt",
        model / f"dict.{target}.txt",
    ):
        if not file.exists():
            raise BenchError(
                f"{file} is missing: --model wants a folder with checkpoint.pt, dict.*.txt and, "
                "for SentencePiece, spm.model"
            )
    segment = segmenter(model / "spm.model")
    lines = {}
    for language in (source, target):
        shutil.copy(model / f"dict.{language}.txt", folder)
        try:
            # not splitlines(): it also cuts at rare separators inside a line, which would shift
            # one side against the other
            lines[language] = (
                Path(f"{text}.{language}")
                .read_text(encoding="utf-8")
                .removesuffix("\n")
                .split("\n")[:limit]
            )
        except (OSError, UnicodeDecodeError) as error:
            raise BenchError(
                f"cannot read {text}.{language}: "
                f"{getattr(error, 'strerror', None) or 'it is not UTF-8'}"
            ) from error
        segmented = [segment(line) for line in lines[language]]
        (folder / f"test.{source}-{target}.{language}").write_text(
            "".join(line + "\n" for line in segmented), encoding="utf-8"
        )
    if len(lines[source]) != len(lines[target]):
        raise BenchError(
            f"{text}.{source} has {len(lines[source])} lines and {text}.{target} "
            f"{len(lines[target])}"
        )
    flags = [
        str(folder),
        "--path",
        str(model / "checkpoint.pt"),
        "--source-lang",
        source,
        "--target-lang",
        target,
    ]
    return Text(folder, [*flags, "--dataset-impl", "raw"], model, source, target, lines[target])


def segmenter(model: Path):
    """A function from a line to its pieces, joined by spaces; without a SentencePiece model the
    text is taken as segmented."""
    if not model.exists():
        return str.strip
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return lambda line: " ".join(processor.encode(line, out_type=str))
