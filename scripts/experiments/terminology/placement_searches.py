"""The searches that exist only in placement.py's comparison, and how often an alignment finds the
word that a term displaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from unicodedata import normalize

import torch
from placement_model import AttentiveModel, SpanTerm, Words, in_step
from placement_scores import Entry, as_word
from torch import Tensor

from fairseq_ext.search.constraints.word_alignment import remove_tokens, word_spans
from fairseq_ext.search.phrases.letter_case import fitted
from fairseq_ext.search.phrases.places import agreeing, edited, edits, overlapping, token_spans
from fairseq_ext.search.report import Translation
from fairseq_ext.translator import Translator

Spans = list[tuple[int, int]]  # of characters


@dataclass
class Line:
    """A sentence in tokens, EOS included, with its draft; spans: source tokens of each
    entry's first mention."""

    origin: str  # the source as text
    source: list[int]
    target: list[int]
    text: str  # of the target
    entries: list[Entry]
    spans: list[list[int]]
    translator: Translator

    @classmethod
    def of(
        cls,
        model: AttentiveModel,
        translator: Translator,
        source: str,
        draft: Translation,
        entries: list[Entry],
    ) -> Line:
        pieces = translator.encode(source).tolist()
        spans = token_spans(pieces, lambda tokens: translator.decode(model.source.string(tokens)))
        text = normalize("NFKC", translator.decode(model.source.string(pieces)))
        mentions = [as_word(entry.source, case=True).search(text) for entry in entries]
        given = [
            (e, overlapping(spans, *m.span()))
            for e, m in zip(entries, mentions, strict=True)
            if m is not None
        ]
        target = [*map(model.target.index, draft.tokens), model.target.eos()]
        return cls(
            source,
            pieces,
            target,
            draft.text,
            [e for e, _ in given],
            [span for _, span in given],
            translator,
        )

    def words(self, model: AttentiveModel) -> tuple[Spans, list[list[int]]]:
        """Where the words of the target stand in its text, and the places of their tokens."""
        decode = self.translator.decode
        spans = token_spans(self.target, lambda tokens: decode(model.target.string(tokens)))
        words = word_spans(normalize("NFKC", self.text))
        return words, [overlapping(spans, *word) for word in words]


def stepwise(model: AttentiveModel, line: Line, beam: int, words: Words, least: float) -> str:
    """The translation of `in_step`; a form that the dictionary cannot write is left out,
    and a term without any."""
    encode = line.translator.bpe.encode if line.translator.bpe is not None else str
    terms = []
    for entry, span in zip(line.entries, line.spans, strict=True):
        forms = [tuple(map(model.target.index, encode(form).split())) for form in entry.forms]
        writable = tuple(form for form in forms if model.target.unk() not in form)
        terms += [SpanTerm(writable, tuple(span))] if writable else []
    found = in_step(model, line.source, terms, beam, words, least)
    return line.translator.decode(model.target.string(found))


def again(
    model: AttentiveModel, translator: Translator, lines: Sequence[Line], language: str
) -> list[str]:
    """Each draft up to the word that a term displaces, by the mean attention, and the term as a
    prefix; the rest is searched again. One term at a time, the leftmost first."""
    lines, english = list(lines), language.startswith("en")
    begun = [0] * len(lines)  # where the part that is not fixed begins
    lacking = [
        [
            i
            for i, e in enumerate(line.entries)
            if not any(as_word(f).search(line.text) for f in e.forms)
        ]
        for line in lines
    ]
    while any(lacking):
        prefixes = {}
        for n in [n for n, of_line in enumerate(lacking) if of_line]:
            line = lines[n]
            words, places = line.words(model)
            free = [
                word for word, (start, _) in enumerate(words) if start >= begun[n] and places[word]
            ]
            if not free:
                lacking[n] = []
                continue
            attention = model.read(line.source, line.target)[1].mean(0)
            chosen = {
                i: best(attention[:, line.spans[i]].sum(1), [places[word] for word in free])
                for i in lacking[n]
            }
            term = min(chosen, key=chosen.__getitem__)
            start, end = words[free[chosen[term]]]
            form = agreeing(line.entries[term].forms, line.text[start:end])[0]
            head = line.text[:end]
            form = fitted(form, head, (start, end), "en" if english else "")[0]
            prefixes[n] = edited(head, edits(head, [((start, end), form)], english))
            lacking[n].remove(term)
        found = (
            translator.translate(
                [lines[n].origin for n in prefixes], prefixes=list(prefixes.values())
            )
            if prefixes
            else []
        )
        for (n, prefix), (best_one, *_) in zip(prefixes.items(), found, strict=True):
            target = [*map(model.target.index, best_one.tokens), model.target.eos()]
            lines[n], begun[n] = replace(lines[n], text=best_one.text, target=target), len(prefix)
    return [line.text for line in lines]


def best(scores: Tensor, words: Sequence[list[int]], total: bool = False) -> int:
    """The word whose tokens score best, on average or in total."""
    of_words = [float(scores[tokens].sum() if total else scores[tokens].mean()) for tokens in words]
    return max(range(len(words)), key=of_words.__getitem__)


def accuracy(model: AttentiveModel, lines: Sequence[Line]) -> dict[str, Any]:
    """How many displaced words, of those that stand once in a draft, each alignment chooses.

    shifted: by the step that reads the word instead of the one that predicts it.
    """
    counts: dict[str, list[int]] = {}
    terms = 0
    for line in lines:
        text = normalize("NFKC", line.text)
        words, places = line.words(model)
        words, places = map(
            list, zip(*[each for each in zip(words, places, strict=True) if each[1]], strict=True)
        )
        log_probs, attention = model.read(line.source, line.target)
        for entry, span in zip(line.entries, line.spans, strict=True):
            found = [match for word in entry.displaced for match in as_word(word).finditer(text)]
            if len(found) != 1 or not span:
                continue
            right = {
                w
                for w, (start, end) in enumerate(words)
                if start < found[0].end() and end > found[0].start()
            }
            terms += 1
            scores = {f"layer {n}": layer[:, span].sum(1) for n, layer in enumerate(attention, 1)}
            scores["mean of the layers"] = attention.mean(0)[:, span].sum(1)
            scores["prediction difference"] = (
                log_probs - model.read(remove_tokens(line.source, span), line.target)[0]
            )
            for name, each in scores.items():
                for shift in (0, 1):
                    # the last token is EOS, which is no word
                    moved = torch.cat([each[shift:], each[:shift]])
                    is_right = best(moved, places, name == "prediction difference") in right
                    counts.setdefault(name, [0, 0])[shift] += is_right
    return {"terms": terms, "found": counts}
