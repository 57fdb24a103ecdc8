"""Which errors do the tests notice? Plants errors in source files, one at a time, and runs tests.

    python scripts/mutants.py --layers --out before.jsonl       # 30 errors: five of each layer
    python scripts/mutants.py --repeat before.jsonl --out after.jsonl
    python scripts/mutants.py fairseq_ext/kernels/topk.hpp --tests tests/kernels/test_kernels.py
        --kinds comparison sign number --count 10 --limit 120 --out kernels.jsonl

--repeat plants the errors of an earlier run, with the tests of this state of the project, and ends
with status 1 if one that was noticed is not noticed any more. Errors are drawn by --seed, in
Python, C++ and CUDA. Each is planted in a copy of the project, never here. Its tests run until one
fails, those first that mention the file's name most often; --rest runs all others after them. One
JSON line an error says which test failed (it passes without the error), null if none did. An error
that does not compile is replaced by the next. What --out has is not run again.
"""

import argparse
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYERS = ("search", "plugin", "text", "serve+engine", "corpus+core", "model+kernels")
NOT_CODE = re.compile(  # in C++: comments, strings, the preprocessor's lines
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<!\d)\'(?:\\.|[^\'\\])+\'|^[ \t]*#(?:\\\n|[^\n])*',
    re.S | re.M,
)
TOKENS = {"<": "<= >", "<=": "< >=", ">": ">= <", ">=": "> <=", "==": "!=", "!=": "=="}
TOKENS |= {"+": "-", "-": "+", "and": "or", "or": "and", "&&": "||", "||": "&&"}
WHOLE = {"condition": ("not ({})", "(!{})"), "statement": ("pass", ";")}  # in Python, in C++
KINDS = {  # what is changed; statements and conditions on one line, as the formatters write them
    "comparison": r" (?P<part>[<>]=?|[=!]=) ",
    "sign": r" (?P<part>[+-]) ",
    "connective": r" (?P<part>and|or|&&|\|\|) ",
    "number": r"(?<![\w.])(?P<part>\d+(?:\.\d+)?)(?![\w.])",
    "condition": r"\b(?:if|while) (?P<part>\(.+?\)(?= \{$| [^()]*;$)|[^(].*?(?=:$))",
    "statement": r"^ +(?P<part>(?:return |raise |\S+ [-+*/|&]?= |[\w.:>-]+\().*[^:,([{\n])$",
}


def errors_in(file: str, kinds: list[str], chance: random.Random) -> Iterator[dict]:
    """Yield one error for each place of a file."""
    text, is_python = (ROOT / file).read_text("utf-8"), file.endswith(".py")
    spans = [part.span() for part in ([] if is_python else NOT_CODE.finditer(text))]
    if is_python:
        starts = [0, *(end.end() for end in re.finditer("\n", text))]
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT):
                spans.append([starts[row - 1] + at for row, at in (token.start, token.end)])
    code = text
    for a, b in spans:
        code = code[:a] + re.sub(r"[^\n]", " ", code[a:b]) + code[b:]
    for kind in kinds:
        for part in re.finditer(KINDS[kind], code, re.M):
            a, b = part.span("part")
            before = text[a:b]
            if kind in WHOLE:
                after = WHOLE[kind][not is_python].format(before)
            elif kind == "number":
                after = re.sub(r"^\d+", lambda n: str(int(n[0]) + 1), before)
            else:
                after = chance.choice(TOKENS[before].split())
            place = {"line": text.count("\n", 0, a) + 1, "column": a - text.rfind("\n", 0, a) - 1}
            yield {"file": file, **place, "kind": kind, "before": before, "after": after}


class Copy:
    """A copy of the project in which errors are planted. limit: seconds of each run."""

    def __init__(self, folder: Path, limit: int):
        self.root, self.limit = folder / "project", limit
        self.passing: set[str] = set()  # tests that pass without an error
        self.environment = {**os.environ, "PYTHONPATH": str(self.root)}
        self.environment["XDG_CACHE_HOME"] = str(folder)  # for compiled libraries
        ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info")
        shutil.copytree(ROOT, self.root, symlinks=True, ignore=ignored)

    def run(self, *words: str) -> tuple[int, str]:
        """Run Python; return its status (124: stopped at the limit) and what it printed."""
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            start = ["timeout", "-k", "5", str(self.limit), sys.executable]
            how = {"cwd": self.root, "env": self.environment, "stderr": subprocess.STDOUT}
            done = subprocess.run([*start, *words], stdout=output, check=False, **how)
            output.seek(0)
            return done.returncode, output.read()

    def failing(self, *tests: str) -> str | None:
        """Return the first test that fails, or how the run ended; None if all pass."""
        status, output = self.run("-m", "pytest", "-x", "-q", "--tb=no", "-rfE", *tests)
        if status == 5:
            raise SystemExit(f"error: there is no test in {' '.join(tests)}")
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.M)
        other = f"not finished after {self.limit} s" if status == 124 else f"status {status}"
        return None if status == 0 else failed[1] if failed else other

    def try_tests(self, error: dict, rest: bool) -> dict:
        """Return the error's record with `killed_by`, or with why it is `invalid`."""
        file = self.root / error["file"]
        text = file.read_text("utf-8")
        start = sum(map(len, text.splitlines(True)[: error["line"] - 1])) + error["column"]
        if not text.startswith(error["before"], start):
            return {**error, "invalid": "its place has changed"}
        end = start + len(error["before"])
        compiles = {
            ".py": ["-m", "py_compile", str(file)],
            ".cu": ["-V"],
        }  # tests compile the latter
        try:
            file.write_text(text[:start] + error["after"] + text[end:], "utf-8")
            if self.run(*compiles.get(file.suffix, ["-m", "fairseq_ext.kernels"]))[0] != 0:
                return {**error, "invalid": "it does not compile"}
            failed = self.failing(*ranked(error["tests"], error["file"]))
            if failed is None and rest:
                failed = self.failing("tests", *(f"--ignore={name}" for name in error["tests"]))
        finally:
            file.write_text(text, "utf-8")
        if failed and "::" in failed and failed not in self.passing:
            if self.failing(failed):
                raise SystemExit(f"error: {failed} fails without an error planted")
            self.passing.add(failed)
        return {**error, "killed_by": failed}


def ranked(tests: list[str], file: str) -> list[str]:
    """Return the files of these tests, those first that mention the source file most often."""
    name = Path(file).parent.name if Path(file).stem == "__init__" else Path(file).stem
    files = [path for each in tests for path in sorted((ROOT / each).rglob("test_*.py"))]
    word = re.compile(rf"(?<![a-z]){re.escape(name)}(?![a-z])")
    files.sort(key=lambda path: -len(word.findall(path.read_text("utf-8"))))
    return [str(path.relative_to(ROOT)) for path in files] or tests


def drawn(args: argparse.Namespace) -> Iterator[list[dict]]:
    """Yield the errors of each layer or file, in the order in which they are tried."""
    for name in LAYERS if args.layers else args.files:
        files, tests = [name], args.tests
        if args.layers:
            folders = [ROOT / "fairseq_ext" / part for part in name.split("+")]
            paths = sorted(path for each in folders for path in each.rglob("*.[pch]*[yp]"))
            files = [str(path.relative_to(ROOT)) for path in paths]
            tests = [f"tests/{part}" for part in name.split("+")]
        chance = random.Random(f"{args.seed} {name}")
        errors = [error for file in files for error in errors_in(file, args.kinds, chance)]
        yield [{**error, "tests": tests} for error in chance.sample(errors, len(errors))]


def key(error: dict) -> str:
    """Return what makes two errors the same."""
    return "{file}:{line}:{column}: {before} -> {after}".format(**error)


def main() -> int:
    """Plant errors and run tests."""
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parse.add_argument("files", nargs="*", help="sources, from the project's folder")
    parse.add_argument("--tests", nargs="+", default=["tests"], help="files or folders of tests")
    parse.add_argument("--layers", action="store_true", help="draw from each layer, with its tests")
    parse.add_argument("--repeat", type=Path, metavar="FILE", help="plant the errors of this file")
    parse.add_argument("--out", type=Path, required=True, help="results, a JSON line an error")
    parse.add_argument("--count", type=int, default=5, help="errors of each file or layer")
    parse.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    parse.add_argument("--rest", action="store_true", help="run all other tests after its own")
    parse.add_argument("--limit", type=int, default=1200, help="seconds of each run of tests")
    parse.add_argument("--seed", default="1")
    args = parse.parse_args()
    if args.repeat and not args.repeat.exists():
        parse.error(f"--repeat {args.repeat}: no such file")
    files = [path for path in (args.repeat, args.out) if path and path.exists()]
    records = {path: map(json.loads, path.read_text("utf-8").splitlines()) for path in files}
    before, done = ({key(r): r for r in records.get(p, ())} for p in (args.repeat, args.out))
    plan = [[{k: v for k, v in each.items() if k != "killed_by"}] for each in before.values()]
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder), args.limit)
        for errors in plan or drawn(args):
            valid = 0
            while errors and valid < args.count:
                error = errors.pop(0)
                if key(error) not in done:
                    done[key(error)] = copy.try_tests(error, args.rest)
                    with args.out.open("a", encoding="utf-8") as out:
                        out.write(json.dumps(done[key(error)]) + "\n")
                valid += "killed_by" in done[key(error)]
    survived = [name for name, each in done.items() if each.get("killed_by", "") is None]
    worse = [name for name in survived if before.get(name, {}).get("killed_by")]
    for name in survived:
        print("survived, unlike before:" if name in worse else "survived:", name)
    print(f"{len(done)} errors, {len(survived)} not noticed, {len(worse)} of them noticed before")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
