"""Glossary terms written into a draft: in which form, letter case and tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from unicodedata import normalize

from fairseq_ext.search.constraints.drafts import Candidate, Rewrite, Sentence
from fairseq_ext.search.constraints.rewrites import Version
from fairseq_ext.search.constraints.word_alignment import widened
from fairseq_ext.search.phrases.letter_case import fitted, keeps_case
from fairseq_ext.search.phrases.pieces import capitalised, folded
from fairseq_ext.search.phrases.places import Span, agreeing, edited, edits, fitting
from fairseq_ext.search.phrases.segmenter import TargetText
from fairseq_ext.search.phrases.sentence import SourceTerm


class TermWriter:
    """Writes terms into the tokens of drafts. target_text: how the target side is read; language:
    of the target, two letters."""

    def __init__(self, target_text: Callable[[], TargetText], eos: int, language: str = ""):
        self.target_text, self.eos, self.language = target_text, eos, language

    @property
    def text(self) -> TargetText:
        """How the target side is read."""
        return self.target_text()

    def choices(
        self, term: SourceTerm, text: str, span: Span, taken: list[Span], lead: str = ""
    ) -> list[Rewrite]:
        """The ways to write a term in the place of a span of a text; taken: the spans of all
        terms; lead: words before it."""
        displaced = text[slice(*span)]
        forms = agreeing(term.targets, displaced) if self.is_english else term.targets
        # the draft's own word may be one of them
        forms = tuple(form for form in forms if folded(form) == folded(displaced)) or forms
        wide = [(widened(text, span, form, taken), form) for form in forms]
        return [
            Rewrite(each, led(lead, cased), cased)
            for each, form in wide
            for cased in self.in_case(term, form, text, each)
        ]

    def in_case(self, term: SourceTerm, form: str, text: str, span: Span) -> tuple[str, ...]:
        """A form of a term in the letter case that it has in the place of a span of a text."""
        if term.case in ("any", "fitted"):
            return fitted(form, text, span, self.language)
        begins = term.case == "initial" and span[0] == 0 < span[1] and text[:1].isupper()
        return (capitalised(form) if begins and not keeps_case(form) else form,)

    @property
    def is_english(self) -> bool:
        """Whether the target language is English."""
        return self.language == "en"

    def version(
        self, sentence: Sentence, candidate: Candidate, rewrites: Mapping[SourceTerm, Rewrite]
    ) -> Version:
        """A candidate with terms in the place of spans of its text. Tokens outside of the spans
        stay, where the segmentation says how tokens become words."""
        segmenter, text = self.text.segmenter(), candidate.text
        written = [(each.span, each.text) for each in rewrites.values()]
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


def led(lead: str, term: str) -> str:
    """A term after the words that lead to it."""
    *others, last = lead.split(" ")
    return " ".join([*others, fitting(last, term) if last in ("a", "an") else last, term]).strip()
