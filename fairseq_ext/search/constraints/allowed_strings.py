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
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from typing import Any

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


def segmented(texts: Sequence[str], segmenter: Segmenter) -> tuple[np.ndarray, np.ndarray]:
    """Return strings as target tokens in canonical segmentation: the tokens of all, one after
    another, and the length (N,) of each, 0 for one that the vocabulary cannot write."""
    dictionary, model = segmenter.dictionary, segmenter.sentencepiece
    number, unknown = dictionary.indices.get, dictionary.unk()
    unusable = {unknown, dictionary.bos(), dictionary.eos(), dictionary.pad()}
    of_word = cache(Segmenter(dictionary, bpe=segmenter.bpe).known_pieces)

    def pieces(some: Sequence[str]) -> Iterable[list[str]]:
        if model is not None:
            return model.encode(list(some), out_type=str)
        if segmenter.takes_pieces or type(segmenter.bpe).__name__ == "SubwordNMTBPE":
            encode = str if segmenter.tokenizer is None else segmenter.tokenizer.encode
            words = (encode(text).split() for text in some)
            return ([piece for word in each for piece in of_word(word)] for each in words)
        return map(segmenter.known_pieces, some)

    def tokens(some: Sequence[str]) -> list[int]:
        found = [number(piece, unknown) for piece in some]
        return found if unusable.isdisjoint(found) else []

    flat, length = array("i"), array("q")
    for i in range(0, len(texts), AT_ONCE):
        some = texts[i : i + AT_ONCE]
        for text, symbols in zip(some, pieces(some), strict=True):
            row = tokens(symbols) or tokens(segmenter.known_pieces(text))
            flat.extend(row)
            length.append(len(row))
    return np.array(flat), np.array(length)


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
    flat, length = segmented(kept, segmenter)
    lost = np.flatnonzero(length == 0)
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
        return minimal(flat, length[length > 0], symbols, notes), said
    texts = [plain(kept[i], segmenter) for i in np.flatnonzero(length)]
    codes = np.fromiter(map(ord, "".join(texts)), np.int64)
    characters = minimal(codes, np.array(list(map(len, texts))), 0x110000)

    def step(state: int, sign: str) -> int | None:
        after = characters.next_state(state, ord(sign))
        return after if after >= 0 else None

    return mapped(step, characters.final.item, 0, segmenter, where, notes), said


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
        if token in special or not (text := visible(token, symbol, kind, segmenter.bpe)):
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
        found = interegular.parse_pattern(pattern).to_fsm()
    except Exception as error:  # interegular raises errors of several kinds
        reason = str(error).splitlines() or [type(error).__name__]
        raise UsageError(
            f"{where} {cut(pattern)!r} is not a regular expression that has an automaton "
            f"({cut(reason[0])}): correct it, without look-around and back-references"
        ) from None

    def step(state: Any, sign: str) -> object:
        return found.map.get(state, {}).get(found.alphabet[sign])

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
        by_state: dict[object, list[tuple[str, object]]] = {}
        for source, label, target in arcs:
            label = normal(label) if over == "words" else str.__str__(label)
            by_state.setdefault(source, []).append((label, target))
            hash(target)
        labels = [label for of_state in by_state.values() for label, _ in of_state]
        known_keys = {"start", "final", "arcs", "over"}
        if over not in ("words", "characters") or given.keys() - known_keys or not all(labels):
            raise ValueError("an arc is empty, or a key or a unit is unknown")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{where} is not an automaton ({cut(str(error))}): {way}") from None
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
