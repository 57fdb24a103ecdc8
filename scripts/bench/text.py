"""A test set and a model laid out as fairseq-generate wants them, without fairseq-preprocess
(`--dataset-impl raw` reads text), and the command lines of the scripts that measure."""

import argparse
import contextlib
import functools
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import BenchError, Outputs, fix_threads
from report import ROOT, Page

DEMO = ROOT / "checkpoints" / "demo"


@dataclass
class Text:
    """`flags` is the part of a fairseq-generate command line that names data and model."""

    folder: Path
    flags: list[str]
    model: Path
    source: str
    target: str
    sources: list[str]
    references: list[str]

    @property
    def bpe(self) -> list[str]:
        """Flags of a command that segments by itself."""
        spm = self.model / "spm.model"
        return [*"--bpe sentencepiece --sentencepiece-model".split(), str(spm)] * spm.exists()

    @property
    def file(self) -> Path:
        """The segmented source."""
        return self.folder / f"test.{self.source}-{self.target}.{self.source}"

    @functools.cached_property
    def pieces(self) -> Callable[[str], list[str]]:
        """A line as symbols of the dictionaries."""
        segment = segmenter(self.model / "spm.model")
        return lambda line: segment(line).split()

    @functools.cached_property
    def usable(self) -> Callable[[str], bool]:
        """Whether the target dictionary can write a phrase."""
        words = (self.folder / f"dict.{self.target}.txt").read_text(encoding="utf-8").splitlines()
        known = {line.split(" ")[0] for line in words}
        return lambda phrase: known.issuperset(self.pieces(phrase))

    def constraints(self, name: str, phrases: Sequence[Sequence[str]]) -> list[str]:
        """Flags that require these phrases of each line; name: of the file."""
        path = self.folder / f"{name}.tsv"
        path.write_text("".join("\t".join(each) + "\n" for each in phrases), encoding="utf-8")
        return ["--constraints-file", str(path), *self.bpe]

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


def read_lines(prefix: str | Path, language: str, limit: int | None = None) -> list[str]:
    """The first lines of PREFIX.language. Errors: BenchError."""
    try:
        # not splitlines(): it also cuts at rare separators inside a line, which would shift
        # one side against the other
        text = Path(f"{prefix}.{language}").read_text(encoding="utf-8")
        return text.removesuffix("\n").split("\n")[:limit]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise BenchError(f"cannot read {prefix}.{language}: {reason}") from error


def parallel_lines(
    prefix: str | Path, languages: Sequence[str], limit: int | None = None
) -> tuple[list[str], list[str]]:
    """The first lines of both sides. Errors: BenchError."""
    source, target = (read_lines(prefix, language, limit) for language in languages)
    if len(source) != len(target):
        pairs = zip(languages, (source, target), strict=True)
        raise BenchError(" and ".join(f"{prefix}.{x} has {len(side)} lines" for x, side in pairs))
    return source, target


def model_files(model: Path, source: str, target: str) -> list[Path]:
    """Checkpoint and dictionaries. Errors: BenchError where one is missing."""
    files = [model / name for name in ("checkpoint.pt", f"dict.{source}.txt", f"dict.{target}.txt")]
    for file in files:
        if not file.exists():
            raise BenchError(
                f"{file} is missing: --model wants a folder with checkpoint.pt, dict.*.txt and, "
                "for SentencePiece, spm.model"
            )
    return files


def prepare(
    folder: Path,
    model: Path,
    text: str,
    source: str,
    target: str,
    limit: int | None = None,
) -> Text:
    """Lay out the first `limit` lines of TEXT.source and TEXT.target in `folder` (made where it is
    not there), segmented by MODEL/spm.model if there is one."""
    files = model_files(model, source, target)
    folder.mkdir(parents=True, exist_ok=True)
    segment = segmenter(model / "spm.model")
    lines = dict(zip((source, target), parallel_lines(text, (source, target), limit), strict=True))
    for language, side in lines.items():
        shutil.copy(model / f"dict.{language}.txt", folder)
        (folder / f"test.{source}-{target}.{language}").write_text(
            "".join(segment(line) + "\n" for line in side), encoding="utf-8"
        )
    flags = [str(folder), "--path", str(files[0]), "--source-lang", source]
    flags += ["--target-lang", target, "--dataset-impl", "raw"]
    return Text(folder, flags, model, source, target, *lines.values())


def segmenter(model: Path) -> Callable[[str], str]:
    """A function from a line to its pieces, joined by spaces; without a SentencePiece model the
    text is taken as segmented."""
    if not model.exists():
        return str.strip
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return lambda line: " ".join(processor.encode(line, out_type=str))


# (phrases, words of each)
SETS = {"rand1": (1, 1), "rand2": (2, 1), "rand3": (3, 1), "rand4": (4, 1), "phr4": (1, 4)}
MORE_SETS = SETS | {"phr2": (1, 2), "phr3": (1, 3)}  # phr3: Figure 7; phr2: not in the paper


def extract(
    references: Sequence[str],
    name: str,
    seed: int,
    usable: Callable[[str], bool] = lambda phrase: True,
) -> list[list[str]]:
    """The phrases of each line, in the order in which the reference has them: constraints taken
    from references, as in Section 5 of Post and Vilar 2018. Each set draws on its own, among the
    words or phrases that `usable` takes; a short line gives what it has."""
    count, length = MORE_SETS[name]
    draw = random.Random(f"{name} {seed}")
    out = []
    for line in references:
        words = line.split()
        n = min(length, len(words))
        starts = [i for i in range(len(words) - n + 1) if n and usable(" ".join(words[i : i + n]))]
        chosen = sorted(draw.sample(starts, min(count, len(starts))))
        out.append([" ".join(words[i : i + n]) for i in chosen])
    return out


FLAG = re.compile(r"^    (--[\w-]+)((?: [A-Z]+)*)( \.\.\.| \[\.\.\.\])?  +(\S.*)\n", re.MULTILINE)
KINDS: dict[str, Any] = {"N": int, "X": float, **dict.fromkeys(("DIR", "FILE", "OUT"), Path)}


def command_line(
    doc: str | None, choices: Mapping[str, Collection[str]] | None = None, **defaults: Any
) -> argparse.ArgumentParser:
    """A parser whose help is the script's own text, and whose flags are its lines of this form:

        --beams N ...  of Figure 4 (5 10)

    N is an integer, X a number, DIR, FILE and OUT are paths, other words are text, and no word is a
    switch; ... are one or several, [...] none or several. In brackets at the end stands the
    default, else it is None; "required" stands there for a flag that must be given. choices: of
    some flags, of which "all" is the default of all. defaults: further values of the namespace."""
    parse = argparse.ArgumentParser(
        description=FLAG.sub("", doc or "").rstrip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for flag, words, many, text in FLAG.findall(doc or ""):
        how: dict[str, Any] = {"help": text.replace("%", "%%")}
        if not words:
            parse.add_argument(flag, action="store_true", **how)
            continue
        first, *others = words.split()
        how |= {"type": KINDS.get(first, str), "required": text.endswith("(required)")}
        known = (choices or {}).get(flag[2:].replace("-", "_"))
        how |= {"metavar": (first, *others) if others else first} if known is None else {}
        how |= {"choices": known and list(known)}
        if many or others:
            how["nargs"] = 1 + len(others) if others else "*" if "[" in many else "+"
        default = re.search(r"\(([^()]*)\)$", text)
        if default and default[1] not in ("none", "required"):
            values = list(known) if known and default[1] == "all" else default[1].split()
            with contextlib.suppress(ValueError):  # in words: the script has the value
                found = [how["type"](value) for value in values]
                how["default"] = found if "nargs" in how else how["type"](default[1])
        parse.add_argument(flag, **how)
    parse.set_defaults(**defaults)
    return parse


def text_arguments(parse: argparse.ArgumentParser, flag: str = "--text") -> None:
    """Model and text; without arguments the demo's."""
    add = parse.add_argument
    where = "folder with checkpoint.pt, dict.*.txt, spm.model (the demo model)"
    add("--model", type=Path, default=DEMO, help=where)
    default = str(ROOT / "data" / "demo" / "test")
    add(flag, default=default, help="prefix of the two text files (the demo's)")
    add("--src", default="de", help="source language and suffix (de)")
    add("--tgt", default="en", help="target language and suffix (en)")
    add("--limit", type=int, help="first sentences only (all)")


def run_bench(
    measure: Callable[[argparse.Namespace, Page, Path], int | None],
    doc: str | None,
    choices: Mapping[str, Collection[str]] | None = None,
    cases: Collection[str] = (),
    has_text: bool = True,
    **defaults: Any,
) -> None:
    """Run a bench with its flags, the page of its results and a folder that does not stay, on
    --threads threads, or one. doc, choices, defaults: those of `command_line`; cases: of the
    argument that names one; has_text: it has the flags of a model and a text."""

    def main() -> int | None:
        parse = command_line(doc, choices, **defaults)
        if cases:
            parse.add_argument("case", choices=cases)
        if has_text:
            text_arguments(parse)
        args = parse.parse_args()
        fix_threads(getattr(args, "threads", 1))
        with tempfile.TemporaryDirectory() as folder:
            return measure(args, Page(args.out), Path(folder))

    run_script(main)


def run_script(main: Callable[[], int | None]) -> None:
    """Run a script's main; a benchmark that cannot go on ends in one sentence."""
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"error: {error}")
