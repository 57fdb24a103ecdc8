"""Translations from Python: their tokens, alignments and errors. Those of the stock command are
rows of tests/contract."""

import re

import pytest
import torch

from fairseq_ext import UsageError
from fairseq_ext.plugin.loading.settings import as_arguments
from fairseq_ext.translator import Translator

LINES = ["de1 de2 de3", "", "de4 unheard-of de5 de6", "   ", "de7"]


SETTINGS = {"source_lang": "de", "target_lang": "en", "cpu": True, "max_len_b": 20}


@pytest.fixture(scope="module")
def translator(tiny):
    return Translator(str(tiny / "model.pt"), str(tiny / "data"), beam=4, nbest=2, **SETTINGS)


@pytest.mark.parametrize(
    "line",
    [
        "de1 de2",
        "  de1\tde2 \u2003 de9\x1cunheard-of\u00a0de3 ",
        "<pad> </s> <unk> <s> de1",
        "de4\u200bde5",
    ],
)
def test_tokens_are_those_of_fairseqs_dictionary_and_so_is_their_text(translator, line):
    dictionary, text = translator.task.source_dictionary, translator.generator.target_text
    tokens = translator.tokens(line, dictionary, translator.bpe)
    assert (
        tokens.tolist() == dictionary.encode_line(line, add_if_not_exist=False).tolist()
        and tokens.dtype == torch.long
    )
    for numbers in (tokens, [*range(8), 10**6], []):
        expected = text.segmenter().dictionary.string(
            numbers, extra_symbols_to_ignore=text.left_out
        )
        assert text.pieces(numbers) == expected


def test_a_hypothesis_explains_itself(translator):
    (best, *_), *_ = translator.translate(LINES)
    assert best.tokens == best.text.split()
    assert len(best.positional_scores) == len(best.tokens) + 1  # EOS
    assert best.score == pytest.approx(
        sum(best.positional_scores) / len(best.positional_scores), abs=1e-5
    )
    assert best.alignment is None


def test_nbest_can_be_chosen_per_call_and_nothing_is_nothing(translator):
    assert [len(nbest) for nbest in translator.translate(LINES[::2], nbest=3)] == [3, 3, 3]
    assert (
        translator.translate([]) == []
        and list(translator.translate_iter([])) == []
        and translator.score([], []) == []
    )


def test_hard_alignments_are_pairs(tiny):
    aligned = Translator(
        str(tiny / "model.pt"), str(tiny / "data"), beam=2, print_alignment="hard", **SETTINGS
    )
    best = aligned.translate(["de1 de2 de3"])[0][0]
    assert len(best.alignment) <= len(best.tokens)
    assert all(
        0 <= source < 3 and 0 <= target < len(best.tokens) for source, target in best.alignment
    )


def test_a_line_that_is_too_long_is_named(translator):
    with pytest.raises(UsageError, match="line 2 has 51 tokens and the model takes 40"):
        translator.translate(["de1", "de2 " * 50])


def test_a_wrong_checkpoint_is_an_error_not_an_exit(tiny, tmp_path):
    (tmp_path / "text.pt").write_text("this is no checkpoint\n")
    with pytest.raises(OSError, match="is not a checkpoint"):
        Translator(str(tmp_path / "text.pt"), str(tiny / "data"), **SETTINGS)


@pytest.mark.parametrize(
    "flags, arguments",
    [
        ({"beam": 5, "lenpen": 0.6}, ["--beam", "5", "--lenpen", "0.6"]),
        ({"unnormalized": True, "sampling": False, "lm_path": None}, ["--unnormalized"]),
        ({"user_paths": ["a", "b"], "seed": 0}, ["--user-paths", "a", "b", "--seed", "0"]),
    ],
)
def test_keywords_are_the_commands_flags(flags, arguments):
    assert as_arguments(flags) == arguments


# ---- Constraints from Python:  the same as through the commands, line by line


GIVEN = ["de1 de2 de3", "", "de4 de5 de6", "de7"]


def make(tiny, **flags) -> Translator:
    return Translator(
        str(tiny / "model.pt"), str(tiny / "data"), **{"beam": 4, "nbest": 2, **SETTINGS, **flags}
    )


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
        GIVEN, constraints=wishes, avoid=["en2"]
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
        again.translate(GIVEN, constraints=wishes, avoid=["en2"]) == found
        and again.stats.decoder_calls == 0
    )


def test_first_constraints_next_to_a_results_file_are_refused(tiny, tmp_path):
    """The file's results would be of two searches."""
    translator = make(tiny, results_file=str(tmp_path / "results.jsonl"))
    with pytest.raises(UsageError, match='make the Translator with constraints="unordered"'):
        translator.translate(GIVEN, constraints=[["en3"], [], [], []])
    assert len(translator.translate(GIVEN)) == len(GIVEN)  # and nothing is broken


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
        translator.translate(GIVEN, **arguments)


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
        make(tiny, match_source_len=True).translate(GIVEN, avoid=["en1"])
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
        ours.translate(GIVEN, errors="return")
    with pytest.raises(UsageError, match="has 1 column and needs 2"):
        ours.translate_text("de1 de2")
