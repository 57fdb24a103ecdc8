"""The documents against the code: generated parts, links, flags, and every block
on the demo model."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from sizes import drawn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from documents import blocks, notebook, pivots, prose, tables, verdicts  # noqa: E402

import docs  # noqa: E402

PAGES = [page for page in docs.pages() if any(block.runs for block in blocks.blocks_of(page))]
FIRST = ("README", "quickstart", "constraints", "glossaries")  # whose blocks always run
CASES = [page if page.stem in FIRST else pytest.param(page, marks=drawn(2)) for page in PAGES]


@pytest.mark.parametrize("page", docs.pages(), ids=lambda page: page.stem)
def test_generated_parts_and_links_are_up_to_date(page: Path) -> None:
    assert docs.check(page, quick=True) == []


@pytest.mark.parametrize("page", CASES, ids=lambda page: page.stem)
def test_blocks_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    # a strategy is imported before flags are made of all
    commands = warm.commands() if page.stem != "strategy" else blocks.COMMANDS
    assert blocks.check_page(page, ROOT, tmp_path, commands=commands) == []


def test_every_flag_is_named_on_a_page_of_its_subject() -> None:
    from fairseq_ext.plugin.tasks import Flags

    own = {page.name: page.read_text() for page in docs.pages() if page.name != "flags.md"}
    flags = [
        "--" + field.name.replace("_", "-")
        for field in dataclasses.fields(Flags)
        if field.name != "_name"
    ]
    missing = [
        flag
        for flag in flags
        if not any(f"`{flag}`" in text or f"{flag} " in text for text in own.values())
    ]
    assert missing == []


def test_every_key_of_the_statistics_is_explained() -> None:
    from fairseq_ext.core.stats import Section, Stats
    from fairseq_ext.search.registry import all_strategies

    all_strategies()  # whose sections are then known
    names = {field.name for field in dataclasses.fields(Stats) if not field.name.startswith("_")}
    names |= {
        kind.key
        for kind in Section.__subclasses__()
        if kind.__module__.startswith("fairseq_ext.") and getattr(kind, "key", "")
    }
    text = (ROOT / "docs" / "flags.md").read_text().partition("## Statistics of a run")[2]
    assert len(names) > 14 and [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_every_word_of_needs_and_denies_is_explained() -> None:
    from fairseq_ext.search.registry import CAPABILITIES

    table = (
        (ROOT / "docs" / "strategy.md")
        .read_text()
        .partition("| word | who needs it | who denies it |")[2]
        .partition("\n\n")[0]
    )
    assert [line.split("`")[1] for line in table.splitlines()[2:]] == list(CAPABILITIES)


def test_the_readme_can_be_read_in_one_sitting() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.stem)
def test_a_page_has_few_numbers_before_its_first_table(page: Path) -> None:
    assert prose.early(page.read_text()) == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs/results").glob("*.md")), ids=lambda p: p.stem)
def test_figures_of_a_results_page_stand_in_what_scripts_write(page: Path) -> None:
    assert prose.measured(page.read_text()) == []


def test_numbers_that_no_table_has_are_seen() -> None:
    free = "# 3 ways\n\n1. `4` [5 of 6](7.md)\n<!-- 8 -->\n```text\n9\n```\n"
    assert prose.early(f"{free}1,000 and 0.5\n| 10 |\n| --- |\n") == []
    assert len(prose.early(free + "1 " * 13)) == 13
    paper = "## From the paper\n\nIt has 26.7 BLEU.\n\n## 1.5 lines\n\nbeams of 5, `--lenpen 1.5`\n"
    assert prose.measured(paper) == []
    assert prose.measured(f"{paper}It has 26.7 BLEU, takes 22 ms, saves 4 %.\n")[1:] == [
        "22 ms",
        "4 %",
    ]


METHODS = ("constraints", "optimal-ending", "streaming", "large-vocabularies", "parallel-decoding")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_page_says_what_a_reader_wants_to_know_in_this_order(name: str) -> None:
    """What it is for and its real output come before how it works; there is a drawing, a link to
    figures, the code and the paper."""
    text = (ROOT / "docs" / f"{name}.md").read_text()
    requested = [
        "What it does for you",
        "A command",
        "When it helps, and when not",
        "How it works",
        "Flags",
    ]
    requested += ["How equality is tested", "The paper"]
    headings = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert [heading for heading in headings if heading in requested] == requested
    parts = {part.partition("\n")[0]: part for part in text.split("\n## ")}
    assert "<!-- run -->" in parts["A command"] and "<!-- output -->" in parts["A command"]
    assert (
        "](results/" in parts["When it helps, and when not"]
        and "](drawings/" in parts["How it works"]
    )
    assert (
        "<!-- generated: flags" in parts["Flags"]
        and "../fairseq_ext/" in parts["How equality is tested"]
    )
    assert "https://" in parts["The paper"]


def test_a_stale_output_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- run -->\n"
        "```bash\n"
        "echo one 1.0000 2 s\n"
        "```\n\n"
        "<!-- output -->\n"
        "```text\n"
        "one 1.0001 3 s\n"
        "```\n"
    )
    # times may differ, and the last digits of numbers
    assert blocks.check_page(page, ROOT, tmp_path) == []
    page.write_text(page.read_text().replace("one 1.0001", "two 1.0001"))
    assert len(blocks.check_page(page, ROOT, tmp_path)) == 1
    page.write_text(page.read_text().replace("two 1.0001", "one 1.1"))
    assert len(blocks.check_page(page, ROOT, tmp_path)) == 1


def test_a_block_that_fails_or_is_not_marked_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- run -->\n"
        "```bash\n"
        "false\n"
        "```\n\n"
        "```bash\n"
        "true\n"
        "```\n\n"
        "<!-- run status=3 -->\n"
        "```bash\n"
        "exit 3\n"
        "```\n"
    )
    wrong = blocks.check_page(page, ROOT, tmp_path)
    assert ["status 1" in wrong[0], "no run" in wrong[1], len(wrong)] == [True, True, 2]


def test_a_dead_link_and_a_stale_part_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading\n"
        "[a](b.md) [c](#a-heading) [d](#no-heading)\n"
        "<!-- generated: strategies -->\n"
        "old\n"
        "<!-- end -->\n"
    )
    assert len(prose.broken(page, tmp_path)) == 2
    assert "--softmax lsh" in tables.fill(page.read_text())


SPEEDS = """## A: of one

| who | speed | note |
| --- | ---: | --- |
| x | 1.0x (0.9-1.1) | p |
| y | 2.0x (1.9-2.1) | q |

## B: of two

| who | speed | note |
| --- | ---: | --- |
| y | 3.0x (2.9-3.1) | r |
"""


def test_tables_of_one_shape_stand_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "speeds.md").write_text(SPEEDS)
    for module in (pivots, tables):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    assert pivots.pivot(*"speeds.md by: who show: speed".split()).splitlines() == [
        "| speed | x | y |",
        "| --- | ---: | ---: |",
        "| A | 1.0x | 2.0x |",
        "| B |  | 3.0x |",
    ]
    assert "| A: y | q |" in pivots.gather("speeds.md", *"rows: y show: note".split())
    part = tables.table_of("speeds.md", *"A rows: y drop: note".split())
    assert part.splitlines()[0] == "| who | speed |" and part.splitlines()[2:] == [
        "| y | 2.0x (1.9-2.1) |"
    ]


def test_a_verdict_is_of_the_effect_and_not_of_the_number() -> None:
    """The effect of a ratio is its logarithm: 1.2x is a third of 1.7x."""
    ratios = {
        (2.0, 2.1): "yes",
        (1.2, 1.7): "direction",
        (1.01, 1.02): "**no**",
        (0.9, 1.4): "**no**",
    }
    assert {each: verdicts.of_ratio(*each) for each in ratios} == ratios
    sure, chance = (0.9, 0.2, 1.6), (0.9, -0.2, 2.0)
    assert [verdicts.of_all([each], 1.1) for each in (sure, chance)] == ["yes", "direction"]
    assert verdicts.of_all([sure], 1.1, -1) == "**no**" == verdicts.judged(0.1, 4)


@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="no mkdocs: pip install mkdocs-material"
)
def test_the_site_builds_strictly_and_can_be_searched(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/docs.py", "--site", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    pages = {
        entry["location"].partition("#")[0]
        for entry in json.loads((tmp_path / "search" / "search_index.json").read_text())["docs"]
    }
    found = {
        f"{page.relative_to(ROOT / 'docs').with_suffix('')}/"
        for page in docs.pages()
        if page.is_relative_to(ROOT / "docs")
    }
    assert pages == found - {"index/"} | {""}


def test_the_pictures_of_the_page_are_small_and_shown() -> None:
    pictures = {
        f"docs/pictures/{file.name}": file.stat().st_size
        for file in (ROOT / "docs" / "pictures").iterdir()
    }
    shown = (ROOT / "README.md").read_text() + (
        ROOT / "docs" / "results" / "growth.md"
    ).read_text().replace("](../", "](docs/")
    assert len(pictures) == 6 and all(
        size < 150_000 and name in shown for name, size in pictures.items()
    )


def test_the_notebook_prints_what_it_shows(tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    import nbformat

    assert notebook.check(docs.NOTEBOOK, ROOT, tmp_path) == []
    cells = nbformat.read(docs.NOTEBOOK, as_version=4).cells
    shown = "".join(notebook.printed_by(cell) for cell in cells if cell.cell_type == "code")
    assert "The quotation still needs to be reviewed." in shown
