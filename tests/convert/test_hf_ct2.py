"""CTranslate2's own converter of fairseq's checkpoints reads what is written here, where its checks
allow it, and then finds our words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import command
from sizes import ALL

pytest.importorskip("transformers", reason="the oracle is not installed")
ctranslate2 = pytest.importorskip("ctranslate2", reason="the oracle is not installed")

from hf_models import KINDS, Made, lines, make  # noqa: E402

from fairseq_ext.search.request import Request  # noqa: E402

# of a translation
FIRST = {
    "M2M-100": "__en__",
    "NLLB-200": "__eng_Latn__",
    "mBART-50": "[en_XX]",
    "mBART-25": "[en_XX]",
    "BART": "<s>",
}
ROOT = Path(__file__).resolve().parents[2]
READ = [kind for kind in KINDS if not kind.startswith("OPUS")]
MOST = 24


def converted(made: Made, kind: str) -> str:
    """CTranslate2's folder, by its own command."""
    out = made.folder.parent / "ct2"
    flags = [
        "--model_path",
        made.out / "checkpoint.pt",
        "--data_dir",
        made.out,
        "--output_dir",
        out,
        "--unsafe_deserialization",
    ]
    flags += ["--source_lang", made.source, "--target_lang", made.target]
    flags += (
        ["--fixed_dictionary", made.out / "dict.txt"] if (made.out / "dict.txt").exists() else []
    )
    # whose decoder begins with the language
    flags += ["--no_default_special_tokens"] if kind == "mBART-25" else []
    # a task, an architecture of ours
    flags += (
        ["--user_dir", ROOT / "fairseq_ext"] if kind == "BART" or kind.startswith("OPUS") else []
    )
    done = command("ct2-fairseq-converter", *flags, check=False)
    assert done.returncode == 0, done.stderr
    return str(out)


@pytest.mark.parametrize("kind", READ if os.environ.get(ALL) else ["NLLB-200"])
def test_ctranslate2_reads_what_is_converted_and_finds_our_words(kind, tmp_path):
    made = make(kind, tmp_path, 2)  # without a bias of the output
    rival = ctranslate2.Translator(converted(made, kind), intra_threads=1)
    ours = made.translator(beam=1, max_len_b=MOST, min_len=0)
    source, text, seen = ours.task.source_dictionary, lines(16, 4), set()
    for line in text:
        tokens = next(iter(ours.batches([ours.encode(line)])))["net_input"]["src_tokens"][
            0
        ].tolist()
        # it adds </s> itself
        words = [source[token] for token in (tokens if kind == "mBART-25" else tokens[:-1])]
        prefix = [FIRST[kind]] if kind in FIRST else []
        greedy = dict(beam_size=1, min_decoding_length=0, max_decoding_length=MOST)
        theirs = rival.translate_batch([words], [prefix], **greedy)[0].hypotheses[0]
        # of which it is the word before the first
        theirs = theirs if kind == "mBART-25" else theirs[len(prefix) :]
        found = ours.search([Request(tokens=ours.encode(line), nbest=1)])[0][0].tokens
        assert found[: MOST - 2] == theirs[: MOST - 2], line
        seen.update(theirs)
    assert len(seen) > 3


@pytest.mark.skipif(not os.environ.get(ALL), reason="a sentence of its own: with --all")
def test_ctranslate2_refuses_marians_architecture_by_its_name(tmp_path):
    with pytest.raises(
        AssertionError,
        match="Model 'marian_transformer' used by architecture 'marian_transformer' "
        "is not supported",
    ):
        converted(make("OPUS-MT", tmp_path, 3), "OPUS-MT")
