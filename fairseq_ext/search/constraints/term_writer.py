"""Glossary terms written into a draft: in which form, letter case and tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from os.path import commonprefix
from unicodedata import normalize

from fairseq_ext.search.constraints.drafts import Candidate, Rewrite, Sentence, Version, is_form
from fairseq_ext.search.constraints.word_class import verb_forms
from fairseq_ext.search.phrases.agreement import (
    LANGUAGES,
    PLURAL_CELLS,
    beginnings,
    fits,
    has_noun,
    is_in_noun_phrase,
    is_possible,
    noun_after,
    noun_of,
    numbers_of,
)
from fairseq_ext.search.phrases.forms import (
    ADJECTIVE_ENDINGS,
    MIN_PART,
    forms_of_language,
    split_adjective,
)
from fairseq_ext.search.phrases.function_words import function_words
from fairseq_ext.search.phrases.german_nouns import ALL, lexicon
from fairseq_ext.search.phrases.letter_case import (
    capitalised,
    fitted,
    keeps_case,
    lowered,
    starts_sentence,
)
from fairseq_ext.search.phrases.pieces import folded, normal
from fairseq_ext.search.phrases.places import (
    LINKING,
    PLURAL,
    Span,
    Text,
    agreeing,
    compounds,
    edited,
    edits,
    overlap,
)
from fairseq_ext.search.phrases.segmenter import TargetText
from fairseq_ext.search.phrases.sentence import SourceTerm

NUMBER_BONUS = 6.0  # nats for the number of the source term
PARTS_BEFORE, PARTS_BEHIND = re.compile(r"(?:\w+-)+$"), re.compile(r"(?:-\w+)+")
TAKES_S = re.compile(r"(?:ung|[hk]eit|schaft|ion|tät|ling|tum)$")
SPACES = re.compile(r"\s+")


class TermWriter:
    """Writes terms into the tokens of drafts. target_text: returns the generator's `target_text`;
    language: of the target, two letters."""

    def __init__(self, target_text: Callable[[], TargetText], eos: int, language: str = ""):
        self.target_text, self.eos, self.language = target_text, eos, language
        self.source = ""  # language of sources, two letters

    @property
    def text(self) -> TargetText:
        """The conversion between the target's tokens and text."""
        return self.target_text()

    def choices(self, term: SourceTerm, text: str, span: Span) -> list[Rewrite]:
        """Return the ways to write a term in the place of a span of a text."""
        displaced, forms = text[slice(*span)], term.targets
        if self.is_english:
            forms = agreeing(forms, displaced, text[: span[0]])
        # the draft's own word may be one of them
        forms = tuple(form for form in forms if folded(form) == folded(displaced)) or forms
        cased = [self.in_case(term, form, text, span) for form in forms]
        return [Rewrite(span, form, form) for form in cased]

    def inflected(
        self, term: SourceTerm, text: str, span: Span, taken: list[Span], form: str = ""
    ) -> list[Rewrite]:
        """Return the ways to write a term in the place of a span of a text, with the words that
        agree with it. The first one has the first form, and the words as they are. form: of a
        longer word that the term is a part of."""
        others = [other for other in taken if other != span]
        found: dict[Rewrite, None] = {}
        known = lexicon()
        forms = verb_forms(term, text, span) or term.targets  # a required one stays
        if form:
            forms = known.same_number(form)
        if text[slice(*span)][:1].islower():  # labels of adjectives and verbs
            small = {form[:1].lower() + form[1:] for form in forms} & set(forms)
            forms = tuple(f for f in forms if f in small or f[:1].lower() + f[1:] not in small)
        noun = noun_after(text, span[1], self.language, others)
        if noun is not None and not any(map(has_noun, forms)):
            forms = self.attributive(forms, text, span, others, noun)
        for form in forms:
            cased = self.in_sentence(term, form, text, span)
            if not has_noun(form):
                found.setdefault(Rewrite(span, cased, cased))
                continue
            for i, beginning in enumerate(beginnings(text, span[0], self.language, others)):
                if not i or fits(form, beginning.endings):
                    found.setdefault(Rewrite(span, cased, cased, around=beginning.changes))
        return list(found)

    def joined(self, term: SourceTerm, text: str, span: Span, part: Span) -> list[Rewrite]:
        """Return the ways to write a term in the place of a part of a longer word, with each letter
        that may join it to the rest ("Dienstleistungsartikel" for "Serviceartikel"); none if the
        rest is no noun."""
        before, behind = text[span[0] : part[0]], text[part[1] : span[1]]
        forms, known = [normal(form) for form in term.targets], lexicon()
        if behind.startswith("-"):
            words = [before + form + behind for form in term.targets]
            return [Rewrite(span, word, word) for word in words]
        if not behind:
            words = [before + lowered(form) for form in term.targets]
        else:
            rests = [behind.removeprefix(letters) for letters in LINKING]
            nouns = [rest for rest in rests if known.lemmas(capitalised(rest))]
            rest = max(nouns, key=len, default="")
            own = term.text.split("|") if rest else ()
            words = [before + form + letters + rest for form in own for letters in links(form)]
        return [
            Rewrite(span, word, word)
            for word in words
            if any(compounds(form, word) for form in forms)
        ]

    def inserted(self, term: SourceTerm, rewrite: Rewrite, text: str) -> list[Rewrite]:
        """Return the ways to write a term that is inserted in a text, the given one first: with its
        other forms."""
        if self.language not in LANGUAGES:
            return [rewrite]
        forms = self.of_number(term) if any(map(has_noun, term.targets)) else term.targets
        cased = [self.in_sentence(term, form, text, rewrite.span) for form in forms]
        found = [Rewrite(rewrite.span, form, form, rewrite.placed_by) for form in cased]
        return list(dict.fromkeys([rewrite, *found]))

    def agrees(
        self,
        text: str,
        rewrites: Mapping[SourceTerm, Rewrite],
        term: SourceTerm,
        undecided: Collection[SourceTerm] = (),
        is_plural: bool = False,
        is_strict: bool = True,
    ) -> bool:
        """Return whether the words around a term go with it, with rewrites in a text. undecided:
        those of adjectives whose endings may still change; is_plural: whether a noun is to be one;
        is_strict: whether the words between an adjective and its noun count."""
        if self.language not in LANGUAGES:
            return True
        written = [
            change
            for of, each in rewrites.items()
            for change in (*each.around, (each.span, "" if of in undecided else each.text))
        ]
        changes, way = edits(text, written, False), rewrites[term]
        first = [change for change in changes if change[0] < way.span]
        new = edited(text, changes)
        start = new.find(way.form, len(edited(text[: way.span[0]], first)))
        noun = noun_of(way.form)
        if noun is not None:
            lead, head = way.form[: noun[0]].lower(), way.form[slice(*noun)]
            cells = PLURAL_CELLS if is_plural else ALL
            before = SPACES.sub(" ", new[:start]) + lead
            return is_possible(before, head, new[start + noun[1] :], cells)
        end = start + len(way.form)
        noun = noun_after(new, end, self.language)
        if noun is None:
            return True
        if not split_adjective(way.form)[1] and is_in_noun_phrase(new, (start, end)):
            return False
        before = new[: noun[0]] if is_strict else new[:end] + " "
        return is_possible(SPACES.sub(" ", before), new[slice(*noun)], new[noun[1] :])

    def attributive(
        self, forms: tuple[str, ...], text: str, span: Span, others: list[Span], noun: Span
    ) -> tuple[str, ...]:
        """Return those forms of an adjective that may stand before its noun: with the ending of the
        adjective that it displaces, if the noun stays, else with one that the words before it
        allow. others: the spans of other terms."""
        displaced, base = text[slice(*span)], min(forms, key=len)
        own = split_adjective(displaced)[1]
        is_right = (
            own in ADJECTIVE_ENDINGS
            and not any(overlap(noun, each) for each in others)
            and is_possible(text[: span[0]] + base + own + " ", text[slice(*noun)])
        )
        endings = (own,) if is_right else ADJECTIVE_ENDINGS
        fitting = tuple(form for form in forms if form[len(base) :] in endings)
        return fitting or forms

    def wrong_place(self, term: SourceTerm, text: str) -> Span | None:
        """Return the place where a German text has a term with words that do not go with it: a
        noun, or a word that it is a part of, with an article of another gender ("einen Differenz"),
        or an adjective with a capital or another ending ("einer kleinen, randomisierte Studie").
        """
        if self.language not in LANGUAGES:
            return None
        places = {
            span: form
            for form in term.targets
            for span in Text(text, False).places(normal(form), term.case)
        }
        if any(map(has_noun, term.targets)):
            if not places and term.cased.in_compounds:
                found = (span for form in term.targets for span in compounds(normal(form), text))
                places = dict.fromkeys(found, "")
            wholes = {hyphened(text, span) for span in places}
            wrong = [s for s in wholes if self.is_wrong(term, text, s, text[slice(*s)])]
            return min(wrong, default=None)
        base = min(term.targets, key=len, default="")
        wrong = [
            span
            for span, form in places.items()
            if (
                text[span[0]].isupper()
                and not starts_sentence(text, span[0])
                and not lexicon().is_infinitive(text[slice(*span)])
            )
            or (
                self.is_wrong(term, text, span, form)
                and not all(self.is_wrong(term, text, span, other) for other in term.targets)
            )
        ]
        is_determiner = base.lower() in function_words(self.language)
        return min(wrong) if places and len(wrong) == len(places) and not is_determiner else None

    def is_wrong(self, term: SourceTerm, text: str, span: Span, form: str) -> bool:
        """Return whether a term that a text has does not go with the words around it."""
        return not self.agrees(text, {term: Rewrite(span, form, form)}, term)

    def bonus(self, term: SourceTerm, form: str, displaced: str = "") -> float:
        """Return what a form of a German noun gains (in nats) for the number of its source term, an
        English one. displaced: the draft's words in its place, whose plural counts too if they end
        as the form does: Rückschmerzen for "back pain"."""
        if self.source != "en" or not term.mention:
            return 0.0
        ending = commonprefix([folded(form)[::-1], folded(displaced)[::-1]])
        is_own = form in term.targets and len(ending) > MIN_PART
        if is_own and numbers_of(displaced) == {"plural"}:
            return NUMBER_BONUS
        return NUMBER_BONUS * (self.number(term) in numbers_of(form, term.entry))

    def is_preferred(self, term: SourceTerm, form: str) -> bool:
        """Return whether a form is one of the first alternative that the glossary has for a term,
        if it has several."""
        first, *others = term.text.split("|")
        forms = forms_of_language(self.language)
        if (
            not others
            or folded(form) == folded(first)
            or (self.is_english and is_form(first, form))
        ):
            return True
        return forms is not None and folded(form) in map(folded, forms(first))

    def size(self, term: SourceTerm) -> int:
        """Return the number of tokens of a term's first alternative."""
        return len(self.text.segmenter().known_pieces(term.text.split("|")[0]))

    def number(self, term: SourceTerm) -> str:
        """Return the number of the source of a term, "" if it is not known."""
        if self.source != "en" or not term.mention:
            return ""
        base = numbers_of(next(iter(term.targets), ""))
        is_plural = PLURAL.search(term.mention) or base == {"plural"}  # Einstellungen for "setup"
        return "plural" if is_plural else "singular"

    def of_number(self, term: SourceTerm) -> tuple[str, ...]:
        """Return the forms of a German noun with the number of its source term; all if that is
        unknown."""
        return tuple(f for f in term.targets if self.bonus(term, f)) or term.targets

    def in_sentence(self, term: SourceTerm, form: str, text: str, span: Span) -> str:
        """Return a form of a term of an inflected language: as written, with a capital at the start
        of a sentence. Its other letter case is a form of its own."""
        if term.case in ("any", "fitted") and starts_sentence(text, span[0]):
            first = capitalised(form)
            return first if self.text.segmenter().writable(first) else form
        return self.in_case(term, form, text, span)

    def in_case(self, term: SourceTerm, form: str, text: str, span: Span) -> str:
        """Return a form in the letter case that it has in the place of a span of a text."""
        if term.case in ("any", "fitted"):
            return fitted(form, text, span, self.language)
        begins = term.case == "initial" and span[0] == 0 < span[1] and text[:1].isupper()
        return capitalised(form) if begins and not keeps_case(form) else form

    @property
    def is_english(self) -> bool:
        """Whether the target language is English."""
        return self.language == "en"

    @property
    def is_from_german(self) -> bool:
        """Whether the languages are German and English."""
        return self.is_english and self.source == "de"

    def version(
        self, sentence: Sentence, candidate: Candidate, rewrites: Mapping[SourceTerm, Rewrite]
    ) -> Version:
        """Return a candidate with terms in the place of spans of its text. Tokens outside of the
        spans stay, where the segmentation says how tokens become words."""
        segmenter, text = self.text.segmenter(), candidate.text
        written = [
            change
            for each in rewrites.values()
            for change in (*each.around, (each.span, each.text))
        ]
        changes = edits(text, written, self.is_english)
        lead = candidate.draft.tokens[: len(candidate.draft.tokens) - len(candidate.tokens)]
        whole = edited(text, changes)
        tokens = segmenter.replaced(candidate.tokens, candidate.spans, text, changes)
        normal_form = normalize("NFKC", whole)
        if tokens is None or normalize("NFKC", self.text.text(tokens)).rstrip() != normal_form:
            pieces = segmenter.known_pieces(whole)
            resegmented = [*map(segmenter.dictionary.index, pieces), self.eos]
            # a term that the tokenizer itself spaces in another way ("5 %" is read as "5%") is no
            # reason to segment the other words again
            if (
                tokens is None
                or normalize("NFKC", self.text.text(resegmented)).rstrip() == normal_form
            ):
                tokens = resegmented
        return Version(sentence, candidate, rewrites, [*lead.tolist(), *tokens], changes)

    def word_behind(self, tokens: Sequence[int], lead: int) -> int:
        """Return the start of the first word after `lead` tokens, which may end inside of one: its
        rest is not a word, and no term takes its place."""
        while 0 < lead < len(tokens) - 1:
            before, after = (self.text.text(tokens[:n]) for n in (lead, lead + 1))
            if after.startswith(f"{before} "):
                break
            lead += 1
        return lead


def links(form: str) -> tuple[str, ...]:
    """Return the letters that may join a German noun to the one behind it."""
    if TAKES_S.search(form):
        return ("s",)
    return ("n",) if form.endswith("e") else ("",) if form[-1:] in "aiouäöüy" else ("", "s")


def hyphened(text: str, span: Span) -> Span:
    """Return a span with the parts of a word that hyphens join to it."""
    before, behind = PARTS_BEFORE.search(text[: span[0]]), PARTS_BEHIND.match(text, span[1])
    start = span[0] if before is None else before.start()
    return start, span[1] if behind is None else behind.end()
