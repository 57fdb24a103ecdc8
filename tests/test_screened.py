"""--softmax screened gives the full softmax's output: on random, near-tied and large weights, whether half precision holds them or not."""

import logging

import pytest
import torch
from models import batch, build, generators, run, same

from fairseq_ext import UsageError
from fairseq_ext.half_screen import Screen
from fairseq_ext.stats import Stats
from fairseq_ext.strategies import screened
from fairseq_ext.strategies.screened import Screened

V, D = 3000, 32
pytestmark = pytest.mark.skipif("fbgemm" not in torch.backends.quantized.supported_engines, reason="this torch has no FBGEMM")


def weights(kind: str, seed: int = 1) -> torch.Tensor:
    """An output layer (V, D)."""
    generator = torch.Generator().manual_seed(seed)
    W = torch.randn(V, D, generator=generator) * 0.5
    if kind == "half":
        return W.half().float()
    if kind == "near-tied":  # pairs that differ by less than half precision can tell
        W[1::2] = W[::2] * (1 + 1e-5 * torch.randn(V // 2, 1, generator=generator))
    if kind == "large":
        return W * 40
    if kind == "one large word":
        W[7] *= 1e4
    if kind == "equal":
        return W[:1].expand(V, D).contiguous()
    return W


KINDS = ["random", "half", "near-tied", "large", "one large word", "equal"]


def states(n: int, scale: float, seed: int = 5) -> torch.Tensor:
    return torch.randn(n, D, generator=torch.Generator().manual_seed(seed)) * scale


def plug(W: torch.Tensor, bias: torch.Tensor | None = None, temperature: float = 1.0, k: int = 5) -> tuple[Screened, Screen]:
    screen = Screen(W, bias, temperature)
    return Screened(screen, temperature, k, [2, 3], Stats()), screen


def exact(W, x, bias=None, temperature=1.0):
    """In double precision."""
    logits = x.double() @ W.double().t() + (0.0 if bias is None else bias.double())
    return (logits / temperature).log_softmax(-1)


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("n", [1, 5, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_best_words_and_scores_equal_the_full_softmax(kind, n, scale):
    W, x = weights(kind), states(n, scale)
    softmax, screen = plug(W)
    full = exact(W, x)
    score, token = softmax.screened(x, screen).topk(10)
    expected, best = full.topk(10)
    # float32 rounds logits of this size by so much, in the full softmax as well
    rounding = 3e-7 * float((x.double() @ W.double().t()).abs().max()) + 1e-6
    torch.testing.assert_close(score.double(), expected, rtol=0, atol=screened.TOLERANCE + rounding)
    # equal words, but for those that lie within the rounding of each other
    torch.testing.assert_close(full.gather(1, token), expected, rtol=0, atol=2 * rounding)


@pytest.mark.parametrize("kind", KINDS)
def test_the_interval_holds_log_z(kind):
    """The certified error against the real one, for probabilities of all words in half precision."""
    W, x = weights(kind), states(40, 1.0)
    screen = Screen(W, None, 1.0)
    approximate = (x.double() @ W.half().double().t()).logsumexp(-1)
    real = (approximate - (x.double() @ W.double().t()).logsumexp(-1)).abs()
    p = (x @ W.half().float().t()).softmax(-1)
    assert (real <= screen.log_z_error(x.norm(dim=1), p).double() + 1e-12).all()


def test_bias_and_temperature():
    W, x = weights("random"), states(6, 1.0)
    bias = torch.randn(V, generator=torch.Generator().manual_seed(9))
    softmax, screen = plug(W, bias, 0.7)
    score, token = softmax.screened(x, screen).topk(10)
    expected, best = exact(W, x, bias, 0.7).topk(10)
    torch.testing.assert_close(score.double(), expected, rtol=0, atol=1e-4)
    assert torch.equal(token, best)


def test_any_word_that_is_asked_for_is_exact():
    W, x = weights("random"), states(6, 1.0)
    softmax, screen = plug(W)
    wanted = torch.arange(0, 600).view(6, 100)
    found = softmax.screened(x, screen).at(wanted)
    torch.testing.assert_close(found.double(), exact(W, x).gather(1, wanted), rtol=0, atol=1e-4)


def test_forbidden_words_do_not_break_the_certificate():
    """Every word that was scored again is banned: what is then best was never scored, so the rows are computed in full."""
    W, x = weights("random"), states(3, 1.0)
    softmax, screen = plug(W)
    log_probs, full = softmax.screened(x, screen), exact(W, x)
    best = log_probs.value.topk(400).indices
    log_probs.value.scatter_(1, best, -torch.inf)
    full.scatter_(1, best, -torch.inf)
    score, token = log_probs.topk(10)
    expected, words = full.topk(10)
    assert torch.equal(token, words) and softmax.section["recomputed_rows"] >= 3
    torch.testing.assert_close(score.double(), expected, rtol=0, atol=1e-4)


def test_weights_that_half_precision_holds_need_no_check():
    softmax, screen = plug(weights("half"))
    assert screen.exact
    softmax.screened(states(8, 1.0), screen).topk(10)
    assert softmax.section["recomputed_rows"] == 0


@pytest.fixture
def always_faster(monkeypatch):
    """Without the probe, which may choose the full softmax."""
    monkeypatch.setattr(Screened, "is_faster", lambda self, decoder, x, screen: True)


@pytest.mark.parametrize("flags", [{}, {"min_len": 4}, {"unkpen": 1.0}, {"no_repeat_ngram_size": 2}, {"temperature": 0.5}], ids=str)
@pytest.mark.parametrize("half", [False, True])
def test_search_equals_the_full_softmax(half, flags, always_faster):
    model = build("transformer", dtype=torch.float32, words=1500, peak=2.0)
    if half:
        model = model.half().float()
    full, ours = (generators([model], {"softmax": name}, words=1500, beam=5, max_len_b=12, **flags).ours for name in ("full", "screened"))
    sample = batch([5, 3, 1, 0], words=1500)
    prefix = torch.tensor([[7, 8], [9, 2], [5, 1], [1, 1]])
    for arguments in ({}, {"prefix_tokens": prefix}):
        same(run(full, sample, **arguments), run(ours, sample, **arguments), tolerance=1e-4)
    section = ours.stats.extra["softmax"]
    assert section["screened_rows"] > 0 and (not half or section["recomputed_rows"] == 0)


def test_a_model_that_leaves_many_rows_open_gets_the_full_softmax(always_faster, monkeypatch, caplog):
    monkeypatch.setattr(screened, "ENOUGH", 20)
    model = build("transformer", dtype=torch.float32, words=1500, peak=40.0)
    pair = generators([model], {"softmax": "screened"}, words=1500, beam=5, max_len_b=12)
    monkeypatch.setattr(screened, "TOLERANCE", 0.0)
    sample = batch([5, 3, 1, 0], words=1500)
    with caplog.at_level(logging.INFO):
        same(run(pair.stock, sample), run(pair.ours, sample), tolerance=1e-4)
    assert "too many rows open" in caplog.text and pair.ours.plugs.softmax.screen is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_weights_take_the_full_softmax(dtype, caplog):
    with caplog.at_level(logging.INFO):
        ours = generators([build("transformer", dtype=dtype)], {"softmax": "screened"}, beam=2).ours
    assert ours.plugs.softmax.screen is None and "full precision, because" in caplog.text


def test_ensembles_and_language_models_are_refused():
    with pytest.raises(UsageError, match="ensemble"):
        generators([build("transformer"), build("transformer")], {"softmax": "screened"}, beam=2)
    with pytest.raises(UsageError, match="--lm-path"):
        generators([build("transformer")], {"softmax": "screened"}, beam=2, lm_path="lm.pt")
