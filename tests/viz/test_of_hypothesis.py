"""The graph of any hypothesis: the greedy one's is that of Jacobi decoding; in another one's the search's choices are given."""

import json
from pathlib import Path

import pytest
import torch

from fairseq_ext import Translator, UsageError
from fairseq_ext.viz.of_hypothesis import graph_of

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "checkpoints" / "demo"
FLAGS = {"source_lang": "de", "target_lang": "en", "cpu": True, "bpe": "sentencepiece", "sentencepiece_model": str(DEMO / "spm.model")}


@pytest.fixture(scope="module")
def lines():
    return (ROOT / "data" / "demo" / "test.de").read_text(encoding="utf-8").splitlines()[:6]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture(scope="module")
def jacobi(folder):
    flags = {"beam": 1, "decoding": "jacobi", "draft": "pad", "ddg_dir": str(folder)}
    return Translator(str(DEMO / "checkpoint.pt"), str(DEMO), **flags, **FLAGS)


def test_the_greedy_one_is_that_of_jacobi_decoding(jacobi, lines, folder):
    for number, (line, (best,)) in enumerate(zip(lines, jacobi.translate(lines), strict=True)):
        theirs, ours = json.loads((folder / f"{number}.json").read_text()), graph_of(jacobi, line, best.tokens)
        for name in ("source", "tokens", "solved", "waits_for"):
            assert getattr(ours, name) == theirs[name]
        assert ours.given == []
        for k, iteration in enumerate(ours.iterations):
            cells = theirs["iterations"][k]["cells"]
            assert [cell["token"] for cell in iteration["cells"]][-len(cells) :] == [cell["token"] for cell in cells]
            chances = [cell["probability"] for cell in iteration["cells"]][-len(cells) :]
            assert chances == pytest.approx([cell["probability"] for cell in cells], abs=1e-4)


def test_what_is_given_is_where_the_hypothesis_leaves_greedy_decoding(jacobi, lines):
    """Position by position, by fairseq's model alone."""
    translator = Translator(str(DEMO / "checkpoint.pt"), str(DEMO), beam=4, nbest=3, **FLAGS)
    target, (model,) = translator.task.target_dictionary, translator.models
    seen = 0
    for line, nbest in zip(lines, translator.translate(lines), strict=True):
        src = translator.encode(line)[None]
        for hypothesis in nbest:
            tokens = [target.index(piece) for piece in hypothesis.tokens] + [target.eos()]
            with torch.no_grad():
                best = [
                    int(model(src, torch.tensor([src.size(1)]), torch.tensor([[target.eos(), *tokens[:j]]]))[0][0, -1].argmax())
                    for j in range(len(tokens))
                ]
            graph = graph_of(jacobi, line, hypothesis.tokens)
            assert graph.given == [j for j, (a, b) in enumerate(zip(best, tokens, strict=True)) if a != b]
            last = graph.iterations[-1]
            assert [cell["token"] for cell in last["cells"]] == [*hypothesis.tokens, "</s>"] and last["verified"] == len(tokens)
            assert all(cell["right"] for cell in last["cells"])
            graph.check()
            seen += bool(graph.given)
    assert seen >= len(lines), "of an n-best list, most differ from the greedy translation"


def test_tokens_that_cannot_be_are_refused(jacobi):
    with pytest.raises(UsageError, match="the target dictionary lacks the token '漢'"):
        graph_of(jacobi, "Guten Morgen.", ["▁The", "漢"])
    with pytest.raises(UsageError, match="the translation has 5001 tokens and the model takes"):
        graph_of(jacobi, "Guten Morgen.", ["▁The"] * 5000)
