"""Downloads files with curl: says first what and how large, resumes what was begun,
checks size and SHA-256.

    python scripts/fetch.py --to DIR [--sha256 HASH] [--dry-run] URL ...

The hashes of what was fetched are kept in DIR/SHA256SUMS; a file that is there already is checked
against them, and not fetched again. A hash is only as good as its source: without --sha256 the
first fetch records what it got, and later fetches must give the same.
"""

import argparse
import hashlib
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import NoReturn
from urllib.parse import urlparse

SUMS = "SHA256SUMS"
CURL = ["curl", "--fail", "--location", "--connect-timeout", "30", "--retry", "3"]
CURL_ENDS = {
    5: "the proxy's name is not known",
    6: "no network, or the host's name is not known",
    7: "no connection to the host",
}
CURL_ENDS |= {
    22: "the server refuses the file or does not have it",
    28: "the server does not answer in time",
}


def fail(message: str) -> NoReturn:
    sys.exit(f"fetch: {message}")


def say(message: str) -> None:
    print(f"fetch: {message}", flush=True)


def readable(size: int | None) -> str:
    """A size in bytes for people."""
    return (
        "size unknown"
        if size is None
        else f"{size / 1e6:,.1f} MB"
        if size >= 1e5
        else f"{size / 1e3:,.1f} kB"
    )


def file_name(url: str) -> str:
    return PurePosixPath(urlparse(url).path).name


def curl(arguments: list[str], url: str, capture: bool = False) -> str:
    """Run curl on one URL; one sentence when it fails."""
    try:
        done = subprocess.run(
            [*CURL, *arguments, url],
            stdout=subprocess.PIPE if capture else None,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        fail("curl is needed and is not installed.")
    if done.returncode:
        reason = CURL_ENDS.get(
            done.returncode, f"curl ended with {done.returncode}, see `man curl`"
        )
        fail(
            f"{url} cannot be fetched: {reason}; run this again later (what has arrived is kept), "
            "or fetch it by other means."
        )
    return done.stdout or ""


def size_of(url: str) -> int | None:
    """What the header says of the size; None when it says nothing."""
    lengths = re.findall(
        r"^content-length:\s*(\d+)",
        curl(["--silent", "--head"], url, capture=True),
        flags=re.IGNORECASE | re.MULTILINE,
    )
    return int(lengths[-1]) if lengths else None


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def read_sums(folder: Path) -> dict[str, str]:
    """File name -> hash, in the format of sha256sum."""
    path = folder / SUMS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {
        name: value for value, name in (line.split(maxsplit=1) for line in lines if line.strip())
    }


def record(folder: Path, name: str, value: str) -> None:
    sums = {**read_sums(folder), name: value}
    (folder / SUMS).write_text(
        "".join(f"{value}  {name}\n" for name, value in sorted(sums.items())), encoding="utf-8"
    )


def check(path: Path, expected: str | None, source: str) -> None:
    """Compare a file with the hash that is expected of it; record it where none is."""
    value = sha256(path)
    if expected and value != expected.lower():
        fail(
            f"{path} has SHA-256 {value}, not {expected} as {source}: delete it and run this "
            "again, or ask where the file comes from."
        )
    record(path.parent, path.name, value)
    say(
        f"{path}: SHA-256 {value} "
        + (f"as {source}" if expected else f"recorded in {SUMS} (nothing to compare it with yet)")
    )


def fetch(url: str, size: int | None, folder: Path, expected: str | None, source: str) -> None:
    """Download into NAME.part, from where it stopped if it is there, and name it
    only when it is whole."""
    path, part = folder / file_name(url), folder / f"{file_name(url)}.part"
    have = part.stat().st_size if part.exists() else 0
    if size is not None and have > size:
        part.unlink()
        have = 0
    if size is None or have < size:
        say(
            f"{'resuming' if have else 'fetching'} {url}"
            + (f" at {readable(have)}" if have else "")
        )
        meter = ["--progress-bar"] if sys.stderr.isatty() else ["--silent", "--show-error"]
        curl([*meter, "--continue-at", "-", "--output", str(part)], url)
    if not part.exists():
        fail(f"{url} is empty.")
    if size is not None and part.stat().st_size != size:
        fail(
            f"{part} has {part.stat().st_size} bytes, but the server announced {size}: delete it "
            "and run this again."
        )
    part.rename(path)
    check(path, expected, source)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("urls", nargs="+", metavar="URL")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--sha256", metavar="HASH", help="the hash that the one URL's file must have"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be fetched, and stop"
    )
    args = parser.parse_args()
    if args.sha256 and len(args.urls) > 1:
        fail("--sha256 speaks of one file, and there are several URLs.")
    sums = read_sums(args.to)
    expected = {url: args.sha256 or sums.get(file_name(url)) for url in args.urls}
    source = "--sha256 says" if args.sha256 else f"{args.to / SUMS} says"

    for url in args.urls:
        if (args.to / file_name(url)).exists():
            check(args.to / file_name(url), expected[url], source)
    missing = [url for url in args.urls if not (args.to / file_name(url)).exists()]
    sizes = {url: size_of(url) for url in missing}
    for url, size in sizes.items():
        say(f"to fetch: {url} ({readable(size)})")
    if len(sizes) > 1 and None not in sizes.values():
        say(f"together {readable(sum(size or 0 for size in sizes.values()))}, to {args.to}")
    if args.dry_run:
        return
    args.to.mkdir(parents=True, exist_ok=True)
    for url, size in sizes.items():
        fetch(url, size, args.to, expected[url], source)


if __name__ == "__main__":
    main()
