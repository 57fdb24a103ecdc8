"""The nearest spelling that a dictionary can write, and where it is reported."""

import pytest
from fairseq.data import Dictionary

from fairseq_ext.core.errors import UsageError
from fairseq_ext.search.constraints.lines import parse_tabs
from fairseq_ext.search.constraints.sources import ConstraintSource
from fairseq_ext.search.phrases.segmenter import Segmenter, nearest_spelling


@pytest.mark.parametrize(
    ("text", "letters", "expected"),
    [
        ("naïve", "naive", "naive"),
        ("Straße", "Stra\u0073e", "Strasse"),
        ("don’t", "don't", "don't"),
        ("ﬁnal", "final", "final"),
        ("VEIN", "vein", "vein"),
        ("vein", "Vein", "Vein"),
        ("É", "e", "e"),  # two changes together
        ("☃", "vein", None),
    ],
)
def test_the_most_similar_writable_spelling(text, letters, expected):
    assert nearest_spelling(text, lambda each: set(each) <= set(letters), []) == expected


def test_a_word_that_the_dictionary_lacks_gives_way_to_a_similar_one():
    dictionary = Dictionary()
    for word in ("vein", "veins", "green", "▁lode", "art@@"):
        dictionary.add_symbol(word)
    segmenter = Segmenter(dictionary)
    assert (
        segmenter.writable("green veins")
        and not segmenter.writable("green veinss")
        and not segmenter.writable("<s> vein")
    )
    with pytest.raises(UsageError) as error:
        segmenter.phrases("green veinss", "line 3 of g")
    assert "in line 3 of g, the phrase 'green veinss' contains the piece 'veinss'" in str(
        error.value
    )
    assert "; the nearest spelling that works is 'green veins';" in str(error.value)
    with pytest.raises(UsageError) as error:
        segmenter.phrases("xyz", "line 3 of g")
    assert "nearest" not in str(error.value)


def test_a_typed_phrase_gets_the_same_help():
    dictionary = Dictionary()
    for word in ("vein", "veins", "green"):
        dictionary.add_symbol(word)
    source = ConstraintSource(None, None, None, Segmenter(dictionary), dictionary)
    where = "line 5 of the input"
    with pytest.raises(UsageError) as error:
        source.of_fields(parse_tabs("green veinss", where), where)
    said = (
        "in line 5 of the input, the phrase 'green veinss' contains the piece 'veinss', which the "
        "target dictionary lacks"
    )
    assert str(error.value).startswith(
        said
    ) and "; the nearest spelling that works is 'green veins';" in str(error.value)
