"""The words of a draft that translate a source term: attention, the model's own renderings of the
term, and forced decoding.

Attention: the words whose prediction attends to the term, by the cross-attention of all layers and
heads on average. Renderings: the words that the model writes for the term by itself
(renderings.py). Function words translate no term, unless a rendering has them; a verb translates no
noun. Neighbours join a word where they translate the same source term: "power cable" for
"Netzkabel". Where little speaks for a German word, a longer noun that begins or ends with a
rendering is taken, if its other part translates the source word next to the term.

Where the model has no such attention, a rendering, else prediction difference:

    X. Li, G. Li, L. Liu, M. Meng and S. Shi. On the Word Alignment from Neural Machine Translation.
    ACL 2019. https://aclanthology.org/P19-1124/
    Section 4.2, without their sampling: the source word is left out.

The word whose log-probability falls most without the term in the source is its translation. A drop
below `DROP` says that the translation has no word for the term, or one that the other words give
away.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from torch import Tensor

from fairseq_ext.core.words import is_word, starts_of, words_of
from fairseq_ext.search.phrases.function_words import stem
from fairseq_ext.search.phrases.pieces import folded
from fairseq_ext.search.phrases.places import MIN_NOUN, MIN_OTHER_PART, Span, overlapping

ATTENDED = 0.25  # least score of a word
IS_RENDERING = 0.25  # least share of the renderings that have a word
MIN_SURE_SCORE = 0.6  # least score of words that are not doubtful, where no rendering has one
PART_ATTENDED = 0.1  # least attention of a longer word, a part of which translates a mention
ENDINGS = ("", "n", "en", "e", "s", "es")  # of a part of a word
DROP = 0.5  # nats
OBJECT_BEGINNINGS = frozenset(  # words behind "to" and a verb
    "a an the this that these those my your his her its our their it him them no all each every "
    "any some both".split()
)
PARTICLES = frozenset("up out in on off down over away back".split())  # "to set up an account"
AUXILIARIES = frozenset("am is are was were be been being have has had".split())
SUBJECTS = frozenset("i you we they he she".split())
WITH_UNKNOWN = re.compile(r"\w*(?:<unk>\w*)+")  # a word with unknown pieces


@dataclass
class Mention:
    """A mention of a source term.

    tokens: its places in the source; forms: the target forms of its term; words: its source words
    by their numbers; renderings: the model's own translations as words (folded), with shares.
    """

    tokens: tuple[int, ...]
    forms: tuple[str, ...]
    words: frozenset[int] = frozenset()
    has_function_word: bool = False  # among several words
    renderings: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    is_noun: bool = False  # a noun in both languages

    @cached_property
    def shares(self) -> tuple[dict[str, float], dict[str, float]]:
        """The shares of the renderings that have each word, and each stem of English words."""
        exact, stems = dict[str, float](), dict[str, float]()
        for phrase, share in self.renderings.items():
            for found, keys in ((exact, phrase), (stems, map(stem, phrase))):
                for key in dict.fromkeys(keys):
                    found[key] = found.get(key, 0.0) + share
        return exact, stems


class WordAlignment:
    """A search for the words of a translation that translate mentions of source terms. A word
    translates at most one mention.

    text: in NFKC; spans: characters of each token; taken: spans in which no term is placed;
    functions: the target's function words, folded.
    """

    def __init__(
        self,
        text: str,
        spans: Sequence[Span],
        mentions: Sequence[Mention],
        taken: Sequence[Span] = (),
        functions: Collection[str] = (),
    ):
        self.text, self.words, self.mentions = text, word_spans(text), mentions
        self.functions = frozenset(functions)
        self.tokens = [overlapping(spans, *word) for word in self.words]
        self.span_of_mention: list[Span | None] = [None] * len(mentions)
        self.parts: dict[int, Span] = {}  # of the words of mentions: those that translate them
        self.weight = [0.0] * len(mentions)  # score of the word that was found
        self.folded = [folded(text[slice(*word)]) for word in self.words]
        self.is_function = [word in functions for word in self.folded]
        self.is_taken = [
            any(start < word[1] and word[0] < end for start, end in taken) for word in self.words
        ]
        # the strongest source word of each word; None: not known
        self.strongest: list[int | None] = [None] * len(self.words)
        # the source words of which a word is the strongest one
        self.claims: list[set[int]] = [set() for _ in self.words]
        self.doubtful: dict[int, bool] = {}  # the results of `is_doubtful`

    def is_doubtful(self, mention: int) -> bool:
        """Return whether there is little evidence for the words that were found for a mention."""
        if mention not in self.doubtful:
            self.doubtful[mention] = self.is_found_doubtful(mention)
        return self.doubtful[mention]

    def is_found_doubtful(self, mention: int) -> bool:
        """Compute the result of `is_doubtful`."""
        if self.span_of_mention[mention] is None:
            return True
        return self.weight[mention] < MIN_SURE_SCORE and not any(
            self.rendering(mention, w) >= IS_RENDERING for w in self.words_of(mention)
        )

    def words_of(self, mention: int) -> list[int]:
        """Return the words that were found for a mention."""
        start, end = self.span_of_mention[mention] or (0, 0)
        return [w for w, word in enumerate(self.words) if start <= word[0] < end]

    def is_own(self, mention: int | None) -> bool:
        """Return whether one of the words that were found for a mention begins with a rendering:
        "Geschäftspartner" for "business"."""
        if mention is None:
            return False
        shares, _ = self.mentions[mention].shares
        own = tuple(
            word
            for word, share in shares.items()
            if share >= IS_RENDERING and len(word) >= MIN_NOUN
        )
        return any(self.folded[w].startswith(own) for w in self.words_of(mention))

    def take_parts_(self) -> None:
        """Give mentions without a sure word of their own the longer German noun that begins or ends
        with one of their renderings: "Serviceartikel" for "service"."""
        for mention, of in enumerate(self.mentions):
            if not self.is_doubtful(mention):
                continue
            before = self.span_of_mention[mention]
            self.span_of_mention[mention] = None
            found = [
                (self.attention[mention][w], len(part), w, self.folded[w].startswith(part), part)
                for own in {phrase[0] for phrase in of.renderings if len(phrase) == 1}
                for part in (own + ending for ending in ENDINGS)
                for w, word in enumerate(self.folded)
                if (word.startswith(part) or word.endswith(part))
                if len(part) >= MIN_NOUN and len(word) >= len(part) + MIN_OTHER_PART
                if self.text[self.words[w][0]].isupper() and self.is_free(w)
                if any(abs(i - j) == 1 for i in self.claims[w] - of.words for j in of.words)
            ]
            weight, length, w, begins, part = max(found, default=(0.0, 0, 0, True, ""))
            if weight < PART_ATTENDED:
                self.span_of_mention[mention] = before
                continue
            start, end = self.span_of_mention[mention] = self.words[w]
            self.weight[mention] = weight
            self.parts[mention] = (start, start + length) if begins else (end - length, end)
        self.doubtful = {}

    @property
    def unsure(self) -> list[int]:
        """The mentions without a word."""
        return [mention for mention, word in enumerate(self.span_of_mention) if word is None]

    def rendering(self, mention: int, word: int) -> float:
        """Return the share of a mention's renderings that have a word, in English in any form."""
        own, (exact, stems) = self.folded[word], self.mentions[mention].shares
        if "the" not in self.functions or (own in exact and not own.endswith("ing")):
            return exact.get(own, 0.0)
        return stems.get(stem(own), 0.0)

    def attend_(self, weights: Tensor | None, source_words: Sequence[Sequence[int]] = ()) -> None:
        """Find words by attention and renderings. weights: the attention (L, T) in the steps that
        predict each token, None for none; source_words: the tokens of each source word."""
        attention = self.attention = [[0.0] * len(self.words) for _ in self.mentions]
        if weights is not None and self.words:
            # (T, words)
            counts = np.array([max(1, len(of)) for of in self.tokens], np.float32)
            rows = sums(weights.numpy(), self.tokens).T / counts
            attention = sums(rows, [each.tokens for each in self.mentions]).tolist()
            self.attention = attention
            if source_words:
                of_source = sums(rows, source_words)
                self.strongest = of_source.argmax(0).tolist()
                for source, word in enumerate(of_source.argmax(1).tolist()):
                    self.claims[word].add(source)
        scores = {
            m: [attention[m][w] + self.rendering(m, w) for w in range(len(self.words))]
            for m in range(len(self.mentions))
        }
        self.take_(scores, ATTENDED)

    def differ_(self, drops: dict[int, Tensor]) -> None:
        """Find words by the fall of each token's log-probability without a mention (L,)."""
        self.take_(
            {
                m: [float(drop[of].sum()) if of else 0.0 for of in self.tokens]
                for m, drop in drops.items()
            },
            DROP,
        )

    def may_stand(self, mention: int, word: int) -> bool:
        """Return whether a mention's term may take the place of a word."""
        of = self.mentions[mention]
        if not self.is_free(word) or (of.is_noun and self.is_verb(mention, word)):
            return False
        if not self.is_function[word]:
            return True
        # a term that is a function word itself, such as "ohne"
        return any(
            share >= IS_RENDERING and phrase == (self.folded[word],)
            for phrase, share in of.renderings.items()
        )

    def is_verb(self, mention: int, word: int) -> bool:
        """Return whether an English word found for a noun is a verb by the words around it: "to
        move our office", "is applied"; behind "to", any word that no rendering has."""
        if "the" not in self.functions or not word:
            return False
        before, behind = self.folded[word - 1], self.folded[word + 1 : word + 3]
        if before in SUBJECTS:
            return True
        if before in AUXILIARIES:
            is_own = self.folded[word] in self.mentions[mention].shares[0]
            return self.folded[word].endswith("ed") and not is_own
        if behind and behind[0] in PARTICLES:
            behind = behind[1:]
        has_object = not OBJECT_BEGINNINGS.isdisjoint(behind[:1])
        return before == "to" and (has_object or not self.rendering(mention, word))

    def is_free(self, word: int) -> bool:
        """Return whether no term stands in the place of a word."""
        start, end = self.words[word]
        return not self.is_taken[word] and not any(
            found is not None and found[0] < end and start < found[1]
            for found in self.span_of_mention
        )

    def take_(self, scores: dict[int, list[float]], least: float) -> None:
        """Give these mentions the free words that score best for them, if that is enough, with the
        neighbours that translate the same source words. The surest mention chooses first."""
        self.doubtful = {}
        for mention in sorted(scores, key=lambda mention: -max(scores[mention], default=0.0)):
            free = [w for w in range(len(self.words)) if self.may_stand(mention, w)]
            best = max(free, key=scores[mention].__getitem__, default=None)
            if best is not None and scores[mention][best] >= least:
                first, last = self.widened(mention, best)
                self.span_of_mention[mention] = self.words[first][0], self.words[last][1]
                self.weight[mention] = scores[mention][best]

    def widened(self, mention: int, word: int) -> tuple[int, int]:
        """Return the first and the last of the words around a word that translate a mention with
        it."""
        first = last = word
        while self.joins(mention, first - 1, first - 1):
            first -= 1
        while self.joins(mention, last + 1, last):
            last += 1
        return first, last

    def joins(self, mention: int, word: int, left: int) -> bool:
        """Return whether a word next to one of a mention translates it as well: its strongest
        source word is the mention's, and it is the strongest word of no other source word. left:
        the left one of the two."""
        if not 0 <= word < len(self.words) or not self.is_free(word):
            return False
        of, strongest = self.mentions[mention], self.strongest[word]
        between = self.text[self.words[left][1] : self.words[left + 1][0]]
        if strongest is None or strongest not in of.words:
            return False
        if between == "-":
            return True
        if self.is_function[word] and not of.has_function_word:
            return False
        return between.isspace() and self.claims[word] <= of.words


def word_spans(text: str) -> list[Span]:
    """Return the places of the words of a text in NFKC, without punctuation; an unknown piece is a
    part of its word (1<unk>2)."""
    unknown = [found.span() for found in WITH_UNKNOWN.finditer(text)]
    words = words_of(text)
    known = [
        (start, start + len(word))
        for start, word in zip(starts_of(text, words), words, strict=True)
        if is_word(word) and not any(first <= start < end for first, end in unknown)
    ]
    return sorted(known + unknown)


def sums(rows: np.ndarray, groups: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the sum of the rows of each group, 0 for none. rows: (n, m); result: (groups, m)."""
    out = np.zeros((len(groups), rows.shape[1]), rows.dtype)
    if filled := [i for i, group in enumerate(groups) if group]:
        ends = np.cumsum([len(groups[i]) for i in filled])
        members = rows[[member for group in groups for member in group]]
        out[filled] = np.add.reduceat(members, [0, *ends[:-1]])
    return out


def remove_tokens(source: Sequence[int], places: Sequence[int]) -> list[int]:
    """Return a source without the tokens at these places."""
    left_out = set(places)
    return [token for place, token in enumerate(source) if place not in left_out]
