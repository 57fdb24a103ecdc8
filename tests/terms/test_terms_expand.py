"""`python -m fairseq_ext.terms expand`: forms under the same lemmas, found in text."""

import pytest

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.lemmas import lemmatizer
from fairseq_ext.terms.__main__ import forms_in, main

LINES = [
    "Boots are on the table, two boots and one boot.",
    "A rubber boot, rubber boots, RUBBER boots",
    "She boots it.",
    "“Rubber boots!”",
]


def test_forms_of_one_and_of_several_words():
    found = forms_in(LINES, ["boot", "rubber boot", "table"], lemmatizer("en", "--lang"))
    # the capital of the first word of a line is the line's
    assert found["boot"] == {"boots": 5 + 1, "boot": 2}
    assert found["rubber boot"] == {"rubber boot": 1, "rubber boots": 2, "RUBBER boots": 1}
    assert found["table"] == {"table": 1}


def test_a_noun_that_has_a_capital_of_its_own_keeps_it():
    german = lemmatizer("de", "--lang")
    assert forms_in(["Häuser stehen.", "Die Häuser"], ["Haus"], german)["Haus"] == {"Häuser": 2}


def test_the_command_prints_a_glossary_with_more_alternatives(tmp_path, capsys):
    (tmp_path / "g.csv").write_text("source,target\nStiefel,boot\nTisch,table|desk\n")
    (tmp_path / "mono.en").write_text("\n".join(LINES))
    command = [
        "expand",
        "--glossary",
        str(tmp_path / "g.csv"),
        "--lang",
        "en",
        "--text",
        str(tmp_path / "mono.en"),
    ]
    main(command)
    printed = capsys.readouterr()
    assert (
        printed.out == "Stiefel\tboot|boots\nTisch\ttable|desk\n"
        and printed.err == "2 entries, 1 form added\n"
    )
    main([*command, "--min-count", "7"])
    assert capsys.readouterr().out.startswith("Stiefel\tboot\n")


def test_the_case_of_an_entry_stays(tmp_path, capsys):
    (tmp_path / "g.csv").write_text("source,target,case\nStiefel,boot,exact\nTisch,table,\n")
    (tmp_path / "mono.en").write_text("\n".join(LINES))
    files = ["--glossary", str(tmp_path / "g.csv"), "--text", str(tmp_path / "mono.en")]
    main(["expand", "--lang", "en", *files])
    rows = capsys.readouterr().out.splitlines()
    assert rows[:2] == ["source\ttarget\tcase", "Stiefel\tboot|boots\texact"]
    assert rows[2].split("\t")[0] == "Tisch" and rows[2].endswith("\t")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (["--glossary", "nowhere"], "cannot read nowhere"),
        (["--text", "nowhere"], "cannot read nowhere"),
        (["--lang", "tlh"], "'tlh'"),
    ],
)
def test_wrong_arguments_are_one_sentence(tmp_path, change, sentence):
    (tmp_path / "g.tsv").write_text("Stiefel\tboot\n")
    (tmp_path / "mono.en").write_text("boots\n")
    command = [
        "expand",
        "--glossary",
        str(tmp_path / "g.tsv"),
        "--lang",
        "en",
        "--text",
        str(tmp_path / "mono.en"),
    ]
    with pytest.raises(UsageError) as error:
        main([*command, *change])
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_without_a_text_the_forms_are_those_of_the_glossary_itself(tmp_path, capsys):
    (tmp_path / "g.tsv").write_text("customer\tKunde\ninvoice\tRechnung|Faktura\nAPI\tAPI\n")
    command = ["expand", "--glossary", str(tmp_path / "g.tsv"), "--lang", "de"]
    main(command)
    lines = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert lines["customer"] == "Kunde|Kunden" and lines["API"] == "API"
    assert lines["invoice"].startswith("Rechnung|Faktura|Rechnungen|")
    with pytest.raises(UsageError, match="add --text"):
        main([*command[:-1], "en"])
