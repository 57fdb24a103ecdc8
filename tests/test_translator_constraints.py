"""Constraints from Python: the same as through the commands, line by line."""

import re

import pytest
from test_translator import SETTINGS

from fairseq_ext import UsageError
from fairseq_ext.translator import Translator

LINES = ["de1 de2 de3", "", "de4 de5 de6", "de7"]


def make(tiny, **flags) -> Translator:
    return Translator(
        str(tiny / "model.pt"), str(tiny / "data"), **{"beam": 4, "nbest": 2, **SETTINGS, **flags}
    )


@pytest.fixture(scope="module")
def translator(tiny):
    return make(tiny)


def has(phrase: str, text: str) -> bool:
    return re.search(rf"(?<!\S){phrase}(?!\S)", text) is not None


def test_an_empty_line_has_an_empty_translation_which_lacks_its_constraints(tiny):
    found = make(tiny).translate(["", "de4"], constraints=[["en3"], []], prefixes=["en4", None])
    reason = "the line is empty"
    assert [(h.text, h.tokens, h.score, h.unmet) for h in found[0]] == [
        ("", [], 0.0, [("en3", reason), ("en4", reason)])
    ]
    assert found[1][0].text and not found[1][0].unmet
    ours = make(tiny)
    ours.translate(["", "de4"], constraints=[["en3"], ["en5"]])
    assert ours.stats.as_dict()["constraints"] == {
        "given": 2,
        "met": 1,
        "unmet": [[0, "en3", reason]],
    }


def test_hypotheses_that_cannot_meet_their_constraints_are_flagged_also_when_read_again(
    tiny, tmp_path
):
    """Six tokens where four may be; a phrase in conflict with a banned one; one that is met."""
    wishes = [["en3", "en4 en5 en6", "en7 en8"], [], ["en9", "en1 en2"], ["en7"]]
    flags = {
        "max_len_b": 4,
        "constraints": "unordered",
        "results_file": str(tmp_path / "results.jsonl"),
    }
    long, none, clash, fine = found = make(tiny, **flags).translate(
        LINES, constraints=wishes, avoid=["en2"]
    )
    for h in long:
        lacking = [phrase for phrase in wishes[0] if not has(phrase, h.text)]
        assert lacking and h.unmet == [
            (phrase, "the constraints take 6 tokens and the sentence may have 4")
            for phrase in lacking
        ]
    assert all(
        h.unmet == [("en1 en2", "conflicts with the banned phrase 'en2'")] and has("en9", h.text)
        for h in clash
    )
    assert not any(h.unmet for h in [*none, *fine])
    again = make(tiny, **flags, resume=True)
    assert (
        again.translate(LINES, constraints=wishes, avoid=["en2"]) == found
        and again.stats.decoder_calls == 0
    )


def test_first_constraints_next_to_a_results_file_are_refused(tiny, tmp_path):
    """The file's results would be of two searches."""
    translator = make(tiny, results_file=str(tmp_path / "results.jsonl"))
    with pytest.raises(UsageError, match='make the Translator with constraints="unordered"'):
        translator.translate(LINES, constraints=[["en3"], [], [], []])
    assert len(translator.translate(LINES)) == len(LINES)  # and nothing is broken


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"constraints": [["en1"]]}, "constraints has 1 entry for 4 lines"),
        ({"prefixes": ["en1"]}, "prefixes has 1 entry for 4 lines"),
        ({"avoid": [["en1"]]}, "avoid has 1 entry for 4 lines"),
        (
            {"constraints": [[], ["no-such-word"], [], []]},
            "in line 2, the phrase 'no-such-word' .* dictionary lacks",
        ),
        ({"constraints": [[], [], [" "], []]}, "line 3 has an empty phrase"),
        ({"avoid": ["</s>"]}, "in line 1, the phrase '</s>'"),
        (
            {"constraints": [["en1", ["en2", 3]], [], [], []]},
            "a constraint of line 1 has 3 for a phrase",
        ),
        ({"constraints": [[], [[]], [], []]}, "a constraint of line 2 is an empty list"),
        ({"avoid": [[], [7], [], []]}, "avoid of line 2 has 7 for a phrase"),
    ],
)
def test_bad_arguments_are_named(translator, arguments, message):
    with pytest.raises(UsageError, match=message):
        translator.translate(LINES, **arguments)


def test_ctrl_c_in_the_first_call_with_constraints_changes_no_later_one(tiny, monkeypatch):
    made = Translator(tiny / "model.pt", tiny / "data", cpu=True, beam=4)
    rebuild = made.generators.rebuild

    def interrupted(*key):
        rebuild(*key)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(made.generators, "rebuild", interrupted)
        made.translate(["de1 de2"], constraints=[["en3"]])
    ((found, *_),) = made.translate(["de1 de2"], constraints=[["en3"]])
    assert "en3" in found.text.split() and not found.unmet


def test_another_search_is_refused(tiny):
    with pytest.raises(UsageError, match="--match-source-len"):
        make(tiny, match_source_len=True).translate(LINES, avoid=["en1"])
    # the sentence names what was written
    for flag in ({"constraint_end": True}, {"constraint_bonus": 2.0}, {"constraint_case": "any"}):
        (name,) = flag
        with pytest.raises(
            UsageError,
            match=f"--match-source-len replaces beam search, so --{name.replace('_', '-')} "
            "cannot work with it",
        ):
            make(tiny, match_source_len=True, **flag)


def test_a_glossary_that_cannot_be_read_is_no_lines_fault(tiny, tmp_path):
    """Where lines have their errors in their places, that one is raised: a text would stay as it
    is, and a command end well."""
    (tmp_path / "terms.csv").write_text("de1:en1\n")
    ours = make(tiny, constraints="unordered", glossary=str(tmp_path / "terms.csv"))
    with pytest.raises(UsageError, match="line 1 of .*terms.csv has 1 column and needs 2"):
        ours.translate(LINES, errors="return")
    with pytest.raises(UsageError, match="has 1 column and needs 2"):
        ours.translate_text("de1 de2")
