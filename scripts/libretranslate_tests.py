"""Does the server pass LibreTranslate's own tests of its API, as they are?

    python scripts/libretranslate_tests.py [--wheel libretranslate-1.9.6-py3-none-any.whl]
        [pytest's arguments]

They come with its package, which pip fetches where no wheel is named; nothing of it is installed
or run but these tests. Instead of its `client`, which calls a Flask application in this process,
they get one that calls `python -m fairseq_ext.serve` over HTTP. They want a pair en-es: that is the
demo model under another name, since they do not look at translations. The exit code is pytest's.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = "1.9.6"
DEMO = Path(__file__).parents[1] / "checkpoints" / "demo"
TESTS = "libretranslate/tests/test_api/"
CONFTEST = """
import httpx
import pytest


class Answer:
    def __init__(self, found):
        self.status_code, self.data = found.status_code, found.content
        self.json = found.json() if "json" in found.headers.get("content-type", "") else None


class Client:
    def get(self, path):
        return Answer(httpx.get("{url}" + path, timeout=120))

    def post(self, path, **body):
        return Answer(httpx.post("{url}" + path, timeout=120, **body))


@pytest.fixture
def client():
    return Client()
"""


def wheel(folder: Path) -> Path:
    """The package, fetched by pip."""
    name = f"libretranslate=={VERSION}"
    flags = "-m pip download --quiet --no-deps --dest".split()
    subprocess.run([sys.executable, *flags, str(folder), name], check=True)
    return next(folder.glob("libretranslate-*.whl"))


def model(folder: Path) -> None:
    """A model of the pair en-es."""
    folder.mkdir(parents=True)
    names = {
        "checkpoint.pt": "checkpoint.pt",
        "spm.model": "spm.model",
        "dict.de.txt": "dict.en.txt",
        "dict.en.txt": "dict.es.txt",
    }
    for ours, name in names.items():
        (folder / name).symlink_to(DEMO / ours)


def main() -> int:
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parse.add_argument("--wheel", type=Path, help="the package (default: pip fetches it)")
    args, others = parse.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        model(work / "models" / "en-es")
        with zipfile.ZipFile(args.wheel or wheel(work)) as package:
            for each in package.namelist():
                if each.startswith(TESTS + "test_"):
                    (work / Path(each).name).write_bytes(package.read(each))
        flags = "-m fairseq_ext.serve --cpu --beam 1 --port 0 --models".split()
        command = [sys.executable, *flags, str(work / "models")]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            line = next(line for line in server.stderr if line.startswith(("listening", "error")))
            url = re.search(r"http://[^;\s]+", line)
            if url is None:
                print(line, end="", file=sys.stderr)
                return 1
            (work / "conftest.py").write_text(CONFTEST.replace("{url}", url[0]))
            return subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *others, name],
                cwd=name,
            ).returncode
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    sys.exit(main())
