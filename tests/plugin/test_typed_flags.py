"""The flags are typed keywords: what editors complete is what the commands take, and a wrong type
is seen before anything runs."""

import runpy
import subprocess
import sys
from pathlib import Path

from sizes import drawn

import fairseq_ext

ROOT = Path(__file__).resolve().parents[2]
SNIPPET = """
from collections.abc import Sequence
from pathlib import Path
from fairseq_ext import Engine, Translation, Translator, UsageError

def right(lines: list[str]) -> list[list[Translation]]:
    translator = Translator(
        "model.pt", Path("data"), beam=5, stop="optimal", prune_bound=True, bpe="sentencepiece",
        lenpen=1, cpu=True,
    )
    translator.score(lines, lines)[0].positional_scores
    print(next(translator.translate_iter(iter(lines), beam=2))[0].text.upper())
    print(translator.translate(lines)[0][0].score + 1)
    for found in translator.translate(lines, errors="return"):
        print(str(found) if isinstance(found, UsageError) else found[0].text)
    with Engine("model.pt", Path("data"), beam=5, cpu_workers=2, stream_width=8) as engine:
        print(engine.submit("x", terms={"a": "b"}).result().text.upper())
    made = Translator.from_folder("data", beam=2)
    some: Sequence[str] = lines
    made.translate(some, constraints=[some, some], avoid=some)
    made.translate(tuple(lines), avoid=[["a"], []], prefixes=[None, "a"], constraints=[["a"], ()])
    made.translate_text("x", format="html", protect=[r"\\d+"])
    return made.translate(lines, progress=True, constraints=[["a", ["b", "c"]]], avoid=lines)

def wrong(translator: Translator, engine: Engine) -> None:
    Translator("model.pt", "data", beam="five")  # 1 beam
    Translator("model.pt", "data", stop="optimum")  # 2 stop
    Translator("model.pt", "data", beem=5)  # 3 beem
    Translator("model.pt", "data", int8=8)  # 4 int8
    Translator.from_folder("data", stream_width=0.5)  # 5 stream_width
    translator.translate(["x"])[0].text  # 6 text
    translator.translate(["x"], errors="return")[0][0].text  # 7 UsageError
    translator.translate(["x"], errors="skip")  # 8 overload
    translator.translate(["x"])[0][0].txt  # 9 txt
    next(translator.translate_iter(["x"])) + 1  # 10 __add__
    Engine("model.pt", "data", results_file="x")  # 11 results_file
    engine.submit(["x"])  # 12 submit
    translator.translate(["x"], constraints=["bandage"])  # 13 ListOf
    translator.translate("x")  # 14 overload
    translator.translate(["x"], avoid="bandage")  # 15 overload
    translator.translate(["x"], prefixes="bandage")  # 16 overload
    translator.translate_iter(["x"], constraints=["bandage"])  # 17 ListOf
    translator.translate_text("x", format="htlm")  # 18 format
    translator.translate_text("x", protect="bandage")  # 19 protect
    translator.score("x", ["x"])  # 20 score
    engine.submit("x", constraints="bandage")  # 21 constraints
    engine.submit("x", any_of=["bandage"])  # 22 ListOf
    engine.submit_text("x", format="htlm")  # 23 format
"""  # noqa: E501


def test_the_file_of_types_is_what_the_dataclasses_make():
    made = runpy.run_path(str(ROOT / "scripts" / "typed_flags.py"))["source"]()
    written = (ROOT / "fairseq_ext" / "plugin" / "typed_flags.py").read_text(encoding="utf-8")
    assert made == written, "run python scripts/typed_flags.py"


@drawn(0)  # long
def test_a_type_checker_takes_right_flags_and_refuses_wrong_ones(tmp_path):
    """In the package's folder, whose mypy cache is warm where mypy has run before the tests,
    as in scripts/test.sh."""
    (tmp_path / "snippet.py").write_text(SNIPPET)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", tmp_path / "snippet.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    found = [
        line for line in done.stdout.splitlines() if "snippet.py" in line and ": error:" in line
    ]
    planted = [
        (i, line.split("# ")[1].split()[1])
        for i, line in enumerate(SNIPPET.splitlines(), 1)
        if "# " in line
    ]
    assert [int(line.split(":")[1]) for line in found] == [i for i, _ in planted], (
        done.stdout + done.stderr
    )
    for line, (_, word) in zip(found, planted, strict=True):
        assert word in line


def test_the_package_says_that_it_is_typed():
    assert (Path(fairseq_ext.__file__).parent / "py.typed").is_file()


def test_the_version_is_written_once():
    """setup.py takes it from the package."""
    done = subprocess.run(
        [sys.executable, "setup.py", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip().splitlines()[-1] == fairseq_ext.__version__
