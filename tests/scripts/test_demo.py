"""scripts/demo.py from its first line to its last on a few sentences, its commands in forked
children of this process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from fairseq_cli.generate import cli_main as generate_main
from fairseq_cli.interactive import cli_main as interactive_main
from fairseq_cli.preprocess import cli_main as preprocess_main
from forked import forked, succeeded

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import demo  # noqa: E402
import demo_examples  # noqa: E402

COMMANDS = {
    "fairseq-generate": generate_main,
    "fairseq-interactive": interactive_main,
    "fairseq-preprocess": preprocess_main,
}


def run_forked(command: list[str], log: Path) -> str:
    """What `demo.command_output` does, without a start of Python."""
    done = succeeded(forked(COMMANDS[command[0]], *command))
    log.write_text(done.stderr, encoding="utf-8")
    return done.stdout


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the demo prints for eight sentences."""
    patch = pytest.MonkeyPatch()
    lines: list[str] = []
    with patch.context() as patch:
        patch.setattr(demo, "command_output", run_forked)
        patch.setattr(
            sys, "argv", ["demo.py", "--limit", "8", "--work", str(tmp_path_factory.mktemp("demo"))]
        )
        for module in (demo, demo_examples):
            patch.setattr(
                module,
                "print",
                lambda *words, flush=False: lines.append(" ".join(words)),
                raising=False,
            )
        demo.main()
    return "\n".join(lines)


def test_each_example_shows_what_was_asked(printed: str) -> None:
    """Stock beside the same sentence with a required word, a glossary and a banned word:
    held, and not by chance."""
    for example in demo_examples.EXAMPLES:
        part = printed[printed.index(example.source) :].splitlines()
        said = {line[:17].strip(): line[17:].partition("   [")[0] for line in part[1:5]}
        assert list(said) == ["stock fairseq", "required word", "glossary", "banned word"]
        term = example.glossary.partition("\t")[2]

        def holds(way: str, words: str, said: dict[str, str] = said) -> bool:
            return re.search(rf"\b({words})\b", said[way]) is not None

        assert holds("required word", example.required) and not holds(
            "stock fairseq", example.required
        )
        assert holds("glossary", term) and not holds("stock fairseq", term)
        assert holds("stock fairseq", example.banned) and not holds("banned word", example.banned)


def test_what_becomes_of_a_glossary_on_text_that_nobody_chose_is_counted(printed: str) -> None:
    """As many terms as the sentences hold, each of one fate, beside the number of sentences."""
    terms = [
        line.split("\t")[0]
        for line in demo_examples.GLOSSARY.read_text(encoding="utf-8").splitlines()
    ]
    lines = (ROOT / "data" / "demo" / "test.de").read_text(encoding="utf-8").splitlines()[:8]
    held = [
        sum(re.search(rf"(?<!\w){re.escape(term)}(?!\w)", line) is not None for term in terms)
        for line in lines
    ]
    told = re.search(
        r"on all 8: (\d+) glossary terms? in (\d+) sentences?: (\d+) in place, (\d+) "
        r"elsewhere, (\d+) unmet",
        printed,
    )
    assert told is not None
    count, sentences, *fates = map(int, told.groups())
    assert (count, sentences) == (sum(held), sum(map(bool, held))) and sum(fates) == count > 0


def test_the_table_has_every_strategy_with_the_beam_that_it_used(printed: str) -> None:
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in printed.splitlines()
        if line.startswith("| ")
    ]
    assert [row[0] for row in cells[1:]] == list(demo.STRATEGIES)
    greedy = [row[0] for row in cells[1:] if "--beam" in demo.STRATEGIES[row[0]]]
    assert greedy == [demo.GREEDY, "greedy again (window)"]
    assert [row[1] for row in cells[1:]] == ["1" if row[0] in greedy else "5" for row in cells[1:]]
    bleu = {row[0]: row[2] for row in cells[1:]}
    same_output = (
        "ours (defaults)",
        "ours (fairseq's own modules)",
        "streaming",
        "screened softmax",
    )
    assert {bleu[name] for name in same_output} == {bleu[demo.STOCK]} and bleu[
        "greedy again (window)"
    ] == bleu[demo.GREEDY]


def test_a_strategy_that_loses_on_this_model_has_a_note(printed: str) -> None:
    assert "  LSH softmax: loses here" in printed and set(demo.NOTES) <= set(demo.STRATEGIES)


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
        r"^D-0\t.*\tThe bandage is checked tomorrow\.$", done.stdout, flags=re.MULTILINE
    )
