"""Where forced phrases land, through the command on the demo model: verbs of a glossary, and what
--constraint-end and --constraint-bonus refuse."""

import itertools
import json
import re

import pytest
from demo_model import MODEL, OURS
from demo_text import raw_demo
from forked import generate, interactive_forked
from sizes import drawn


def test_a_verb_that_the_draft_has_in_another_form_stays_as_it_is(tmp_path):
    """English: "using" is not replaced by "Use", which the rest of the sentence does not fit."""
    terms = {"Verwenden": "Use", "Speichern": "Save", "Verarbeiten": "Process"}
    glossary = tmp_path / "terms.tsv"
    glossary.write_text(
        "".join(f"{a}\t{b}\n" for a, b in (terms | {"Schleife": "cycle"}).items()),
        encoding="utf-8",
    )
    lines = [
        "Durch Verwenden dieser Klasse lässt sich die Leistung steigern.",
        "Das Speichern der Datei schlägt fehl.",
        "Das Verarbeiten der Daten dauert lange.",
        "Die Schleife läuft noch.",  # another word is replaced
    ]
    done = interactive_forked("\n".join(lines) + "\n", MODEL, *OURS, "--glossary", glossary)
    *verbs, cycle = re.findall(r"^D-\d+\t\S+\t(.*)$", done.stdout, re.MULTILINE)
    assert [text.split()[0] for text in verbs] == ["Using", "Saving", "Processing"]
    assert re.search(r"\bcycle\b", cycle)


def test_a_mention_in_the_plural_becomes_the_plural_of_the_target(tmp_path):
    (tmp_path / "terms.tsv").write_text("Ordner\tbinder\n", encoding="utf-8")
    lines = "Die Ordner sind leer.\nDer Ordner ist leer.\n"
    done = interactive_forked(lines, MODEL, *OURS, "--glossary", tmp_path / "terms.tsv")
    found = re.findall(r"^D-\d+\t\S+\t(.*)$", done.stdout, re.MULTILINE)
    assert [re.findall(r"\bbinders?\b", text) for text in found] == [["binders"], ["binder"]]


def test_other_forms_of_a_term_are_found_but_by_surface(tmp_path):
    """The signature names the match; surface is not named."""
    (tmp_path / "terms.tsv").write_text("Angebot\tquotations\n", encoding="utf-8")
    lines = "Zwei Angebote müssen noch geprüft werden.\n"
    flags = ("--glossary", tmp_path / "terms.tsv", "--stats-file", tmp_path / "stats")
    for match, found in (((), True), (("--glossary-match", "surface"), False)):
        done = interactive_forked(lines, MODEL, *OURS, *flags, *match)
        (text,) = re.findall(r"^D-\d+\t\S+\t(.*)$", done.stdout, re.MULTILINE)
        assert ("quotations" in text) == found, done.stderr
        signature = json.loads((tmp_path / "stats").read_text())["signature"]
        assert ("glossary_match=lemma" in signature) == found
        assert "glossary_match=surface" not in signature


def test_a_glossary_that_lists_forms_of_its_terms_is_matched_as_it_is_written(tmp_path):
    """One that has Datei and Dateien names its forms: Ordners is none of them."""
    lines = "Der Name des Ordners ist neu.\nDer Ordner ist leer.\n"
    for rows, listed in (("Ordner\tbinder\nDatei\trecord\nDateien\trecords\n", True), ("", False)):
        glossary = tmp_path / "terms.tsv"
        glossary.write_text(rows or "Ordner\tbinder\n", encoding="utf-8")
        for match in ((), ("--glossary-match", "lemma")):
            done = interactive_forked(lines, MODEL, *OURS, "--glossary", glossary, *match)
            found = re.findall(r"^D-\d+\t\S+\t(.*)$", done.stdout, re.MULTILINE)
            has = ["binder" in text for text in found]
            assert has == [not listed or bool(match), True], found


def test_mentions_share_no_words_and_the_report_counts_as_the_statistics(tmp_path):
    """ "account" in "account name" is no translation of another mention, nor is "package" in
    "package managers"."""
    terms = {"Kontoname": "account name", "Ordner": "account", "Paketmanager": "package manager"}
    terms |= {"Datei": "package", "Feld": "Field", "Betrag": "Amount to settle"}
    glossary, report = tmp_path / "terms.tsv", tmp_path / "report"
    glossary.write_text("".join(f"{a}\t{b}\n" for a, b in terms.items()), encoding="utf-8")
    lines = [
        "Der Kontoname gehört zu dem Ordner.",
        "Öffnen Sie den Paketmanager und wählen Sie die Datei.",
        "Die Paketmanager sind neu.",
        # the draft has one "field" for two
        "Wenn diese Option auf Nein festgelegt und auf der Seite Offene Buchungen ausgleichen ein "
        "Benutzer den Wert im Feld Auszugleichender Betrag ändert, ist der Standardeintrag im Feld "
        "In Anspruch zu nehmender Skonto 0 (null).",
    ]
    flags = ("--glossary", glossary, "--glossary-report", report, "--stats-file", tmp_path / "s")
    done = interactive_forked("\n".join(lines) + "\n", MODEL, *OURS, *flags)
    found = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    assert [each["id"] for each in found] == [0, 1, 2, 3], done.stderr
    for each in found:
        places = sorted(term["at"] for term in each["terms"] if term["at"])
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(places)), each
        assert all((t["at"] is None) == (t["placed_by"] == "left") for t in each["terms"]), each
    assert {term["displaced"] for each in found[:2] for term in each["terms"]} == {
        "",
        "folder",
        "file",
    }
    (plural,) = found[2]["terms"]
    assert (plural["form"], plural["placed_by"]) == ("package managers", "draft")
    counts = json.loads((tmp_path / "s").read_text())
    left = [t for each in found for t in each["terms"] if t["placed_by"] == "left"]
    assert len(left) == counts["glossary"]["unmet"] == len(counts["constraints"]["unmet"]) == 1
    assert counts["constraints"]["unmet"][0][0] == 3 and "the first in sentence 4" in done.stderr


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ("quotation|bid", "quotation"),  # "bid" is better by less than a nat a token
        ("bid|quotation", "bid"),
        ("xylophone|bid", "bid"),  # by more
        ("quotations|bid|quotation", "quotation"),  # a form of the first
    ],
)
def test_the_first_alternative_is_preferred(tmp_path, targets, expected):
    (tmp_path / "terms.tsv").write_text(f"Angebot\t{targets}\n", encoding="utf-8")
    line = "Das Angebot muss noch geprüft werden.\n"
    done = interactive_forked(line, MODEL, *OURS, "--glossary", tmp_path / "terms.tsv")
    assert re.search(rf"^D-0\t\S+\tThe {expected} still", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize(
    ("line", "term", "target", "expected"),
    [
        ("Fertig.", "Fertig.", "Ready.", "Ready."),
        ("Sind Sie sicher?", "Sind Sie sicher?", "Really?", "Really?"),
        ("Das ist alles.", "Das ist alles.", "There is no more.", "There is no more."),
        ("Ordner.", "Ordner", "binder.", "Binder."),
        ("Dateien und Ordner.", "Dateien und Ordner", "docs", "Docs."),
    ],
)
def test_a_term_that_is_the_whole_line_has_one_full_stop(tmp_path, line, term, target, expected):
    (tmp_path / "terms.tsv").write_text(f"{term}\t{target}\n", encoding="utf-8")
    done = interactive_forked(f"{line}\n", MODEL, *OURS, "--glossary", tmp_path / "terms.tsv")
    assert re.findall(r"^D-0\t\S+\t(.*)$", done.stdout, re.MULTILINE) == [expected]


@drawn(3)
@pytest.mark.parametrize(
    "flags, said",
    [
        (
            ("--constraint-end",),
            "--constraint-end applies to phrases, and the command has none: add --constraints-file",
        ),
        (
            ("--select", "dba", "--constraint-bonus", 2),
            "--constraint-bonus prefers phrases and --select dba forces them",
        ),
        (("--select", "bonus"), "--select bonus prefers phrases by a bonus and none is given"),
        (("--constraint-bonus", -1), "--constraint-bonus (bonus in nats) must be "),
        (
            ("--constraint-bonus", 1, "--stop", "optimal", "--unnormalized"),
            "can make a token's score positive",
        ),
        (("--constraint-bonus", 1, "--softmax", "screened"), "can raise words"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(tmp_path, flags, said):
    (tmp_path / "phrases.tsv").write_text("wires\n", encoding="utf-8")
    phrases = ("--constraints-file", tmp_path / "phrases.tsv")
    given = () if flags == ("--constraint-end",) else phrases
    status, _, log = generate(raw_demo(tmp_path, 1), *OURS, "--dataset-impl", "raw", *given, *flags)
    assert status and said in log
