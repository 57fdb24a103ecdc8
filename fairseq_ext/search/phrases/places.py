"""Where tokens and phrases stand in a text, and which constraints a text meets.

Phrases have places by the definition that counts them as met (sentence.py, `met_in_turn`).
The same phrase, asked for twice, needs two places; different phrases may share words ("young man"
holds "man" too). As many as can get a place of their own, where each place stands in the way of one
other at most. This is maximum matching in a bipartite graph by augmenting paths (J. E. Hopcroft and
R. M. Karp, SIAM Journal on Computing 2(4), 1973, Section 2), with the difference that places
overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple
from unicodedata import normalize

import regex

from fairseq_ext.search.phrases.pieces import Boundaries, capitalised, folded, is_letter, normal
from fairseq_ext.search.phrases.sentence import Cased, Phrase, SentenceConstraints, met_in_turn

# ---- A term written where another word stood
#
# It gets the English article that fits it. Its case: letter_case.py.


ARTICLE = regex.compile(r"(?<!\w)(a|an)(?= $)", regex.IGNORECASE)
DETERMINER = regex.compile(r"(?i)(?:an?|the|one|this|that|my|your|his|her|its|our|their) ")
SOUNDS_AS_VOWEL = regex.compile(r"(?i)[aeio]|u(?!ni|se|su|ti|ro|r[aeio])|h(?:our|onest|onou?r|eir)")
SOUNDS_AS_CONSONANT = regex.compile(r"(?i)eu|ewe|one?(?!\w)|once")
PLURAL = regex.compile(r"(?i)(?:\w*(?:[^ius\W]s|men|children|people|feet|teeth|mice|geese))$")
Span = tuple[int, int]  # characters, [start, end)
Place = tuple[int, Span]  # which of a phrase's forms, and where it stands


class Wanted(NamedTuple):
    """A phrase, and how it counts."""

    forms: Sequence[str]  # any one of them, in normal form (pieces.py)
    case: str  # as --constraint-case


class Text(NamedTuple):
    """A translation in normal form.

    segmented: it is pieces, parted by spaces, as the forms are; whole: a form must end a word, not
    only start one; None: forms count inside words as well.
    """

    text: str
    segmented: bool
    whole: bool | None = True

    def places(self, form: str, case: str) -> list[Span]:
        """Where a form stands, from left to right, inside words last."""
        text, whole = self.text, self.whole
        if self.segmented:
            padded, mode = f" {text} ", "exact" if case == "exact" else "any"
            spans = [
                (begin, end - 2)
                for begin, end in occurrences(
                    lambda start: end_of(f" {form} ", padded, start, False, mode)
                )
            ]
            return [span for span in spans if case != "initial" or span[0] == 0]
        spans = list(occurrences(lambda start: end_of(form, text, start, bool(whole), case)))
        if whole is None:
            spans += occurrences(lambda start: ((at := text.find(form, start)), at + len(form)))
        return list(dict.fromkeys(spans))


def assigned(text: Text, wanted: Sequence[Wanted]) -> list[Place | None]:
    """A place for each phrase, None for one that has none or only such as serve an equal one.

    As many phrases as can have a place of their own; the others share words with different ones.
    Forms as they are written go before those in another case, where a phrase allows one; a phrase
    that finds its places taken has another one move to a place that is free.
    """
    seats: dict[int, Place] = {}
    options: list[list[Place]] = [[] for _ in wanted]
    for exact in (True, False):
        for each, found in zip(wanted, options, strict=True):
            for number, form in enumerate(each.forms):
                found += [
                    (number, span) for span in text.places(form, "exact" if exact else each.case)
                ]
        for i in range(len(wanted)):
            if i not in seats:
                seat(i, options, seats, set(), [])
    kinds = [(frozenset(each.forms), each.case) for each in wanted]
    for i, of_phrase in enumerate(options):
        equal = [seats[j][1] for j in seats if j != i and kinds[j] == kinds[i]]
        shared = [
            place for place in of_phrase if not any(overlap(place[1], span) for span in equal)
        ]
        if i not in seats and shared:
            seats[i] = shared[0]
    return [seats.get(i) for i in range(len(wanted))]


def in_order(text: Text, wanted: Sequence[Wanted]) -> list[Place | None]:
    """The same for phrases that must come one behind the other: behind the first that does
    not come, none has a place."""
    found: list[Place | None] = []
    reached = 0
    for each in wanted:
        options = [
            (number, span)
            for number, form in enumerate(each.forms)
            for span in text.places(form, each.case)
            if span[0] >= reached
        ]
        place = (
            min(options, key=lambda option: option[1][1], default=None)
            if None not in found
            else None
        )
        reached = reached if place is None else place[1][1]
        found.append(place)
    return found


def occurrences(find: Callable[[int], Span]) -> Iterator[Span]:
    """All that `find` finds; find: the first span at or behind a place, (-1, ...) for none."""
    span = find(0)
    while span[0] >= 0:
        yield span
        span = find(span[0] + 1)


def seat(
    i: int,
    options: Sequence[Sequence[Place]],
    seats: dict[int, Place],
    tried: set[Place],
    above: list[Span],
) -> bool:
    """Give phrase i one of its places, if need be one whose holder can move (an augmenting
    path); whether there is one.

    tried: places that some phrase has asked for in vain; above: the spans that those who
    wait for i are to have."""
    held = {j: span for j, (_, span) in seats.items() if j != i}
    left = [
        place
        for place in options[i]
        if place not in tried and not any(overlap(place[1], span) for span in above)
    ]
    holders = [[j for j, span in held.items() if overlap(place[1], span)] for place in left]
    # free ones first
    for place, of_place in sorted(
        zip(left, holders, strict=True), key=lambda option: len(option[1])
    ):
        if place in tried:
            continue
        tried.add(place)
        if not of_place or (
            len(of_place) == 1 and seat(of_place[0], options, seats, tried, [*above, place[1]])
        ):
            seats[i] = place
            return True
    return False


def overlap(one: Span, other: Span) -> bool:
    """Whether two spans share a character."""
    return one[0] < other[1] and other[0] < one[1]


def token_spans(
    tokens: Sequence[int], text: Callable[[Sequence[int]], str], own: dict[int, str] | None = None
) -> list[Span]:
    """The characters [start, end) that each token adds to the text in NFKC; none for one that adds
    nothing, EOS for instance.

    tokens (L,); text: tokens to text. Where the text is not that of its tokens one by one,
    spaces between them set aside, the text of each beginning is asked for. own: keeps their
    texts from call to call.
    """
    own, whole, spans, reached = {} if own is None else own, read(tokens, text), [], 0
    for token in tokens:
        if token not in own:
            own[token] = read([token], text).lstrip()
        start = reached + (bool(own[token]) and whole.startswith(" ", reached))
        if not whole.startswith(own[token], start):
            break
        spans.append((reached, reached := start + len(own[token])))
    if len(spans) == len(tokens) and reached == len(whole):
        return spans
    spans, reached = [], 0
    for count in range(1, len(tokens) + 1):
        end = max(reached, len(read(tokens[:count], text)))
        spans.append((reached, end))
        reached = end
    return spans


def read(tokens: Sequence[int], text: Callable[[Sequence[int]], str]) -> str:
    """The text of tokens in NFKC."""
    return normalize("NFKC", text(tokens)).rstrip()


def overlapping(spans: Sequence[Span], start: int, end: int) -> list[int]:
    """The places of the tokens that share a character with [start, end)."""
    return [place for place, (first, behind) in enumerate(spans) if first < end and behind > start]


# ---- Constraints that a finished hypothesis meets
#
# They are read off its detokenised text: what a reader finds, in whatever pieces it was written.
#
# A phrase's text is found where it neither starts nor ends inside a word (`--constraint-boundary
# prefix`: does not start inside one), in its own case, with a capital at the start of the text, or
# in any case (sentence.py, Cased).


KEPT = 1 << 14  # phrases whose texts are kept


class InText:
    """Reads hypotheses as text.

    text: target tokens to plain text; whole: a phrase must not end inside a word either.
    """

    def __init__(self, text: Callable[[Sequence[int]], str], whole: bool):
        self.text, self.whole = text, whole
        self.of_phrase = lru_cache(maxsize=KEPT)(lambda phrase: normal(text(phrase)))

    def __call__(
        self, tokens: Sequence[int], constraints: SentenceConstraints, ordered: bool
    ) -> list[bool]:
        """Whether each constraint is met, counted by `sentence.met_in_turn`."""
        text = normal(self.text(tokens))

        def ends(alternatives: Sequence[Phrase], cased: Cased, start: int) -> list[int]:
            return [
                end_of(self.of_phrase(phrase), text, start, self.whole, cased.mode)[1]
                for phrase in alternatives
            ]

        return met_in_turn(constraints, ordered, ends)


def end_of(phrase: str, text: str, start: int, whole: bool, case: str = "exact") -> tuple[int, int]:
    """Where the first occurrence of a phrase at or behind start begins and ends, (-1, -1) when
    there is none; both texts in normal form (pieces.py). case: as --constraint-case."""
    if case in ("any", "fitted"):
        phrase, text = folded(phrase), folded(text)
    elif case == "initial" and start == 0:
        begun = first_end(capitalised(phrase), text[: len(phrase) + 1], 0, whole)
        if begun == (0, len(phrase)):
            return begun
    return first_end(phrase, text, start, whole)


def first_end(phrase: str, text: str, start: int, whole: bool) -> tuple[int, int]:
    """The same in the case as written."""
    at = text.find(phrase, start)
    while at >= 0:
        end = at + len(phrase)
        begins_inside = at > 0 and joined(text[at - 1], phrase[0])
        ends_inside = whole and end < len(text) and joined(phrase[-1], text[end])
        if not begins_inside and not ends_inside:
            return at, end
        at = text.find(phrase, at + 1)
    return -1, -1


def joined(first: str, second: str) -> bool:
    """Whether two neighbouring characters stand in one word."""
    return is_letter(first) and is_letter(second)


def banned_in_texts(
    boundaries: Boundaries, case: str
) -> Callable[[SentenceConstraints], Callable[[Phrase], str | None]]:
    """For a sentence's constraints, a function from a phrase to the text of a banned phrase that
    its text contains, None for none.

    case: of banned phrases, exact or any.
    """
    text_of = lru_cache(maxsize=KEPT)(boundaries.pieces.text_of)

    def look(constraints: SentenceConstraints) -> Callable[[Phrase], str | None]:
        def banned_in(phrase: Phrase) -> str | None:
            text = text_of(phrase)
            texts = zip(constraints.banned, constraints.banned_text, strict=True)
            return next(
                (
                    said
                    for other, said in texts
                    if end_of(text_of(other), text, 0, boundaries.whole, case)[1] >= 0
                ),
                None,
            )

        return banned_in

    return look


def agreeing(targets: tuple[str, ...], word: str) -> tuple[str, ...]:
    """The English target forms of the number of the word that they displace; all of them where none
    has it, or no word is displaced."""
    if not word:
        return targets
    is_plural = PLURAL.search(word) is not None
    return (
        tuple(form for form in targets if (PLURAL.search(form) is not None) == is_plural) or targets
    )


def edits(text: str, terms: Sequence[tuple[Span, str]], english: bool) -> list[tuple[Span, str]]:
    """What is written where, from left to right, so that each term stands in the place of its span,
    or behind the word that an empty span follows. english: "a" becomes "an" before a vowel, and
    back, and goes where the term begins with such a word; its capital goes to the term then."""
    out = []
    for (start, end), term in sorted(terms):
        space = " " * (start == end)
        article = ARTICLE.search(text[:start] + space) if english else None
        if article is not None and not any(
            first <= article.start() < behind for (first, behind), _ in terms
        ):
            fit = "" if DETERMINER.match(term) else fitting(article[1], term) + " "
            if fit != text[article.start() : start] + space:
                if not fit and article[1][0].isupper():
                    term = capitalised(term)
                start, space = article.start(), fit
        out.append(((start, end), space + term))
    return out


def edited(text: str, changes: Sequence[tuple[Span, str]]) -> str:
    """A text after `edits`."""
    for (start, end), written in reversed(changes):
        text = text[:start] + written + text[end:]
    return text


def fitting(article: str, word: str) -> str:
    """The form of the article, "a" or "an", that stands before a word."""
    is_vowel = SOUNDS_AS_VOWEL.match(word) and not SOUNDS_AS_CONSONANT.match(word)
    return article[0] + ("n" if is_vowel else "")
