"""--diverse-beam-groups in our search: stock's n-best lists."""

import pytest
from models import batch, build, generators, run, same
from sizes import covering


@covering(1)
@pytest.mark.parametrize(
    "stock", [{}, {"unnormalized": True, "min_len": 3}, {"diverse_beam_strength": 2.0}], ids=str
)
@pytest.mark.parametrize("beam, groups", [(4, 2), (4, 4), (6, 3), (24, 4)])
def test_lists_equal_stocks(beam, groups, stock):
    for seed in range(2):
        pair = generators(
            [build("transformer", seed)],
            beam=beam,
            nbest=beam,
            max_len_b=12,
            diverse_beam_groups=groups,
            **stock,
        )
        assert "select:diverse" in pair.ours.stats.signature
        sample = batch([3, 1, 7, 5, 0])
        same(
            *(
                list(map(in_one_order, run(generator, sample)))
                for generator in (pair.stock, pair.ours)
            )
        )


def in_one_order(nbest: list[dict]) -> list[dict]:
    """Best first. Groups may find one sentence with equal scores, by other steps: which is first
    then hangs on rounding."""
    return sorted(
        nbest,
        key=lambda h: (
            -round(float(h["score"]), 9),
            h["tokens"].tolist(),
            h["positional_scores"].tolist(),
        ),
    )


def test_streams_find_the_same():
    flags = dict(beam=4, nbest=4, max_len_b=12, diverse_beam_groups=2)
    pair = generators([build("transformer", 2)], {"schedule": "stream", "stream_width": 2}, **flags)
    sample = batch([3, 1, 7, 5, 0])
    same(run(pair.stock, sample), run(pair.ours, sample))
