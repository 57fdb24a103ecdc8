"""The benchmark's rivals: processes of their own, and Bergamot's model, which gives fairseq's
translations."""

import os
import shutil
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"
sys.path.insert(0, str(BENCH))

import rivals  # noqa: E402
from contenders import ours, quiet  # noqa: E402
from ct2_process import instructions  # noqa: E402
from firefox import bergamot  # noqa: E402
from firefox_model import FIREFOX, add_multipliers, make  # noqa: E402
from harness import BenchError  # noqa: E402
from rival_process import Rival  # noqa: E402
from text import prepare  # noqa: E402

PYTHON = "FAIRSEQ_EXT_BERGAMOT"  # a Python that has bergamot
TOKENS, LINES, WORDS = 8, 8, 400
LOG = """[info]  - Selected ISA: AVX2
[info]  - SGEMM backend: DNNL (packed: false)
[info]  - GEMM_S8 backend: MKL (packed: true, u8s8 preferred: true)
"""


def test_a_rival_that_cannot_run_ends_in_one_sentence(tmp_path):
    request = {"engine": "bergamot", "config": {}}
    with pytest.raises(BenchError, match="the process of bergamot ended: .* has no bergamot"):
        Rival("bergamot", sys.executable, request)
    with pytest.raises(BenchError, match="cannot be started: No such file"):
        Rival("bergamot", str(tmp_path / "python"), request)


@pytest.mark.parametrize("beam", [1, 3])
def test_bergamots_model_gives_the_same_translations(beam, tmp_path):
    python = shutil.which(os.environ.get(PYTHON, ""))
    if python is None:
        pytest.skip(f"Bergamot is not installed: name a Python that has it in {PYTHON}")
    small = FIREFOX | {
        f"{side}_{name}": n
        for side in ("encoder", "decoder")
        for name, n in {"layers": 2, "embed_dim": 64, "ffn_embed_dim": 128}.items()
    }
    folder = tmp_path / "model"
    with quiet():
        make(folder, WORDS, small)
    (tmp_path / "text").mkdir()
    text = prepare(tmp_path / "text", folder, str(folder / "text"), "de", "en", LINES)
    flags = ["--cpu", "--beam", str(beam), "--max-len-b", str(TOKENS)]
    lexical = ["--softmax", "lexical", "--shortlist-file", str(folder / "lexicon")]
    lexical += ["--shortlist-top", "52", "--shortlist-words", "50"]
    add_multipliers(folder, text, flags)
    for more, name, words, least in (
        ([], "bergamot float32", TOKENS, LINES - 1),
        (lexical, "bergamot float32 lexical", TOKENS, LINES - 1),
        ([], "bergamot int8shiftAlphaAll", 1, LINES // 2),  # later words are others in 8 bits
    ):
        own = ours(text, [*flags, *more])
        expected = [best[0][0] for best in own.read(own.run())]
        assert len({tuple(each) for each in expected}) > LINES // 2, "weights tell lines apart"
        rival = bergamot(python, folder, text, flags, name, "cpu")
        found = [best[0][0][:words] for best in rival.read(rival.run())]
        same = [a == b[:words] for a, b in zip(found, expected, strict=True)]
        assert sum(same) >= least, (name, same)


def test_ctranslate2_says_which_instructions_it_uses():
    assert instructions(LOG, "float32") == "AVX2; products DNNL"
    assert instructions(LOG, "int8") == "AVX2; products MKL, packed"


def test_a_table_shows_its_flags_without_paths():
    given = "--model m --threads 2 --beams 1 5 --out o".split()
    assert rivals.flags_shown(given) == "--threads 2 --beams 1 5"
    assert rivals.shapes(1) == ["1x1"] and rivals.shapes(2) == ["2x1", "1x2"]
