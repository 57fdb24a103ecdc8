"""What scripts/prepare_multi30k.sh runs: raw text -> subwords -> fairseq-preprocess.

Its flags, which the header of the shell script explains:

    --src LANGUAGE    de, en, fr or cs (de)
    --tgt LANGUAGE    (en)
    --out DIR         runs/multi30k.SRC-TGT by default
    --raw DIR         local files; nothing is fetched then
    --vocab N         pieces (8000)
    --spm FILE        segment with this model
    --dict DIR        binarise with DIR/dict.LL.txt
    --workers N       of fairseq-preprocess (1)
"""

import gzip
import shutil
import subprocess
import sys
import urllib.request
import zlib
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "scripts" / "bench"))

from harness import BenchError  # noqa: E402
from text import command_line, parallel_lines  # noqa: E402

SOURCE = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
LANGUAGES = ("de", "en", "fr", "cs")
# fairseq's name -> the dataset's
PARTS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}


def fail(message: str) -> NoReturn:
    sys.exit(f"prepare_multi30k: {message}")


def say(message: str) -> None:
    print(f"prepare_multi30k: {message}", flush=True)


def download(folder: Path, languages: tuple[str, str]) -> None:
    """Fetch and unpack what is not there yet."""
    names = [f"{part}.{language}" for part in PARTS.values() for language in languages]
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
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


def main() -> None:
    import sentencepiece

    args = command_line(__doc__, {"src": LANGUAGES, "tgt": LANGUAGES}).parse_args()
    languages = args.src, args.tgt
    if args.src == args.tgt:
        fail(f"--src and --tgt are both {args.src}.")
    known = [args.dict / f"dict.{language}.txt" for language in languages if args.dict]
    for file in known:
        if not file.is_file():
            fail(f"--dict {args.dict} has no {file.name}.")
    out = args.out or ROOT / "runs" / f"multi30k.{args.src}-{args.tgt}"
    raw = args.raw or out / "raw"
    if not args.raw:
        download(raw, languages)
    try:
        sides = {name: parallel_lines(raw / part, languages) for name, part in PARTS.items()}
    except BenchError as error:
        fail(str(error))
    out.mkdir(parents=True, exist_ok=True)
    model = out / "spm.model"
    if args.spm is None:
        say(f"learning a joint SentencePiece model of {args.vocab} pieces")
        files = [str(raw / f"train.{language}") for language in languages]
        how = dict(model_type="bpe", character_coverage=1.0, minloglevel=2)
        prefix = str(model.with_suffix(""))
        try:
            sentencepiece.SentencePieceTrainer.train(
                input=files, model_prefix=prefix, vocab_size=args.vocab, **how
            )
        except RuntimeError as error:
            why = str(error).strip().splitlines()[-1]
            fail(f"SentencePiece cannot learn {args.vocab} pieces: change --vocab ({why}).")
    used = args.spm or model
    try:
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(used))
    except (OSError, RuntimeError) as error:
        fail(f"{used} is no SentencePiece model that can be read ({error}).")
    if used.resolve() != model.resolve():
        shutil.copy(used, model)
    say(f"segmenting {', '.join(PARTS)} of {args.src}-{args.tgt}")
    for name, texts in sides.items():
        for language, lines in zip(languages, texts, strict=True):
            cut = "".join(f"{' '.join(pieces.encode(line, out_type=str))}\n" for line in lines)
            (out / f"{name}.{language}").write_text(cut, encoding="utf-8")
    say(f"binarising into {out / 'bin'}")
    command = ["fairseq-preprocess", "-s", args.src, "-t", args.tgt, "--destdir", out / "bin"]
    command += [word for name in PARTS for word in (f"--{name}pref", out / name)]
    command += ["--workers", args.workers]
    if known:
        command += ["--srcdict", known[0], "--tgtdict", known[1]]
    else:
        command += ["--joined-dictionary"]
        for old in (out / "bin").glob("dict.*.txt"):
            old.unlink()  # fairseq-preprocess refuses to make a dictionary that is there
    log = out / "preprocess.log"
    with log.open("w", encoding="utf-8") as messages:
        if subprocess.run(list(map(str, command)), stdout=messages, stderr=messages).returncode:
            fail(f"fairseq-preprocess failed; its messages are in {log}.")
    say(
        f"ready: fairseq-generate {out / 'bin'} --path CHECKPOINT --source-lang {args.src} "
        f"--target-lang {args.tgt} --remove-bpe sentencepiece"
    )


if __name__ == "__main__":
    main()
