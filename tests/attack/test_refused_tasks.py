"""Tasks and architectures that no search here can run are refused in one sentence that says why."""

import pytest
from bad_inputs import commands, rows
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from forked import generate, interactive
from sizes import drawn

from fairseq_ext import Translator
from fairseq_ext.core.errors import UsageError
from fairseq_ext.model.choose import refusal_reason

TASKS, NEEDS = rows("commands.tsv", "no task"), commands("task")


@pytest.mark.parametrize("task", TASKS)
def test_a_task_without_a_twin_is_refused_in_one_line_that_says_why(task):
    done = generate("nowhere", "--path", "nothing.pt", "--task", task)
    assert done.status == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and f"--task {task}" in line
    assert TASKS[task][1] in line


MANY = "translation_multi_simple_epoch_ext"
FILES = {
    "dict.de.txt": "a 1\n",
    "dict.en.txt": "a 1\n",
    "file": "en_XX\n",
    "wrong.yaml": "a: [\n",
    "empty.yaml": "{}\n",
}


@drawn(4)
@pytest.mark.parametrize("name", NEEDS)
def test_what_a_task_must_know_is_requested_in_one_sentence(tmp_path, name):
    """In both commands, before any checkpoint is read."""
    flags, sentence = NEEDS[name]
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    where = {"data": tmp_path, "file": tmp_path / "file"}
    for command in (generate, interactive):
        done = command(
            tmp_path,
            "--path",
            "model.pt",
            "--cpu",
            *(flag.format(**where) for flag in flags),
        )
        (said,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert (
            done.status == 1 and sentence.format(**where) in said and "Traceback" not in done.stderr
        ), done.stderr


@pytest.mark.parametrize(
    "given",
    [["--user-dir=mine", "--user-dir=fairseq_ext"], ["--user-dir", "mine", "--user-dir=yours"]],
    ids=str,
)
def test_two_user_directories_behind_equals_signs_are_two(given):
    done = generate("nowhere", "--path", "nothing.pt", *given, "--task", "translation_ext")
    assert (
        done.status == 1
        and "so use --user-dir mine --task translation_ext" in done.stderr.splitlines()[-1]
    )


def test_a_user_directory_under_a_name_that_is_taken_is_refused(tmp_path):
    (tmp_path / "logging").mkdir()
    done = generate(
        "nowhere",
        "--path",
        "nothing.pt",
        "--user-dir",
        tmp_path / "logging",
        "--task",
        "translation_ext",
    )
    (line,) = done.stderr.splitlines()
    assert (
        done.status == 1
        and "logging cannot be imported: it must be a folder, without a dot in its name, which is "
        "not the name of another module of Python's"
        in line
    )


def test_a_task_of_ones_own_that_no_one_has_extended_is_reported_the_line_to_add(tmp_path):
    (tmp_path / "forgetful").mkdir()
    (tmp_path / "forgetful" / "__init__.py").write_text(
        "from fairseq.tasks import register_task\n"
        "from fairseq.tasks.translation import TranslationConfig, TranslationTask\n"
        "@register_task('forgotten', dataclass=TranslationConfig)\n"
        "class Forgotten(TranslationTask):\n"
        "    pass\n"
    )
    done = generate(
        "nowhere",
        "--path",
        "nothing.pt",
        "--user-dir",
        tmp_path / "forgetful",
        "--task",
        "forgotten_ext",
    )
    (line,) = done.stderr.splitlines()
    assert done.status == 1
    assert line == (
        "error: there is no --task forgotten_ext yet: add fairseq_ext.extend(Forgotten) where "
        "forgotten is registered"
    )


def test_every_stock_task_that_is_refused_by_name_is_one():
    from fairseq_ext.plugin.stock import NO_TWIN

    assert set(NO_TWIN) <= set(TASK_REGISTRY) and not any(
        f"{name}_ext" in TASK_REGISTRY for name in NO_TWIN
    )


STOCK = "the stock task that it was trained with"


@pytest.mark.parametrize(
    "task, architecture, instead",
    [
        ("translation_ext", "nonautoregressive_transformer", STOCK),
        ("translation_ext", "transformer_from_pretrained_xlm", STOCK),
        ("translation_ext", "roberta", STOCK),
        ("translation_ext", "transformer_iwslt_de_en_pipeline_parallel", STOCK),
        ("translation_ext", "transformer_lm", "--task language_modeling_ext"),
        ("translation_ext", "multilingual_transformer", "--task multilingual_translation_ext"),
        ("translation_ext", "s2t_transformer", "--task speech_to_text_ext"),
        ("translation_ext", "transformer", None),
        ("language_modeling_ext", "transformer", "--task translation_ext"),
        ("language_modeling_ext", "transformer_lm_gpt", None),
        ("multilingual_translation_ext", "transformer", "--task translation_ext"),
        ("multilingual_translation_ext", "multilingual_transformer_iwslt_de_en", None),
        ("speech_to_text_ext", "transformer", "--task translation_ext"),
        ("speech_to_text_ext", "wav2vec_ctc", STOCK),
        ("speech_to_text_ext", "s2t_transformer_s", None),
    ],
)
def test_an_architecture_of_another_task_is_refused(task, architecture, instead):
    assert architecture in ARCH_MODEL_REGISTRY
    found = refusal_reason(architecture, object.__new__(TASK_REGISTRY[task]))
    assert found is None if instead is None else found.endswith(f": use {instead}")


def test_from_python_too():
    with pytest.raises(
        UsageError,
        match=f"--lang-tok-behind-eos is a flag of --task {MANY}, not of translation_ext",
    ):
        Translator("none.pt", "none", lang_tok_behind_eos=True)
