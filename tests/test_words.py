"""Plain words: names, docstrings, comments and pages use none of those in forbidden_words.txt.

Not read: strings, code and addresses in pages, and names that a file only uses. Tests and scripts
may have whole names such as `found`.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RULES = [
    line.split("\t")[0].split(" ", 1)
    for line in (ROOT / "tests/forbidden_words.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
WORDS, NAMES = ({text for kind, text in RULES if kind == each} for each in ("word", "name"))
PHRASES = re.compile(rf"\b(?:{'|'.join(text for kind, text in RULES if kind == 'phrase')})\b")
CODE = (".py", ".cpp", ".hpp", ".cu")
PLACES = sorted(
    [f"fairseq_ext/{path.name}" for path in (ROOT / "fairseq_ext").iterdir() if path.name[0] != "_"]
    + [f"fairseq_ext/{name}" for name in ("__init__.py", "__main__.py")]
    + [f"docs/{path.name}" for path in (ROOT / "docs").iterdir()]
    + ["scripts", "tests"]
)
# Names that are keys of --stats-file, which stay as they are.
KEYS = {"report.py": {"given"}, "optimal.py": {"open"}}


def python_texts(text):
    """Return the names that a file defines or assigns, those of them that are functions, classes,
    fields or constants, and its docstrings and comments."""
    names, bare, prose = [], [], []
    tree = ast.parse(text)
    for node in ast.walk(tree):
        is_read = isinstance(getattr(node, "ctx", None), ast.Load)
        found = [getattr(node, key, None) for key in ("name", "arg", "attr", "id")]
        names += [name for name in found if isinstance(name, str) and not is_read]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bare.append(node.name)
        if isinstance(node, ast.Attribute) and not is_read:
            bare.append(node.attr)
        if isinstance(node, (ast.Module, ast.ClassDef)):
            assigned = [part for part in node.body if isinstance(part, (ast.Assign, ast.AnnAssign))]
            bare += [
                name.id
                for part in assigned
                for target in (part.targets if isinstance(part, ast.Assign) else [part.target])
                for name in ast.walk(target)
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
            ]
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            prose.append(ast.get_docstring(node) or "")
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return names, bare, prose + [t.string for t in tokens if t.type == tokenize.COMMENT]


def cpp_texts(text):
    """Return the same of a C++ file: all names, those declared outside functions, its comments."""
    prose = re.findall(r"//[^\n]*|/\*.*?\*/", text, re.S)
    code = re.sub(
        r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|^\s*#(?:\\\n|[^\n])*', " ", text, flags=re.S | re.M
    )
    names, bare = re.findall(r"[A-Za-z_]\w*", code), []
    open_braces = []
    start = 0
    for mark in re.finditer("[{};]", code):
        declared, start = code[start : mark.start()], mark.end()
        if not {"body"} & set(open_braces):
            declared = re.sub(r"=[^,]*|\[[^]]*\]", " ", declared)
            kind = re.search(r"\b(struct|class|enum|namespace)\b", declared)
            function = re.search(r"\(\*(\w+)\)|(\w+)\s*\(", declared)
            parts = [declared] if kind else [function[0]] if function else declared.split(",")
            enumerators = declared.split(",") if open_braces[-1:] == ["enum"] else []
            bare += [
                word[-1]
                for part in [*parts, *enumerators]
                if (word := re.findall(r"\w+", part.split(":")[0]))
            ]
            opened = kind[1] if kind else "body"
        else:
            opened = "body"
        if mark[0] == "{":
            open_braces.append(opened)
        elif mark[0] == "}":
            open_braces.pop()
    return names, bare, prose


def page_text(text):
    """Return a page without its code and the addresses of its links."""
    return re.sub(r"```.*?```|`[^`]*`|(?<=\])\([^)]*\)", " ", text, flags=re.S)


def words_of(text):
    """Return the words of a text or a name, in lower case."""
    return set(re.findall("[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()))


def plain(text):
    """Return a text in lower case and on one line, without the marks of comments."""
    return re.sub(r"\s+(?:(?://|#) )?", " ", text.lower())


def problems(path):
    """Yield the forbidden words, names and phrases of a file, each with its place."""
    text = path.read_text(encoding="utf-8")
    is_ours = path.is_relative_to(ROOT / "fairseq_ext")
    if not (is_ours or words_of(text) & WORDS or PHRASES.search(plain(text))):
        return  # most tests and scripts
    if path.suffix == ".md":
        names, bare, prose = [], [], [page_text(text)]
    else:
        names, bare, prose = python_texts(text) if path.suffix == ".py" else cpp_texts(text)
    found = [(word, each) for each in [*names, *prose] for word in words_of(each) & WORDS]
    forbidden = NAMES - KEYS.get(path.name, set()) if is_ours else set()
    found += [(each, "a whole name") for each in bare if each.lower().strip("_") in forbidden]
    for each in prose:
        found += [(match[0], each) for match in PHRASES.finditer(plain(each))]
    for word, where in found:
        yield f"{path.relative_to(ROOT)}: {word} ({' '.join(where.split())[:80]})"


def in_place(place):
    """Return the problems of a file, or of all files of a folder."""
    paths = [ROOT / place] if (ROOT / place).is_file() else sorted((ROOT / place).rglob("*"))
    kinds = (".md",) if place.startswith("docs") else CODE
    return [each for path in paths if path.suffix in kinds for each in problems(path)]


@pytest.mark.parametrize("place", PLACES)
def test_names_and_sentences_use_plain_words(place):
    """The words of each folder."""
    found = in_place(place)
    assert not found, "tests/forbidden_words.txt says what to write instead:\n" + "\n".join(found)


def test_the_words_are_found():
    """The readers of Python and C++ find what they must, and nothing else."""
    names, bare, prose = python_texts('class A:\n    """B."""\n    kept: int = f.tell()  # c\n')
    assert (names, bare, prose) == (["A", "kept"], ["A", "kept"], ["", "B.", "# c"])
    code = "struct A { int left, *of; int at() { int seen; } };  // c\nenum B { FOUND };\n"
    names, bare, prose = cpp_texts(f"namespace {{\n{code}}}")
    assert {"A", "left", "of", "at", "B", "FOUND"} <= set(bare) and "seen" not in bare
    assert prose == ["// c"] and "seen" in names


# ---- docs/reliability.md

PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`((?:tests|scripts)/[\w/]+\.\w+)`", PAGE))


def test_every_test_that_the_page_names_is_there():
    assert len(NAMED) > 20 and [name for name in sorted(NAMED) if not (ROOT / name).is_file()] == []


def test_the_page_names_every_catalogue_of_attacks():
    attacks = (ROOT / "tests" / "attack").glob("test_*.py")
    assert {f"tests/attack/{path.name}" for path in attacks} <= NAMED
