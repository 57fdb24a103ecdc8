"""The documents against the code: generated parts, links, flags, and every block on the demo model;
and scripts/demo.py from its first line to its last on a few sentences."""

import importlib.util
import json
import re
import sys
from dataclasses import fields

import pytest
import warm
from conftest import ran
from demo_model import ROOT
from sizes import drawn

sys.path.insert(0, str(ROOT / "scripts"))

import demo  # noqa: E402
from documents import blocks, notebook, pivots, prose, tables, verdicts  # noqa: E402

import docs  # noqa: E402

DOCS = ROOT / "docs"
PAGES = [page for page in docs.pages() if any(block.runs for block in blocks.blocks_of(page))]
FIRST = ("README", "quickstart", "constraints", "glossaries")  # whose blocks always run
CASES = [page if page.stem in FIRST else pytest.param(page, marks=drawn(2)) for page in PAGES]


def each_page(pages):
    return pytest.mark.parametrize("page", pages, ids=lambda page: page.stem)


@each_page(docs.pages())
def test_generated_parts_and_links_are_up_to_date(page):
    assert docs.check(page, quick=True) == []


@each_page(CASES)
def test_blocks_print_what_the_page_shows(page, tmp_path):
    # a strategy is imported before flags are made of all
    commands = warm.commands() if page.stem != "strategy" else blocks.COMMANDS
    assert blocks.check_page(page, ROOT, tmp_path, commands=commands) == []


def test_every_flag_is_named_on_a_page_of_its_subject():
    from fairseq_ext.plugin.tasks import Flags

    text = "\n".join(page.read_text() for page in docs.pages() if page.name != "flags.md")
    flags = ["--" + each.name.replace("_", "-") for each in fields(Flags) if each.name != "_name"]
    assert [flag for flag in flags if f"`{flag}`" not in text and f"{flag} " not in text] == []


def test_every_key_of_the_statistics_is_explained():
    from fairseq_ext.core.stats import Section, Stats
    from fairseq_ext.search.registry import all_strategies

    all_strategies()  # whose sections are then known
    sections = (
        kind for kind in Section.__subclasses__() if kind.__module__.startswith("fairseq_ext.")
    )
    names = {getattr(kind, "key", "") for kind in sections} | {each.name for each in fields(Stats)}
    names = {name for name in names if name.strip("_") == name != ""}
    text = (DOCS / "flags.md").read_text().partition("## Statistics of a run")[2]
    assert len(names) > 14 and [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_every_word_of_needs_and_denies_is_explained():
    from fairseq_ext.search.registry import CAPABILITIES

    head = "| word | who needs it | who denies it |"
    table = (DOCS / "strategy.md").read_text().partition(head)[2].partition("\n\n")[0]
    assert re.findall("^.*?`(.*?)`", table, re.M) == list(CAPABILITIES)


def test_the_readme_can_be_read_in_one_sitting():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


@each_page(sorted(DOCS.rglob("*.md")))
def test_figures_stand_in_tables_and_in_what_scripts_write(page):
    """Few numbers before a page's first table; on a page of results none in its sentences."""
    assert prose.early(page.read_text()) == []
    assert page.parent != DOCS / "results" or prose.measured(page.read_text()) == []


def test_numbers_that_no_table_has_are_seen():
    free = "# 3 ways\n\n1. `4` [5 of 6](7.md)\n<!-- 8 -->\n```text\n9\n```\n"
    assert prose.early(f"{free}1,000 and 0.5\n| 10 |\n| --- |\n") == []
    assert len(prose.early(free + "1 " * 13)) == 13
    paper = "## From the paper\n\nIt has 26.7 BLEU.\n\n## 1.5 lines\n\nbeams of 5, `--lenpen 1.5`\n"
    assert prose.measured(paper) == []
    found = prose.measured(f"{paper}It has 26.7 BLEU, takes 22 ms, saves 4 %.\n")
    assert found[1:] == ["22 ms", "4 %"]


METHODS = ("constraints", "optimal-ending", "streaming", "large-vocabularies", "parallel-decoding")
# the parts of a method's page, in their order, and what must stand in each
PARTS = {
    "What it does for you": "",
    "A command": "<!-- run -->|<!-- output -->",
    "When it helps, and when not": "](results/",
    "How it works": "](drawings/",
    "Flags": "<!-- generated: flags",
    "How equality is tested": "../fairseq_ext/",
    "The paper": "https://",
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_page_says_what_a_reader_wants_to_know_in_this_order(name):
    """What it is for and its real output come before how it works; there is a drawing, a link to
    figures, the code and the paper."""
    parts = re.split("^## (.*)\n", (DOCS / f"{name}.md").read_text(), flags=re.M)
    assert [heading for heading in parts[1::2] if heading in PARTS] == [*PARTS]
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        assert all(part in text for part in PARTS.get(heading, "").split("|")), heading


def test_a_block_that_fails_or_shows_another_output_or_is_not_marked_is_seen(tmp_path):
    def wrong(text):
        (tmp_path / "page.md").write_text(text)
        return blocks.check_page(tmp_path / "page.md", ROOT, tmp_path)

    run = "<!-- run{} -->\n```bash\n{}\n```\n\n"
    shown = run.format("", "echo one 1.0000 2 s") + "<!-- output -->\n```text\n{}\n```\n"
    # times may differ, and the last digits of numbers
    outputs = ("one 1.0001 3 s", "two 1.0001 3 s", "one 1.1 3 s")
    assert [len(wrong(shown.format(each))) for each in outputs] == [0, 1, 1]
    blank = "```bash\ntrue\n```\n\n"
    failed, unmarked = wrong(run.format("", "false") + blank + run.format(" status=3", "exit 3"))
    assert "status 1" in failed and "no run" in unmarked


def test_a_dead_link_and_a_stale_part_are_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading\n[a](b.md) [c](#a-heading) [d](#no-heading)\n"
        "<!-- generated: strategies -->\nold\n<!-- end -->\n"
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
PIVOT = """| speed | x | y |
| --- | ---: | ---: |
| A | 1.0x | 2.0x |
| B |  | 3.0x |"""


def test_tables_of_one_shape_stand_in_one(tmp_path, monkeypatch):
    (tmp_path / "speeds.md").write_text(SPEEDS)
    for module in (pivots, tables):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    assert pivots.pivot(*"speeds.md by: who show: speed".split()).strip() == PIVOT
    assert "| A: y | q |" in pivots.gather("speeds.md", *"rows: y show: note".split())
    head, _, *rows = tables.table_of("speeds.md", *"A rows: y drop: note".split()).splitlines()
    assert (head, rows) == ("| who | speed |", ["| y | 2.0x (1.9-2.1) |"])


def test_a_verdict_is_of_the_effect_and_not_of_the_number():
    """The effect of a ratio is its logarithm: 1.2x is a third of 1.7x."""
    ratios = {(2.0, 2.1): "yes", (1.2, 1.7): "direction"}
    ratios |= dict.fromkeys([(1.01, 1.02), (0.9, 1.4)], "**no**")
    assert {each: verdicts.of_ratio(*each) for each in ratios} == ratios
    sure, chance = (0.9, 0.2, 1.6), (0.9, -0.2, 2.0)
    assert [verdicts.of_all([each], 1.1) for each in (sure, chance)] == ["yes", "direction"]
    assert verdicts.of_all([sure], 1.1, -1) == "**no**" == verdicts.judged(0.1, 4)


@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="no mkdocs: pip install mkdocs-material"
)
def test_the_site_builds_strictly_and_can_be_searched(tmp_path):
    ran(sys.executable, "scripts/docs.py", "--site", tmp_path, cwd=ROOT)
    entries = json.loads((tmp_path / "search" / "search_index.json").read_text())["docs"]
    inside = (page.relative_to(DOCS) for page in docs.pages() if page.is_relative_to(DOCS))
    expected = {f"{page.with_suffix('')}/" for page in inside} - {"index/"} | {""}
    assert {entry["location"].partition("#")[0] for entry in entries} == expected


def test_the_pictures_of_the_page_are_small_and_shown():
    pictures = [*(DOCS / "pictures").iterdir()]
    shown = (ROOT / "README.md").read_text() + (DOCS / "results" / "growth.md").read_text()
    assert len(pictures) == 6
    for file in pictures:
        assert file.stat().st_size < 150_000
        assert any(f"{place}/pictures/{file.name}" in shown for place in ("docs", "](.."))


def test_the_notebook_prints_what_it_shows(tmp_path):
    pytest.importorskip("nbclient")
    import nbformat

    assert notebook.check(docs.NOTEBOOK, ROOT, tmp_path) == []
    cells = nbformat.read(docs.NOTEBOOK, as_version=4).cells
    shown = "".join(notebook.printed_by(cell) for cell in cells if cell.cell_type == "code")
    assert "The quotation still needs to be reviewed." in shown


# ---- the demo


def lines(name):
    return (ROOT / "data" / "demo" / name).read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def printed():
    """What the demo prints with two sentences of each kind in its table."""
    out = []

    def note(*words, end="\n", flush=False):
        out.append(" ".join(words) + end)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", "demo.py --limit 2 --rounds 1 --threads 1".split())
        patch.setattr(demo, "print", note, raising=False)
        demo.main()
    return "".join(out)


def test_each_example_shows_what_was_requested(printed):
    """Stock next to the same sentence with a required phrase, a term base and a banned phrase:
    held, and not by chance."""
    shown = demo.examples()[: demo.BEST]
    assert len(shown) == 6
    for example in shown:
        part = printed[printed.index(example.source) :].splitlines()
        found = {line[:16].strip(): line[17:].partition("   [")[0] for line in part[1:5]}
        assert list(found) == ["stock fairseq", "required", "term base", "banned"]
        stock, required, terms, banned = found.values()

        def holds(text, phrase):
            return re.search(rf"\b{re.escape(phrase)}\b", text) is not None

        assert holds(required, example.required) and not holds(stock, example.required)
        assert holds(stock, example.banned) and not holds(banned, example.banned)
        rows = [line.split("\t")[1:] for line in lines(f"terms.{example.kind}.tsv")]
        new = [t for row in rows for t in "|".join(row).split("|") if not holds(stock, t)]
        assert any(holds(terms, target) for target in new)


def test_the_messages_of_a_program_have_the_terms(printed):
    """Each line that the term base changes has another of its forms than before."""
    rows = re.findall(r"  without {8}(.*)\n  term base {6}(.*)\n", printed)
    forms = [f for line in lines("terms.handbook.tsv") for f in line.split("\t")[1].split("|")]
    [count] = re.findall(r"terms\.handbook\.tsv changes (\d+) of 12 messages", printed)
    assert int(count) == len(rows) > 3
    for old, new in rows:
        assert any(f in new and f not in old for f in forms)


def test_the_table_has_every_method(printed):
    found = [line.split("|")[1:-1] for line in printed.splitlines() if line.startswith("| ")]
    rows = {name.strip(): [cell.strip() for cell in cells] for name, *cells in found[1:]}
    expected = [demo.STOCK, *demo.METHODS]
    expected.insert(-1, demo.GREEDY)
    assert [*rows] == expected and len(demo.METHODS) == 8
    equal = {name for name, row in rows.items() if row[2] == "6 of 6"}
    assert equal >= {demo.STOCK, "ours, no flag", demo.GREEDY, "window, beam 1"}
    assert all(float(row[3]) > 0 for row in rows.values())
    assert float(rows["ours, no flag"][0]) == float(rows[demo.STOCK][0])


def test_the_command_to_try_next_does_as_it_says(printed, tmp_path):
    first, second = printed[printed.index("Try next") :].split("\n\n")[1:3]
    assert second.startswith("  $CLONE/scripts/demo.sh --serve ")
    settings = f"PATH={warm.commands()}:$PATH CLONE={ROOT} DEMO={ROOT}/checkpoints/demo"
    done = ran("bash", "-euc", f"export {settings}\n{first}", cwd=tmp_path)
    said = r"^D-0\t.*\tThe quotation still needs to be checked\.$"
    assert re.search(said, done.stdout, re.MULTILINE)


def test_the_text_is_what_its_readme_says():
    """Both sides, kinds and documents of each line; each term base has 40 terms or more."""
    german, *others = (lines(f"test.{name}") for name in ("de", "en", "kind", "document"))
    assert {*map(len, others)} == {len(german)} == {len({*german})} == {217}
    assert all(5 <= len(line.split()) <= 35 for line in german)
    for kind in ("handbook", "letters"):
        terms = [line.split("\t")[0] for line in lines(f"terms.{kind}.tsv")]
        assert len(terms) == len({*terms}) >= 40
    sources = [example.source for example in demo.examples()]
    assert len(sources) == len({*sources} & {*german})
