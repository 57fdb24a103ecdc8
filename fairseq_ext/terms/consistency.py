"""Consistency: whether a document translates a term in the same way each time.

After Semenov and Bojar 2022, "Automated Evaluation Metric for Terminology Consistency in MT", https://aclanthology.org/2022.wmt-1.41,
with the most frequent translation in the document as the pseudo-reference:

    consistency = sum of the counts of each term's most frequent translation / sum of the terms' counts

over the terms that at least two sentences of a document have. Their metric finds translations by word alignment. Here a translation is
one of the term's targets, from anywhere in the document, that the sentence holds as words or lemmas in lower case; targets with
the same lemmas are one translation. A sentence with none of them counts as another translation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from fairseq_ext.core.words import words_of
from fairseq_ext.terms.cases import Asked, Case
from fairseq_ext.terms.text import Text, places_of


def consistency(cases: Sequence[Case]) -> float | None:
    """The score, 0 to 1; None where no document has a term twice."""
    sentences: defaultdict[tuple[str, ...], list[tuple[Asked, Text]]] = defaultdict(list)
    for case in cases:
        of_line = {(case.sentence.document, *words_of(asked.term.source.lower())): asked for asked in case.asked}
        for term, asked in of_line.items():
            sentences[term].append((asked, case.hypothesis))
    frequent = total = 0
    for group in sentences.values():
        if len(group) > 1:
            known = list(dict.fromkeys(target for asked, _ in group for target in asked.targets))
            used = Counter(translation for asked, text in group for translation in translation_in(text, [*asked.targets, *known]))
            frequent, total = frequent + max(used.values(), default=0), total + len(group)
    return frequent / total if total else None


def translation_in(text: Text, targets: Sequence[Text]) -> list[tuple[str, ...]]:
    """The lemmas of the first of the targets that a sentence holds, in a list; an empty list if it holds none."""
    found = (target for target in targets if places_of(target, text, cased=False, lemmas=True, whole=True))
    return [tuple(target.units(cased=False, lemmas=True)) for target in found][:1]
