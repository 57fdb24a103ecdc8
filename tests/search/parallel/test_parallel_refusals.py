"""What parallel decoding refuses, in one sentence each."""

import pytest
from models import batch, build, generators, run
from parallel_decoding import blocks

from fairseq_ext import UsageError
from fairseq_ext.search.phrases.sentence import SentenceConstraints


def test_a_stream_is_refused_where_rows_of_different_lengths_cannot_be_read_together():
    with pytest.raises(UsageError, match="--schedule stream with --decoding window needs"):
        generators(
            [build("transformer")],
            blocks("window", decoder_backend="fairseq", schedule="stream"),
            beam=1,
        )


@pytest.mark.parametrize(
    "flags, generation, said",
    [
        ({}, {"beam": 5}, "--beam 1"),
        ({}, {"nbest": 2}, "--nbest 1"),
        ({"stop": "optimal"}, {"unnormalized": True}, "--stop optimal"),
        ({"select": "dba"}, {}, "--select dba"),
        ({"prune_finished": 3.0}, {}, "--prune-finished"),
        ({"patience": 2}, {}, "--patience"),
        ({}, {"print_alignment": "hard"}, "--print-alignment"),
        ({"block_size": -1}, {}, "--block-size"),
        ({"draft_cost": -0.5}, {}, "--draft-cost must be 0 or more, or -1 for the default"),
        ({"parallel_margin": -0.2}, {}, "--parallel-margin must be 0 or more, or -1 for"),
        ({"parallel_margin": float("nan")}, {}, "--parallel-margin is not a number"),
        ({}, {"retain_dropout": True}, "--retain-dropout"),
        (
            {"decoding": "beam", "block_size": 4},
            {},
            "--decoding gs-jacobi or .*--decoding jacobi or .*--decoding window",
        ),
        ({"parallel_length": 5}, {}, "--parallel-length"),
        ({"decoding": "jacobi", "block_size": 5}, {}, "--parallel-length"),
        ({"draft_file": "/nowhere.txt"}, {}, "/nowhere.txt"),
        ({"decoding": "beam", "draft": "pad"}, {}, "--draft"),
        ({}, {"sampling": True}, "--sampling"),
    ],
)
def test_what_cannot_work_is_refused(flags, generation, said):
    with pytest.raises(UsageError, match=said):
        generators(
            [build("transformer")], {"decoding": "window", **flags}, **({"beam": 1} | generation)
        )


def test_constraints_of_a_call_are_refused():
    ours = generators([build("transformer")], {"decoding": "window"}, beam=1).ours
    given = [SentenceConstraints((((5,),),), ("w1",))]
    with pytest.raises(UsageError, match="--decoding"):
        run(ours, {**batch([3]), "sentence_constraints": given})
