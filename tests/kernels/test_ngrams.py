"""`--no-repeat-ngram-size`: the compiled function changes scores as torch's definition
does, bit for bit."""

import pytest
import torch

from fairseq_ext.kernels.library import library
from fairseq_ext.search import log_probs
from fairseq_ext.search.beam import NOT_YET
from fairseq_ext.search.log_probs import LogProbs

WORDS = 13  # so few that n-grams repeat


def histories(rows: int, longest: int, chance: torch.Generator) -> torch.Tensor:
    """Histories of all lengths, behind a first token, as a beam keeps them."""
    tokens = torch.randint(0, WORDS - 4, (rows, longest + 1), generator=chance)
    shorter = torch.randint(0, longest + 1, (rows, 1), generator=chance)
    return tokens.masked_fill_(torch.arange(longest + 1) < shorter, NOT_YET)[:, 1:]


@pytest.mark.skipif(library() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("of_words", ["vocabulary", "shortlist", "shortlist of each row"])
def test_compiled_ngrams_equal_torchs(of_words, monkeypatch):
    chance = torch.Generator().manual_seed(3)
    changed = 0
    for size in (1, 2, 3, 4):
        for rows, longest in ((1, size), (5, 9), (8, 40)):
            tokens, ids = histories(rows, longest, chance), None
            if of_words == "shortlist":
                ids = torch.arange(0, WORDS, 2)
            elif of_words == "shortlist of each row":
                # some repeat their last word, as shorter lists do
                ids = torch.rand(rows, WORDS, generator=chance).argsort(1)[:, :6].sort(1).values
                ids[:, -1] = ids[:, -2]
            value = torch.randn(rows, WORDS if ids is None else ids.size(-1), generator=chance)
            if ids is not None and ids.dim() == 2:
                value[:, 1:].masked_fill_(ids[:, 1:] == ids[:, :-1], -torch.inf)
            compiled, torchs = (
                LogProbs(value.clone(), ids, WORDS),
                LogProbs(value.clone(), ids, WORDS),
            )
            before = compiled.dense().clone()
            compiled.ban_repeated_(tokens, size)
            with monkeypatch.context() as patch:
                patch.setattr(log_probs, "library", lambda: None)
                torchs.ban_repeated_(tokens, size)
            assert torch.equal(compiled.dense(), torchs.dense())
            changed += int((compiled.dense() != before).sum())
    assert changed > 20
