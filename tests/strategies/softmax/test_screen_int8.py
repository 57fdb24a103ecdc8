"""--softmax screened --screen-bits 8: its bounds hold what they bound, by the definition and compiled, and searches find the same words."""

import math

import pytest
import torch
from models import batch, build, generators, run

from fairseq_ext.kernels.library import library
from fairseq_ext.softmax.random_rounding import RandomScreen, randomly_rounded
from fairseq_ext.stats import Stats
from fairseq_ext.strategies.softmax.screened import EIGHT_BITS, Screened, ScreenedLogProbs

V, D = 4000, 64
needs_library = pytest.mark.skipif(library() is None, reason="there is no compiled library")


@pytest.fixture(params=[pytest.param("compiled", marks=needs_library), "torch"])
def screen(request):
    """A maker of screens."""

    def make(W, bias=None, temperature=1.0, m=64):
        made = RandomScreen(W, bias, temperature, m, [2, 3], EIGHT_BITS)
        if request.param == "torch":
            made.compiled, made.whole = None, randomly_rounded(W)[0]
        return made

    return make


def weights(seed: int = 1) -> torch.Tensor:
    """An output layer (V, D)."""
    return torch.randn(V, D, generator=torch.Generator().manual_seed(seed)) * D**-0.5


def states(W: torch.Tensor, n: int, peak: float) -> torch.Tensor:
    """States (n, D) near a word each: the larger `peak`, the more probable it is."""
    generator = torch.Generator().manual_seed(n)
    word = W[torch.randint(V, (n,), generator=generator)]
    return word * peak / word.norm(dim=1, keepdim=True).square() + 0.5 * torch.randn(n, D, generator=generator)


def exact(W, x, bias=None, temperature=1.0):
    """In double precision."""
    logits = x.double() @ W.double().t() + (0.0 if bias is None else bias.double())
    return (logits / temperature).log_softmax(-1)


def test_the_mean_of_many_roundings_is_the_weight():
    W = weights()[:8]
    rounded = torch.stack([whole * scale[:, None] for whole, scale in (randomly_rounded(W, seed) for seed in range(4000))])
    step = W.abs().amax(1, keepdim=True) / 127
    assert ((rounded - W).abs() <= step * 1.001).all()
    assert ((rounded.mean(0) - W).abs() <= 6 * step / 2 / math.sqrt(4000)).all()


@pytest.mark.parametrize("peak", [2.0, 8.0, 12.0, 20.0])
@pytest.mark.parametrize(("with_bias", "temperature"), [(False, 1.0), (True, 0.7)])
def test_the_bounds_hold(peak, with_bias, temperature, screen):
    """Of log Z, of the words that were scored again, and of those that were not."""
    W, bias = weights(), torch.randn(V, generator=torch.Generator().manual_seed(9)) if with_bias else None
    x = states(W, 60, peak)
    value, known, ceiling, error = screen(W, bias, temperature).log_probs(x)
    full = exact(W, x, bias, temperature)
    rounding = 6e-7 * float((x.abs() @ W.abs().t()).max()) / temperature + 2e-6
    wrong = (value.double() - full).masked_fill(~known, 0.0).abs().amax(1)
    assert (wrong <= error.double() + rounding).all()
    assert (full.masked_fill(known, -torch.inf).amax(1) <= ceiling.double() + error.double() + rounding).all()
    assert known[:, [2, 3]].all()
    if peak >= 12:  # sure of itself, as a trained model
        assert (error <= EIGHT_BITS).float().mean() > 0.5


@needs_library
def test_the_compiled_screen_scores_more_words_where_few_do_not_make_the_bound():
    W = weights()
    x = states(W, 60, 9.0)
    made = RandomScreen(W, None, 1.0, 16, [2, 3], EIGHT_BITS)
    loose = RandomScreen(W, None, 1.0, 16, [2, 3], 1.0)
    few, many = loose.log_probs(x), made.log_probs(x)
    wide = few[3] > EIGHT_BITS
    assert wide.any() and (many[1].sum(1) > few[1].sum(1))[wide].all() and (many[3] < few[3])[wide].all()


def test_any_word_that_is_asked_for_is_exact(screen):
    W = weights()
    x = states(W, 6, 14.0)
    made = screen(W)

    class Full:
        def log_probs(self, features, temperature):
            return exact(W, features[0]).float()

    wanted = torch.arange(0, 600).view(6, 100)
    found = ScreenedLogProbs(Screened(made, 1.0, Stats()), Full(), x, made).at(wanted)
    torch.testing.assert_close(found.double(), exact(W, x).gather(1, wanted), rtol=0, atol=EIGHT_BITS + 1e-4)


def test_states_that_are_no_numbers_are_left_open(screen):
    W = weights()
    x = states(W, 4, 14.0)
    x[1, 4], x[2, 7] = torch.nan, torch.inf
    value, _, _, error = screen(W).log_probs(x)
    assert error[1].isinf() and error[2].isinf() and value[::3].isfinite().all()


@needs_library
@pytest.mark.parametrize("flags", [{}, {"min_len": 4}, {"no_repeat_ngram_size": 2}, {"temperature": 0.5}], ids=str)
def test_search_finds_the_full_softmaxs_words(flags, monkeypatch):
    monkeypatch.setattr(Screened, "is_faster", lambda self, decoder, x, screen: True)
    model = build("transformer", dtype=torch.float32, words=1500, peak=2.0)
    names = ({"softmax": "full"}, {"softmax": "screened", "screen_bits": "8"})
    full, ours = (generators([model], each, words=1500, beam=5, max_len_b=12, **flags).ours for each in names)
    for expected, found in zip(run(full, batch([5, 3, 1, 0], words=1500)), run(ours, batch([5, 3, 1, 0], words=1500)), strict=True):
        assert found[0]["tokens"].tolist() == expected[0]["tokens"].tolist()
        assert abs(float(found[0]["score"]) - float(expected[0]["score"])) <= EIGHT_BITS
    section = ours.stats.as_dict()["softmax"]
    assert section["screened_rows"] > 0


def test_features_that_do_not_come_in_fours_take_the_full_softmax(caplog):
    if library() is None:
        pytest.skip("there is no compiled library")
    from fairseq_ext.strategies.softmax.screened import unavailable

    assert "fours" in unavailable(torch.randn(V, 30), 64, 8)
    assert unavailable(torch.randn(V, 30), 64, 16) is None
