"""Every format of a glossary gives the same entries, and wrong lines are refused by number."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.glossary import Languages, LineErrors, read, written

ENTRIES = [("Ader", ("vein", "lode")), ("grüne Ader", ("green vein",))]
FILES = [json.loads(line) for line in Path(__file__).with_name("files.jsonl").open()]


def rows(kind: str) -> list[list]:
    """The rows of files.jsonl of one kind: the name and the content of a file, and what it is."""
    return [row[1:] for row in FILES if row[0] == kind]


CONTENTS = {name: content for name, content, _ in rows("format")}
TBX2, TBX3 = CONTENTS["g.tbx"], CONTENTS["g.xml"]  # ENTRIES in both
BOTH = Languages("de", "en")


def read_text(tmp_path, name, content, languages=BOTH):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    errors = LineErrors()
    found = read(str(path), "--glossary", languages, errors)
    errors.raise_first()
    return found


@pytest.mark.parametrize(("name", "content", "lines"), rows("format"))
def test_formats(tmp_path, name, content, lines):
    found = read_text(tmp_path, name, content)
    assert [(" ".join(entry.source.split()), entry.targets) for entry in found] == ENTRIES
    assert [entry.line for entry in found] == lines


@pytest.mark.parametrize(("name", "content"), rows("details"))
def test_an_entry_names_its_case_and_is_optional(tmp_path, name, content):
    found = read_text(tmp_path, name, content)
    assert [(each.source, each.case, each.optional) for each in found] == [
        ("Ader", "exact", False),
        ("Erz", "", True),
        ("Gang", "", False),
    ]
    again = read_text(tmp_path, "again.tsv", "".join(written(found)))
    assert [replace(each, line=0) for each in again] == [replace(each, line=0) for each in found]
    with pytest.raises(UsageError, match="line [12] of .* has the case 'upper': write exact,"):
        read_text(tmp_path, name, content.replace("Exact", "upper").replace("exact", "upper"))
    wrong = content.replace("Yes", "maybe").replace("yes", "maybe").replace("true", '"maybe"')
    with pytest.raises(UsageError, match="line [23] of .* has 'maybe' as optional: write yes or"):
        read_text(tmp_path, name, wrong)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("name", ["g.txt", "g.csv"])
def test_what_spreadsheets_save_as_text(tmp_path, name, encoding):
    text = "\ufeff" * (encoding == "utf-16-be")
    text += "German\tEnglish\r\nAder\tvein|lode\r\ngrüne Ader\tgreen vein\r\n"
    (tmp_path / name).write_bytes(text.encode(encoding))
    found = read(str(tmp_path / name), "--glossary", BOTH, LineErrors())
    assert [(entry.source, entry.targets, entry.line) for entry in found] == [
        (*entry, i) for i, entry in enumerate(ENTRIES, 2)
    ]


def save_book(path, *cells) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in cells:
        book.active.append(row)
    book.save(path)


def test_a_spreadsheet_itself(tmp_path):
    save_book(
        tmp_path / "g.xlsx",
        ["Notiz", "Deutsch", "Englisch", "case"],
        [None, "Ader", "vein|lode", None],
        [],
        [7, "grüne Ader", "green vein", "exact"],
    )
    found = read(str(tmp_path / "g.xlsx"), "--glossary", BOTH, LineErrors())
    assert [(entry.source, entry.targets) for entry in found] == ENTRIES
    assert [entry.case for entry in found] == ["", "exact"]


@pytest.mark.parametrize(
    ("header", "languages"),
    [
        (header, languages)
        for languages, headers in (
            (("de", "en"), "German,English Deutsch,Englisch de_DE,en_US deu_Latn,eng_Latn ger,eng"),
            (("deu_Latn", "eng_Latn"), "de,en deu,eng German,English deu_Latn,eng_Latn"),
            (("de_DE", "en_XX"), "de-AT,en DE,EN Source,Target Term,Translation"),
            (("sv", "en"), "Swedish,English Svenska,English swe,eng Schwedisch,Englisch"),
            ((None, None), "Swedish,English German,French source,target Term,Translation"),
        )
        for header in headers.split()
    ],
)
def test_headers_name_languages_in_any_way(tmp_path, header, languages):
    for text in (header, header.replace(",", "\t")):
        name = "g.csv" if "," in text else "g.tsv"
        mark = "," if "," in text else "\t"
        found = read_text(tmp_path, name, f"{text}\nAder{mark}vein\n", Languages(*languages))
        assert [(entry.source, entry.targets) for entry in found] == [("Ader", ("vein",))]


@pytest.mark.parametrize("row", ["Deutsch,German", "Englisch,English", "Haus,house", "it,es"])
def test_a_first_row_that_is_no_header_is_an_entry(tmp_path, row):
    found = read_text(tmp_path, "g.csv", f"{row}\nAder,vein\n")
    assert [entry.source for entry in found] == [row.partition(",")[0], "Ader"]


def test_headers_with_more_words(tmp_path):
    text = "Notiz,Deutsch (DE),English term\nx,Ader,vein\n"
    assert [entry.targets for entry in read_text(tmp_path, "g.csv", text)] == [("vein",)]


def test_a_language_with_several_sections_and_codes_of_other_forms(tmp_path):
    text = """<tbx><text><body><conceptEntry>
<langSec xml:lang="de_DE"><termSec><term>Ader</term></termSec></langSec>
<langSec xml:lang="de_DE"><termSec><term>Vene</term></termSec></langSec>
<langSec xml:lang="eng"><termSec><term>vein</term></termSec></langSec>
</conceptEntry></body></text></tbx>"""
    for languages in (BOTH, Languages("deu_Latn", "eng_Latn"), Languages("de_DE", "en_XX")):
        found = read_text(tmp_path, "g.tbx", text, languages)
        assert [(e.source, e.targets) for e in found] == [("Ader", ("vein",)), ("Vene", ("vein",))]


def test_codes_of_formatting_in_tmx_are_no_part_of_a_term(tmp_path):
    text = """<tmx><body><tu><tuv xml:lang="de"><seg>die <bpt i="1">&lt;b></bpt>\
Ader<ept i="1">&lt;/b></ept> <hi>hier</hi></seg></tuv>
<tuv xml:lang="en"><seg>vein<ph>%s</ph></seg></tuv></tu></body></tmx>"""
    (entry,) = read_text(tmp_path, "g.tmx", text)
    assert (entry.source, entry.targets) == ("die Ader hier", ("vein",))


def test_a_spreadsheet_that_says_wrong_dimensions(tmp_path):
    save_book(tmp_path / "a.xlsx", ["Deutsch", "Englisch"], ["Ader", "vein"], ["Haus", "house"])
    with (
        zipfile.ZipFile(tmp_path / "a.xlsx") as old,
        zipfile.ZipFile(tmp_path / "g.xlsx", "w") as new,
    ):
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, content.replace(b'ref="A1:B3"', b'ref="A1"'))
            assert name != "xl/worksheets/sheet1.xml" or b'ref="A1:B3"' in content
    found = read(str(tmp_path / "g.xlsx"), "--glossary", BOTH, LineErrors())
    assert [entry.source for entry in found] == ["Ader", "Haus"]


DEEP = ["g.jsonl", "[" * 100_000 + "\n", "line 1 of FILE is not an entry"]


@pytest.mark.parametrize(("name", "content", "message"), [*rows("refused"), DEEP])
def test_wrong_lines_are_refused_by_number(tmp_path, name, content, message):
    with pytest.raises(UsageError) as error:
        read_text(tmp_path, name, content)
    assert message in str(error.value).replace(str(tmp_path / name), "FILE")


@pytest.mark.parametrize(
    "term", ["3,5", "C++", "Dr. Mabuse", "max. Last", "U.S. army", "9:30", "¿qué?"]
)
def test_marks_within_words_and_points_of_abbreviations_part_no_clauses(tmp_path, term):
    assert [entry.source for entry in read_text(tmp_path, "g", f"{term}\tx\n")] == [term]


def test_tbx_needs_the_languages(tmp_path):
    with pytest.raises(UsageError, match="is TBX, and the languages are not known"):
        read_text(tmp_path, "g.tbx", TBX3, Languages("de", None))


def test_entities_of_tbx_are_not_resolved(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    bomb = TBX2.replace('"x"', f'SYSTEM "{secret}"').replace(
        "<term>vein</term>", "<term>vein&name;</term>"
    )
    assert "hidden" not in str(read_text(tmp_path, "g.tbx", bomb))
