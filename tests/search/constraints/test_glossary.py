"""Glossary terms: where they are found, which of them win, and lines that must be refused."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.glossary import Languages
from fairseq_ext.core.words import words_of
from fairseq_ext.search.constraints.glossary import Glossary, GlossaryOptions, encode_batch
from fairseq_ext.search.phrases.segmenter import Segmenter


class Spelled:
    """Stands in for the segmenter: a phrase's tokens are its code points, of which
    it has those up to ž."""

    def __init__(self, takes_pieces: bool = False):
        self.takes_pieces = takes_pieces

    alternatives = Segmenter.alternatives

    def phrases(self, text: str, where: str, suggest: bool = True):
        if not self.writable(text):
            raise UsageError(f"in {where}, the phrase '{text}' cannot be written")
        return (tuple(map(ord, text)),)

    def spellings(self, text: str, case: str):
        capital = text[:1].upper() + text[1:]
        return (
            (tuple(map(ord, capital)),)
            if case == "initial" and capital != text and self.writable(capital)
            else ()
        )

    def writable(self, text: str) -> bool:
        return max(text) <= "ž"

    def normalised(self, text: str) -> str:
        return text


@pytest.fixture
def glossary(tmp_path):
    def make(content: str, name="g", takes_pieces=False, **options) -> Glossary:
        (tmp_path / name).write_text(content, encoding="utf-8")
        return Glossary(GlossaryOptions(str(tmp_path / name), **options), Spelled(takes_pieces))

    return make


def found(glossary: Glossary, text: str) -> list[str]:
    return [
        each.term.text
        for each in glossary.required(words_of(text, glossary.segmenter.takes_pieces))
    ]


@pytest.mark.parametrize(
    ("term", "text", "matches"),
    [
        ("Ader", "Die Ader ist blau.", True),
        ("Ader", "Ader", True),
        ("Ader", "Die Ader.", True),
        ("Ader", "(Ader)", True),
        ("Ader", "Ader-Test", True),
        ("Ader", "Die Adern", False),
        ("Ader", "Schlagader", False),
        ("Ader", "Ader_2", False),
        ("Ader", "ader", False),
        ("ader", "Ader hier", True),  # the first word of a sentence
        ("ader", "„Ader“ hier", True),
        ("ader", "eine Ader", False),
        ("US", "us too", False),
        ("us", "US too", False),
        ("grüne Ader", "die grüne  Ader", True),
        ("grüne Ader", "die grüne, Ader", False),
        ("U.S.", "the U.S. army", True),
        ("3,5", "3,5 mm", True),
        ("C++", "in C++ or C", True),
        ("C", "in C++ or D", False),
        ("C", "in C# or D", False),
        ("C", "in C + D", True),
        ("don't", "we don’t know", True),
        ("don’t", "we don't know", True),
        ("E-Mail", "die E\u2011Mail", True),
        ("E\u2010Mail", "die E-Mail", True),
        ("Stelle, Position", "die Stelle, Position und mehr", True),
        ("Stelle, Position", "die Stelle Position", False),
        ("grüne Ader", "die grüne\u00a0Ader", True),
        ("café", "un cafe\u0301 noir", True),  # composed and decomposed
        ("cafe", "un cafe\u0301 noir", False),
        ("ﬁnal", "the final word", True),  # a ligature
        ("हिन्द", "मैं हिन्दी में", False),  # a vowel sign is part of the word
        ("हिन्दी", "मैं हिन्दी में", True),
        ("слово", "Это слово.", True),
        ("слов", "Это слово.", False),
        ("東京", "私は東京に住む", True),
        ("东京塔", "东京铁塔", False),
        ("タワー", "東京タワーです", True),
        ("ロン", "マロンです", False),
        ("ไทย", "ภาษาไทย", True),
    ],
)
def test_terms_are_found_on_word_boundaries_in_any_script(glossary, term, text, matches):
    assert found(glossary(f"{term}\tx\n"), text) == ["x"] * matches


@pytest.mark.parametrize(
    ("terms", "text", "answer"),
    [
        ("a b\t1\nb\t2\n", "a b", ["1"]),
        ("a b\t1\nb\t2\n", "a b b", ["1", "2"]),
        ("a b\t1\nb c d\t2\n", "a b c d", ["2"]),
        ("a b\t1\nb c\t2\n", "a b c", ["1"]),
        ("a\t1\na b c\t2\n", "a b a b c", ["1", "2"]),
        ("a\t1\na b c d\t2\n", "a b c", ["1"]),
        ("a b c\t1\na b\t2\nc a\t3\n", "c a b", ["3"]),
        ("a\t1\nb\t2\n", "b a b", ["2", "1"]),
        ("a\t1\n", "a a a", ["1"]),
        ("a\t1\nb\t1\n", "a b", ["1", "1"]),
        ("weg\t1\nWeg\t2\n", "Weg da", ["2"]),
        ("weg da\t1\nWeg\t2\n", "Weg da", ["1"]),
        ("weg\t1\nWeg da\t2\n", "Weg hier", ["1"]),
    ],
)
def test_the_longest_term_wins_and_each_counts_once(glossary, terms, text, answer):
    assert found(glossary(terms), text) == answer


def test_alternatives_and_repeated_lines(glossary):
    several = glossary("a\tx|y z\n\nb\tv\na\tw| x \n")
    (one,) = several.required(["a"])
    assert one.term.text == "x|y z|w" and several.merged == 1
    assert one.phrases == ((120,), (121, 32, 122), (119,))


def test_segmented_text_is_matched_piece_by_piece(glossary):
    pieces = glossary("▁A der\tx\n", takes_pieces=True)
    assert found(pieces, "▁Die ▁A der ▁ist") == ["x"]
    assert found(pieces, "▁Die ▁A dern") == []


@pytest.mark.parametrize(
    ("match", "term", "text", "matches"),
    [
        ("casefold", "US", "about us", True),
        ("casefold", "Straße", "in der STRASSE", True),
        ("casefold", "Stiefel", "zwei Stiefeln", False),
        ("lemma", "Gummistiefel", "mit Gummistiefeln", True),
        ("lemma", "Gummistiefel", "mit GUMMISTIEFEL", False),
        ("lemma", "grünes Haus", "die grünen Häuser", True),
        ("lemma", "Arzt", "zwei Ärzte", True),
        ("lemma", "grünes Haus", "die grünen, Häuser", False),
        ("lemma", "Haus", "die Hausverwaltung", False),
        ("lemma", "Häuser", "ein Haus", False),
        ("lemma", "Gummistiefel", "gummistiefel", False),
        # an adjective or a participle in another form, not another verb form
        ("lemma", "klinisch", "mit klinischer Prüfung", True),
        ("lemma", "neuer Ordner", "in einen neuen Ordner", True),
        ("lemma", "ausgewählt", "die ausgewählten Zeilen", True),
        ("lemma", "ausgewählt", "Sie können ihn auswählen.", False),
        ("lemma", "verwenden", "wird verwendet", False),
        ("lemma", "Bestand", "die Prüfung ist bestanden", False),
        ("lemma", "Keiner", "kein Ordner", False),
        # a word with a case of its own, and a short one, as written
        ("lemma", "ODER", "dies oder das", False),
        ("lemma", "ODER", "mit ODER", True),
        ("lemma", "API-Änderung", "alle API-Änderungen", True),
        ("lemma", "api", "die API", False),
        ("lemma", "Tag", "tag", False),
        ("lemma", "tag", "Tag", True),  # the first word of a sentence
        ("surface", "Gummistiefel", "mit Gummistiefeln", False),
    ],
)
def test_case_and_lemmas_of_sources(glossary, match, term, text, matches):
    assert (
        found(glossary(f"{term}\tx\n", match=match, languages=Languages("de", "en")), text)
        == ["x"] * matches
    )


@pytest.mark.parametrize(
    ("term", "text", "matches"),
    [
        ("shock absorber", "check both shock absorbers", True),
        ("Check", "please check both", False),  # a label
        ("steering wheels", "the steering wheel", True),
        ("child seat", "Child seats are here", True),
        ("woman", "two women", True),
        ("conflict of interest", "no conflicts of interest", True),
        ("window", "Windows are open.", True),
        ("Window", "install it on Windows first", False),
        ("post", "the posted order", False),
        ("use", "using it", False),
        ("Posted", "before posting", False),
        ("low fat", "lower fat", False),
        ("trials", "a trial", True),
        ("glass", "the glasses", True),
        ("don't know", "we don’t know", True),
        ("No", "we have no service", False),
        ("US", "tell us", False),
    ],
)
def test_english_terms_in_another_number(glossary, term, text, matches):
    languages = Languages("en", "de")
    assert found(glossary(f"{term}\tx\n", languages=languages), text) == ["x"] * matches


@pytest.mark.parametrize(
    ("source", "match", "matches"),
    [("fr", None, True), ("xx", None, False), (None, None, False), ("fr", "surface", False)],
)
def test_forms_of_terms_are_found_where_there_are_lemmas(glossary, source, match, matches):
    given = glossary("cheval\tx\nœil\ty\n", match=match, languages=Languages(source, "en"))
    assert found(given, "deux chevaux et deux yeux") == ["x", "y"] * matches


def test_of_terms_with_the_same_lemmas_the_one_with_the_words_wins(glossary):
    both = glossary("haus\t3\nHaus\t1\nHäuser\t2\n", match="lemma", languages=Languages("de", "en"))
    texts = ("zwei Häuser", "ein Haus", "im haus", "in Häusern")
    assert [found(both, text) for text in texts] == [["2"], ["1"], ["3"], ["1"]]


def test_lemmas_of_an_unknown_language_are_refused(glossary):
    with pytest.raises(
        UsageError, match="--glossary-match lemma: simplemma has no lemmas for the language 'xx'"
    ):
        glossary("a\tb\n", match="lemma", languages=Languages("xx", "en"))


def test_each_mention_requests_the_term_once_more(glossary):
    text = "a b a c a b"
    assert found(glossary("a\t1\na b\t2\n"), text) == ["2", "1"]
    assert found(glossary("a\t1\na b\t2\n", repeat="each"), text) == ["2", "1", "2"]
    (once,) = glossary("a\t1\n").required(["a", "b", "a"])
    assert [(match.start, match.end) for match in once.matches] == [(0, 1), (2, 3)]


def test_an_encoder_that_loses_the_sign_between_terms_gets_each_by_itself():
    calls = []

    def step(text):
        calls.append(text)
        return text.replace("‖", "").upper()

    assert encode_batch(["a", "b c"], step) == ["A", "B C"] and len(calls) == 3
    assert [text.strip() for text in encode_batch(["a", "b c"], str.upper)] == ["A", "B C"]


def test_an_unwritable_target_is_its_line_s_error_when_the_file_is_read(glossary):
    lines = [f"w{i}\tx\n" for i in range(600)]
    lines[400], lines[590] = "here\tx|☃\n", "there\t☃\n"
    with pytest.raises(
        UsageError,
        match=r"in line 401 of .*, the phrase '☃' cannot be written \(1 more such line "
        r"in the file\)",
    ):
        glossary("".join(lines), strict=True)


def test_lines_that_cannot_be_used_are_left_out_and_named(glossary, caplog, tmp_path):
    """The others are terms; with --strict, and where no line can be used, they are refused."""
    lines = "a\tb\nc\n" + "d\n" * 9 + "there\tx|☃\nHaus, Hof\thouse\n"
    found = glossary(lines)
    assert [term.source for term in found.terms] == ["a", "Haus, Hof"]
    reported = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert reported[0] == (
        f"line 2 of {tmp_path / 'g'} has 1 column and needs 2: write the source term, one tab, the "
        "target term. The line is left out"
    )
    assert (
        reported[5] == f"{tmp_path / 'g'} has 6 more such lines that cannot be used, left out too"
    )
    for content, options in ((lines, {"strict": True}), ("c\nd\n", {})):
        with pytest.raises(UsageError, match="has 1 column and needs 2"):
            glossary(content, **options)


def test_many_lines_of_one_source_term_take_time_in_proportion(glossary):
    def seconds(lines: int) -> float:
        start = time.process_time()
        merged = glossary("".join(f"a\tx{i}\n" for i in range(lines))).merged
        assert merged == lines - 1
        return time.process_time() - start

    seconds(100)
    assert seconds(20_000) < 60 * max(seconds(1_000), 1e-3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tb\nc\n", "line 2 of FILE has 1 column and needs 2"),
        (
            "a\tb\tc\n",
            (
                "line 1 of FILE has 3 columns and needs 2: write the source term, one "
                "tab, the target term"
            ),
        ),
        ("a\t\n", "has no target for the term 'a'"),
        ("\tb\n", "line 1 of FILE has no source term"),
        ("a\tb|\n", "has an empty alternative in 'b|'"),
        (
            "a\nb\nc\td\ne\n",
            (
                "line 1 of FILE has 1 column and needs 2: write the source term, one tab, the "
                "target term (2 more such"
            ),
        ),
        ("a\nb\n", "(1 more such line in the file)"),
    ],
)
def test_bad_lines_are_refused_and_counted(glossary, tmp_path, content, message):
    with pytest.raises(UsageError) as error:
        glossary(content, strict=True)
    assert message in str(error.value).replace(str(tmp_path / "g"), "FILE")


def naive(terms: list[str], text: str) -> list[str]:
    """Every term at every place; then again and again the longest, leftmost one that
    touches none before."""
    spans = []
    for term in terms:
        for match in re.finditer(rf"(?=(?<!\w){re.escape(term)}(?!\w))", text):
            spans.append((len(term.split()), match.start(), match.start() + len(term), term))
    chosen: list = []
    for span in sorted(spans, key=lambda s: (-s[0], s[1])):
        if all(span[2] <= other[1] or span[1] >= other[2] for other in chosen):
            chosen.append(span)
    return list(dict.fromkeys(term for *_, term in sorted(chosen, key=lambda s: s[1])))


phrase = st.lists(st.sampled_from(["a", "b", "ab", "ba"]), min_size=1, max_size=4).map(" ".join)


@given(
    st.lists(phrase, min_size=1, max_size=6, unique=True),
    st.lists(phrase, min_size=1, max_size=4).map(" ".join),
)
def test_matching_equals_trying_every_term_at_every_place(tmp_path_factory, terms, text):
    path = tmp_path_factory.mktemp("glossary") / "g"
    path.write_text("".join(f"{t}\t{t}\n" for t in terms))
    assert found(Glossary(GlossaryOptions(str(path)), Spelled()), text) == naive(terms, text)


def test_a_sentence_costs_the_same_with_fifty_thousand_terms(glossary):
    def seconds(terms: int) -> float:
        full = glossary("".join(f"w{i} v{i % 7}\tx{i}\n" for i in range(terms)))
        words = [f"w{i % 60} v{i % 7}"[: 2 + i % 3] for i in range(40)]
        times = []
        for _ in range(20):
            start = time.perf_counter()
            full.required(words)
            times.append(time.perf_counter() - start)
        return min(times)

    assert seconds(50_000) < 20 * seconds(50)
