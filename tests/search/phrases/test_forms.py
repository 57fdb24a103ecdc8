"""Terms in a sentence: their inflected forms, the words that agree with them, their article and
letter case, the places that they take: facts of German and English grammar in facts.tsv.

In its texts brackets stand around the words that a term is to replace, [] where it is inserted.
"""

import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from search.constraints.test_constraint_files import words

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.lemmas import in_memory
from fairseq_ext.core.words import has_own_case
from fairseq_ext.search.constraints import word_class
from fairseq_ext.search.constraints.drafts import Rewrite, is_form
from fairseq_ext.search.constraints.lines import parse_tabs
from fairseq_ext.search.constraints.sources import ConstraintSource
from fairseq_ext.search.constraints.term_writer import TermWriter
from fairseq_ext.search.constraints.word_alignment import Mention, WordAlignment
from fairseq_ext.search.phrases import letter_case, places
from fairseq_ext.search.phrases.agreement import (
    beginnings,
    fits,
    is_possible,
    noun_after,
    noun_of,
    numbers_of,
)
from fairseq_ext.search.phrases.forms import TermForms, forms_of_language
from fairseq_ext.search.phrases.function_words import function_words
from fairseq_ext.search.phrases.segmenter import Segmenter
from fairseq_ext.search.phrases.sentence import Cased, SourceTerm

LINES = Path(__file__).with_name("facts.tsv").read_text("utf-8").split("\n")


def facts(names: str):
    """A test of each row of facts.tsv with the kind that comes first; names: of its other cells."""
    kind, *names = names.split(", ")
    rows = [line.split("\t")[1:] for line in LINES if line.startswith(kind + "\t")]
    return pytest.mark.parametrize(names, rows)


def listed(cell: str) -> list[str]:
    return cell.split("|") if cell else []


def marked(text: str, span) -> str:
    """The words of a span, "" for none."""
    return text[slice(*span)] if span else ""


def bracketed(text: str) -> tuple[str, list[tuple[int, int]]]:
    """A text without its brackets, and the spans of what stood between them."""
    plain, spans = "", []
    for i, part in enumerate(re.split(r"[\[\]]", text)):
        spans += [(len(plain), len(plain) + len(part))] * (i % 2)
        plain += part
    return plain, spans


def writer() -> TermWriter:
    return TermWriter(lambda: None, 2, "de")


def term_of(forms: str, **more) -> SourceTerm:
    return SourceTerm(forms.split("|")[0], targets=tuple(listed(forms)), **more)


IN_COMPOUNDS = Cased("fitted", in_compounds=True)


@pytest.fixture(scope="module")
def german():
    return forms_of_language("de-AT")


@facts("forms, term, others")
def test_german_terms_have_their_forms(german, term, others):
    first, *found = german(term)
    assert first == term and set(found) == set(listed(others))


def test_labels_are_adjectives_and_verbs_in_small_letters(german):
    assert {"offen", "offene", "offenen"} <= set(german("Offen"))
    assert "suche" not in german("Suche") and "Suchen" in german("Suche")
    phrases = german("Offene Rechnung")
    assert {"offene Rechnung", "offenen Rechnung", "offener Rechnungen"} <= set(phrases)
    assert german("Art der Rechnung") == ("Art der Rechnung", "Arten der Rechnung")


def test_a_language_without_forms_has_none():
    assert forms_of_language("en") is None and forms_of_language("tlh") is None


def test_unknown_words_have_the_edits_of_similar_ones():
    stems = [f"{letter}{vowel}rkoll" for letter in "bdfghklmnp" for vowel in "ae"]
    table = {word: word for word in map(str.capitalize, stems)}
    table |= {word + "s": word for word in list(table)}
    assert TermForms("de", in_memory(table))("Dunkoll") == ("Dunkoll", "Dunkolls")


def written(text, word, language="de"):
    """The beginnings of a text before a word, with their changes."""
    behind = len(text) - text.index(word)
    found = beginnings(text, text.index(word), language)
    return [places.edited(text, sorted(each.changes))[:-behind] for each in found]


@facts("beginning, text, word, some, never")
def test_determiners_and_adjectives_agree(text, word, some, never):
    found = written(text, word)
    assert found[0] == text[: text.index(word)]  # the text as it is
    assert set(listed(some)) <= set(found) and set(listed(never)).isdisjoint(found)
    assert len(found) == len(set(found))


def test_other_languages_and_other_terms_stay():
    assert written("la bonne clinique", "clinique", "fr") == ["la bonne "]
    text = "die gute Klinik"
    changes = {span for b in beginnings(text, 9, "de", taken=[(4, 8)]) for span, _ in b.changes}
    assert changes == {(0, 3)}


def test_an_adjective_of_a_term_agrees_with_the_article():
    ein = next(b for b in beginnings("einer Rechnung", 6, "de") if b.changes == (((0, 5), "ein"),))
    assert fits("offener Betrag", ein.endings) and not fits("offene Betrag", ein.endings)


@facts("noun of adjective, text, adjective, noun")
def test_the_noun_of_an_adjective(text, adjective, noun):
    end = text.index(adjective) + len(adjective)
    assert marked(text, noun_after(text, end, "de")) == noun


@facts("numbers, forms, numbers")
def test_numbers_of_forms(forms, numbers):
    assert all(numbers_of(form) == {*listed(numbers)} for form in forms.split())


def test_a_noun_of_which_nothing_is_known_is_the_singular_in_its_entry():
    forms = ("Dexamethason", "Dexamethasons", "Dexamethasonen")
    numbers = [numbers_of(form, ("Dexamethason", "Dexa")) for form in forms]
    assert numbers == [{"singular"}, {"plural"}, {"plural"}]
    assert numbers_of("Verbands", ("Verband",)) == {"singular"}
    for label in ("Geteilt", "Fakturierbar"):  # adjectives
        assert numbers_of(label + "e", (label,)) == numbers_of(label + "e")


@facts("compound, noun, text, words")
def test_a_noun_is_a_part_of_longer_words(noun, text, words):
    assert [marked(text, span) for span in places.compounds(noun, text)] == listed(words)
    for segmented in (True, False):
        found = places.Text(text, segmented).places(noun, "exact", in_compounds=True)
        assert {*listed(words)} <= {marked(text, span) for span in found}


@facts("noun, before, nouns, others")
def test_a_noun_goes_with_the_words_before_it(before, nouns, others):
    possible = [noun for noun in listed(nouns) + listed(others) if is_possible(before, noun)]
    assert possible == listed(nouns)


@facts("object, before, noun, behind, is_right")
def test_a_noun_behind_the_subject_is_an_object(before, noun, behind, is_right):
    assert is_possible(before, noun, behind) == (is_right == "yes")


@facts("head, form, noun")
def test_the_noun_of_a_term(form, noun):
    assert marked(form, noun_of(form)) == noun


# ---- a term that the draft has in a form, or in a part of a word


@facts("wrong form, forms, text")
def test_a_form_of_the_draft_that_does_not_go_with_the_words_before_is_found(forms, text):
    """An adjective's ending where one goes with them, and a noun's article."""
    text, spans = bracketed(text)
    place = writer().wrong_place(term_of(forms, cased=IN_COMPOUNDS), text)
    assert place == (spans[0] if spans else None)


@facts("number of source, mention, forms, possible")
def test_a_noun_has_the_number_of_its_english_source(mention, forms, possible):
    of_english = writer()
    of_english.source = "en"
    term = term_of(forms, mention=mention)
    assert {*of_english.of_number(term)} == {*listed(possible)}


@facts("part, forms, word, expected")
def test_a_term_takes_the_place_of_a_part_of_a_longer_word(forms, word, expected):
    """But where the rest is no noun."""
    text, [part] = bracketed(f"die {word}")
    ways = writer().joined(term_of(forms, cased=IN_COMPOUNDS), text, (4, len(text)), part)
    assert sorted(way.text for way in ways) == sorted(listed(expected))


def test_an_adjective_agrees_with_a_noun_that_is_a_term_too():
    text, [place, of_noun] = bracketed("wenn sie [zufällige] [Proben] sind")
    adjective, noun = term_of("randomisiert|randomisierte"), term_of("Studie|Studien")
    possible = [
        form
        for form in map("randomisiert{}".format, ("e", "em", "en", "er", "es"))
        if writer().agrees(
            text,
            {
                noun: Rewrite(of_noun, "Studien", "Studien"),
                adjective: Rewrite(place, form, form),
            },
            adjective,
        )
    ]
    assert possible == ["randomisierte"]


# ---- word classes


@facts("class, kind, mention, target, before, behind, is_it")
def test_the_word_class_of_a_mention(kind, mention, target, before, behind, is_it):
    """Only a noun ends as "Anwendung"; "Delete" and "Used" may be verbs; not "Questions your
    experts" for "Fragen Sie Ihre Experten"."""
    more = [function_words("de")] * (kind == "is_function_word")
    term = term_of(target, source=mention, mention=mention, around=(before, behind))
    assert getattr(word_class, kind)(term, *more) == (is_it == "yes")


@facts("other class, target, text, whose, is_it")
def test_no_term_takes_the_place_of_a_german_word_of_another_class(target, text, whose, is_it):
    """But of a wrong word of the draft: the model does not write "platzieren" for "placebo" by
    itself, and no noun follows it."""
    text, [span] = bracketed(text)
    found = word_class.is_other_class(term_of(target), text, span, is_own=whose == "own")
    assert found is (is_it == "yes")


def test_a_plural_of_the_draft_may_stay():
    """back pain: the singular, but Rückenschmerzen for the draft's Rückschmerzen."""
    own, targets = TermWriter(lambda: None, 2, "de"), ("Rückenschmerz", "Rückenschmerzen")
    own.source = "en"
    term = SourceTerm("Rückenschmerz", targets=targets, mention="back pain")
    found = {
        word: [form for form in targets if own.bonus(term, form, word)]
        for word in ("", "Rückschmerzen", "Rückschmerz", "Rücken")
    }
    assert found == dict.fromkeys(found, ["Rückenschmerz"]) | {"Rückschmerzen": [*targets]}
    assert not own.bonus(term, "Rückenschmerz-Konten", "Leiden-Konten")  # of the rest


def test_a_word_that_is_not_to_be_translated_is_of_any_class():
    for source, is_it in (("folder", False), ("business", True)):
        term = SourceTerm("folder", targets=("folder",), source=source)
        assert word_class.is_other_class(term, "der Ordner", (4, 10)) is is_it


def test_a_rendering_of_the_models_own_is_no_wrong_word():
    words = WordAlignment("der Geschäftspartner", [], [Mention((0,), ()), Mention((1,), ())])
    words.span_of_mention = [(4, 20), (0, 3)]
    for rendering, own in (("geschäft", True), ("partner", False), ("ges", False)):
        for mention in words.mentions:
            mention.renderings = {(rendering,): 0.9}
            mention.__dict__.pop("shares", None)
        assert [words.is_own(i) for i in (0, 1, None)] == [own, False, False]


@facts("verb, verb, text, forms")
def test_a_german_verb_has_a_form_that_its_place_allows(verb, text, forms):
    """None where a part of it stands elsewhere (Nehmen Sie ... an, anzulegen), and where the
    draft's own has one that would stay ("fest")."""
    term, (text, [span]) = term_of(verb, required=True), bracketed(text)
    assert word_class.verb_forms(term, text, span) == tuple(listed(forms))
    # one that the line requires as well is written all the same
    for capitals in (True, False):  # those that the model can write
        known = SimpleNamespace(writable=lambda form, all_are=capitals: all_are or form.islower())
        own = TermWriter(lambda known=known: SimpleNamespace(segmenter=lambda: known), 2, "de")
        ways = own.inflected(term, text, span, [span])
        is_first = capitals and text[span[0]].isupper() and span[0] == 0
        first = verb.capitalize() if is_first else verb
        assert {way.form for way in ways} <= {first, *listed(forms)}
        assert {way.form.lower() for way in ways} == {verb}


@facts("verb that is there, verb, text, is_it")
def test_a_verb_that_the_draft_has_in_another_form_is_there(verb, text, is_it):
    """But the term itself."""
    text, [span] = bracketed(text)
    assert word_class.has_verb(term_of(verb), text, span) is (is_it == "yes")


# ---- English: the article, the number, the plural


@facts("article, article, words")
def test_the_english_article_follows_the_sound(article, words):
    for word in words.split():
        assert places.fitting("a", word) == places.fitting("an", word) == article, word


@facts("number of term, forms, words, before, form")
def test_a_term_has_the_number_of_the_word_that_it_replaces(forms, words, before, form):
    """The word before says it, where the draft's own has no plural; an inserted one has both."""
    for word, each in itertools.product(words.split(" "), before.split("|")):
        found = places.agreeing(tuple(listed(forms)), word, each)
        assert found == tuple(listed(form)), (word, each)


@facts("plural, noun, plural")
def test_the_plural_of_an_english_noun(noun, plural):
    assert places.plural_of(noun) == plural


@facts("same word, one, other, is_it")
def test_forms_of_one_english_word(one, other, is_it):
    assert is_form(one, other) is (is_it == "yes")


# ---- A term takes the case of the words that it replaces; a word with a case of its own keeps it


@facts("placed, language, text, terms, output")
def test_a_term_takes_the_place_the_capital_and_the_article(language, text, terms, output):
    """Where nouns have capitals, the model decides what is a noun; English alone has articles that
    follow the sound."""
    text, spans = bracketed(text)
    cased = [
        (span, letter_case.fitted(term, text, span, language))
        for span, term in zip(spans, listed(terms), strict=True)
    ]
    assert places.edited(text, places.edits(text, cased, language == "en")) == output


def test_a_capital_inside_capitals_only_and_digits_are_a_case_of_its_own():
    assert all(map(has_own_case, "API FastTab iPad B2B ISO9001 eBay".split()))
    assert not any(map(has_own_case, "Customer customer 365 A Übersicht".split()))
    keeps = letter_case.keeps_case
    assert keeps("API") and keeps("vitamin C") is False and not keeps("API user")


# ---- A phrase that a dictionary cannot write


def test_a_phrase_with_a_piece_that_the_dictionary_lacks_is_named():
    segmenter, where = Segmenter(words("vein veins green")), "line 5 of the input"
    assert segmenter.writable("green veins")
    assert not segmenter.writable("green veinss") and not segmenter.writable("<s> vein")
    source = ConstraintSource(None, None, None, segmenter, segmenter.dictionary)
    said = "^in line 5 of the input, the phrase 'green veinss' contains the piece 'veinss', which "
    with pytest.raises(UsageError, match=f"{said}the target dictionary lacks"):
        source.of_text(parse_tabs("green veinss", where), where)
