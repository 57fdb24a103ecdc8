"""Tasks and architectures that no search here can run are refused in one sentence that says why."""

import pytest
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from forked import generate

from fairseq_ext.decoders.refused import refused


@pytest.mark.parametrize(
    "task, why",
    [
        ("translation_lev_ext", "refines whole sentences and has no next token to search for: use stock's --task translation_lev"),
        ("audio_finetuning_ext", "labels all frames of speech at once (CTC) and has no next token to search for: use fairseq's"),
        ("speech_to_speech_ext", "makes speech, and the searches here make words: use the stock task"),
        ("masked_lm_ext", "generates no text"),
        ("translatoin_ext", "is none of fairseq_ext's tasks: use language_modeling_ext, multilingual_language_modeling_ext, "),
    ],
)
def test_a_task_without_a_twin_is_refused_in_one_line_that_says_why(task, why):
    done = generate("nowhere", "--path", "nothing.pt", "--task", task)
    assert done.status == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and f"--task {task}" in line and why in line


def test_every_stock_task_that_is_refused_by_name_is_one():
    from fairseq_ext.session.stock_tasks import NO_TWIN

    assert set(NO_TWIN) <= set(TASK_REGISTRY) and not any(f"{name}_ext" in TASK_REGISTRY for name in NO_TWIN)


@pytest.mark.parametrize(
    "task, architecture, why",
    [
        ("translation_ext", "nonautoregressive_transformer", "refines whole sentences"),
        ("translation_ext", "transformer_lm", "use --task language_modeling_ext"),
        ("translation_ext", "multilingual_transformer", "use --task multilingual_translation_ext"),
        ("translation_ext", "s2t_transformer", "use --task speech_to_text_ext"),
        ("translation_ext", "transformer_iwslt_de_en_pipeline_parallel", "spread over several processes"),
        ("language_modeling_ext", "transformer", "is no language model"),
        ("language_modeling_ext", "transformer_lm_gpt", None),
        ("multilingual_translation_ext", "transformer", "one model and not one for each pair"),
        ("multilingual_translation_ext", "multilingual_transformer_iwslt_de_en", None),
        ("speech_to_text_ext", "transformer", "this task reads speech"),
        ("speech_to_text_ext", "wav2vec_ctc", "labels all frames at once"),
        ("speech_to_text_ext", "s2t_transformer_s", None),
    ],
)
def test_an_architecture_of_another_task_is_refused(task, architecture, why):
    assert architecture in ARCH_MODEL_REGISTRY
    found = refused(architecture, object.__new__(TASK_REGISTRY[task]))
    assert found is None if why is None else why in found
