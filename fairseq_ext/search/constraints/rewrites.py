"""Ways to write glossary terms into a draft.

A Rewrite writes one form of a term, with the words that go with it, in the place of a span of the
draft. TermWriter.choices makes those of the words that translate the source term. They may be wider
than these words and have text of their own around the form: "dem Verband" for "der Gruppe".

To add candidates, such as other forms of a term with their determiners, let TermWriter.choices
return more Rewrites of the same place. They compete by the model's score of the whole sentence, the
tokens of the term included; Rewrites of different places (placement.py) compete by the words around
the term, as its own tokens are improbable wherever they stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fairseq_ext.search.constraints.drafts import Candidate, Rewrite, Sentence
from fairseq_ext.search.phrases.sentence import SourceTerm


@dataclass(eq=False)
class Version:
    """A draft with terms.

    rewrites: of the terms that it writes; tokens (L,): EOS and forced tokens included; scores (L,):
    their log-probabilities, once computed.
    """

    sentence: Sentence
    candidate: Candidate
    rewrites: Mapping[SourceTerm, Rewrite]
    tokens: list[int]
    scores: Tensor = field(default_factory=lambda: Tensor())
