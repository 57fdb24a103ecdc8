"""What the model knows decides whether a term may be left, never the letters of the file; terms
with characters that its dictionary lacks are found in what was typed."""

import json
import re

import pytest
from demo_model import FLAGS, MODEL, OURS
from forked import interactive_forked

from fairseq_ext import Translator
from fairseq_ext.search.constraints.drafts import is_copied
from fairseq_ext.search.constraints.source_text import code_around
from fairseq_ext.search.phrases.sentence import SourceTerm

UNKNOWN = {
    "hund": "hound",
    "ordner": "binder",
    "angebot": "quotation",
    "schlüssel": "spanner",
    "büro": "bureau",
    "katze": "feline",
    "wagen": "carriage",
    "fahrrad": "velocipede",
}
LINES = [
    "Der Hund schläft im Büro.",
    "Der Ordner ist neu.",
    "Das Angebot wurde gestern geprüft.",
    "Er hat seinen Schlüssel vergessen.",
    "Die Katze schläft.",
    "Der Wagen steht vor dem Haus.",
    "Mein Fahrrad ist kaputt.",
]


@pytest.fixture
def translated(tmp_path):
    def run(terms: dict[str, str], lines: list[str], phrases=None, **flags):
        glossary = tmp_path / "terms.tsv"
        glossary.write_text("".join(f"{a}\t{b}\n" for a, b in terms.items()), encoding="utf-8")
        flags = {"glossary": str(glossary), "glossary_match": "casefold", **flags}
        return [each[0] for each in Translator(**FLAGS, **flags).translate(lines, None, phrases)]

    return run


@pytest.mark.parametrize("beam", [1, 5])
def test_the_letters_of_the_file_decide_nothing(translated, beam):
    """A glossary in title case is no list of labels, which could be left."""
    titles = {source.title(): target for source, target in UNKNOWN.items()}
    small, title = (translated(terms, LINES, beam=beam) for terms in (UNKNOWN, titles))
    assert [each.text for each in small] == [each.text for each in title]
    assert all(not each.unmet for each in small)
    for target in UNKNOWN.values():
        assert any(target in each.text.lower() for each in small), target


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a, b: (a, b), ""),
        (lambda a, b: (a.upper(), b), ""),  # acronyms
        (lambda a, b: (a.title(), b), "would be found in another letter case: add --glossary-m"),
        (lambda a, b: (b, a), "would be found by their targets: name its columns in a header, or"),
    ],
)
def test_a_glossary_that_does_not_fit_its_texts_is_one_warning(tmp_path, change, said):
    """Its columns are the wrong way round, or its letter case is another."""
    terms = {"steht": "stands", "schläft": "sleeps", "gestern": "yesterday", "kaputt": "broken"}
    terms |= {"neu": "new", "vergessen": "forgotten"}
    rows = [change(a, b) for a, b in terms.items()]
    (tmp_path / "terms.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")
    command = (MODEL, *OURS, "--glossary", tmp_path / "terms.tsv", "--beam", 1)
    done = interactive_forked("\n".join(LINES) + "\n", *command)
    warned = [line for line in done.stderr.splitlines() if "would be found" in line]
    assert len(warned) == bool(said) and said in "".join(warned), done.stderr


@pytest.mark.parametrize(
    ("mention", "around", "draft", "is_known", "is_it"),
    [
        ("Length", ("-", "ist"), "The Content - Length is 5", False, True),
        ("Files", ("_", "_"), "in Program _ Files _ x", False, True),
        ("Length", ("Die", "ist"), "The Length is 5", True, False),  # one word
        ("Prüfer", ("der", "/"), "the Prüfer / Leiter", False, False),
        ("Supply Chain", ("von", "."), "of Supply Chain .", True, True),
        ("Supply Chain", ("von", "."), "of Supply Chain .", False, False),  # an order
        ("Length", ("-", "ist"), "The Inhalt - length is 5", False, False),
    ],
)
def test_a_part_of_what_the_draft_copies_is_no_mention(mention, around, draft, is_known, is_it):
    term = SourceTerm("Länge", mention=mention, around=around)
    assert is_copied(term, draft.split(), is_known) is is_it


def test_code_around_a_mention():
    for text, code in {
        "see https://example.com/server.": "https://example.com/server",
        "(/etc/server.conf)": "/etc/server.conf",
        "run server.exe now": "server.exe",
        "the System.Server.Name, then": "System.Server.Name",
        "my_server is": "my_server",
        "--server x": "--server",
        "the server. Then": "",
        "client/server systems": "",
        "a file server": "",
        "server-side": "",
    }.items():
        start = text.lower().index("server")
        assert code_around(text, start, start + 6) == code, text


# ---- terms with characters that the model's source dictionary lacks

# ⁄ (to which ½ is normalised), &, Korean letters, İ and braces are not in the demo's dictionary
UNWRITTEN = {"½": "half", "R&D": "research", "한국어": "Korean", "İx": "ix", "{0}": "zero"}
UNWRITTEN_LINES = [
    "Der Verband wird ½ geprüft.",
    "Die R&D wird morgen geprüft.",
    "Der Verband 한국어 wird geprüft.",
    "Der İx wird morgen geprüft.",
    "Der {0} wird morgen geprüft.",
    "Der Verband wird morgen geprüft.",
]


@pytest.mark.parametrize("flags", [{}, {"glossary_documents": "blank"}], ids=str)
def test_they_are_found_in_what_was_typed(flags, tmp_path):
    """The whole word is replaced, not the letters between the brackets of <unk>; what is not there
    is unmet, and stands in the report."""
    (tmp_path / "terms.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in UNWRITTEN.items()))
    flags = flags | {
        "glossary": str(tmp_path / "terms.tsv"),
        "glossary_report": str(tmp_path / "r"),
    }
    found = Translator.from_folder(MODEL, beam=3, cpu=True, **flags).translate(UNWRITTEN_LINES)
    for (best, *_), target in zip(found, UNWRITTEN.values(), strict=False):
        is_there = re.search(rf"\b{target}\b", best.text, re.IGNORECASE) is not None
        assert is_there or target in [phrase for phrase, _ in best.unmet], best
        assert not re.search(r"<\w+>", best.text.replace("<unk>", ""))
    lines = sorted(
        map(json.loads, (tmp_path / "r").read_text("utf-8").splitlines()), key=lambda of: of["id"]
    )
    assert [[term["term"] for term in line["terms"]] for line in lines] == [
        *map(list, zip(UNWRITTEN)),
        [],
    ]
