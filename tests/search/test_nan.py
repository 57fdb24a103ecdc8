"""A model that gives NaN is reported, and gives no wrong translation: in every search, in
float32 and with --int8."""

import math
import random

import pytest
import torch
from models import batch, build, dictionary, generators, language_model, requests_of, run
from required_phrases import required_phrases
from sizes import covering, drawn

from fairseq_ext.core.errors import NotANumber
from fairseq_ext.kernels.library import library
from fairseq_ext.search.phrases.sentence import SentenceConstraints

pytestmark = [
    pytest.mark.skipif(library() is None, reason="there is no compiled library"),
    pytest.mark.usefixtures("on_the_cpu"),
]
SAID = r"^the model gives NaN at target position \d+( of (one of )?the sentences?)?: use another"
WORD = dictionary().nspecial + 3
# flags of ours, of stock; the lengths of sentences
SEARCHES: dict[str, tuple[dict, dict, list[int]]] = {
    "beam": ({}, {"beam": 3}, [5, 2]),
    "stream": ({"schedule": "stream", "stream_width": 2}, {"beam": 2}, [5, 3, 2]),
    "sampling": ({}, {"beam": 2, "sampling": True}, [4]),
    "phrases": ({"select": "dba"}, {"beam": 3}, [5, 2]),
    "loop": ({"softmax": "screened"}, {"beam": 3}, [5, 2]),
    "jacobi": ({"decoding": "jacobi"}, {"beam": 1}, [5]),
    "jacobi of several": ({"decoding": "jacobi"}, {"beam": 1}, [5, 3]),
    "window": ({"decoding": "window", "draft": "repeat"}, {"beam": 1}, [6]),
}
NUMBERS = {"float32": {}, "int8": {"int8": True}}


def sample_of(search: str) -> dict:
    lengths = SEARCHES[search][2]
    sample = batch(lengths)
    if search == "phrases":
        given = SentenceConstraints(required_phrases((((WORD,),),), ("a",)))
        sample["requests"] = requests_of([given] * len(lengths))
    return sample


def generator(model, search: str, **flags):
    ours, stock, _ = SEARCHES[search]
    return generators([model], {**ours, **flags}, max_len_b=8, **stock).ours


@covering(2)
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_nan_in_a_layer_is_reported(side, search, numbers):
    """It comes after the model was loaded, as weights that are NaN from the start are refused."""
    model = build("transformer", 5, dtype=torch.float32)
    ours = generator(model, search, **NUMBERS[numbers])
    run(ours, sample_of(search))
    with torch.no_grad():
        getattr(model, side).layers[0].final_layer_norm.weight[0] = math.nan
    with pytest.raises(NotANumber, match=SAID):
        run(ours, sample_of(search))


def make_overflow_(model, weight: str) -> None:
    """Make a weight so large that what it computes may overflow."""
    chance = random.Random(weight)
    with torch.no_grad():
        data = dict(model.named_parameters())[weight].view(-1)
        signs = [chance.choice([-1, 1]) for _ in range(data.numel())]
        data.copy_(torch.tensor(signs) * 3e38)
        for side in (model.encoder, model.decoder):  # by which it is seen that weights have changed
            side.layers[0].fc1.bias[0] += 1e-3


WEIGHTS = [
    (architecture, name)
    for architecture in ("transformer", "transformer-pre-norm")
    for name, _ in build(architecture, 2).named_parameters()
    if name.endswith("weight")  # what large biases add up to may be just below the largest float
]


@drawn(12)
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("architecture, weight", WEIGHTS)
def test_finite_weights_that_overflow_are_reported_where_fairseqs_modules_give_nan(
    architecture, weight, search, numbers
):
    """They are so large from then on: a model that overflows everywhere is refused at its start."""
    model = build(architecture, 2, dtype=torch.float32)
    ours = generator(model, search, **NUMBERS[numbers])
    make_overflow_(model, weight)
    stock = generators([model], {"decoder_backend": "fairseq"}, beam=1, max_len_b=8).ours
    try:
        run(stock, batch(SEARCHES[search][2]))
    except NotANumber:
        with pytest.raises(NotANumber, match=SAID):
            run(ours, sample_of(search))


@pytest.mark.parametrize("select", ["topk", "dba"])
@pytest.mark.parametrize("broken", ["a model", "the language model"])
def test_nan_in_one_of_several_models_is_reported_with_its_place(broken, select):
    """The first step is still sound. Stock turns NaN into -inf and goes on."""
    lm, models = language_model(), [build("transformer", seed) for seed in (1, 2)]
    extra = {"lm_model": lm, "lm_weight": 0.3}
    ours = generators(models, {"select": select}, extra, beam=2, max_len_b=5).ours
    decoder = (lm if "language" in broken else models[1]).decoder
    with torch.no_grad():
        decoder.embed_tokens.weight[5:] = math.nan  # every word but EOS
    with pytest.raises(FloatingPointError, match="NaN at target position 1 of "):
        run(ours, batch([3, 1]))
