"""Models of Hugging Face's classes, converted, give what `transformers` gives: numbers of
words, logits, translations; and, of models whose source begins with a language, which words stand
for which, as the attention of transformers says."""

from __future__ import annotations

import copy
import functools
import itertools
import logging
import os
import re

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from sizes import ALL, drawn, part_of
from torch.nn.utils.rnn import pad_sequence

pytest.importorskip("transformers", reason="the oracle is not installed")

import hf_models  # noqa: E402
from hf_models import KINDS, linked  # noqa: E402

from fairseq_ext import Translation  # noqa: E402
from fairseq_ext.convert.__main__ import convert  # noqa: E402
from fairseq_ext.core.errors import UsageError  # noqa: E402
from fairseq_ext.core.words import is_word  # noqa: E402
from fairseq_ext.text.alignment import assigned, words_in  # noqa: E402


def lines(count, seed):
    """Made-up lines; none repeats a stretch of characters three times: that has two segmentations
    of one score, and which of the two a tokenizer takes is its own affair."""
    unclear = re.compile(r"(.+)\1\1")
    return [line for line in hf_models.lines(2 * count, seed) if not unclear.search(line)][:count]


TEXT = lines(36, seed=5)
SHORT = {
    "test_beams_are_transformers": ["OPUS-MT", "mBART-25", "BART"],
    "test_scores_under_a_length_penalty_are_transformers": ["NLLB-200", "mBART-50"],
}
SEEDS = {  # of models whose hypotheses end, and not at once
    "OPUS-MT": 5,
    "OPUS-MT, two vocabularies": 9,
    "M2M-100": 3,
    "NLLB-200": 3,
    "mBART-50": 15,
    "mBART-25": 3,
    "WMT19": 2,
    "BART": 9,
}


@functools.cache
def translator(made, double=False, **flags):
    """Of a converted folder; double: its model in float64, with the checkpoint's numbers."""
    found = made.translator(**flags)
    if double:
        model = found.models[0].double()
        model.load_state_dict(torch.load(made.out / "checkpoint.pt", weights_only=False)["model"])
        for layer in (*model.encoder.layers, *model.decoder.layers):
            if layer.activation_fn.__name__ == "gelu":
                layer.activation_fn = F.gelu  # fairseq's is of float32 whatever comes in
    return found


@drawn(3)
def test_words_have_the_tokenizers_numbers(made, kind):
    of, text = made(kind), lines(len(part_of(2000, 48)), seed=3)
    if of.is_marian:
        text += [f">>fra<< {text[0]}", ">>deu<<" + text[1], ">>fra", "a >>fra<< b"]
    found = translator(of, True, beam=1)
    number_of = of.number_of(found.task.source_dictionary, 0).tolist()
    unknown = found.task.source_dictionary.unk()
    seen = set()
    for line in text:
        expected = [number_of[number] for number in of.tokenizer([line])["input_ids"][0]]
        ours = hf_models.numbers(found, line)
        assert ours == expected, line
        seen.update(ours)
    assert len(seen) > 60 and (unknown in seen or kind == "BART")


@pytest.mark.parametrize("double", [False, True] if os.environ.get(ALL) else [True])
def test_logits_are_transformers(made, kind, double):
    of = made(kind)
    found = translator(of, double, beam=1)
    model, batch = found.models[0], of.batch(TEXT[:12])
    theirs = of.model if double else copy.deepcopy(of.model).float()
    chance = torch.Generator().manual_seed(1)
    number_of = [
        of.number_of(each, side)
        for side, each in enumerate((found.task.source_dictionary, found.task.target_dictionary))
    ]
    # without its mask, which is of float32 alone, FSMT's decoder is right for one word
    words = torch.randint(
        4, len(number_of[1]) - 1, (12, 0 if double and kind == "WMT19" else 9), generator=chance
    )
    cached = words.size(1) == 0
    start = of.generation.get("decoder_start_token_id", 2)
    forced = torch.cat([torch.full((12, 1), start), words], 1)
    previous = number_of[1][forced]
    if of.is_marian:
        previous[:, 0] = found.task.target_dictionary.eos()
    source = number_of[0][batch["input_ids"]]
    with torch.no_grad():
        expected = theirs(**batch, decoder_input_ids=forced, use_cache=cached).logits
        ours = model(source, batch["attention_mask"].sum(1), previous)[0]
    # WMT19's logits go past 10, of which float32 has 6 digits
    torch.testing.assert_close(
        ours[:, :, number_of[1]],
        expected,
        rtol=0 if double else 2e-5,
        atol=1e-9 if double else 1e-4,
    )
    if of.is_marian:  # <s>, which Marian lacks, takes no probability
        assert ours.softmax(-1)[:, :, 0].max() == 0


def beams(of, text, **settings):
    """The five hypotheses of each line that transformers finds, up to the end of the sentence,
    without the word that they begin with."""
    pad, end = of.model.config.pad_token_id, of.model.config.eos_token_id
    how = dict(num_beams=5, num_return_sequences=5, early_stopping=True, do_sample=False)
    how |= dict(max_length=40, bad_words_ids=[[pad]])
    with torch.no_grad():
        rows = of.model.generate(**of.batch(text), **of.generation, **settings, **how)[:, 1:]
    rows = [[*itertools.takewhile(lambda number: number != end, row)] for row in rows.tolist()]
    return [rows[i : i + 5] for i in range(0, len(rows), 5)]


def hypotheses_of(of, found, text):
    """The tokens of our hypotheses as Hugging Face's numbers, the forced one first, without
    </s>; and their scores."""
    number_of = of.number_of(found.task.target_dictionary).tolist()
    back = {ours: theirs for theirs, ours in enumerate(number_of)}
    out = [None] * len(text)
    for batch in found.batches([found.encode(line) for line in text]):
        hypotheses = found.task.inference_step(found.generator, found.models, batch)
        for number, nbest in zip(batch["id"].tolist(), hypotheses, strict=True):
            out[number] = [
                ([back[token] for token in h["tokens"].tolist()[:-1]], float(h["score"]))
                for h in nbest
            ]
    return out


def scores_of(of, text, hypotheses):
    """What transformers gives these tokens and </s> under teacher forcing: the mean of their
    log-probabilities, the forced one included."""
    model, config = copy.deepcopy(of.model).float(), of.model.config
    start, out = of.generation.get("decoder_start_token_id", 2), []
    for line, nbest in zip(text, hypotheses, strict=True):
        rows = [torch.tensor([start, *tokens, config.eos_token_id]) for tokens in nbest]
        rows = pad_sequence(rows, True, config.pad_token_id)
        batch = {name: each.expand(len(nbest), -1) for name, each in of.batch([line]).items()}
        with torch.no_grad():
            logits = model(**batch, decoder_input_ids=rows[:, :-1], use_cache=False).logits
        found = logits.log_softmax(-1).gather(2, rows[:, 1:, None])[:, :, 0]
        out.append([found[i, : len(tokens) + 1].mean().item() for i, tokens in enumerate(nbest)])
    return out


def test_beams_are_transformers(made, kind):
    of = made(kind, SEEDS[kind])
    text = lines(len(part_of(500, 12)), 9)
    found = translator(of, True, beam=5, nbest=5, max_len_b=38, min_len=0, unnormalized=True)
    expected, compared = beams(of, text, length_penalty=0.0), 0
    for line, nbest, theirs in zip(text, hypotheses_of(of, found, text), expected, strict=True):
        ours = [tokens for tokens, _ in nbest]
        if max(map(len, theirs)) < 37:  # none was broken off
            assert ours == theirs or differs_at_the_last_step(ours, theirs), line
            compared += ours == theirs
    assert compared > len(text) / 5


def differs_at_the_last_step(ours, theirs):
    """Whether more hypotheses ended in the last step than were missing, of which fairseq takes
    the first. transformers takes the best, so that the worst ones of before go. The others are
    the same in the same order."""
    common = [each for each in ours if each in theirs]
    last = max(map(len, ours + theirs))
    return common == [each for each in theirs if each in ours] == ours[: len(common)] and all(
        len(each) == last for each in theirs if each not in ours
    )


def test_scores_under_a_length_penalty_are_transformers(made, kind):
    """In float32, as users have it: transformers gives our hypotheses our scores, and has
    found none that is better."""
    of = made(kind, SEEDS[kind])
    text = lines(len(part_of(500, 8)), 13)
    ours = hypotheses_of(of, translator(of, beam=5, nbest=5, max_len_b=38, min_len=0), text)
    again = scores_of(of, text, [[tokens for tokens, _ in nbest] for nbest in ours])
    for line, nbest, expected in zip(text, ours, again, strict=True):
        assert [score for _, score in nbest] == pytest.approx(expected, abs=1e-4, rel=1e-4), line
    theirs = beams(of, text, length_penalty=1.0)
    # none was broken off
    whole = [i for i, nbest in enumerate(theirs) if max(map(len, nbest)) < 37]
    found = scores_of(of, [text[i] for i in whole], [theirs[i] for i in whole])
    for i, scores in zip(whole, found, strict=True):
        assert max(scores) <= ours[i][0][1] + 1e-4, text[i]
    assert len(whole) > len(text) / 5


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.INFO)
    yield
    logging.disable(logging.NOTSET)


def pytest_generate_tests(metafunc):
    if "kind" in metafunc.fixturenames:
        short = SHORT.get(metafunc.function.__name__, KINDS)
        metafunc.parametrize("kind", KINDS if os.environ.get(ALL) else short)


def checkpoint(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=False)["model"]


def converts_to(of, folder):
    """Hold that a folder gives the checkpoint of a model."""
    convert(str(folder), str(folder / "out"))
    torch.testing.assert_close(checkpoint(folder / "out"), checkpoint(of.out), rtol=0, atol=0)


def test_a_folder_may_have_several_files_of_weights_or_a_pickled_one(made, tmp_path):
    """Sharded safetensors, and the pickled file of older models, give the same checkpoint."""
    of = made("OPUS-MT")
    linked(of.folder, tmp_path / "sharded", "model.safetensors")
    of.model.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    for path in (tmp_path / "parts").glob("model*"):
        path.rename(tmp_path / "sharded" / path.name)
    assert len([*(tmp_path / "sharded").glob("*.safetensors")]) > 2
    converts_to(of, tmp_path / "sharded")
    linked(of.folder, tmp_path / "pickled", "model.safetensors")
    weights = safetensors.torch.load_file(of.folder / "model.safetensors")
    torch.save(weights, tmp_path / "pickled" / "pytorch_model.bin")
    converts_to(of, tmp_path / "pickled")


def test_a_table_is_found_under_its_sides_names_alone(made, tmp_path):
    """Both tables of this model have one size, so that nothing else distinguishes them."""
    of = made("OPUS-MT, two vocabularies")
    names = [f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
    weights = safetensors.torch.load_file(of.folder / "model.safetensors")
    assert weights[names[0]].shape == weights[names[1]].shape
    linked(of.folder, tmp_path, "model.safetensors")
    for lacking in names:
        left = {name: weight for name, weight in weights.items() if name != lacking}
        safetensors.torch.save_file(left, tmp_path / "model.safetensors")
        with pytest.raises(UsageError, match=lacking.removeprefix("model.")):
            convert(str(tmp_path), str(tmp_path / "out"))
    weights["lm_head.weight"] = weights.pop(names[1])  # tied, a file may keep either
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors")
    converts_to(of, tmp_path)


# ---- which words stand for which


def attention(of, source, target):
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


def test_words_stand_for_those_that_transformers_attends_to(made):
    of = copy.copy(made("NLLB-200"))
    of.model = copy.deepcopy(of.model)
    of.model.set_attn_implementation("eager")
    found, compared = of.translator(beam=1), 0
    sources, targets = lines(24, seed=21), lines(24, seed=22)
    hypotheses = [Translation(each, found.pieces(each, found.bpe), 0.0, []) for each in targets]
    found.align(sources, hypotheses)

    def words(text, tokens):
        """The words of a text, and the places of their tokens."""
        pairs = words_in(text, tokens, lambda part: found.decode(" ".join(part)))
        return [(span, at) for span, at in pairs if at and is_word(text[slice(*span)])]

    for source, hypothesis in zip(sources, hypotheses, strict=True):
        weights = attention(of, source, hypothesis.text)
        columns = words(source, found.pieces(source, found.bpe))
        rows = words(hypothesis.text, hypothesis.tokens)
        if rows and columns:
            table = [[weights[i][:, j].mean(0).sum() for _, j in columns] for _, i in rows]
            best = enumerate(assigned(torch.tensor(table)))
            expected = [(columns[at][0], rows[row][0]) for row, at in best if at >= 0]
            assert hypothesis.words == expected, source
            compared += len(expected)
    assert compared > 40
