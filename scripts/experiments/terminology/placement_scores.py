"""Whether a term stands where its translation would have stood: references with terms, what is
counted against them, how often an alignment finds the word that a term displaces, and the search
that exists only in placement.py's comparison.

A table of displaced words has a line for each term, tab-separated: the source term, its target
forms (a|b), and the words that a model or a reference would use instead (a|b). The reference with
terms is the plain one in which as many displaced words of each term are the term as the source has
mentions of it, from the left. "a" and "an" before a term follow its first letter, and it has a
capital where the displaced word had one at the start of the text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unicodedata import normalize

import sacrebleu
import torch
from fairseq import checkpoint_utils
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[1]))

from intervals import counts_of, interval, resampled  # noqa: E402

from fairseq_ext.search.constraints.word_alignment import remove_tokens, word_spans  # noqa: E402
from fairseq_ext.search.phrases.letter_case import fitted  # noqa: E402
from fairseq_ext.search.phrases.places import (  # noqa: E402
    agreeing,
    edited,
    edits,
    overlapping,
    token_spans,
)
from fairseq_ext.search.report import Translation  # noqa: E402
from fairseq_ext.translator import Translator  # noqa: E402


@dataclass(frozen=True)
class Entry:
    """A line of the table."""

    source: str
    forms: tuple[str, ...]
    displaced: tuple[str, ...] = ()
    mentions: int = 1  # in the source

    def form_for(self, word: str) -> str:
        """The form that takes a displaced word's place: the last of several for a plural."""
        return self.forms[-1] if len(self.forms) > 1 and word.endswith("s") else self.forms[0]

    def is_in(self, text: str) -> bool:
        """Whether a text has a form."""
        return any(as_word(form).search(text) for form in self.forms)


@cache
def as_word(text: str, case: bool = False) -> re.Pattern[str]:
    """Matches a phrase between other words."""
    return re.compile(rf"(?<!\w){re.escape(text)}(?!\w)", 0 if case else re.IGNORECASE)


def entries_of(source: str, table: Sequence[Entry], case: bool = True) -> list[Entry]:
    """The entries whose source term a sentence has, with its mentions; one inside of a longer term
    does not count. case: whether letter case counts."""
    found = [(m.span(), e) for e in table for m in as_word(e.source, case).finditer(source)]
    outer = [
        entry
        for (start, end), entry in found
        if not any(a <= start and end <= b and b - a > end - start for (a, b), _ in found)
    ]
    return [replace(entry, mentions=outer.count(entry)) for entry in dict.fromkeys(outer)]


def by_hand(text: str, entries: Sequence[Entry]) -> str:
    """The text with a displaced word of each entry replaced for each of its mentions, by someone
    who knows which words those are."""
    for entry in entries:
        start = 0
        for _ in range(entry.mentions):
            found = [m for word in entry.displaced if (m := as_word(word).search(text, start))]
            if not found:
                break
            first = min(found, key=lambda match: (match.start(), -match.end()))
            text, start = in_place(text, first.span(), entry.form_for(first[0]))
    return text


def in_place(text: str, span: tuple[int, int], form: str) -> tuple[str, int]:
    """The text with a form in the place of a span, its article and its capital adjusted, and where
    the form ends."""
    before, after = text[: span[0]], text[span[1] :]
    if re.search(r"\w", before) is None and text[span[0]].isupper():
        form = form[0].upper() + form[1:]
    vowel = "n" if form[0].lower() in "aeiou" else ""
    before = re.sub(r"(?i)\b(a)n?( +)$", rf"\g<1>{vowel}\g<2>", before)
    return before + form + after, len(before) + len(form)


@dataclass
class Scores:
    """Of one way to place terms."""

    bleu: float
    chrf: float
    ter: float
    terms: int
    met: int  # a form stands in the output
    left: int  # a displaced word stands in the output and not in the reference with terms
    appended: int  # of those met: the last words of the output, and not of the reference
    # BLEU less that of the way that it is compared with, and the 95 % interval
    over: tuple[float, float, float] | None = None

    as_dict = asdict


def measured(
    outputs: Sequence[str], references: Sequence[str], entries: Sequence[Sequence[Entry]]
) -> Scores:
    """Scores of the outputs; references: those with terms; entries: of each source."""
    met = left = appended = 0
    for output, reference, of_line in zip(outputs, references, entries, strict=True):
        for entry in of_line:
            ends = [match.end() for form in entry.forms for match in as_word(form).finditer(output)]
            met += bool(ends)
            left += any(
                as_word(word).search(output) and not as_word(word).search(reference)
                for word in entry.displaced
            )
            appended += (
                bool(ends)
                and is_last(output, max(ends))
                and not any(ends_with(reference, form) for form in entry.forms)
            )
    return Scores(*three(outputs, references), sum(map(len, entries)), met, left, appended)


def three(outputs: Sequence[str], references: Sequence[str]) -> tuple[float, float, float]:
    """sacrebleu's BLEU, chrF and TER."""
    scores = (
        score(outputs, [references]).score
        for score in (sacrebleu.corpus_bleu, sacrebleu.corpus_chrf, sacrebleu.corpus_ter)
    )
    bleu, chrf, ter = scores
    return bleu, chrf, ter


def is_last(text: str, end: int) -> bool:
    """Whether no word follows this place."""
    return re.search(r"\w", text[end:]) is None


def ends_with(text: str, phrase: str) -> bool:
    """Whether the phrase is a text's last words."""
    return any(is_last(text, match.end()) for match in as_word(phrase).finditer(text))


def bleu_over(
    outputs: Sequence[str], others: Sequence[str], references: Sequence[str]
) -> tuple[float, float, float]:
    """BLEU less that of other outputs, with the 95 % interval of the difference on
    the same resamples."""
    ours, theirs = (resampled(counts_of(texts, references)) for texts in (outputs, others))
    bleu = [sacrebleu.corpus_bleu(texts, [references]).score for texts in (outputs, others)]
    return (bleu[0] - bleu[1], *interval(ours - theirs))


# ---- alignments, and `again`

Spans = list[tuple[int, int]]  # of characters


class AttentiveModel:
    """A checkpoint on the CPU, a sentence at a time, that shows the attention of each decoder
    layer. Shapes: n rows, L target and T source tokens."""

    def __init__(self, path: str, task: Any):
        models, _ = checkpoint_utils.load_model_ensemble([path], task=task)
        self.model = models[0].eval()
        self.source, self.target = task.source_dictionary, task.target_dictionary
        self.seen: list[Tensor] = []  # attention (n, L, T) of each layer in one call
        for layer in self.model.decoder.layers:
            layer.need_attn = True
            layer.encoder_attn.register_forward_hook(self.keep)

    def keep(self, module: torch.nn.Module, given: Any, out: tuple[Tensor, Tensor]) -> None:
        """Keep a layer's attention; fairseq gives that of the last layer for each
        head (heads, n, L, T)."""
        self.seen.append(out[1].mean(0) if out[1].dim() == 4 else out[1])

    @torch.no_grad()
    def read(self, source: Sequence[int], target: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Of target tokens, EOS included: log-probabilities (L,), and attention (layers, L, T) in
        the steps that predict them."""
        self.seen.clear()
        inputs = torch.tensor([[self.target.eos(), *target[:-1]]])
        encoded = self.model.encoder(torch.tensor([source]), torch.tensor([len(source)]))
        log_probs = self.model.decoder(inputs, encoder_out=encoded)[0].log_softmax(-1)[0]
        return log_probs[torch.arange(len(target)), torch.tensor(target)], torch.cat(self.seen)


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
