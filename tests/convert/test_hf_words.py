"""Which words stand for which, of models whose source begins with a language: as the attention
of transformers says."""

import pytest
import torch

pytest.importorskip("transformers", reason="the oracle is not installed")
from hf_models import Made, make  # noqa: E402
from test_hf_models import lines  # noqa: E402

from fairseq_ext import Translation  # noqa: E402
from fairseq_ext.core.words import is_word  # noqa: E402
from fairseq_ext.text.alignment import assigned, words_in  # noqa: E402


def attention(of: Made, source: str, target: str) -> torch.Tensor:
    """(L, T) of each target token and </s> to the source's, the mean of all layers and heads.

    The language before the source and the one before the target are left out.
    """
    model, words = of.model.float(), of.tokenizer
    labels = words(text_target=[target], return_tensors="pt")["input_ids"]
    english = of.generation["forced_bos_token_id"]
    target_tokens = [token for token in labels[0, 1:].tolist() if token != 2]
    previous = torch.tensor([[2, english, *target_tokens]])
    with torch.no_grad():
        found = model(
            **of.batch([source]), decoder_input_ids=previous, output_attentions=True
        ).cross_attentions
    return torch.stack(found).mean((0, 2))[0, 1:, 1:]


@pytest.mark.parametrize("kind", ["NLLB-200"])
def test_words_stand_for_those_that_transformers_attends_to(kind, tmp_path):
    of = make(kind, tmp_path)
    of.model.set_attn_implementation("eager")
    found = of.translator(beam=1)
    sources, targets = lines(24, seed=21), lines(24, seed=22)
    hypotheses = [Translation(each, found.pieces(each, found.bpe), 0.0, []) for each in targets]
    found.align(sources, hypotheses)
    compared = 0
    for source, hypothesis in zip(sources, hypotheses, strict=True):
        weights = attention(of, source, hypothesis.text)
        pieces = [
            (text, words_in(text, tokens, lambda part: found.decode(" ".join(part))))
            for text, tokens in (
                (source, found.pieces(source, found.bpe)),
                (hypothesis.text, hypothesis.tokens),
            )
        ]
        columns, rows = (
            [(span, places) for span, places in words if places and is_word(text[slice(*span)])]
            for text, words in pieces
        )
        if not rows or not columns:
            continue
        table = torch.stack(
            [torch.stack([weights[i][:, j].mean(0).sum() for _, j in columns]) for _, i in rows]
        )
        expected = [
            (columns[column][0], rows[row][0])
            for row, column in enumerate(assigned(table))
            if column >= 0
        ]
        assert hypothesis.words == expected, source
        compared += len(expected)
    assert compared > 40
