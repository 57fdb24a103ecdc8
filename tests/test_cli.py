"""The real commands on a tiny checkpoint: stock's lines by default, and what our tasks need."""

import json
import re
import subprocess
from pathlib import Path

import forked
import pytest
import torch
from conftest import command
from fairseq_cli.score import cli_main as score
from sizes import drawn

USER_DIR = Path(__file__).resolve().parent.parent / "fairseq_ext"
EXT = ("--user-dir", USER_DIR, "--task", "translation_ext")
SEARCH = ("--beam", 4, "--max-len-b", 20, "--cpu")


def generate(
    tiny: Path, *flags, model: str = "model.pt", data: str = "data", run=command, **how
) -> subprocess.CompletedProcess:
    """fairseq-generate on the tiny model: started as a user starts it, or in a forked child
    (run=forked.command)."""
    return run(
        "fairseq-generate",
        tiny / data,
        "--path",
        tiny / model,
        "--batch-size",
        4,
        *SEARCH,
        *flags,
        **how,
    )


def interactive(
    tiny: Path, *flags, stdin: bytes | str, run=command, **how
) -> subprocess.CompletedProcess:
    """fairseq-interactive alike."""
    languages = ("-s", "de", "-t", "en")
    return run(
        "fairseq-interactive",
        tiny / "data",
        "--path",
        tiny / "model.pt",
        *languages,
        *SEARCH,
        *flags,
        stdin=stdin,
        **how,
    )


def lines(done: subprocess.CompletedProcess) -> list[list[str]]:
    """Output lines as fields, S- T- H- D- P- A-."""
    return [
        line.split("\t") for line in done.stdout.splitlines() if re.match(r"[STHDPA]-\d+\t", line)
    ]


def same_lines(expected: subprocess.CompletedProcess, got: subprocess.CompletedProcess) -> None:
    """The same lines in the same order; scores within 1e-4."""
    theirs, ours = lines(expected), lines(got)
    assert len(theirs) > 3 and [line[0] for line in ours] == [line[0] for line in theirs]
    for a, b in zip(theirs, ours, strict=True):
        if a[0][0] in "HD":
            assert b[2:] == a[2:] and float(b[1]) == pytest.approx(float(a[1]), abs=1e-4)
        elif a[0][0] == "P":
            assert [float(x) for x in b[1].split()] == pytest.approx(
                [float(x) for x in a[1].split()], abs=2e-4
            )
        else:
            assert b == a


def sentence(done: subprocess.CompletedProcess, *, code: int = 1) -> str:
    """The one sentence that a failing command leaves on standard error."""
    assert done.returncode == code, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == 1 and "Traceback" not in done.stderr, done.stderr
    return said[0]


# ---- equality with stock


def test_generate_equals_stock_line_by_line_and_says_how(tiny, tmp_path):
    stats = tmp_path / "stats.json"
    expected = generate(tiny, "--nbest", 3, cold=True)
    got = generate(tiny, "--nbest", 3, *EXT, "--stats-file", stats, cold=True)
    same_lines(expected, got)
    assert len(lines(got)) == 11 * (2 + 3 * 3)
    bleu = [
        [line for line in done.stdout.splitlines() if line.startswith("Generate test")]
        for done in (expected, got)
    ]
    assert bleu[0] == bleu[1]
    # the signature line, and the statistics
    signature = re.search(r"fairseq_ext:\S+\|backend:\S+", got.stdout + got.stderr)
    assert signature
    record = json.loads(stats.read_text())
    assert record["signature"] == signature[0]
    keys = {
        "signature",
        "sentences",
        "target_tokens",
        "seconds",
        "encoder_calls",
        "decoder_calls",
        "decoder_rows",
        "decoder_positions",
    }
    assert keys | {"expansions"} <= set(record)
    assert record["sentences"] == 11 and record["encoder_calls"] == 3
    assert record["target_tokens"] == sum(
        len(p[1].split()) for p in lines(generate(tiny, *EXT)) if p[0][0] == "P"
    )


def test_interactive_equals_stock_also_on_empty_lines_and_spaces(tiny):
    text = "de1 de2 de3\n\n   \nde4 unheard-of\n\tde5\n"
    flags = ("--buffer-size", 3, "--batch-size", 2)
    expected = interactive(tiny, *flags, stdin=text)
    got = interactive(tiny, *flags, *EXT, stdin=text)
    same_lines(expected, got)
    assert [line[0] for line in lines(got) if line[0][0] == "H"] == [f"H-{i}" for i in range(5)]


@drawn(2)
@pytest.mark.parametrize("flags", [(), ("--constraints",), ("--schedule", "stream")], ids=str)
def test_commands_run_where_nothing_is_compiled(tiny, monkeypatch, flags):
    monkeypatch.setenv("FAIRSEQ_EXT_KERNELS", "off")
    phrase = "\ten2" if flags == ("--constraints",) else ""
    same = interactive(tiny, stdin="de1 de2 de3\nde4\n") if not phrase else None
    got = interactive(tiny, *EXT, *flags, stdin=f"de1 de2 de3{phrase}\nde4\n")
    assert [line[0] for line in lines(got) if line[0][0] == "H"] == ["H-0", "H-1"]
    if same is not None:
        same_lines(same, got)
    else:
        assert "en2" in next(line[2] for line in lines(got) if line[0] == "H-0").split()


def test_score_works(tiny):
    texts = ("--sys", tiny / "test.en", "--ref", tiny / "test.en")
    done = forked.forked(score, "fairseq-score", *texts)
    assert "BLEU4 = 100.00" in done.stdout


# ---- bad input; attack/commands.tsv has more


def test_a_source_that_is_too_long_is_skipped_where_it_is_requested(tiny):
    text = "de1 de2\n" + "de3 " * 50 + "\nde4\n"
    flags = ("--buffer-size", 3, *EXT)
    done = interactive(
        tiny, *flags, "--skip-invalid-size-inputs-valid-test", stdin=text, run=forked.command
    )
    assert [line[0] for line in lines(done) if line[0][0] == "H"] == ["H-0", "H-2"]
    # fairseq's own count
    assert re.search(r"1 samples have invalid sizes", done.stdout + done.stderr)


def test_strict_reports_the_first_bad_line_of_a_file_before_anything_is_translated_and_ends_there(
    tiny, tmp_path
):
    (tmp_path / "constraints").write_text("en1\nnowhere\n\nnothing\n")
    flags = ["--strict", "--constraints-file", tmp_path / "constraints", "--buffer-size", 3]
    done = interactive(
        tiny, *EXT, *flags, stdin="de1\nde2\nde3\nde4\n", run=forked.command, check=False
    )
    said = "line 2 of"
    assert (
        said in sentence(done)
        and "(1 more such line in the file); the sentence of such a line is not translated"
        in done.stderr
    )
    assert done.stderr.index(said) < done.stderr.index("error: ")
    assert [line[0] for line in lines(done) if line[0][0] == "H"] == ["H-0"]


# ---- the slot: --task alone, next to anyone's --user-dir, from any folder

THEIRS = '''
"""Somebody's own architecture, task and criterion."""

from fairseq.criterions import register_criterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.models import register_model_architecture
from fairseq.models.transformer.transformer_legacy import base_architecture
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationTask


@register_model_architecture("transformer", "transformer_of_theirs")
def theirs(args):
    base_architecture(args)


@register_task("translation_of_theirs")
class Theirs(TranslationTask):
    pass


@register_criterion("cross_entropy_of_theirs")
class Criterion(CrossEntropyCriterion):
    pass
'''


@pytest.fixture(scope="module")
def theirs(tiny, tmp_path_factory) -> Path:
    """A folder with a user directory, and the tiny model saved under its architecture
    and criterion."""
    root = tmp_path_factory.mktemp("theirs")
    (root / "model_configs").mkdir()
    (root / "model_configs" / "__init__.py").write_text(THEIRS)
    state = torch.load(tiny / "model.pt", weights_only=False)
    model = state["cfg"]["model"]
    model.arch = model._name = "transformer_of_theirs"
    state["cfg"]["criterion"]["_name"] = "cross_entropy_of_theirs"
    torch.save(state, root / "model.pt")
    return root


def test_the_task_works_next_to_a_users_own_directory_from_any_folder(tiny, theirs):
    where = (
        tiny / "data",
        "--path",
        theirs / "model.pt",
        "--batch-size",
        4,
        *SEARCH,
        "--user-dir",
        "model_configs",
    )
    expected = command("fairseq-generate", *where, cwd=theirs)
    same_lines(
        expected,
        command(
            "fairseq-generate",
            *where,
            "--task",
            "translation_ext",
            "--stop",
            "count",
            cwd=theirs,
        ),
    )


def test_the_task_works_without_a_user_directory_and_by_name_from_any_folder(tiny, theirs):
    expected = generate(tiny)
    same_lines(expected, generate(tiny, "--task", "translation_ext", cwd=theirs, cold=True))
    same_lines(
        expected,
        generate(tiny, "--user-dir", "fairseq_ext", "--task", "translation_ext", cwd=theirs),
    )


EXTENDED = """
import fairseq_ext
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask


@register_task("upper_case", dataclass=TranslationConfig)
class UpperCase(TranslationTask):
    def build_generator(self, models, args, **more):
        print("their task builds a generator")
        return super().build_generator(models, args, **more)


fairseq_ext.extend(UpperCase)
"""


def test_a_task_of_ones_own_has_a_twin_by_one_line(tiny, tmp_path):
    """Its own method still runs; without our flags it gives what it gave, and it
    takes constraints."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text(EXTENDED)
    user_dir = ("--user-dir", tmp_path / "mine")
    expected, got = (
        generate(tiny, *user_dir, "--task", task) for task in ("upper_case", "upper_case_ext")
    )
    assert all("their task builds a generator" in done.stdout for done in (expected, got))
    same_lines(expected, got)
    found = interactive(
        tiny, *user_dir, "--task", "upper_case_ext", "--constraints", stdin="de1 de2\ten7 en3\n"
    )
    [best] = [line[2] for line in lines(found) if line[0] == "H-0"]
    assert "en7 en3" in best
