"""`--prune-finished X`: what is worse than the best finished hypothesis by more goes, in
plain Python too."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import build, generators
from search.strategies.select.test_dba import VOCABULARY, all_met, wanted
from sizes import covering, examples
from table_model import EOS, FIRST_WORD, random_table, search, stop_plug, words

from fairseq_ext import UsageError
from fairseq_ext.search.strategies.prune import PruneFinished
from fairseq_ext.search.strategies.select.dba import DBA

K, MAX_LEN = 4, 9


def plain(table, X: float) -> list[tuple[str, float]]:
    """Beam search in Python whose candidates must not be further than X from the best
    finished score so far."""
    rows, done = [(0.0, ())], []
    for step in range(MAX_LEN + 1):
        best = max((s for s, _ in done), default=float("-inf"))
        candidates = []
        for score, tokens in rows:
            values = table(tokens)
            allowed = (
                [EOS]
                if step == MAX_LEN
                else [*([EOS] if step else []), *range(FIRST_WORD, VOCABULARY)]
            )
            candidates += [
                (score + values[t], (*tokens, t)) for t in allowed if values[t] > float("-inf")
            ]
        candidates = sorted(candidates, key=lambda c: -c[0])[: 2 * K]
        kept = [(i, c) for i, c in enumerate(candidates) if c[0] >= best - X]
        done += [c for i, c in kept if c[1][-1] == EOS and i < K][: K - len(done)]
        rows = [c for _, c in kept if c[1][-1] != EOS][:K]
        if len(done) == K or not rows:
            break
    return sorted(((words(tokens), round(score, 9)) for score, tokens in done), key=lambda h: -h[1])


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.integers(0, 10_000), min_size=1, max_size=3),
    st.sampled_from([0.0, 0.5, 2.0, 5.0, 20.0]),
)
def test_equals_plain_pruning(seeds, X):
    tables = [random_table(seed) for seed in seeds]
    found = search(tables, K, stop_plug("count", K), MAX_LEN, prune=[PruneFinished(X)])
    assert [[(words(h.tokens), round(h.score, 9)) for h in nbest] for nbest in found.lists] == [
        plain(t, X) for t in tables
    ]


@covering(1)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("X", [0.0, 3.0])
def test_constraints_stay_met_with_fewer_rows(seed, X):
    tables, constraints = (
        [random_table(seed), random_table(seed + 50)],
        [wanted("ab", "c"), wanted("dd")],
    )
    full, few = (
        search(
            tables,
            K,
            stop_plug("count", K),
            MAX_LEN,
            nbest=K,
            select=DBA(K, EOS, VOCABULARY),
            prune=prune,
            constraints=constraints,
        )
        for prune in ([], [PruneFinished(X)])
    )
    for nbest, c in zip(few.lists, constraints, strict=True):
        assert nbest and all(all_met(h, c) for h in nbest)
    # a distance may also drop a row that would have finished, so that the list takes longer to
    # fill; at 0 little is left to fill it
    assert X > 0 or sum(few.rows) <= sum(full.rows)


@pytest.mark.parametrize("X", [-1.0, float("nan")])
def test_what_is_no_distance_is_refused(X):
    with pytest.raises(UsageError, match="--prune-finished"):
        generators([build("transformer")], {"prune_finished": X}, beam=2)
