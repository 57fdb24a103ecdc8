"""What parallel decoding refuses, in one sentence each."""

import pytest
from models import batch, build, generators, run
from parallel_decoding import blocks
from required_phrases import required_phrases

from fairseq_ext import UsageError
from fairseq_ext.search.phrases.sentence import SentenceConstraints


def test_a_stream_is_refused_where_rows_of_different_lengths_cannot_be_read_together():
    with pytest.raises(UsageError, match="--schedule stream with --decoding window needs"):
        generators(
            [build("transformer")],
            blocks("window", decoder_backend="fairseq", schedule="stream"),
            beam=1,
        )


def test_constraints_of_a_call_are_refused():
    ours = generators([build("transformer")], {"decoding": "window"}, beam=1).ours
    given = [SentenceConstraints(required_phrases((((5,),),), ("w1",)))]
    with pytest.raises(UsageError, match="--decoding"):
        run(ours, {**batch([3]), "sentence_constraints": given})
