"""--constraint-end: searches against brute force over all sequences, what each segmentation calls
the end of a sentence, and the command.

Words of these tests: A B are words, d is a digit, . ends a sentence, ' closes a quotation.
"""

from itertools import product

import pytest
import torch
from fairseq.data import Dictionary
from required_phrases import required_phrases
from search.strategies.select.test_dba import VOCABULARY
from sizes import covering
from table_model import EOS, FIRST_WORD, random_table, search, stop_plug

from fairseq_ext.search.phrases.sentence import SentenceConstraints
from fairseq_ext.search.phrases.sentence_ends import EndTokens, SentenceEnds, end_tokens
from fairseq_ext.search.strategies.select.bonus import Bonus
from fairseq_ext.search.strategies.select.cbs import ConstrainedBeam
from fairseq_ext.search.strategies.select.dba import DBA
from fairseq_ext.search.strategies.select.gbs import GridBeam

SYMBOLS = "ABd.'"


def tokens_of(text: str) -> tuple[int, ...]:
    return tuple(FIRST_WORD + SYMBOLS.index(symbol) for symbol in text)


def mask(symbols: str) -> torch.Tensor:
    out = torch.zeros(VOCABULARY, dtype=torch.bool)
    out[list(tokens_of(symbols))] = True
    return out


TOKENS = EndTokens(mask("."), mask("'"), mask("."), mask("d"))


def required(*phrases: str) -> SentenceConstraints:
    return SentenceConstraints(
        required_phrases(tuple((tokens_of(phrase),) for phrase in phrases), phrases)
    )


def keeps(text: str, phrases: tuple[str, ...], allowed: int) -> bool:
    """The rule, read off a text whose phrases hold no end: all of them before the last end that it
    may have, and only . and ' behind it."""
    ends = [
        i
        for i, symbol in enumerate(text)
        if symbol == "." and text[i - 1 : i] != "d" and not in_run(text, i)
    ]
    if len(ends) < allowed:
        return True
    last = ends[allowed - 1]
    return set(text[last:]) <= set(".'") and all(phrase in text[:last] for phrase in phrases)


def in_run(text: str, i: int) -> bool:
    """Whether an end stands behind another one, with nothing but closing quotes between them."""
    before = text[:i].rstrip("'")
    return before.endswith(".") and not before.endswith("d.")


def decode(
    table, phrases: tuple[str, ...], k: int, max_len: int, allowed: int, select=DBA, **more
) -> dict[str, float]:
    plug = select(k, EOS, VOCABULARY)
    more |= {
        "constraints": [required(*phrases)],
        "ends": SentenceEnds(TOKENS, torch.tensor([allowed])),
    }
    (found,) = search(
        [table], k, stop_plug("count", k), max_len, nbest=1000, select=plug, **more
    ).lists
    return {
        "".join(SYMBOLS[t - FIRST_WORD] for t in h.tokens.tolist()[:-1]): h.score for h in found
    }


@covering(1)
@pytest.mark.parametrize("select", [DBA, GridBeam, ConstrainedBeam], ids=["dba", "gbs", "cbs"])
@pytest.mark.parametrize("allowed", [1, 2])
@pytest.mark.parametrize("phrases", [("A",), ("AB",), ("A", "B"), ("dA",)], ids=" ".join)
def test_a_large_beam_finds_every_sequence_that_keeps_to_the_rule(phrases, allowed, select):
    table = random_table(5, possible=5)
    expected = {}
    for n in range(1, 5):
        for letters in product(SYMBOLS, repeat=n):
            text = "".join(letters)
            if all(phrase in text for phrase in phrases) and keeps(text, phrases, allowed):
                sequence = tokens_of(text)
                expected[text] = sum(
                    table(sequence[:i])[token] for i, token in enumerate((*sequence, EOS))
                )
    got = decode(table, phrases, 800, 4, allowed, select)
    # what the deadline forbids is no matter of this rule: those that have room for their
    # phrases at every step
    missing = set(expected) - set(got)
    assert set(got) <= set(expected) and all(late(text, phrases) for text in missing)
    assert got == pytest.approx({text: expected[text] for text in got})


def late(text: str, phrases: tuple[str, ...], max_len: int = 4) -> bool:
    """Whether a prefix of the text leaves no room for the phrases that it lacks."""
    for n in range(1, len(text) + 1):
        lacks = sum(len(p) - begun(text[:n], p) for p in phrases if p not in text[:n])
        if lacks > max_len - n:
            return True
    return False


def begun(text: str, phrase: str) -> int:
    return max(n for n in range(len(phrase)) if text.endswith(phrase[:n]))


def test_an_end_inside_a_phrase_is_none():
    """A phrase that holds a period can be met, and the sentence goes on behind it."""
    got = decode(random_table(5, possible=5), ("A.B",), 800, 4, 1)
    assert {"A.B", "A.B.", "BA.B", "A.BB"} <= set(got) and "A.B.B" not in got and "A.BA" in got
    assert {"A.", "AA.", "A.."} <= set(decode(random_table(5, possible=5), ("A.",), 800, 3, 1))


def test_soft_phrases_do_not_hold_up_the_end_and_do_not_follow_it():
    got = decode(random_table(5, possible=5), ("AB",), 800, 4, 1, lambda *a: Bonus(1.0, *a))
    assert "B." in got and "AB." in got and "B.AB" not in got and "B..'" in got


# ---- segmentations


def dictionary(*symbols: str) -> Dictionary:
    out = Dictionary()
    for symbol in symbols:
        out.add_symbol(symbol)
    return out


@pytest.mark.parametrize(
    ("symbols", "final", "closer", "abbreviates"),
    [
        (
            '▁the ▁J s . ▁. ... ." " ▁" ” “ ) ▁3 5 ?! Mr. ,',
            '. ▁. ... ." ?!',
            '" ” “ )',
            "▁J ▁3 5",
        ),
        # as Moses writes it
        ("the re@@ . &quot; &apos; 3@@ 3 U.S. !", ". !", "&quot; &apos;", "3@@"),
    ],
    ids=["sentencepiece", "subword-nmt"],
)
def test_what_ends_a_sentence(symbols, final, closer, abbreviates):
    found = end_tokens(dictionary(*symbols.split()), None)
    for expected, mask in (
        (final, found.final),
        (closer, found.closer),
        (".", found.period),
        (abbreviates, found.abbreviates),
    ):
        at = mask[Dictionary().nspecial :].nonzero()[:, 0].tolist()
        assert [symbols.split()[i] for i in at] == expected.split()


@pytest.mark.parametrize(
    "text, ends",
    [
        ("", 0),
        ("A", 0),
        ("A.", 1),
        ("A.'.", 1),
        ("A.B.", 2),
        ("d.A", 0),
        ("d..", 1),
        ("'A", 0),
        ("A...B", 1),
    ],
)
def test_sentence_ends_of_a_source(text, ends):
    assert TOKENS.count(tokens_of(text)) == ends
