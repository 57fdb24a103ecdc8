"""--cpu-workers: the same hypotheses and counts as one process, and an orderly
end whatever happens."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from dataclasses import replace

import pytest
import torch
from fairseq.dataclass.configs import GenerationConfig
from forked import generate_forked, in_fork
from json_counts import close, untimed
from models import batch, build, same, task
from sizes import drawn

from fairseq_ext import Translator
from fairseq_ext.core.errors import SentenceError, UsageError


def decode(
    models: list, sample: dict, workers: int, flags: dict | None = None, prefix=None, **generation
):
    """Hypotheses, and the task and generator that made them."""
    own = task("translation_ext", cpu_workers=workers, **(flags or {}))
    generator = own.build_generator(models, GenerationConfig(max_len_b=8, **generation))
    return own.inference_step(generator, models, sample, prefix), own, generator


@drawn(2)
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
    assert (
        a["sentences"] == b["sentences"]
        and a["target_tokens"] == b["target_tokens"]
        and b["seconds"] > 0
    )
    own.session.command.workers.stop()


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
    own.session.command.workers.stop()


def test_a_model_trained_further_is_forked_again():
    model = build("transformer", 4)
    sample = batch([4, 2, 7, 1])
    _, own, generator = decode([model], sample, 2, beam=3)
    for weight in model.parameters():
        weight.data.add_(torch.randn_like(weight), alpha=0.1)
    expected, _, _ = decode([model], sample, 1, beam=3)
    same(expected, own.inference_step(generator, [model], sample))
    own.session.command.workers.stop()


def test_an_error_of_a_sentence_is_raised_here_and_workers_live_on():
    model, sample = build("transformer", 4), batch([4, 2, 7, 1])
    expected, own, generator = decode([model], sample, 2, beam=3)
    own.session.command.workers.stop()
    generator.pools.setup = replace(generator.setup, min_len=9)
    with pytest.raises(SentenceError, match="--min-len 9"):
        own.inference_step(generator, [model], sample)
    assert len(own.session.command.workers.processes) == 2 and all(
        alive(process.pid) for process in own.session.command.workers.processes
    )
    own.session.command.workers.stop()


@drawn(2)
@pytest.mark.parametrize(
    "error",
    [UsageError("no room"), ArithmeticError("no number"), OSError("no disk")],
    ids=lambda e: type(e).__name__,
)
def test_an_error_in_a_worker_is_raised_here_and_ends_them_all(error):
    model, sample = build("transformer", 4), batch([4, 2, 7, 1])
    _, own, generator = decode([model], sample, 2, beam=3)
    workers = own.session.command.workers
    workers.stop()

    def fails(*_):
        raise error

    workers.decode = fails
    with pytest.raises(
        RuntimeError if isinstance(error, OSError) else type(error), match=str(error)
    ):
        workers.start()
        processes = list(workers.processes)
        own.inference_step(generator, [model], sample)
    assert (
        len(processes) == 2
        and workers.processes == []
        and not any(alive(process.pid) for process in processes)
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_killed_or_stopped_is_replaced(monkeypatch, number):
    monkeypatch.setattr("fairseq_ext.plugin.workers.SILENCE", 0.5)
    model, sample = build("transformer", 4), batch([4, 2, 7, 1])
    expected, own, generator = decode([model], sample, 2, beam=3)
    workers = own.session.command.workers
    first = [process.pid for process in workers.processes]
    os.kill(first[1], number)
    same(expected, own.inference_step(generator, [model], sample))
    assert first[0] in [process.pid for process in workers.processes] and not alive(first[1])
    assert len(workers.processes) == 2
    workers.stop()


def test_a_share_that_kills_two_workers_is_an_error_in_one_sentence():
    model, sample = build("transformer", 4), batch([4, 2, 7, 1])
    _, own, generator = decode([model], sample, 2, beam=3)
    workers = own.session.command.workers
    workers.stop()
    workers.decode = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(UsageError, match="signal 9"):
        own.inference_step(generator, [model], sample)
    assert workers.processes == []


def test_some_seconds_without_room_for_a_process_end_nothing(monkeypatch):
    model, sample = build("transformer", 4), batch([4, 2, 7, 1])
    expected, own, generator = decode([model], sample, 2, beam=3)
    workers, left, start = own.session.command.workers, [1, 2], os.fork

    def fork() -> int:
        if left:
            left.pop()
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return start()

    workers.stop()
    monkeypatch.setattr(os, "fork", fork)
    same(expected, own.inference_step(generator, [model], sample))
    left.extend(range(1000))
    workers.stop()
    monkeypatch.setattr("fairseq_ext.core.supervision.STARTS", 0.5)
    with pytest.raises(UsageError, match="cannot start a process .Resource temporarily"):
        own.inference_step(generator, [model], sample)


def test_workers_end_when_the_command_is_killed():
    model, sample = build("transformer", 4), batch([4, 2])
    read, write = os.pipe()

    def live() -> None:
        _, own, _ = decode([model], sample, 2, beam=3)
        os.write(write, json.dumps([p.pid for p in own.session.command.workers.processes]).encode())
        time.sleep(60)

    command_process = in_fork(live)
    os.close(write)  # so that the end of one that has failed is read
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


@pytest.mark.parametrize(
    ("flags", "generation", "words"),
    [
        ({"cpu_workers": 2, "results_file": "x.jsonl"}, {}, "--results-file"),
    ],
)
def test_what_cannot_work_is_refused(flags, generation, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        task("translation_ext", **flags).build_generator(
            [build("transformer")], GenerationConfig(**generation)
        )


# a line a sentence, tabs between
WISHES = [
    "en3 en4\ten7",
    "",
    "en26",
    "en1\ten2\ten5",
    "",
    "en8",
    "en9 en9 en9",
    "",
    "en4",
    "",
    "en0",
]
LSH = [
    "--lsh-k",
    4,
    "--lsh-u",
    2,
    "--lsh-bands",
    20,
    "--lsh-hits",
    4,
    "--lsh-top",
    8,
    "--lsh-share",
    "sentence",
]
BLOCKS = ["--beam", 1, "--draft", "repeat", "--parallel-margin", 0.3]
COUNTED = {  # flags, and the section of the statistics that they are to bring
    "lsh": (["--softmax", "lsh", *LSH, "--shortlist-recall-every", 1], "softmax"),
    "lexical": (
        [
            "--softmax",
            "lexical",
            "--shortlist-top",
            5,
            "--shortlist-file",
            "LEXICON",
            "--shortlist-recall-every",
            1,
        ],
        "softmax",
    ),
    "screened": (["--softmax", "screened"], "softmax"),
    "constraints": (["--constraints-file", "WISHES"], "constraints"),
    "optimal": (["--stop", "optimal", "--prune-threshold", 1.5], "certificates"),
    "jacobi": (["--decoding", "jacobi", *BLOCKS], "parallel"),
}


def counts(tiny, tmp_path, workers: int, flags: list) -> dict:
    """The statistics of fairseq-generate, where each process decodes one sentence at a time."""
    (tmp_path / "WISHES").write_text("".join(line + "\n" for line in WISHES))
    (tmp_path / "LEXICON").write_text(
        "".join(f"de{i} en{(i + step) % 30} 0.4\n" for i in range(30) for step in (0, 1))
    )
    given = [tmp_path / flag if flag in ("WISHES", "LEXICON") else flag for flag in flags]
    given += [
        "--batch-size",
        workers,
        "--cpu-workers",
        workers,
        "--stats-file",
        tmp_path / "stats.json",
    ]
    generate_forked(
        tiny / "data",
        "--path",
        tiny / "model.pt",
        "--task",
        "translation_ext",
        "--cpu",
        "--max-len-b",
        15,
        *given,
    )
    return json.loads((tmp_path / "stats.json").read_text())


@drawn(1)
@pytest.mark.parametrize("name", COUNTED)
def test_the_command_counts_with_two_processes_what_it_counts_with_one(tiny, tmp_path, name):
    flags, section = COUNTED[name]
    one, two = (counts(tiny, tmp_path, workers, flags) for workers in (1, 2))
    assert section in two and one["sentences"] == 11
    assert untimed(two).keys() == untimed(one).keys() and one["seconds"] > 0 and two["seconds"] > 0
    if "constraints" in one:
        # in the order in which they come
        assert sorted(two["constraints"].pop("unmet")) == sorted(one["constraints"].pop("unmet"))
        assert one["constraints"]["given"] == sum(len(line.split("\t")) for line in WISHES if line)
    assert close(untimed(two), untimed(one))
    if "softmax" in one and name != "screened":
        assert two["softmax"]["seconds"].keys() == one["softmax"]["seconds"].keys()
        assert (
            two["softmax"]["recall_rows"] == two["decoder_rows"]
            and two["softmax"]["recall_at_1"] <= 1
        )
    if "parallel" in one:
        assert (
            two["parallel"]["guard"]["margin"] == 0.3
            and two["parallel"]["tokens"] == two["target_tokens"]
        )


def test_window_drafts_are_counted_over_all_processes(tiny, tmp_path):
    """What it drafts depends on the sentences before, which two processes share out; so its
    numbers must fit together."""
    found = counts(tiny, tmp_path, 2, ["--decoding", "window", *BLOCKS, "--draft-cost", 0])
    parallel, guard = found["parallel"], found["parallel"]["guard"]
    assert (
        parallel["calls"] == found["decoder_calls"] and parallel["tokens"] == found["target_tokens"]
    )
    assert parallel["tokens_per_call"] == pytest.approx(parallel["tokens"] / found["decoder_rows"])
    assert parallel["drafts_offered"] == found["decoder_positions"] - found["decoder_rows"] > 0
    assert (
        guard["margin"] == 0.3
        and guard["rate"] == pytest.approx(guard["redone"] / guard["checked"])
        and guard["checked"] > 0
    )


def test_workers_are_forked_again_for_another_search(tiny):
    """The first constraints change the search of a Translator."""
    flags = {"source_lang": "de", "target_lang": "en", "cpu": True, "max_len_b": 15}
    translator = Translator(str(tiny / "model.pt"), str(tiny / "data"), cpu_workers=2, **flags)
    lines = ["de1 de2", "de3", "de4 de5"]
    translator.translate(lines)
    found = translator.translate(lines, constraints=[["en3 en4"], [], ["en7"]])
    alone = Translator(str(tiny / "model.pt"), str(tiny / "data"), **flags).translate(
        lines, constraints=[["en3 en4"], [], ["en7"]]
    )
    assert [h.text for nbest in found for h in nbest] == [h.text for nbest in alone for h in nbest]
    assert translator.stats.as_dict()["constraints"] == {"given": 2, "met": 2, "unmet": []}
    translator.task.session.command.workers.stop()
