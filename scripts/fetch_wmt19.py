"""What scripts/fetch_wmt19.sh runs: the archive of one language pair, its test set, and the
command that translates it."""

import argparse
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
# as in fairseq's TransformerModel.hub_models()
SOURCE = "https://dl.fbaipublicfiles.com/fairseq/models"
PAIRS = {"de-en": "joined-dict.", "en-de": "joined-dict.", "ru-en": "", "en-ru": ""}


def fail(message: str) -> NoReturn:
    sys.exit(f"fetch_wmt19: {message}")


def say(message: str) -> None:
    print(f"fetch_wmt19: {message}", flush=True)


def unpack(archive: Path, folder: Path) -> None:
    """The regular files of an archive, into one flat folder: whatever paths it claims,
    nothing lands elsewhere."""
    say(f"unpacking {archive} into {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive) as packed:
            for member in packed:
                content = packed.extractfile(member) if member.isfile() else None
                if content is None:
                    continue
                path = folder / PurePosixPath(member.name).name
                if path.exists() and path.stat().st_size == member.size:
                    continue
                new = path.with_name(f"{path.name}.new")
                with new.open("wb") as file:
                    while block := content.read(1 << 20):
                        file.write(block)
                new.rename(path)
    except (tarfile.TarError, EOFError, OSError) as error:
        fail(
            f"{archive} is not an archive that can be unpacked ({error}): delete it and "
            "run this again."
        )


def convert_codes(folder: Path) -> Path | None:
    """fastBPE's codes ("a b</w> count") as subword-nmt's ("a b</w>" under a version line),
    which needs no compiler."""
    codes, converted = folder / "bpecodes", folder / "bpecodes.subword_nmt"
    if not codes.exists():
        return None
    pairs = [
        line.split(" ") for line in codes.read_text(encoding="utf-8").split("\n") if line.strip()
    ]
    converted.write_text(
        "#version: 0.2\n" + "".join(f"{pair[0]} {pair[1]}\n" for pair in pairs), encoding="utf-8"
    )
    return converted


def test_set(name: str, pair: str, out: Path) -> Path:
    """Source and reference through sacrebleu, which downloads them once and checks their hash."""
    source = out / f"{name}.{pair}.src"
    for side, path in (("src", source), ("ref", source.with_suffix(".ref"))):
        if path.exists():
            continue
        say(f"test set {name} {pair} ({side}) through sacrebleu: some MB, the first time")
        done = subprocess.run(
            ["sacrebleu", "-t", name, "-l", pair, "--echo", side],
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
        if done.returncode or not done.stdout:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            fail(
                f"sacrebleu does not give test set {name} for {pair}: {reason} (offline? run this "
                "again later; the model is kept)."
            )
        path.write_text(done.stdout, encoding="utf-8")
    return source


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/fetch_wmt19.sh")
    parser.add_argument("--pair", choices=PAIRS, default="de-en")
    parser.add_argument(
        "--single", action="store_true", help="one model instead of the ensemble of four"
    )
    parser.add_argument("--test", default="wmt19", metavar="SET")
    parser.add_argument("--out", type=Path, default=ROOT / "checkpoints" / "wmt19", metavar="DIR")
    parser.add_argument("--sha256", metavar="HASH")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    if args.sha256 and not re.fullmatch(r"[0-9a-fA-F]{64}", args.sha256):
        fail("--sha256 takes 64 hexadecimal digits.")
    return args


def main() -> None:
    args = parse()
    kind = "single_model" if args.single else "ensemble"
    name = f"wmt19.{args.pair}.{PAIRS[args.pair]}{kind}.tar.gz"
    fetch = [
        sys.executable,
        str(ROOT / "scripts" / "fetch.py"),
        "--to",
        str(args.out),
        f"{SOURCE}/{name}",
    ]
    fetch += ["--sha256", args.sha256] if args.sha256 else []
    fetch += ["--dry-run"] if args.dry_run else []
    if subprocess.run(fetch).returncode:
        fail("the model was not fetched (see above).")
    if args.dry_run:
        return
    folder = args.out / f"{args.pair}.{kind}"
    unpack(args.out / name, folder)
    models = sorted(folder.glob("*.pt"))
    if not models:
        fail(f"{args.out / name} holds no checkpoint (*.pt).")
    codes = convert_codes(folder)
    source = test_set(args.test, args.pair, args.out)
    src, tgt = args.pair.split("-")
    paths = os.pathsep.join(map(str, models))
    say("ready; to translate the test set (the Moses tokenizer needs: pip install sacremoses):")
    subwords = (
        f"--tokenizer moses --bpe subword_nmt --bpe-codes {codes}"
        if codes
        else "# no bpecodes in the archive: see its own README"
    )
    print(
        f"fairseq-interactive {folder} --path {paths} --source-lang {src} --target-lang {tgt} \\\n"
        f"  --beam 5 --buffer-size 1000 --max-tokens 4000 --input {source} {subwords} "
        f">{args.out / 'hypotheses.out'}\n"
        f"grep ^D- {args.out / 'hypotheses.out'} | cut -f3 | sacrebleu -t {args.test} "
        f"-l {args.pair}"
    )


if __name__ == "__main__":
    main()
