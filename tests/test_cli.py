"""The real commands on a tiny checkpoint: stock's lines by default, and what our tasks need."""

import json
import re
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


def generate(tiny, *flags, model="model.pt", run=command, **how):
    """fairseq-generate on the tiny model: started as a user starts it, or in a forked child
    (run=forked.command)."""
    words = [tiny / "data", "--path", tiny / model, "--batch-size", 4, *SEARCH, *flags]
    return run("fairseq-generate", *words, **how)


def interactive(tiny, *flags, run=command, **how):
    """fairseq-interactive alike."""
    words = [tiny / "data", "--path", tiny / "model.pt", "-s", "de", "-t", "en", *SEARCH, *flags]
    return run("fairseq-interactive", *words, **how)


def lines(done):
    """Output lines as fields, S- T- H- D- P- A-."""
    return [
        line.split("\t") for line in done.stdout.splitlines() if re.match(r"[STHDPA]-\d+\t", line)
    ]


def same_lines(expected, got):
    """The same lines in the same order; scores within 1e-4."""
    theirs, ours = lines(expected), lines(got)
    assert len(theirs) > 3 and [line[0] for line in ours] == [line[0] for line in theirs]
    for a, b in zip(theirs, ours, strict=True):
        if a[0][0] in "HDP":  # P lines have scores alone
            numbers = [[float(x) for x in line[1].split()] for line in (a, b)]
            assert numbers[1] == pytest.approx(numbers[0], abs=2e-4 if a[0][0] == "P" else 1e-4)
            del a[1], b[1]
        assert b == a


def sentence(done, *, code=1):
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
    theirs, ours = (re.findall("^Generate test.*", done.stdout, re.M) for done in (expected, got))
    assert theirs == ours != []
    # the signature line, and the statistics
    signature = re.search(r"fairseq_ext:\S+\|backend:\S+", got.stdout + got.stderr)
    record = json.loads(stats.read_text())
    assert signature and record["signature"] == signature[0]
    keys = "seconds decoder_calls decoder_rows decoder_positions expansions"
    assert {*keys.split()} <= set(record)
    assert record["sentences"] == 11 and record["encoder_calls"] == 3
    positions = (line[1].split() for line in lines(generate(tiny, *EXT)) if line[0][0] == "P")
    assert record["target_tokens"] == sum(map(len, positions))


def test_interactive_equals_stock_also_on_empty_lines_and_spaces(tiny):
    text = "de1 de2 de3\n\n   \nde4 unheard-of\n\tde5\n"
    flags = ("--buffer-size", 3, "--batch-size", 2)
    expected = interactive(tiny, *flags, stdin=text)
    got = interactive(tiny, *flags, *EXT, stdin=text)
    assert [line[0] for line in lines(got) if line[0][0] == "H"] == [f"H-{i}" for i in range(5)]
    same_lines(expected, got)


@drawn(2)
@pytest.mark.parametrize("flags", [(), ("--constraints",), ("--schedule", "stream")], ids=str)
def test_commands_run_where_nothing_is_compiled(tiny, monkeypatch, flags):
    monkeypatch.setenv("FAIRSEQ_EXT_KERNELS", "off")
    phrase = "\ten2" if flags == ("--constraints",) else ""
    got = interactive(tiny, *EXT, *flags, stdin=f"de1 de2 de3{phrase}\nde4\n")
    if not phrase:
        same_lines(interactive(tiny, stdin="de1 de2 de3\nde4\n"), got)
    else:
        first, second = (line[2] for line in lines(got) if line[0][0] == "H")
        assert "en2" in first.split() and second


def test_score_works(tiny):
    texts = ("--sys", tiny / "test.en", "--ref", tiny / "test.en")
    done = forked.forked(score, "fairseq-score", *texts)
    assert "BLEU4 = 100.00" in done.stdout


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
def theirs(tiny, tmp_path_factory):
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
    where = {"model": theirs / "model.pt", "cwd": theirs}
    flags = ("--user-dir", "model_configs")
    got = generate(tiny, *flags, "--task", "translation_ext", "--stop", "count", **where)
    same_lines(generate(tiny, *flags, **where), got)


def test_the_task_works_without_a_user_directory_and_by_name_from_any_folder(tiny, theirs):
    task = ("--task", "translation_ext")
    same_lines(generate(tiny), generate(tiny, *task, cwd=theirs, cold=True))
    same_lines(generate(tiny), generate(tiny, "--user-dir", "fairseq_ext", *task, cwd=theirs))


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
    flags = ("--user-dir", tmp_path / "mine", "--task")
    expected, got = (generate(tiny, *flags, f"upper_case{end}") for end in ("", "_ext"))
    assert all("their task builds a generator" in done.stdout for done in (expected, got))
    same_lines(expected, got)
    ours = (*flags, "upper_case_ext", "--constraints")
    found = interactive(tiny, *ours, stdin="de1 de2\ten7 en3\n")
    [best] = [line[2] for line in lines(found) if line[0] == "H-0"]
    assert "en7 en3" in best
