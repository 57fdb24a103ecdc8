"""The flags of optimal ending: they reach the search, and wrong ones are refused."""

import pytest
from models import batch, build, generators, run

from fairseq_ext.search.checks import validate
from fairseq_ext.search.finished import Scoring
from fairseq_ext.search.settings import Settings


def test_flags_reach_the_search():
    flags = dict(
        stop="optimal",
        length_reward=0.5,
        length_ratio=1.3,
        length_offset=0.7,
        stop_expansion="paper",
        prune_bound=True,
    )
    ours = generators(
        [build("transformer")], strategy=flags, beam=4, nbest=2, unnormalized=True, max_len_b=8
    ).ours
    assert ours.setup.scoring == Scoring(False, 1.0, 0.5, 1.3, 0.7, True) and ours.setup.nbest == 2
    assert ours.strategies.stop.paper and ours.strategies.stop.prune
    assert (
        "stop:optimal,length_reward=0.5,length_ratio=1.3,length_offset=0.7,"
        "stop_expansion=paper,prune_bound=True"
    ) in ours.stats.signature
    hypotheses = run(ours, batch([3, 1, 5]))
    for nbest, source in zip(hypotheses, [5, 3, 1], strict=True):
        for h in nbest:
            total, length = float(h["positional_scores"].sum()), len(h["tokens"])
            assert float(h["score"]) == pytest.approx(total + 0.5 * min(1.3 * source + 0.7, length))
    assert sum(ours.stats.as_dict()["certificates"][key] for key in ("proved", "open")) == 3


@pytest.mark.parametrize(
    "flags, generation, reported",
    [
        ({}, {}, "normalised"),
        ({}, {"lenpen": 0.0}, "raw"),
        ({}, {"unnormalized": True}, "raw"),
        ({"length_reward": 0.5}, {"unnormalized": True}, "reward"),
    ],
    ids=str,
)
def test_the_signature_says_which_certificate_it_is(flags, generation, reported):
    ours = generators(
        [build("transformer")], strategy={"stop": "optimal", **flags}, beam=4, **generation
    ).ours
    [stop] = [part for part in ours.stats.signature.split("|") if part.startswith("stop:")]
    assert stop.endswith(f",certificate={reported}")
    assert (
        "certificate"
        not in generators([build("transformer")], beam=4, **generation).ours.stats.signature
    )


def test_a_positive_unk_penalty_and_a_language_model_without_a_certificate_pass():
    validate(Settings({"stop": "optimal", "unkpen": 1.0}))
    validate(Settings({"stop": "shrink", "unkpen": -1.0, "lm_path": "lm.pt"}))
