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


class Two:
    """A task of two workers that has decoded a batch."""

    def __init__(self, lengths=(4, 2, 7, 1)):
        self.model, self.sample = build("transformer", 4), batch([*lengths])
        self.expected, self.task, self.generator = decode([self.model], self.sample, 2, beam=3)
        self.workers = self.task.session.command.workers

    def again(self, prefix=None):
        return self.task.inference_step(self.generator, [self.model], self.sample, prefix)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.workers.processes]


@pytest.fixture(autouse=True)
def a_lost_answer_fails_soon(monkeypatch):
    """A process whose answer does not come is replaced, and given up, in seconds."""
    monkeypatch.setattr("fairseq_ext.plugin.workers.SILENCE", 10.0)


@pytest.fixture
def two():
    made = Two()
    yield made
    made.workers.stop()


@drawn(2)
@pytest.mark.parametrize(
    ("flags", "generation"),
    [
        ({}, {}),
        ({"stop": "optimal", "prune_bound": True}, {"unnormalized": True}),
        ({"schedule": "stream"}, {}),
        ({"prune_finished": 2.0}, {}),
    ],
)
@pytest.mark.parametrize("lengths", [[6, 3, 9, 4, 0], [5]])
def test_workers_give_what_one_process_gives(flags, generation, lengths):
    models, sample = [build("transformer", 2), build("lstm", 3)], batch(lengths)
    alone, _, one = decode(models, sample, 1, flags, beam=4, **generation)
    together, own, many = decode(models, sample, 3, flags, beam=4, **generation)
    same(alone, together)
    for name in ("sentences", "target_tokens"):
        assert one.stats.as_dict()[name] == many.stats.as_dict()[name]
    assert many.stats.as_dict()["seconds"] > 0
    own.session.command.workers.stop()


def test_prefixes_and_batches_one_after_another(two):
    before = two.generator.stats.sentences
    for seed in range(3):
        two.sample = batch([4, 2, 7, 1], seed)
        prefix = torch.tensor([[5], [6], [7], [8]])
        expected, _, _ = decode([two.model], two.sample, 1, prefix=prefix, beam=3)
        same(expected, two.again(prefix))
    assert two.generator.stats.sentences == before + 12


def test_a_model_trained_further_is_forked_again(two):
    for weight in two.model.parameters():
        weight.data.add_(torch.randn_like(weight), alpha=0.1)
    expected, _, _ = decode([two.model], two.sample, 1, beam=3)
    same(expected, two.again())


def test_an_error_of_a_sentence_is_raised_here_and_workers_live_on(two):
    two.workers.stop()
    two.generator.setup = replace(two.generator.setup, min_len=9)
    with pytest.raises(SentenceError, match="--min-len 9"):
        two.again()
    assert len(two.pids) == 2 and all(map(alive, two.pids))


@drawn(2)
@pytest.mark.parametrize(
    "error",
    [UsageError("no room"), ArithmeticError("no number"), OSError("no disk")],
    ids=lambda e: type(e).__name__,
)
def test_an_error_in_a_worker_is_raised_here_and_ends_them_all(two, error):
    two.workers.stop()

    def fails(*_):
        raise error

    two.workers.decode = fails
    kind = RuntimeError if isinstance(error, OSError) else type(error)
    with pytest.raises(kind, match=str(error)):
        two.workers.start()
        pids = two.pids
        two.again()
    assert len(pids) == 2 and two.pids == [] and not any(map(alive, pids))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_killed_or_stopped_is_replaced(two, monkeypatch, number):
    monkeypatch.setattr("fairseq_ext.plugin.workers.SILENCE", 0.5)
    first = two.pids
    os.kill(first[1], number)
    same(two.expected, two.again())
    assert first[0] in two.pids and not alive(first[1]) and len(two.pids) == 2


def test_a_share_that_kills_two_workers_is_an_error_in_one_sentence(two):
    two.workers.stop()
    two.workers.decode = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(UsageError, match="signal 9"):
        two.again()
    assert two.pids == []


def test_some_seconds_without_room_for_a_process_end_nothing(two, monkeypatch):
    left, start = [1, 2], os.fork

    def fork() -> int:
        if left:
            left.pop()
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return start()

    two.workers.stop()
    monkeypatch.setattr(os, "fork", fork)
    same(two.expected, two.again())
    left.extend(range(1000))
    two.workers.stop()
    monkeypatch.setattr("fairseq_ext.core.supervision.STARTS", 0.5)
    with pytest.raises(UsageError, match="cannot start a process .Resource temporarily"):
        two.again()


def test_workers_end_when_the_command_is_killed():
    read, write = os.pipe()

    def live() -> None:
        os.write(write, json.dumps(Two([4, 2]).pids).encode())
        time.sleep(60)

    command_process = in_fork(live)
    os.close(write)  # so that the end of one that has failed is read
    workers = json.loads(os.read(read, 1000))
    os.kill(command_process, signal.SIGKILL)
    os.waitpid(command_process, 0)
    end = time.monotonic() + 5
    while any(map(alive, workers)):
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not fetched does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_results_file_is_for_one_process():
    with pytest.raises(UsageError, match="--results-file"):
        task("translation_ext", cpu_workers=2, results_file="x.jsonl").build_generator(
            [build("transformer")], GenerationConfig()
        )


# a line a sentence, tabs between
WISHES = "en3 en4\ten7\n\nen26\nen1\ten2\ten5\n\nen8\nen9 en9 en9\n\nen4\n\nen0\n"
BLOCKS = "--beam 1 --draft repeat --parallel-margin 0.3"
COUNTED = {  # flags, and the section of the statistics that they are to bring
    "lsh": (
        "--softmax lsh --lsh-k 4 --lsh-u 2 --lsh-bands 20 --lsh-hits 4 --lsh-top 8 "
        "--lsh-share sentence --shortlist-recall-every 1",
        "softmax",
    ),
    "lexical": (
        "--softmax lexical --shortlist-top 5 --shortlist-file LEXICON --shortlist-recall-every 1",
        "softmax",
    ),
    "screened": ("--softmax screened", "softmax"),
    "constraints": ("--constraints-file WISHES", "constraints"),
    "optimal": ("--stop optimal --prune-threshold 1.5", "certificates"),
    "jacobi": (f"--decoding jacobi {BLOCKS}", "parallel"),
}


def counts(tiny, tmp_path, workers: int, flags: str) -> dict:
    """The statistics of fairseq-generate, where each process decodes one sentence at a time."""
    (tmp_path / "WISHES").write_text(WISHES)
    (tmp_path / "LEXICON").write_text(
        "".join(f"de{i} en{(i + step) % 30} 0.4\n" for i in range(30) for step in (0, 1))
    )
    given = [tmp_path / flag if flag.isupper() else flag for flag in flags.split()]
    given += ["--batch-size", workers, "--cpu-workers", workers]
    given += ["--stats-file", tmp_path / "stats.json", "--path", tiny / "model.pt"]
    more = "--task translation_ext --cpu --max-len-b 15".split()
    generate_forked(tiny / "data", *given, *more)
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
        assert one["constraints"]["given"] == len(re.findall("[^\t\n]+", WISHES))
    assert close(untimed(two), untimed(one))
    if "softmax" in one and name != "screened":
        assert two["softmax"]["seconds"].keys() == one["softmax"]["seconds"].keys()
        assert two["softmax"]["recall_rows"] == two["decoder_rows"]
        assert two["softmax"]["recall_at_1"] <= 1
    if "parallel" in one:
        assert two["parallel"]["guard"]["margin"] == 0.3
        assert two["parallel"]["tokens"] == two["target_tokens"]


def test_workers_are_forked_again_for_another_search(tiny):
    """The first constraints change the search of a Translator."""
    flags = {"source_lang": "de", "target_lang": "en", "cpu": True, "max_len_b": 15}
    several, alone = (
        Translator(str(tiny / "model.pt"), str(tiny / "data"), cpu_workers=workers, **flags)
        for workers in (2, 1)
    )
    lines, phrases = ["de1 de2", "de3", "de4 de5"], [["en3 en4"], [], ["en7"]]
    several.translate(lines)
    found, expected = (each.translate(lines, constraints=phrases) for each in (several, alone))
    assert [h.text for nbest in found for h in nbest] == [h.text for n in expected for h in n]
    assert several.stats.as_dict()["constraints"] == {"given": 2, "met": 2, "unmet": []}
    several.task.session.command.workers.stop()
