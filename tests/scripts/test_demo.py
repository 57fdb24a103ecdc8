"""scripts/demo.py from its first line to its last on a few sentences, and the demo's text."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import warm

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "data" / "demo"
sys.path.insert(0, str(ROOT / "scripts"))

import demo  # noqa: E402


def lines(name: str) -> list[str]:
    return (DATA / name).read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def printed() -> str:
    """What the demo prints with two sentences of each kind in its table."""
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", "demo.py --limit 2 --rounds 1 --threads 1".split())
        patch.setattr(
            demo,
            "print",
            lambda *words, end="\n", flush=False: printed.append(" ".join(words) + end),
            raising=False,
        )
        demo.main()
    return "".join(printed)


def test_each_example_shows_what_was_requested(printed: str) -> None:
    """Stock next to the same sentence with a required phrase, a term base and a banned phrase:
    held, and not by chance."""
    shown = demo.examples()[: demo.BEST]
    assert len(shown) == 6
    for example in shown:
        part = printed[printed.index(example.source) :].splitlines()
        found = {line[:16].strip(): line[17:].partition("   [")[0] for line in part[1:5]}
        assert list(found) == ["stock fairseq", "required", "term base", "banned"]

        def holds(way: str, phrase: str, found: dict[str, str] = found) -> bool:
            return re.search(rf"\b{re.escape(phrase)}\b", found[way]) is not None

        assert holds("required", example.required)
        assert not holds("stock fairseq", example.required)
        assert holds("stock fairseq", example.banned) and not holds("banned", example.banned)
        targets = [t for line in lines(f"terms.{example.kind}.tsv") for t in line.split("\t")[1:]]
        new = [t for each in targets for t in each.split("|") if not holds("stock fairseq", t)]
        assert any(holds("term base", target) for target in new)


def test_the_messages_of_a_program_have_the_terms(printed: str) -> None:
    """Each line that the term base changes has another of its forms than before."""
    rows = re.findall(r"  without {8}(.*)\n  term base {6}(.*)\n", printed)
    forms = [f for line in lines("terms.handbook.tsv") for f in line.split("\t")[1].split("|")]
    reported = re.search(r"terms\.handbook\.tsv changes (\d+) of 12 messages", printed)
    assert reported is not None and int(reported[1]) == len(rows) > 3
    for old, new in rows:
        assert any(f in new and f not in old for f in forms)


def test_the_table_has_every_method(printed: str) -> None:
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in printed.splitlines()
        if line.startswith("| ")
    ]
    expected = [demo.STOCK, *demo.METHODS]
    expected.insert(-1, demo.GREEDY)
    assert [row[0] for row in rows[1:]] == expected and len(demo.METHODS) == 8
    assert {row[0] for row in rows if row[3] == "6 of 6"} >= {
        demo.STOCK,
        "ours, no flag",
        demo.GREEDY,
        "window, beam 1",
    }
    assert all(float(row[4]) > 0 for row in rows[1:])
    bleu = {row[0]: float(row[1]) for row in rows[1:]}
    assert bleu["ours, no flag"] == bleu[demo.STOCK]


def test_the_command_to_try_next_does_as_it_says(printed: str, tmp_path: Path) -> None:
    first, second = printed[printed.index("Try next") :].split("\n\n")[1:3]
    assert second.startswith("  $CLONE/scripts/demo.sh --serve ")
    settings = (
        f"PATH={warm.commands()}:{Path(sys.executable).parent}:$PATH CLONE={ROOT} "
        f"DEMO={ROOT}/checkpoints/demo OMP_NUM_THREADS=1\n"
    )
    done = subprocess.run(
        ["bash", "-euc", f"export {settings}{first}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"^D-0\t.*\tThe quotation still needs to be checked\.$", done.stdout, flags=re.MULTILINE
    )


def test_the_text_is_what_its_readme_says() -> None:
    """Both sides, kinds and documents of each line; each term base has 40 terms or more."""
    german, english, kinds, documents = (
        lines(f"test.{name}") for name in ("de", "en", "kind", "document")
    )
    assert len(german) == len(english) == len(kinds) == len(documents) == len({*german}) == 217
    assert all(5 <= len(line.split()) <= 35 for line in german)
    for kind in ("handbook", "letters"):
        terms = [line.split("\t")[0] for line in lines(f"terms.{kind}.tsv")]
        assert len(terms) == len({*terms}) >= 40
    sources = [example.source for example in demo.examples()]
    assert len(sources) == len({*sources} & {*german})
