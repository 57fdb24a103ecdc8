"""Metrics of terminology: success, exact match, window overlap, TERm, consistency,
final punctuation."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from unicodedata import normalize

import regex
from sacrebleu.metrics import lib_ter

from fairseq_ext.core.words import is_word, words_of
from fairseq_ext.terms.cases import (
    Case,
    ExpectedTerm,
    Span,
    Text,
    claim,
    found_in,
    places,
    places_of,
    reference_spans,
)

# ---- Term success: the share of terms whose target stands in the translation
#
# Semenov et al. 2025, WMT 2025 terminology task (github.com/wmt-conference/wmt25-terminology,
# metric of track 1):
#
#     success = |{(s, t): s found in the source, t found in the translation}|
#         / |{(s, t): s found in the source}|
#
# over the pairs of all lines. Found: the lower-cased term is a substring of the lower-cased text,
# or the lower-cased lemmas of the term, joined by a mark, are a substring of the text's, joined in
# the same way. A substring may begin and end inside a word. The task takes its lemmas from stanza.
#
# `term_success_words` counts the same pairs and requires whole words: the words of the target,
# or their lemmas, in a row, both in lower case.


Counts = list[tuple[int, int]]  # a line's (met, required)


def success(cases: Sequence[Case]) -> Counts:
    """Return the numbers of terms met and required in each line, matched as substrings."""
    return [
        (
            sum(any(found_in(t, case.hypothesis) for t in each.targets) for each in case.required),
            len(case.required),
        )
        for case in cases
    ]


def success_words(cases: Sequence[Case]) -> Counts:
    """Return the numbers of terms met and required in each line, matched as whole words."""
    return [
        (
            sum(
                any(
                    places_of(t, case.hypothesis, cased=False, lemmas=True, whole=True)
                    for t in each.targets
                )
                for each in case.required
            ),
            len(case.required),
        )
        for case in cases
    ]


def share(counts: Iterable[tuple[int, int]]) -> float | None:
    """Return the share of required terms that are met over all lines, 0 to 1; None if none was
    required."""
    met = required = 0
    for of_line, of_line_required in counts:
        met, required = met + of_line, required + of_line_required
    return met / required if required else None


# ---- Exact match accuracy
#
# The share of terms that the translation has, under every reading of "has".
#
# Alam et al. 2021, "On the Evaluation of Machine Translation for Terminology Consistency",
# https://arxiv.org/abs/2106.11891:
#
#     accuracy = terms matched / required terms, summed over all sentences
#
# - once: an occurrence in the translation serves one term (as in the WMT21 task); overlapping: each
#   term is looked up by itself.
# - words: as whole words; substring: inside longer words too.
# - cased or uncased; with lemmas: the term's words or, failing them, its lemmas.


def exact_match(
    cases: Sequence[Case], lemmas: bool
) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return {once, overlapping} -> {words, substring} -> {cased, uncased, and with _lemmas} ->
    accuracy, 0 to 1, None without terms.

    lemmas: whether the cases have lemmas.
    """
    readings = [("cased", True, False), ("uncased", False, False)]
    readings += [("cased_lemmas", True, True), ("uncased_lemmas", False, True)] if lemmas else []
    return {
        variant: {
            unit: {
                name: share(counts(cases, variant == "once", unit == "words", cased, lemma))
                for name, cased, lemma in readings
            }
            for unit in ("words", "substring")
        }
        for variant in ("once", "overlapping")
    }


def counts(
    cases: Sequence[Case], once: bool, whole: bool, cased: bool, lemmas: bool
) -> list[tuple[int, int]]:
    """Return the numbers of terms matched and required in each line."""
    if once:
        matched = [
            sum(
                found is not None
                for found in claim(case.required, case.hypothesis, cased, lemmas, whole)
            )
            for case in cases
        ]
    else:
        matched = [
            sum(
                any(
                    places_of(target, case.hypothesis, cased, lemmas, whole)
                    for target in each.targets
                )
                for each in case.required
            )
            for case in cases
        ]
    return [(number, len(case.required)) for number, case in zip(matched, cases, strict=True)]


# ---- Window overlap
#
# Whether a term stands among the words among which the reference has it.
#
# Alam et al. 2021, section 3 (https://arxiv.org/abs/2106.11891). For a term of the reference that
# the translation has in the same words, R is the multiset of up to n words on either side of it in
# the reference, H in the translation, punctuation passed over:
#
#     overlap = |R ∩ H| / |R|
#
# Where a term occurs several times in either, occurrences are paired by falling overlap.
# A sentence's value is the mean over its pairs, 0 where there is none; the score is the mean
# over the sentences whose reference has a term. (The task's script divides by all sentences,
# those without terms too.)


def window_overlap(cases: Sequence[Case], n: int) -> float | None:
    """Return the score for windows of n words, 0 to 1; None if no reference has a term."""
    values = [of_sentence(case, spans, n) for case in cases if (spans := reference_spans(case))]
    return sum(values) / len(values) if values else None


def of_sentence(case: Case, spans: list[Span], n: int) -> float:
    """Return a sentence's value."""
    reference, hypothesis = case.reference.words, case.hypothesis.words
    by_wording: defaultdict[tuple[str, ...], list[Span]] = defaultdict(list)
    for start, end in spans:
        by_wording[tuple(reference[start:end])].append((start, end))
    overlaps = []
    for wording, of_reference in by_wording.items():
        of_hypothesis = [
            (start, start + len(wording))
            for start, _ in places(list(wording), hypothesis, whole=True)
        ]
        windows = [window(hypothesis, span, n) for span in of_hypothesis]
        pairs = [
            (overlap(window(reference, span, n), w), i, j)
            for i, span in enumerate(of_reference)
            for j, w in enumerate(windows)
        ]
        used: tuple[set[int], set[int]] = (set(), set())
        for value, i, j in sorted(pairs, key=lambda pair: -pair[0]):
            if i not in used[0] and j not in used[1]:
                used[0].add(i)
                used[1].add(j)
                overlaps.append(value)
    return sum(overlaps) / len(overlaps) if overlaps else 0.0


def window(words: list[str], span: Span, n: int) -> Counter[str]:
    """Return the n words before a span and the n words after it."""
    before = [word for word in reversed(words[: span[0]]) if is_word(word)][:n]
    behind = [word for word in words[span[1] :] if is_word(word)][:n]
    return Counter(before + behind)


def overlap(of_reference: Counter[str], of_hypothesis: Counter[str]) -> float:
    """Return the share of the reference's window that the translation's has; 0 if the term is the
    whole sentence."""
    return (of_reference & of_hypothesis).total() / of_reference.total() if of_reference else 0.0


# ---- 1 - TERm: the translation edit rate with edits of terms counted twice
#
# Alam et al. 2021, section 3 (https://arxiv.org/abs/2106.11891), on Snover et
# al. 2006, "A Study of Translation Edit Rate with Targeted Human Annotation",
# https://aclanthology.org/2006.amta-papers.25. The words of the translation are shifted as TER
# shifts them (the search of sacrebleu, after Tercom); then
#
#     TERm = (shifts + sum of the weights of insertions, deletions and substitutions)
#         / words of the reference
#
# with weight w = 2 for a word of the reference that belongs to a term and is missing or replaced,
# and 1 for every other edit. The score is the mean of 1 - TERm over all sentences; it may be
# negative. Words and punctuation are compared with their case. With w = 1 it is TER.


WEIGHT = 2


def one_minus_term(cases: Sequence[Case], weight: int = WEIGHT) -> float | None:
    """Return the score; None if no sentence has a reference."""
    rates = []
    for case in cases:
        words = case.reference.words
        if words:
            weights = [1] * len(words)
            for start, end in reference_spans(case):
                weights[start:end] = [weight] * (end - start)
            rates.append(cost(case.hypothesis.words, words, weights) / len(words))
    return 1 - sum(rates) / len(rates) if rates else None


def cost(hypothesis: list[str], reference: list[str], weights: list[int]) -> int:
    """Return the number of shifts and weighted edits from hypothesis to reference; weights: of the
    reference's words."""
    shifts, shifted = shift(hypothesis, reference)
    row = [0]
    for weight in weights:
        row.append(row[-1] + weight)  # all missing
    for word in shifted:
        above, row = row, [row[0] + 1]
        for i, (expected, weight) in enumerate(zip(reference, weights, strict=True)):
            replaced = above[i] + (0 if word == expected else weight)
            row.append(min(replaced, above[i + 1] + 1, row[i] + weight))
    return shifts + row[-1]


def shift(hypothesis: list[str], reference: list[str]) -> tuple[int, list[str]]:
    """Return the number of shifts that TER makes, and the words in their new order."""
    distance, shifts, tried = lib_ter.BeamEditDistance(reference), 0, 0
    while True:
        gain, moved, tried = lib_ter._shift(hypothesis, reference, distance, tried)
        if tried >= lib_ter._MAX_SHIFT_CANDIDATES or gain <= 0:
            return shifts, hypothesis
        shifts, hypothesis = shifts + 1, moved


# ---- Consistency: whether a document translates a term in the same way each time
#
# After Semenov and Bojar 2022, "Automated Evaluation Metric for Terminology Consistency in MT",
# https://aclanthology.org/2022.wmt-1.41, with the most frequent translation in the document
# as the pseudo-reference:
#
#     consistency = sum of the counts of each term's most frequent translation
#         / sum of the terms' counts
#
# over the terms that at least two sentences of a document have. Their metric finds translations by
# word alignment. Here a translation is one of the term's targets, from anywhere in the document,
# that the sentence holds as words or lemmas in lower case; targets with the same lemmas are one
# translation. A sentence with none of them counts as another translation.


def consistency(cases: Sequence[Case]) -> float | None:
    """Return the score, 0 to 1; None if no document has a term twice."""
    sentences: defaultdict[tuple[str, ...], list[tuple[ExpectedTerm, Text]]] = defaultdict(list)
    for case in cases:
        of_line = {
            (case.sentence.document, *words_of(each.term.source.lower())): each
            for each in case.required
        }
        for term, each in of_line.items():
            sentences[term].append((each, case.hypothesis))
    frequent = total = 0
    for group in sentences.values():
        if len(group) > 1:
            known = list(dict.fromkeys(target for each, _ in group for target in each.targets))
            used = Counter(
                translation
                for each, text in group
                for translation in translation_in(text, [*each.targets, *known])
            )
            frequent, total = frequent + max(used.values(), default=0), total + len(group)
    return frequent / total if total else None


def translation_in(text: Text, targets: Sequence[Text]) -> list[tuple[str, ...]]:
    """Return the lemmas of the first of the targets that a sentence has, in a list; an empty list
    if it has none."""
    found = (
        target
        for target in targets
        if places_of(target, text, cased=False, lemmas=True, whole=True)
    )
    return [tuple(target.units(cased=False, lemmas=True)) for target in found][:1]


# ---- Final punctuation
#
# The share of terms behind it, as in "The children are jumping. canine."
#
# A term that stands in the translation is behind where at least as many sentence ends come before
# it as the reference has, and at least one. A sentence end is one of . ! ? … 。 ！ ？ with
# closing quotes and brackets behind it, and then space, or nothing in scripts without spaces. So
# a reference of two sentences allows terms in the second.


END = regex.compile(r"(?:[.!?…]+[\p{Pe}\p{Pf}\"']*(?=\s|$)|[。！？]+[\p{Pe}\p{Pf}\"']*)")


def after_final_punctuation(cases: Sequence[Case]) -> float | None:
    """Return the share of terms after final punctuation among the terms that the translations have
    as words, 0 to 1; None if they have none."""
    return share(of_line(case) for case in cases)


def of_line(case: Case) -> tuple[int, int]:
    """Return the numbers of terms after final punctuation, and of terms found."""
    allowed = max(1, len(END.findall(case.reference.raw)))
    found = [
        each
        for each in claim(case.required, case.hypothesis, cased=False, lemmas=True, whole=True)
        if each is not None
    ]
    ends = [match.end() for match in END.finditer(normalize("NFKC", case.hypothesis.raw))]
    starts = case.hypothesis.starts
    return sum(
        sum(end <= starts[place] for end in ends) >= allowed for _, (place, _) in found
    ), len(found)
