"""Lists of strings and patterns as automata over target tokens.

- `canonical`: each string in the segmentation that the model's own encoder gives it.
- `any`: in every segmentation that the vocabulary allows. An automaton over characters is mapped
  to tokens: in each of its states, the tokens are followed whose text it allows. Regular
  expressions and automata of files are mapped so, too.

The text of a token has its spaces (search/phrases/pieces.py): before a word with SentencePiece and
GPT-2, after a word with other segmentations.

Shapes: N strings, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from fairseq_ext.core.errors import UsageError, counted, cut
from fairseq_ext.search.phrases.pieces import (
    join_pieces,
    kind_of,
    normal,
    visible,
    without_entities,
)
from fairseq_ext.search.phrases.segmenter import Segmenter
from fairseq_ext.search.phrases.token_automaton import TokenAutomaton, minimal, trimmed

AT_ONCE = 50_000  # strings that are segmented together
MOST_STATES = 2_000_000  # states of an automaton over characters that are followed


class Segmented:
    """Strings as sequences of target tokens in canonical segmentation: flat, the tokens of all;
    length (N,) of each, 0 for one that the vocabulary cannot write."""

    def __init__(self, texts: Sequence[str], segmenter: Segmenter):
        dictionary = segmenter.dictionary
        self.segmenter, self.dictionary = segmenter, dictionary
        self.unusable = {dictionary.unk(), dictionary.bos(), dictionary.eos(), dictionary.pad()}
        parts = [self.tokens(texts[i : i + AT_ONCE]) for i in range(0, len(texts), AT_ONCE)]
        self.flat = np.concatenate([np.zeros(0, np.int32), *(flat for flat, _ in parts)])
        self.length = np.concatenate([np.zeros(0, np.int64), *(length for _, length in parts)])

    def tokens(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return flat and length of some of the strings."""
        segmenter = self.segmenter
        model = segmenter.sentencepiece
        if model is not None:
            rows = self.of_sentencepiece(model, texts)
        elif segmenter.takes_pieces or type(segmenter.bpe).__name__ == "SubwordNMTBPE":
            rows = self.of_words(texts)
        else:
            rows = [self.usable(segmenter.known_pieces(text)) for text in texts]
        length = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = np.fromiter((x for row in rows for x in row), np.int32, int(length.sum()))
        return flat, length

    def usable(self, pieces: Sequence[str]) -> list[int]:
        """Return the tokens of pieces; none if one of them cannot be in an output."""
        tokens = list(map(self.dictionary.index, pieces))
        return [] if self.unusable.intersection(tokens) else tokens

    def of_sentencepiece(self, model: Any, texts: Sequence[str]) -> list[list[int]]:
        """Return each string's tokens, from the numbers that the encoder has for them."""
        names = [model.id_to_piece(i) for i in range(model.get_piece_size())]
        number = [self.dictionary.index(name) for name in names]
        rows = []
        for text, ids in zip(texts, model.encode(list(texts), out_type=int), strict=True):
            row = [number[i] for i in ids]
            bad = self.unusable.intersection(row)
            rows.append(self.usable(self.segmenter.known_pieces(text)) if bad else row)
        return rows

    def of_words(self, texts: Sequence[str]) -> list[list[int]]:
        """Return each string's tokens, from those of its words, which are segmented alone."""
        segmenter, tokens_of = self.segmenter, {}
        marked = not segmenter.takes_pieces
        rows = []
        for text in texts:
            if segmenter.tokenizer is not None:
                text = segmenter.tokenizer.encode(text)
            row: list[int] = []
            for word in text.split():
                if word not in tokens_of:
                    pieces = segmenter.bpe.encode(word).split() if marked else [word]
                    if segmenter.mark is not None:
                        mark = segmenter.mark
                        pieces = [
                            p for piece in pieces for p in segmenter.split_minimally(piece, mark)
                        ]
                    tokens_of[word] = self.usable(pieces)
                if not tokens_of[word]:
                    row = []
                    break
                row += tokens_of[word]
            rows.append(row)
        return rows


def automaton_of_strings(
    texts: Iterable[str], segmenter: Segmenter, segmentation: str, where: str
) -> tuple[TokenAutomaton, str]:
    """Return the automaton that allows these strings, and a sentence about those that it leaves
    out, since the vocabulary cannot write them; "" if it has all. Empty strings and duplicates do
    not count.

    segmentation: canonical or any; where: for messages. Errors: UsageError if no string is left.
    """
    kept = list(dict.fromkeys(text.strip() for text in texts))
    kept = [text for text in kept if text]
    if not kept:
        raise UsageError(f"{where} has no string, so no output would be allowed: write one")
    symbols = len(segmenter.dictionary)
    # strings that the canonical segmentation cannot write, no other can
    found = Segmented(kept, segmenter)
    lost = np.flatnonzero(found.length == 0)
    said = ""
    if lost.size:
        strings = counted(lost.size, "string")
        said = (
            f"{where}: {strings} of {len(kept)} cannot be written with the target's vocabulary and "
            f"{'is' if lost.size == 1 else 'are'} left out, the first is {cut(kept[lost[0]])!r}"
        )
        if lost.size == len(kept):
            raise UsageError(f"{said}: allow others")
    notes = {"segmentation": segmentation, "strings": len(kept) - int(lost.size)}
    if segmentation == "canonical":
        return minimal(found.flat, found.length[found.length > 0], symbols, notes), said
    texts = [plain(kept[i], segmenter) for i in np.flatnonzero(found.length)]
    codes = np.fromiter(map(ord, "".join(texts)), np.int64)
    characters = minimal(codes, np.array(list(map(len, texts))), 0x110000)
    accepts = characters.final
    over_tokens = mapped(
        lambda state, sign: s if (s := characters.next_state(state, ord(sign))) >= 0 else None,
        lambda state: bool(accepts[state]),
        0,
        segmenter,
        where,
        notes,
    )
    return over_tokens, said


def plain(text: str, segmenter: Segmenter) -> str:
    """Return a string as the texts of its tokens make it, without the spaces around it."""
    if segmenter.takes_pieces:
        kind = kind_of(segmenter.dictionary, None)
        return normal(text) if kind is None else join_pieces(text, kind)
    if segmenter.tokenizer is not None:
        return normal(without_entities(segmenter.tokenizer.encode(text)))
    return normal(segmenter.normalised(text))


# ---- From characters to tokens


Step = Callable[[Any, str], object]  # (state, character) -> the next state, None for none


def mapped(
    step: Step,
    accepts: Callable[[Any], bool],
    start: Hashable,
    segmenter: Segmenter,
    where: str,
    notes: dict[str, Any],
) -> TokenAutomaton:
    """Return the automaton over tokens of a deterministic one over characters.

    subtle: tokens bring the spaces around words with them, so a text may start with a space
    (SentencePiece) or must end with one (subword-nmt); the state has which.
    Errors: UsageError for one that allows nothing, or has too many states.
    """
    dictionary = segmenter.dictionary
    kind = kind_of(dictionary, segmenter.bpe)
    leads = kind == "sentencepiece"
    closes = kind not in ("sentencepiece", "gpt2")
    special = {dictionary.bos(), dictionary.eos(), dictionary.pad(), dictionary.unk()}
    trie: dict = {}
    for token, symbol in enumerate(dictionary.symbols):
        if token in special or not (text := visible(token, symbol, kind, segmenter.bpe)).strip(""):
            continue
        node = trie
        for sign in text:
            node = node.setdefault(sign, {})
        node.setdefault("", []).append(token)

    # (state, True while no character has come, or once a closing space has)
    def follow(place: tuple, sign: str) -> tuple | None:
        state, mark = place
        if leads and mark:
            return (state, False) if sign == " " else None
        ended = closes and sign == " " and state is not None and accepts(state)
        after = None if state is None else step(state, sign)
        return None if after is None and not ended else (after, ended)

    first = (start, leads)
    number: dict[tuple, int] = {first: 0}
    arcs: list[tuple[int, int, int]] = []
    waiting = [first]
    while waiting:
        place = waiting.pop()
        at = number[place]
        stack = [(trie, place)]
        while stack:
            node, here = stack.pop()
            for token in node.get("", ()):
                if here not in number:
                    number[here] = len(number)
                    waiting.append(here)
                arcs.append((at, token, number[here]))
            for sign, below in node.items():
                if sign and (after := follow(here, sign)) is not None:
                    stack.append((below, after))
        if len(number) > MOST_STATES:
            raise UsageError(
                f"{where} takes more than {MOST_STATES:,} states over tokens: make it smaller, or "
                "for a list of strings use --allowed-segmentation canonical"
            )
    final = np.zeros(len(number), bool)
    for (state, mark), i in number.items():
        final[i] = mark if closes else not mark and state is not None and accepts(state)
    columns = np.array(arcs, np.int64).reshape(-1, 3)
    final[0] = False  # an output has a token
    found = trimmed(columns[:, 0], columns[:, 1], columns[:, 2], final, notes)
    if found is None:
        raise UsageError(
            f"{where} allows no text that can be written with the target's vocabulary: correct it"
        )
    return found


class Finite(Protocol):
    """An automaton over numbered classes of characters, as interegular has it."""

    alphabet: Any
    initial: Any
    finals: Any
    map: Any


def automaton_of_regex(pattern: str, segmenter: Segmenter, where: str) -> TokenAutomaton:
    """Return the automaton that allows the texts that a regular expression matches as a whole.

    Errors: UsageError for one that is no regular expression, or is of no finite state.
    """
    try:
        import interegular
    except ImportError:
        raise UsageError(
            f"{where} needs the package interegular, which is not installed: pip install "
            "interegular"
        ) from None
    try:
        found: Finite = interegular.parse_pattern(pattern).to_fsm()
    except Exception as error:  # interegular raises errors of several kinds
        reason = str(error).splitlines() or [type(error).__name__]
        raise UsageError(
            f"{where} {cut(pattern)!r} is not a regular expression that has an automaton "
            f"({cut(reason[0])}): correct it, without look-around and back-references"
        ) from None
    by_symbol, moves = found.alphabet, found.map

    def step(state: object, sign: str) -> object:
        return moves.get(state, {}).get(by_symbol[sign])

    notes = {"segmentation": "any", "regex": pattern}
    return mapped(step, found.finals.__contains__, found.initial, segmenter, where, notes)


# ---- Automata of files
#
# `{"start": 0, "final": [2], "arcs": [[0, "select", 1], [1, "city", 2]], "over": "words"}`: states
# are numbers or names; an arc has the words (or, over characters, the characters) that lead from
# its first state to its second. Several arcs of a state may have the same words.


def automaton_of_json(text: str, segmenter: Segmenter, where: str) -> TokenAutomaton:
    """Return the automaton of a JSON file's content (raises UsageError)."""
    way = (
        'write {"start": 0, "final": [1], "arcs": [[0, "words", 1]]}, and "over": "characters" '
        "for arcs of characters"
    )
    try:
        given = json.loads(text)
        start, finals, arcs = given["start"], set(given["final"]), given["arcs"]
        over = given.get("over", "words")
        unknown = given.keys() - {"start", "final", "arcs", "over"}
        known = over in ("words", "characters") and not unknown
        by_state: dict[object, list[tuple[str, object]]] = {}
        for source, label, target in arcs:
            label = normal(label) if over == "words" else label
            known &= isinstance(label, str) and bool(label)
            by_state.setdefault(source, []).append((label, target))
            hash(target)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{where} is not an automaton ({cut(str(error))}): {way}") from None
    if not known:
        raise UsageError(f"{where} has an empty arc, or an unknown key or unit: {way}")
    joiner = " " if over == "words" else ""

    # places: before the words of an arc (with the space that joins them to the words before), or
    # inside, as (what is left of them, the state behind them)
    def opened(state: object, begins: bool) -> list[tuple[str, object]]:
        lead = "" if begins else joiner
        return [(lead + label, target) for label, target in by_state.get(state, ())]

    def step(places: frozenset, sign: str) -> frozenset | None:
        out = set()
        for rest, state in places:
            found = opened(state, False) if not rest else [(rest, state)]
            out |= {(text[1:], after) for text, after in found if text[0] == sign}
        return frozenset(out) or None

    def accepts(places: frozenset) -> bool:
        return any(not rest and state in finals for rest, state in places)

    first = frozenset(opened(start, True))
    if not first:
        raise UsageError(f"{where} has no arc from its start: {way}")
    return mapped(step, accepts, first, segmenter, where, {"segmentation": "any"})
