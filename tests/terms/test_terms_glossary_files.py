"""Every format of a glossary gives the same entries, and wrong lines are refused by number."""

import zipfile
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sizes import examples

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.glossary import Languages, LineErrors, read, written

ENTRIES = [("Ader", ("vein", "lode")), ("grüne Ader", ("green vein",))]
TBX2 = """<?xml version="1.0"?>
<!DOCTYPE martif [<!ENTITY name "x">]>
<martif type="TBX-Basic" xml:lang="en"><text><body>
<termEntry id="c1">
<langSet xml:lang="de-AT"><tig><term>Ader</term></tig></langSet>
<langSet xml:lang="en"><tig><term>vein</term></tig><tig><term>lode</term></tig>
<tig><term>artery</term>\
<termNote type="administrativeStatus">deprecatedTerm-admn-sts</termNote></tig></langSet>
</termEntry>
<termEntry id="c2"><langSet xml:lang="de"><ntig><termGrp><term>grüne
Ader</term></termGrp></ntig></langSet>
<langSet xml:lang="en"><tig><term>green vein</term></tig></langSet>
<langSet xml:lang="fr"><tig><term>veine</term></tig></langSet></termEntry>
<termEntry id="c3"><langSet xml:lang="de"><tig><term>allein</term></tig></langSet></termEntry>
</body></text></martif>
"""
TBX3 = """<tbx xmlns="urn:iso:std:iso:30042:ed-2" type="TBX-Basic"><text><body>
<conceptEntry><langSec xml:lang="de"><termSec><term>Ader</term></termSec></langSec>
<langSec xml:lang="en"><termSec><term>vein</term></termSec>\
<termSec><term>lode</term></termSec></langSec></conceptEntry>
<conceptEntry><langSec xml:lang="en"><termSec><term>green vein</term></termSec></langSec>
<langSec xml:lang="de"><termSec>\
<term>grüne Ader</term></termSec></langSec></conceptEntry></body></text></tbx>
"""
TMX = """<tmx version="1.4"><header/><body>
<tu><tuv xml:lang="de-DE"><seg>Ader</seg></tuv><tuv xml:lang="en">\
<seg>vein</seg></tuv><tuv xml:lang="en-GB"><seg>lode</seg></tuv></tu>
<tu><tuv xml:lang="fr"><seg>veine</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>green <ph x="1"/>vein</seg></tuv>\
<tuv xml:lang="de"><seg>grüne Ader</seg></tuv></tu>
</body></tmx>"""


VALID = {
    "g.tsv": b"a\tb|c\n",
    "g.csv": b'source,target\na,"b|c"\n',
    "g.jsonl": b'{"source": "a", "target": ["b"]}\n',
    "g.tbx": TBX3.encode(),
}
BOTH = Languages("de", "en")


def read_text(tmp_path, name, content, languages=BOTH):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    errors = LineErrors()
    found = read(str(path), "--glossary", languages, errors)
    errors.raise_first()
    return found


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("g.tsv", "Ader\tvein|lode\n\ngrüne Ader\tgreen vein\n", (1, 3)),
        ("glossary", "Ader \t vein | lode | vein\ngrüne Ader\tgreen vein", (1, 2)),
        (
            "g.csv",
            'note,Target,source\n,vein|lode,Ader\n"a, b","green vein","grüne Ader"\n',
            (2, 3),
        ),
        ("g.csv", "de,en\nAder,vein|lode\ngrüne Ader,green vein\n", (2, 3)),
        (
            "g.jsonl",
            (
                '{"source": "Ader", "target": ["vein", "lode"]}\n'
                '{"source": "grüne Ader", "target": "green vein", "id": 3}\n'
            ),
            (1, 2),
        ),
        ("g.csv", "Ader;vein|lode\ngrüne Ader;green vein\n", (1, 2)),
        ("g.csv", "sep=;\nEnglisch;Deutsch\nvein|lode;Ader\ngreen vein;grüne Ader\n", (3, 4)),
        ("g.csv", "Ader\tvein|lode\ngrüne Ader\tgreen vein\n", (1, 2)),
        ("g.tsv", "DE\tnote\tEN\nAder\t\tvein|lode\ngrüne Ader\tx\tgreen vein\n", (2, 3)),
        ("g.tmx", TMX, (2, 4)),
        ("g.tbx", TBX2, (5, 9)),
        ("g.xml", TBX3, (2, 5)),
    ],
)
def test_formats(tmp_path, name, content, lines):
    found = read_text(tmp_path, name, content)
    assert [(" ".join(entry.source.split()), entry.targets) for entry in found] == ENTRIES
    assert tuple(entry.line for entry in found) == lines


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "g.tsv",
            "source\ttarget\tcase\toptional\nAder\tvein\tExact\t\nErz\tore\t\tYes\nGang\tlode\n",
        ),
        ("g.csv", "Case;de;en;optional\nexact;Ader;vein;no\n;Erz;ore;yes\n;Gang;lode;\n"),
        (
            "g.jsonl",
            '{"source": "Ader", "target": "vein", "case": "exact"}\n'
            '{"source": "Erz", "target": "ore", "case": "", "optional": true}\n'
            '{"source": "Gang", "target": "lode"}\n',
        ),
    ],
)
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
    text = (
        "\ufeff" if encoding == "utf-16-be" else ""
    ) + "German\tEnglish\r\nAder\tvein|lode\r\ngrüne Ader\tgreen vein\r\n"
    (tmp_path / name).write_bytes(text.encode(encoding))
    found = read(str(tmp_path / name), "--glossary", BOTH, LineErrors())
    assert [(entry.source, entry.targets, entry.line) for entry in found] == [
        (*entry, i) for i, entry in enumerate(ENTRIES, 2)
    ]


def test_a_spreadsheet_itself(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (
        ["Notiz", "Deutsch", "Englisch", "case"],
        [None, "Ader", "vein|lode", None],
        [],
        [7, "grüne Ader", "green vein", "exact"],
    ):
        book.active.append(row)
    book.save(tmp_path / "g.xlsx")
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
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["Deutsch", "Englisch"], ["Ader", "vein"], ["Haus", "house"]):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("g.tsv", "a\tb\nc\n", "line 2 of FILE has 1 column and needs 2"),
        ("g.tsv", "a\tb\tc\n", "line 1 of FILE has 3 columns and needs 2"),
        (
            "g.tsv",
            "a\t\n\tb\n",
            (
                "line 1 of FILE has no target for the term 'a': write it after the tab (1 more "
                "such line in the file)"
            ),
        ),
        (
            "g.tsv",
            "a;b\n",
            (
                "line 1 of FILE has 1 column and needs 2; its separator is ';', which files in "
                ".csv may have: write the"
            ),
        ),
        (
            "g.csv",
            "a,b,c\nc,d,e\n",
            (
                "FILE has 3 columns and no header that names two of them: write source and "
                "target, or the languages"
            ),
        ),
        (
            "g.csv",
            "source,target\na\n",
            "line 2 of FILE has 1 column and needs 2: give it a source and a target",
        ),
        (
            "g.csv",
            "a;b\nc,d\ne;f\n",
            (
                "line 2 of FILE has 1 column and needs 2; its separator is ',': give it a "
                "source and a target"
            ),
        ),
        (
            "g.xlsx",
            "a",
            "cannot read FILE as XLSX (File is not a zip file): save it again, or as CSV",
        ),
        ("g.csv", 'source,target\n"a,b\n', "line 2 of FILE is not valid CSV"),
        (
            "g.jsonl",
            '{"source": "a", "target": "b"}\n{"source": "a"}\n',
            "line 2 of FILE is not an entry",
        ),
        ("g.jsonl", '{"source": "a", "target": ["b", 3]}\n', "line 1 of FILE is not an entry"),
        ("g.jsonl", '{"source": "a", "target": "\\ud800"}\n', "line 1 of FILE is not an entry"),
        ("g.jsonl", "[" * 100_000 + "\n", "line 1 of FILE is not an entry"),
        ("g.tbx", "<tbx><text>\n</tbx>", "line 2 of FILE is not valid XML"),
        (
            "g.tbx",
            TBX2.replace('xml:lang="en"', 'xml:lang="it"'),
            "has terms in de-at, it, de, fr, none in both de and en",
        ),
        ("g.tbx", "<tbx/>", "has 0 concepts with terms"),
    ],
)
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


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["g.tsv", "g.csv", "g.jsonl", "g.tbx"]), st.data())
def test_any_bytes_are_entries_or_one_sentence(tmp_path, name, data):
    valid = VALID[name]
    at = data.draw(st.integers(0, len(valid)))
    content = data.draw(
        st.binary(max_size=30)
        | st.binary(max_size=8).map(lambda some: valid[:at] + some + valid[at:])
    )
    (tmp_path / name).write_bytes(content)
    errors = LineErrors()
    try:
        found = read(str(tmp_path / name), "--glossary", BOTH, errors)
        errors.raise_first()
    except UsageError as error:
        assert str(error) and "\n" not in str(error)
    else:
        assert all(
            entry.source.strip() and all(target.strip() for target in entry.targets)
            for entry in found
        )
