"""--cpu-workers: the same hypotheses and counts as one process, and an orderly end whatever happens."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
import torch
from conftest import command
from fairseq.dataclass.configs import GenerationConfig
from models import batch, build, same, task

import fairseq_ext  # noqa: F401
from fairseq_ext.errors import UsageError
from fairseq_ext.stats import Stats, added


def decode(models: list, sample: dict, workers: int, flags: dict | None = None, prefix=None, **generation):
    """Hypotheses, and the task and generator that made them."""
    own = task("translation_ext", cpu_workers=workers, **(flags or {}))
    generator = own.build_generator(models, GenerationConfig(max_len_b=8, **generation))
    return own.inference_step(generator, models, sample, prefix), own, generator


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"stop": "optimal", "prune_bound": True, "generation": {"unnormalized": True}},
        {"schedule": "stream"},
        {"prune_finished": 2.0},
    ],
)
@pytest.mark.parametrize("lengths", [[6, 3, 9, 4, 0], [5]])
def test_workers_give_what_one_process_gives(flags, lengths):
    models, sample = [build("transformer", 2), build("lstm", 3)], batch(lengths)
    generation = flags.get("generation", {})
    flags = {name: value for name, value in flags.items() if name != "generation"}
    alone, _, one = decode(models, sample, 1, flags, beam=4, **generation)
    together, own, many = decode(models, sample, 3, flags, beam=4, **generation)
    same(alone, together)
    a, b = one.stats.as_dict(), many.stats.as_dict()
    assert a["sentences"] == b["sentences"] and a["target_tokens"] == b["target_tokens"] and b["seconds"] > 0
    own.workers.stop()


def test_prefixes_and_batches_one_after_another():
    models = [build("transformer", 4)]
    own = task("translation_ext", cpu_workers=2)
    generator = own.build_generator(models, GenerationConfig(beam=3, max_len_b=8))
    for seed in range(3):
        sample = batch([4, 2, 7, 1], seed)
        prefix = torch.tensor([[5], [6], [7], [8]])
        expected, _, _ = decode(models, sample, 1, prefix=prefix, beam=3)
        same(expected, own.inference_step(generator, models, sample, prefix))
    assert generator.stats.sentences == 12
    own.workers.stop()


def test_a_model_trained_further_is_forked_again():
    model = build("transformer", 4)
    sample = batch([4, 2, 7, 1])
    _, own, generator = decode([model], sample, 2, beam=3)
    for weight in model.parameters():
        weight.data.add_(torch.randn_like(weight), alpha=0.1)
    expected, _, _ = decode([model], sample, 1, beam=3)
    same(expected, own.inference_step(generator, [model], sample))
    own.workers.stop()


def test_an_error_in_a_worker_is_raised_here_and_ends_them_all():
    model, sample = build("transformer", 4), batch([4, 2, 7, 1])
    _, own, generator = decode([model], sample, 2, beam=3)
    processes = list(own.workers.processes)
    with pytest.raises(UsageError, match="--min-len 9"):
        generator.min_len = 9  # too late for the workers, which hold their own generator
        own.workers.stop()
        own.inference_step(generator, [model], sample)
    assert own.workers.processes == [] and all(not process.is_alive() for process in processes)


def test_a_killed_worker_is_an_error_in_one_sentence():
    model, sample = build("transformer", 4), batch([4, 2, 7, 1])
    _, own, generator = decode([model], sample, 2, beam=3)
    os.kill(own.workers.processes[1].pid, signal.SIGKILL)
    with pytest.raises(UsageError, match="signal 9"):
        own.inference_step(generator, [model], sample)
    assert own.workers.processes == []


def test_workers_end_when_the_command_is_killed():
    model, sample = build("transformer", 4), batch([4, 2])
    read, write = os.pipe()
    command_process = os.fork()
    if command_process == 0:  # the command
        _, own, _ = decode([model], sample, 2, beam=3)
        os.write(write, json.dumps([p.pid for p in own.workers.processes]).encode())
        time.sleep(60)
        os._exit(0)
    workers = json.loads(os.read(read, 1000))
    os.kill(command_process, signal.SIGKILL)
    os.waitpid(command_process, 0)
    for _ in range(100):
        if not any(alive(pid) for pid in workers):
            break
        time.sleep(0.05)
    assert not any(alive(pid) for pid in workers)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not fetched does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_command_gives_the_same_lines(tiny, tmp_path):
    common = [tiny / "data", "--path", tiny / "model.pt", "--user-dir", "fairseq_ext", "--task", "translation_ext"]
    common += ["--cpu", "--beam", 3, "--batch-size", 4, "--nbest", 2]
    alone = command("fairseq-generate", *common)
    together = command("fairseq-generate", *common, "--cpu-workers", 2, "--stats-file", tmp_path / "stats.json")

    def lines(done) -> list[str]:
        return [line for line in done.stdout.splitlines() if line[:2] in ("S-", "T-", "H-", "D-", "P-")]

    assert lines(alone) == lines(together) and len(lines(alone)) > 40
    assert json.loads((tmp_path / "stats.json").read_text())["sentences"] == 11


@pytest.mark.parametrize(
    ("flags", "generation", "words"),
    [
        ({"cpu_workers": 0}, {}, "at least 1"),
        ({"cpu_workers": 2, "results_file": "x.jsonl"}, {}, "--results-file"),
        ({"cpu_workers": 2}, {"sampling": True}, "--sampling"),
    ],
)
def test_what_cannot_work_is_refused(flags, generation, words):
    with pytest.raises(UsageError, match=words):
        task("translation_ext", **flags).build_generator([build("transformer")], GenerationConfig(**generation))


def test_sections_of_statistics_add_up():
    a = {"constraints": {"given": 2, "unmet": [[0, "x", "y"]]}, "recall_mean": 1.0}
    b = {"constraints": {"given": 3, "unmet": [[1, "x", "y"]]}, "recall_mean": 0.5, "more": 1}
    expected = {"constraints": {"given": 5, "unmet": [[0, "x", "y"], [1, "x", "y"]]}, "recall_mean": 0.625, "more": 1}
    assert added(a, b, 1, 3) == expected
    stats = Stats(sentences=1, refills=None)
    stats.add(Stats(sentences=2, refills=4, dropped_rows=torch.tensor(3)))
    assert stats.as_dict()["dropped_rows"] == 3 and stats.sentences == 3 and stats.refills == 4
