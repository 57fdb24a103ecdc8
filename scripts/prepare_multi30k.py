"""What scripts/prepare_multi30k.sh runs: raw text -> subwords -> fairseq-preprocess."""

import argparse
import gzip
import io
import shutil
import subprocess
import sys
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
LANGUAGES = ("de", "en", "fr", "cs")
# fairseq's name -> the dataset's
PARTS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}

Segmenter = Callable[[str], str]  # a line of text -> its subwords, separated by spaces


def fail(message: str) -> NoReturn:
    sys.exit(f"prepare_multi30k: {message}")


def say(message: str) -> None:
    print(f"prepare_multi30k: {message}", flush=True)


def download(folder: Path, languages: tuple[str, str]) -> None:
    """Fetch and unpack what is not there yet."""
    names = [f"{part}.{language}" for part in PARTS.values() for language in languages]
    missing = [name for name in names if not (folder / name).exists()]
    if not missing:
        return
    say("fetching the text of github.com/multi30k/dataset, for non-commercial research use")
    folder.mkdir(parents=True, exist_ok=True)
    for name in missing:
        unpacked = folder / f"{name}.new"
        try:
            with urllib.request.urlopen(f"{SOURCE}/{name}.gz", timeout=60) as packed:
                unpacked.write_bytes(gzip.decompress(packed.read()))
        except (OSError, EOFError, zlib.error) as error:
            fail(f"{name}.gz cannot be fetched ({error}); with a local copy, use --raw DIR.")
        unpacked.rename(folder / name)


def lines_of(path: Path) -> Iterator[str]:
    """Lines without their ends; only a newline ends one."""
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.rstrip("\r\n")


def check_parallel(raw: Path, languages: tuple[str, str]) -> None:
    """Every part must be there, in UTF-8, with as many lines in both languages."""
    for part in PARTS.values():
        counts = []
        for language in languages:
            path = raw / f"{part}.{language}"
            if not path.is_file():
                fail(f"{path} is missing.")
            try:
                counts.append(sum(1 for _ in lines_of(path)))
            except UnicodeDecodeError as error:
                fail(f"{path} is not UTF-8 text ({error}).")
        if counts[0] != counts[1]:
            fail(
                f"{raw / part}.{languages[0]} has {counts[0]} lines and .{languages[1]} has "
                f"{counts[1]}: they are not parallel."
            )


def train_sentencepiece(files: list[Path], size: int, out: Path) -> Path:
    """Learn a joint SentencePiece BPE model of `size` pieces."""
    import sentencepiece

    say(f"learning a joint SentencePiece model of {size} pieces")
    model = out / "spm.model"
    try:
        sentencepiece.SentencePieceTrainer.train(
            input=[str(file) for file in files],
            model_prefix=str(model.with_suffix("")),
            vocab_size=size,
            model_type="bpe",
            character_coverage=1.0,
            minloglevel=2,
        )
    except RuntimeError as error:
        fail(
            f"SentencePiece cannot learn {size} pieces from this text; change --vocab "
            f"({str(error).strip().splitlines()[-1]})."
        )
    return model


def sentencepiece_segmenter(model: Path, out: Path) -> Segmenter:
    import sentencepiece

    try:
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    except (OSError, RuntimeError) as error:
        fail(f"{model} is no SentencePiece model that can be read ({str(error).splitlines()[0]}).")
    if model.resolve() != (out / "spm.model").resolve():
        shutil.copy(model, out / "spm.model")
    return lambda line: " ".join(pieces.encode(line, out_type=str))


def subword_nmt_segmenter(files: list[Path], size: int, out: Path) -> Segmenter:
    """Learn at most `size` joint merges with subword-nmt, on words as the text writes them."""
    from subword_nmt.apply_bpe import BPE
    from subword_nmt.learn_bpe import learn_bpe

    say(f"learning {size} joint merges with subword-nmt")
    text = io.StringIO("".join(f"{line}\n" for file in files for line in lines_of(file)))
    codes = out / "bpe.codes"
    with codes.open("w", encoding="utf-8") as file:
        learn_bpe(text, file, size)
    with codes.open(encoding="utf-8") as file:
        return BPE(file).process_line


def preprocess(args: argparse.Namespace) -> None:
    """fairseq-preprocess on the segmented text."""
    say(f"binarising into {args.out / 'bin'}")
    command = [
        "fairseq-preprocess",
        "--source-lang",
        args.src,
        "--target-lang",
        args.tgt,
        "--destdir",
        str(args.out / "bin"),
    ]
    command += [argument for name in PARTS for argument in (f"--{name}pref", str(args.out / name))]
    command += ["--workers", str(args.workers)]
    if args.dict:
        command += [
            "--srcdict",
            str(args.dict / f"dict.{args.src}.txt"),
            "--tgtdict",
            str(args.dict / f"dict.{args.tgt}.txt"),
        ]
    else:
        command += ["--joined-dictionary"]
        for old in (args.out / "bin").glob("dict.*.txt"):
            old.unlink()  # fairseq-preprocess refuses to make a dictionary that is there
    log = args.out / "preprocess.log"
    with log.open("w", encoding="utf-8") as messages:
        if subprocess.run(command, stdout=messages, stderr=subprocess.STDOUT).returncode:
            fail(f"fairseq-preprocess failed; its messages are in {log}.")
    for line in log.read_text(encoding="utf-8").splitlines():
        if " sents, " in line:
            say(line.split("|")[-1].strip())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/prepare_multi30k.sh")
    parser.add_argument("--src", choices=LANGUAGES, default="de")
    parser.add_argument("--tgt", choices=LANGUAGES, default="en")
    parser.add_argument("--out", type=Path, help="default: runs/multi30k.SRC-TGT")
    parser.add_argument("--raw", type=Path, metavar="DIR")
    parser.add_argument("--bpe", choices=("sentencepiece", "subword-nmt"), default="sentencepiece")
    parser.add_argument("--vocab", type=int, default=8000, metavar="N")
    parser.add_argument("--spm", type=Path, metavar="MODEL")
    parser.add_argument("--dict", type=Path, metavar="DIR")
    parser.add_argument("--workers", type=int, default=1, metavar="N")
    args = parser.parse_args()
    if args.src == args.tgt:
        fail(f"--src and --tgt are both {args.src}.")
    if args.spm and args.bpe != "sentencepiece":
        fail("--spm names a SentencePiece model, so it cannot go with --bpe subword-nmt.")
    if args.spm and not args.spm.is_file():
        fail(f"--spm {args.spm} is missing.")
    for language in (args.src, args.tgt) if args.dict else ():
        if not (args.dict / f"dict.{language}.txt").is_file():
            fail(f"--dict {args.dict} has no dict.{language}.txt.")
    args.out = args.out or ROOT / "runs" / f"multi30k.{args.src}-{args.tgt}"
    return args


def main() -> None:
    args = parse()
    languages = (args.src, args.tgt)
    raw = args.raw or args.out / "raw"
    if not args.raw:
        download(raw, languages)
    check_parallel(raw, languages)
    args.out.mkdir(parents=True, exist_ok=True)
    training = [raw / f"train.{language}" for language in languages]
    if args.bpe == "sentencepiece":
        segment = sentencepiece_segmenter(
            args.spm or train_sentencepiece(training, args.vocab, args.out), args.out
        )
    else:
        segment = subword_nmt_segmenter(training, args.vocab, args.out)
    say(f"segmenting {', '.join(PARTS)} of {args.src}-{args.tgt}")
    for name, part in PARTS.items():
        for language in languages:
            with (args.out / f"{name}.{language}").open("w", encoding="utf-8") as segmented:
                segmented.writelines(
                    f"{segment(line)}\n" for line in lines_of(raw / f"{part}.{language}")
                )
    preprocess(args)
    remove = "--remove-bpe sentencepiece" if args.bpe == "sentencepiece" else "--remove-bpe"
    say(
        f"ready: fairseq-generate {args.out / 'bin'} --path CHECKPOINT --source-lang {args.src} "
        f"--target-lang {args.tgt} {remove}"
    )


if __name__ == "__main__":
    main()
