"""The places of tokens and phrases in a text, and the constraints that a text meets.

A phrase has places by the definition that counts it as met (sentence.py, `met_in_turn`). Two
requirements of the same phrase need two places; different phrases may share words ("young man" also
contains "man"). As many as possible get a place of their own. This is maximum matching in a
bipartite graph by augmenting paths (J. E. Hopcroft and R. M. Karp, SIAM Journal on Computing 2(4),
1973, Section 2), with the difference that places overlap: each may conflict with one other at most.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple
from unicodedata import normalize

import regex

from fairseq_ext.search.phrases.letter_case import capitalised
from fairseq_ext.search.phrases.pieces import Boundaries, folded, is_letter, normal
from fairseq_ext.search.phrases.sentence import (
    Constraint,
    Meets,
    Phrase,
    SentenceConstraints,
    Span,
    met_in_turn,
)

# ---- A term written in the place of another word, with the right article (case: letter_case.py)


ARTICLE = regex.compile(r"(?<!\w)(a|an)(?= $)", regex.IGNORECASE)
DETERMINER = regex.compile(r"(?i)(?:an?|the|one|this|that|my|your|his|her|its|our|their) ")
SOUNDS_AS_VOWEL = regex.compile(r"(?i)[aeio]|u(?!ni|se|su|ti|ro|r[aeio])|h(?:our|onest|onou?r|eir)")
SOUNDS_AS_CONSONANT = regex.compile(r"(?i)eu|ewe|one?(?!\w)|once")
COUNTED = regex.compile(  # words before a plural, if it can be counted
    r"(?i)(?<![\w-])(?:all|both|many|several|few|these|those|two|three|four|five|six|seven|eight"
    r"|nine|ten|eleven|twelve)(?: the| these| those| of the)? $"
)
EACH_ONE = regex.compile(r"(?i)(?<=(?<![\w-])(?:each|every) )one $")
# capitals that are read letter by letter: EU, URL, XML, but not NATO
SPELLED = regex.compile(r"(?:[A-Z]{1,2}|U[A-Z]{2}|[A-Z][B-DF-HJ-NP-TV-XZ]+)(?!\p{L})")
NAMED_AS_VOWEL = "AEFHILMNORSX"  # "an F"
SINGULAR = r"(?<!\w)(?:alias|atlas|bias|canvas|gas|lens|means|news|series|species|(?-i:[A-Z]+))"
PLURAL = regex.compile(
    rf"(?i)(?:\w*(?:[^ius\W]s(?<!{SINGULAR})|men|children|people|feet|teeth|mice|geese))$"
)
PLURALS = (  # endings of English nouns
    (regex.compile(r"(?i)(?<=m)an$"), "en"),
    (regex.compile(r"(?i)(?<=child)$"), "ren"),
    (regex.compile(r"(?i)(?<=[^aeiou])y$"), "ies"),
    (regex.compile(r"(?i)(?<=[sxz]|[cs]h)$"), "es"),
    (regex.compile(r"(?<=\p{L})$"), "s"),
)
AGREEING_VERB = regex.compile(r" (?:is|are|was|were|has|have|does|do)$")  # with a noun before it
WORD = regex.compile(r"\p{L}+")
SENTENCE_SIGN = regex.compile("[.!?…]")  # which no term doubles
MIN_NOUN, MIN_OTHER_PART = 4, 3  # letters of the parts of a compound
PREFIX = regex.compile(
    "ab|an|auf|aus|be|bei|durch|ein|ent|er|ge|her|hin|miss|mit|nach|neben|rück|um|un|unter|ur|ver"
    "|vor|wider|wieder|zer|zu|zurück|zusammen|über"
)
LINKING = ("", "s", "es", "n", "en", "e", "er")
SUFFIX = regex.compile("ung|lich|schaft|heit|keit|isch|los|bar|end|ier|in$|innen$")
Place = tuple[int, Span]  # number of the phrase's form, and its span


class PhraseToFind(NamedTuple):
    """A phrase to be found, and how it counts.

    mention: its places in the source, if it translates them: phrases of different ones share no
    words.
    """

    forms: Sequence[str]  # any one of them, in normal form (pieces.py)
    case: str  # as --constraint-case
    mention: frozenset[int] = frozenset()
    in_compounds: bool = False  # whether it counts as a part of a German noun, too

    def shares(self, other: PhraseToFind) -> bool:
        """Return whether it may share words with another phrase."""
        is_equal = (frozenset(self.forms), self.case) == (frozenset(other.forms), other.case)
        is_apart = self.mention and other.mention and self.mention.isdisjoint(other.mention)
        return not is_equal and not is_apart

    @property
    def size(self) -> int:
        """How many words its longest form has beyond one; 0 without a mention."""
        counts = (form.count(" ") + form.count("-") for form in self.forms)
        return max(counts, default=0) if self.mention else 0


class Text(NamedTuple):
    """A translation in normal form.

    segmented: it is pieces, separated by spaces, as the forms are; whole: a form must end a word,
    not only start one; None: forms count inside words as well.
    """

    text: str
    segmented: bool
    whole_words: bool | None = True

    def places(self, form: str, case: str, in_compounds: bool = False) -> list[Span]:
        """Return the places of a form, from left to right, those inside words last. in_compounds:
        also the longer words of which it is a part."""
        text = self.text
        if self.segmented:
            mode = "exact" if case == "exact" else "any"
            padded = phrase_places(f" {form} ", f" {text} ", False, mode)
            spans = [(begin, end - 2) for begin, end in padded if case != "initial" or begin == 0]
        else:
            spans = list(phrase_places(form, text, bool(self.whole_words), case))
            if self.whole_words is None:
                starts = (at for at in range(len(text)) if text.startswith(form, at))
                spans += [(at, at + len(form)) for at in starts]
        return list(dict.fromkeys(spans + (compounds(form, text) if in_compounds else [])))


def match_phrases(text: Text, wanted: Sequence[PhraseToFind]) -> list[Place | None]:
    """Return a place for each phrase, None for one that has none or only one that an equal phrase
    uses.

    As many phrases as possible have a place of their own; the others share words with different
    ones, if they may. Forms as written have priority over those in another case, if a phrase allows
    one; a phrase whose places are in use makes another phrase move to a free place.
    """
    seats: dict[int, Place] = {}
    options: list[list[Place]] = [[] for _ in wanted]
    for exact in (True, False):
        for each, found in zip(wanted, options, strict=True):
            case, in_compounds = ("exact", False) if exact else (each.case, each.in_compounds)
            found += [
                (number, span)
                for number, form in enumerate(each.forms)
                for span in text.places(form, case, in_compounds)
            ]
        # of phrases that share no words, a longer one first: "account name" before "account"
        for i in sorted(range(len(wanted)), key=lambda i: -wanted[i].size):
            if i not in seats:
                find_augmenting_path(i, options, seats, set(), [])
    for i, of_phrase in enumerate(options):
        apart = [seats[j][1] for j in seats if j != i and not wanted[i].shares(wanted[j])]
        shared = [
            place for place in of_phrase if not any(overlap(place[1], span) for span in apart)
        ]
        if i not in seats and shared:
            seats[i] = shared[0]
    return [seats.get(i) for i in range(len(wanted))]


def without_words(text: Text, wanted: Sequence[PhraseToFind]) -> list[int]:
    """Return the numbers of the phrases that occur only in words of others, which they do not
    share."""
    if len(wanted) < 2:
        return []
    alone = (match_phrases(text, [each])[0] for each in wanted)
    both = zip(alone, match_phrases(text, wanted), strict=True)
    return [i for i, (own, place) in enumerate(both) if own is not None and place is None]


def match_phrases_in_order(text: Text, wanted: Sequence[PhraseToFind]) -> list[Place | None]:
    """Return the places of phrases that must occur in order: after the first that does not occur,
    none has a place."""
    found: list[Place | None] = []
    reached = 0
    for each in wanted:
        options = [
            (number, span)
            for number, form in enumerate(each.forms)
            for span in text.places(form, each.case)
            if span[0] >= reached and None not in found
        ]
        place = min(options, key=lambda option: option[1][1], default=None)
        reached = reached if place is None else place[1][1]
        found.append(place)
    return found


def find_augmenting_path(
    i: int,
    options: Sequence[Sequence[Place]],
    seats: dict[int, Place],
    tried: set[Place],
    above: list[Span],
) -> bool:
    """Give phrase i one of its places, if necessary one whose phrase can move (an augmenting path);
    return whether there is one.

    tried: places that were tried without success; above: the spans of the phrases that wait for i.
    """
    held = {j: span for j, (_, span) in seats.items() if j != i}
    left = [
        place
        for place in options[i]
        if place not in tried and not any(overlap(place[1], span) for span in above)
    ]
    holders = [[j for j, span in held.items() if overlap(place[1], span)] for place in left]
    # free places first
    for place, of_place in sorted(
        zip(left, holders, strict=True), key=lambda option: len(option[1])
    ):
        if place in tried:
            continue
        tried.add(place)
        if not of_place or (
            len(of_place) == 1
            and find_augmenting_path(of_place[0], options, seats, tried, [*above, place[1]])
        ):
            seats[i] = place
            return True
    return False


def overlap(one: Span, other: Span) -> bool:
    """Return whether two spans share a character."""
    return one[0] < other[1] and other[0] < one[1]


def token_spans(
    tokens: Sequence[int], text: Callable[[Sequence[int]], str], own: dict[int, str] | None = None
) -> list[Span]:
    """Return the characters [start, end) that each token adds to the text in NFKC; an empty span
    for a token without text, such as EOS.

    tokens (L,); text: returns the text of tokens. If the text is not that of its tokens one by one,
    except for spaces between them, `text` is called for each prefix. own: cache of the tokens'
    texts.
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
    """Return the text of tokens in NFKC."""
    return normalize("NFKC", text(tokens)).rstrip()


def overlapping(spans: Sequence[Span], start: int, end: int) -> list[int]:
    """Return the places of the tokens that share a character with [start, end)."""
    return [place for place, (first, behind) in enumerate(spans) if first < end and behind > start]


# ---- Constraints that a finished hypothesis meets, counted in its detokenised text
#
# A phrase's text is found where it neither starts nor ends inside a word (`--constraint-boundary
# prefix`: does not start inside one), in its own case, with a capital at the start of the text, or
# in any case (sentence.py, Cased).


CACHE_SIZE = 1 << 14  # texts of phrases in the cache


def meets_in_text(text: Callable[[Sequence[int]], str], whole: bool) -> Meets:
    """Return a function that counts the constraints that hypotheses meet, in their texts, by
    `sentence.met_in_turn`.

    text: returns the plain text of target tokens; whole: a phrase must not end inside a word
    either.
    """
    of_phrase = lru_cache(maxsize=CACHE_SIZE)(lambda phrase: normal(text(phrase)))

    def meets(tokens: Sequence[int], constraints: SentenceConstraints, ordered: bool) -> list[bool]:
        own = Text(normal(text(tokens)), False, whole)

        def places(each: Constraint) -> list[Span]:
            cased = each.cased
            forms = map(of_phrase, each.phrases)
            spans = (own.places(form, cased.mode, cased.in_compounds) for form in forms)
            return list(itertools.chain.from_iterable(spans))

        return met_in_turn(constraints, ordered, places)

    return meets


def phrase_places(phrase: str, text: str, whole: bool, case: str = "exact") -> Iterator[Span]:
    """Yield the places of a phrase in a text, from left to right, both in normal form (pieces.py).
    whole: it must not end inside a word either; case: as --constraint-case."""
    if case in ("any", "fitted"):
        phrase, text = folded(phrase), folded(text)
    begins = case == "initial" and text.startswith(capitalised(phrase))
    at = 0 if begins else text.find(phrase)
    while at >= 0:
        end = at + len(phrase)
        if not (is_inside_word(text, at) or (whole and is_inside_word(text, end))):
            yield at, end
        at = text.find(phrase, at + 1)


def is_inside_word(text: str, at: int) -> bool:
    """Return whether two neighbouring characters, the second one at this place, are in one word."""
    return 0 < at < len(text) and is_letter(text[at - 1]) and is_letter(text[at])


def compounds(noun: str, text: str) -> list[Span]:
    """Return the places of the longer words of which a German noun is a part (Kunde: Kundenkonto,
    Stammkunde), from left to right. A word with another prefix or suffix is no compound (Zahl:
    Anzahl, Zahlung)."""
    if len(noun) < MIN_NOUN or not noun.isalpha() or not noun[0].isupper():
        return []
    part = noun.lower()
    found = []
    for word in WORD.finditer(text):
        before, middle, after = word.group().lower().partition(part)
        if after in LINKING and text.startswith("-", word.end()):  # "Kunden- und Lieferantenkonto"
            after = " " * MIN_OTHER_PART
        is_part = middle and not (before and PREFIX.fullmatch(before)) and not SUFFIX.match(after)
        sides = [len(side) >= MIN_OTHER_PART for side in (before, after) if side]
        if is_part and sides and all(sides) and (len(sides) == 1 or len(part) > MIN_NOUN):
            found.append(word.span())
    return found


def banned_in_texts(
    boundaries: Boundaries, case: str
) -> Callable[[SentenceConstraints], Callable[[Phrase], str | None]]:
    """Return a `look` for `without_conflicts` that compares texts, not tokens: called with a
    sentence's constraints, it returns a function that finds the first banned phrase in the text of
    another phrase, and returns None if there is none.

    case: of banned phrases, exact or any.
    """
    text_of = lru_cache(maxsize=CACHE_SIZE)(boundaries.pieces.text_of)
    whole = boundaries.whole_words

    def look(constraints: SentenceConstraints) -> Callable[[Phrase], str | None]:
        texts = [(text_of(other), said) for other, said in constraints.banned.items()]
        return lambda phrase: next(
            (said for t, said in texts if any(phrase_places(t, text_of(phrase), whole, case))), None
        )

    return look


def plural_of(noun: str) -> str:
    """Return the plural of an English noun; "" for one that is a plural, or no word."""
    if PLURAL.search(noun):
        return ""
    return next((e.sub(other, noun, count=1) for e, other in PLURALS if e.search(noun)), "")


def agreeing(targets: tuple[str, ...], word: str, before: str = "") -> tuple[str, ...]:
    """Return the English target forms with the number of the word that they replace, or of a word
    such as "all" before it; all of them if none has it, or if no word is replaced. before: the text
    before the word."""
    if not word:
        return targets
    is_plural = PLURAL.search(word) is not None or COUNTED.search(before) is not None
    return (
        tuple(form for form in targets if (PLURAL.search(form) is not None) == is_plural) or targets
    )


def edits(text: str, terms: Sequence[tuple[Span, str]], english: bool) -> list[tuple[Span, str]]:
    """Return the changes of a text, from left to right, that write each term in the place of its
    span, or after the word that an empty span follows. english: "a" becomes "an" before a vowel, or
    the reverse. It is dropped, and its capital goes to the term, if that begins with such a word or
    is a plural in the place of a singular."""
    out, joined = [], list[tuple[Span, str]]()
    for span, term in sorted(terms):
        if joined and not joined[-1][1] and joined[-1][0][1] == span[0]:
            span = joined.pop()[0][0], span[1]
        joined.append((span, term))
    starts = {start for (start, _), _ in joined}
    for (start, end), term in joined:
        if SENTENCE_SIGN.match(term[-1:]) and text.startswith(term[-1], end) and end not in starts:
            end += 1
        space = " " * (start == end)
        one = EACH_ONE.search(text[:start]) if english and start < end else None
        if one is not None:  # the term takes its place
            start = one.start()
        article = ARTICLE.search(text[:start] + space) if english else None
        if article is not None and not any(
            first <= article.start() < behind for (first, behind), _ in terms
        ):
            nouns = [AGREEING_VERB.sub("", each) for each in (text[start:end], term)]
            were, are = (PLURAL.search(each) is not None for each in nouns)
            is_other = DETERMINER.match(term) or (start < end and are and not were)
            fit = "" if is_other else fitting(article[1], term or text[end:]) + " "
            if fit != text[article.start() : start] + space:
                if not fit and article[1][0].isupper():
                    term = capitalised(term)
                start, space = article.start(), fit
        out.append(((start, end), space + term))
    return out


def edited(text: str, changes: Sequence[tuple[Span, str]]) -> str:
    """Return a text after `edits`."""
    for (start, end), written in reversed(changes):
        text = text[:start] + written + text[end:]
    return text


def fitting(article: str, word: str) -> str:
    """Return the form of the article, "a" or "an", before a word."""
    if SPELLED.match(word):
        is_vowel = word[0] in NAMED_AS_VOWEL
    else:
        is_vowel = bool(SOUNDS_AS_VOWEL.match(word) and not SOUNDS_AS_CONSONANT.match(word))
    return article[0] + ("n" if is_vowel else "")
