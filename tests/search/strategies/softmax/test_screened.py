"""--softmax screened gives the full softmax's output: on random, near-tied and large weights, and
its bounds hold what they bound."""

import copy
import logging

import pytest
import torch
from models import batch, build, generators, run, same
from sizes import drawn

from fairseq_ext.core.stats import Stats
from fairseq_ext.kernels.library import library
from fairseq_ext.search.strategies.softmax import screened
from fairseq_ext.search.strategies.softmax.screened import (
    Screen,
    Screened,
    ScreenedLogProbs,
    rounded,
    words_scored_again,
)

V, D = 3000, 32
needs_library = pytest.mark.skipif(library() is None, reason="there is no C++ compiler")


def weights(kind: str) -> torch.Tensor:
    """An output layer (V, D)."""
    generator = torch.Generator().manual_seed(1)
    W = torch.randn(V, D, generator=generator) * 0.5
    if kind == "near-tied":  # pairs that differ by less than 16 bits can say
        W[1::2] = W[::2] * (1 + 1e-6 * torch.randn(V // 2, 1, generator=generator))
    if kind == "one large word":
        W[7] *= 1e4
    if kind == "one large feature":  # the scale of each word is that of its largest weight
        W[:, 3] *= 1e3
    whole = {"half": W.half().float(), "large": W * 40, "equal": W[:1].expand(V, D).contiguous()}
    return whole.get(kind, W)


KINDS = ["random", "half", "near-tied", "large", "one large word", "one large feature", "equal"]


def states(n: int, scale: float) -> torch.Tensor:
    return torch.randn(n, D, generator=torch.Generator().manual_seed(5)) * scale


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance)


class Plug:
    """The softmax over weights, compiled or by its definition in torch; what is computed in full
    is so in double precision."""

    def __init__(self, W, bias=None, temperature=1.0, compiled=True):
        self.W, self.bias, self.temperature = W, bias, temperature
        wanted = words_scored_again(5), [2, 3], screened.TOLERANCE
        self.screen = Screen(W, bias, temperature, *wanted)
        if not compiled:
            self.screen.compiled, self.screen.near = None, rounded(W)
        self.softmax = Screened(self.screen, temperature, Stats())

    def log_probs(self, features, temperature):
        assert temperature == self.temperature
        return exact(self.W, features[0], self.bias, temperature).float()

    def __call__(self, x) -> ScreenedLogProbs:
        return ScreenedLogProbs(self.softmax, self, x, self.screen)

    @property
    def recomputed(self) -> int:
        return self.softmax.counts.recomputed_rows


@pytest.fixture(params=[pytest.param("compiled", marks=needs_library), "torch"])
def plug(request):
    return lambda *args, **kwargs: Plug(*args, compiled=request.param == "compiled", **kwargs)


def exact(W, x, bias=None, temperature=1.0):
    """In double precision."""
    logits = x.double() @ W.double().t() + (0.0 if bias is None else bias.double())
    return (logits / temperature).log_softmax(-1)


def rounding_of(W, x) -> float:
    """What float32 takes off such logits, in the full softmax as well."""
    return 6e-7 * float((x.abs() @ W.abs().t()).max()) + 1e-6


RULED_OUT = torch.zeros(V)
RULED_OUT[5:400:3] = -torch.inf
BIAS = torch.randn(V, generator=torch.Generator().manual_seed(9))
LAYERS: dict[str, dict] = {
    "plain": {},
    "bias and temperature": {"bias": BIAS, "temperature": 0.7},
    "words that a bias rules out": {"bias": RULED_OUT},
}


@drawn(26)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("n", [1, 5, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_best_words_and_scores_equal_the_full_softmax(kind, n, scale, layer, plug):
    W, x = weights(kind), states(n, scale)
    full, ours = exact(W, x, **LAYERS[layer]), plug(W, **LAYERS[layer])(x)
    rounding = 2 * rounding_of(W, x)  # a temperature makes logits larger
    score, token = ours.topk(10)
    expected, _ = full.topk(10)
    close(score, expected, screened.TOLERANCE + rounding)
    # equal words, but for those that lie within the rounding of each other
    close(full.gather(1, token), expected, 2 * rounding)
    some = torch.arange(20 * n).view(n, 20) % V
    close(ours.scores_at(some), full.gather(1, some), screened.TOLERANCE + rounding)


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("kind", KINDS)
def test_the_bounds_hold(kind, scale, plug):
    """Of log Z, and of every word that was not scored again."""
    W, x = weights(kind), states(40, scale)
    value, known, ceiling, error = plug(W).screen.log_probs(x)
    full = exact(W, x)
    rounding = rounding_of(W, x)
    bounded = torch.isfinite(error)
    assert bounded.any() or kind in ("one large word", "one large feature", "large")
    # what is exact but for log Z
    wrong = (value.double() - full).masked_fill(~known, 0.0).abs().amax(1)
    assert (wrong <= error.double() + rounding)[bounded].all()
    beyond = full.masked_fill(known, -torch.inf).amax(1)
    assert (beyond <= ceiling.double() + error.double() + rounding)[bounded].all()


@needs_library
def test_more_words_are_scored_again_where_the_best_do_not_make_the_bound():
    W = weights("random")
    x = states(40, 1.3)  # flat enough that 64 words leave much
    few, many = (Plug(W, compiled=value).screen.log_probs(x) for value in (False, True))
    wide = few[3] > screened.TOLERANCE
    assert wide.any()
    assert (many[1].sum(1) > few[1].sum(1))[wide].any() and (many[3] <= few[3] * 1.001)[wide].all()


def test_forbidden_words_do_not_break_the_certificate(plug):
    """Every word that was scored again is banned: what is then best was never scored, so the
    rows are computed in full."""
    W, x = weights("random"), states(3, 1.0)
    ours = plug(W)
    log_probs, full = ours(x), exact(W, x)
    before = ours.recomputed
    best = log_probs._value.topk(400).indices
    assert (log_probs.is_exact.sum(1) < 400).any()
    log_probs.ban_each_(best)
    full.scatter_(1, best, -torch.inf)
    log_probs.add_(5, 2.0)  # a logits processor's doing, which must outlast the computation in full
    full[:, 5] += 2.0
    score, token = log_probs.topk(10)
    expected, words = full.topk(10)
    assert torch.equal(token, words) and ours.recomputed > before
    close(score, expected)


@needs_library
@pytest.mark.parametrize("banned", [False, True])
def test_the_best_of_sentences_equal_the_full_softmaxs(banned):
    """Three sentences of 4, 1 and 3 rows; with every word that was scored again banned, rows
    must be computed in full."""
    W, x = weights("random"), states(8, 1.0)
    ours = Plug(W)
    log_probs, full = ours(x), exact(W, x)
    if banned:
        log_probs._value.masked_fill_(log_probs.is_exact, -torch.inf)
        full.masked_fill_(log_probs.is_exact, -torch.inf)
    score_before = torch.linspace(-1, 0, 8)
    score_before[2] = -torch.inf  # an empty place
    first, c = torch.tensor([0, 4, 5, 8]), 6
    row, token, score = log_probs.best_of_sentences(c, score_before, first)
    cumulative = full + score_before[:, None]
    for s in range(3):
        rows = cumulative[first[s] : first[s + 1]]
        expected, place = rows.flatten().topk(c)
        close(score[s], expected)
        assert torch.equal(row[s] - first[s], place // V) and torch.equal(token[s], place % V)
    assert ours.recomputed > 0 or not banned


@needs_library
def test_rows_that_come_in_once_others_are_computed_in_full_are_too():
    """Rounding lifts the words of the first row, so that it looks as if none of the second's
    could be among the best."""
    W = torch.zeros(600, 3)
    W[:, 2], W[:20, 0], W[20:, 1] = 32767.0, 2000.0, 0.49  # 16 bits hold no 0.49 next to it
    x = torch.tensor([[0.01, -1.0, 0.0], [0.01, 0.3, 0.0]])
    ours = Plug(W)
    log_probs, full = ours(x), exact(W, x)
    assert ours.recomputed == 0
    log_probs._value.masked_fill_(log_probs.is_exact, -torch.inf)
    full.masked_fill_(log_probs.is_exact, -torch.inf)
    before = torch.tensor([0.0, -0.3])
    score = log_probs.best_of_sentences(10, before, torch.tensor([0, 2]))[2]
    close(score[0], (full + before[:, None]).flatten().topk(10)[0])


@needs_library
def test_many_equal_words_are_summed_without_drift():
    """Two thousand words next to a likely one, each a few units of what float32
    holds of their sum."""
    W = torch.zeros(9000, 8)
    W[:, 0] = -12 + 1e-3 * torch.randn(9000, generator=torch.Generator().manual_seed(1))
    W[0, 0], W[2000:, 0], W[:, 1] = 0.0, -21.0, 300.0
    x = torch.eye(8)[:1]
    value, known, _, error = Plug(W).screen.log_probs(x)
    assert known.sum() >= 2000
    wrong = (value.double() - exact(W, x)).masked_fill(~known, 0.0).abs().max()
    assert wrong <= error[0] + 2e-6


def test_states_that_are_no_numbers_are_computed_in_full(plug):
    x = states(3, 1.0)
    x[1, 4] = torch.nan
    ours = plug(weights("random"))
    value = ours(x).dense()
    assert ours.recomputed >= 1 and value[1].isnan().all() and value[::2].isfinite().all()


@needs_library
def test_a_wrong_product_is_found_at_the_start(monkeypatch):
    right = screened.ScreenedLinear

    def of_other_weights(screen, tolerance):
        other = copy.copy(screen)
        other.weight = screen.weight + 0.01 * screen.weight.flip(0)
        return right(other, tolerance)

    monkeypatch.setattr(screened, "ScreenedLinear", of_other_weights)
    with pytest.raises(RuntimeError, match="is off by"):
        Screen(weights("random"), None, 1.0, 64, [2], 5e-5)


@pytest.fixture
def always_faster(monkeypatch):
    """Without the probe, which may choose the full softmax."""
    monkeypatch.setattr(Screened, "is_faster", lambda *_: True)


def of_1500_words(flags, peak: float = 2.0, **stock):
    """fairseq's generator and ours."""
    model = build("transformer", dtype=torch.float32, words=1500, peak=peak)
    return generators([model], flags, words=1500, beam=5, max_len_b=12, **stock)


@pytest.mark.parametrize(
    "flags",
    [{}, {"min_len": 4}, {"unkpen": 1.0}, {"no_repeat_ngram_size": 2}, {"temperature": 0.5}],
    ids=str,
)
@needs_library
def test_search_equals_the_full_softmax(flags, always_faster, on_the_cpu):
    full, ours = (of_1500_words({"softmax": each}, **flags).ours for each in ("full", "screened"))
    sample = batch([5, 3, 1, 0], words=1500)
    prefix = torch.tensor([[7, 8], [9, 2], [5, 1], [1, 1]])
    for arguments in ({}, {"prefix_tokens": prefix}):
        same(run(full, sample, **arguments), run(ours, sample, **arguments), tolerance=1e-4)
    section = ours.stats.as_dict()["softmax"]
    assert section["screened_rows"] > section["recomputed_rows"]


@needs_library
def test_a_model_that_leaves_many_rows_open_gets_the_full_softmax(
    always_faster, monkeypatch, caplog
):
    monkeypatch.setattr(screened, "MIN_ROWS_TO_JUDGE", 20)
    pair = of_1500_words({"softmax": "screened"}, 40.0)
    pair.ours.strategies.softmax.screen.tolerance = 0.0
    sample = batch([5, 3, 1, 0], words=1500)
    with caplog.at_level(logging.INFO):
        same(run(pair.stock, sample), run(pair.ours, sample), tolerance=1e-4)
    assert "too many rows open" in caplog.text and pair.ours.strategies.softmax.screen is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_weights_take_the_full_softmax(dtype, caplog):
    with caplog.at_level(logging.INFO):
        ours = generators([build("transformer", dtype=dtype)], {"softmax": "screened"}, beam=2).ours
    assert ours.strategies.softmax.screen is None and "full precision, because" in caplog.text
