"""Inflected forms of a glossary's targets, from text of the target language.

A target's forms are the word sequences of the text that have the same lemmas, word by word. A sequence at the start of a line may owe its
capital to that place: it counts with a small initial where the target has one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from unicodedata import normalize

from fairseq_ext.core.glossary import Entry
from fairseq_ext.core.words import Lemmatizer, is_word, starts_of, words_of

Lemmas = tuple[str, ...]


def forms_in(lines: Iterable[str], targets: Iterable[str], lemma: Lemmatizer) -> dict[str, Counter[str]]:
    """For each target, the forms that the lines have, with how often they occur."""
    targets_of: defaultdict[Lemmas, list[str]] = defaultdict(list)
    lengths: defaultdict[str, set[int]] = defaultdict(set)  # lemma of a first word -> lengths of the targets that start with it
    for target in dict.fromkeys(targets):
        key = tuple(lemma(word) for word in words_of(target))
        if key:
            targets_of[key].append(target)
            lengths[key[0]].add(len(key))
    found: dict[str, Counter[str]] = {target: Counter() for of_key in targets_of.values() for target in of_key}
    for line in lines:
        text = normalize("NFKC", line)
        words = words_of(text)
        lemmas = [lemma(word) for word in words]
        starts = starts_of(text, words)
        first = next((i for i, word in enumerate(words) if is_word(word)), len(words))
        for start in range(len(words)):
            for small in (False, True)[: 1 + (start == first)]:
                head = lemma(words[start][:1].lower() + words[start][1:]) if small else lemmas[start]
                for length in lengths.get(head, ()):
                    for target in targets_of.get((head, *lemmas[start + 1 : start + length]), ()):
                        if (start == first and target[:1].islower()) == small:
                            end = start + length - 1
                            form = " ".join(text[starts[start] : starts[end] + len(words[end])].split())
                            found[target][form[:1].lower() + form[1:] if small else form] += 1
    return found


def expand(entries: Sequence[Entry], lines: Iterable[str], lemma: Lemmatizer, least: int = 1) -> tuple[list[Entry], int]:
    """The entries with the forms of their targets behind them, the most frequent first, and how many forms are new.

    least: occurrences that a form must have.
    """
    forms = forms_in(lines, (target for entry in entries for target in entry.targets), lemma)
    out, new = [], 0
    for entry in entries:
        counts = sum((forms.get(target, Counter()) for target in entry.targets), Counter[str]())
        added = [form for form, number in counts.most_common() if number >= least and form not in entry.targets]
        out.append(Entry(entry.source, (*entry.targets, *added), entry.line))
        new += len(added)
    return out, new
