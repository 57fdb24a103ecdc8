"""What a stream does when: which sentences start, which advance, how many rows
a decoder call has."""

import gc
import weakref

import models as made
import pytest
import torch
from models import batch, dictionary, run
from sizes import covering
from streams import LENGTHS, ours, stream
from table_model import called_through

from fairseq_ext.model.transformer.encoder import FastEncoder
from fairseq_ext.search.protocols import Schedule


class Watch(Schedule):
    """A schedule and a select plug that take notes."""

    def __init__(self, generator):
        self.steps: dict[int, int] = {}  # tokens of each live sentence
        # at each step: fewest tokens of any live sentence, and those of the sentences stepped
        self.lines: list[tuple[int, list[int]]] = []
        self.rows: list[int] = []
        self.started = self.noted = 0
        self.select, self.schedule = generator.strategies.select, generator.strategies.schedule
        self.level, self.most_rows = self.schedule.level, self.schedule.most_rows
        generator.strategies.select, generator.strategies.schedule = (
            called_through(self.select, self.look),
            self,
        )

    def __call__(self, waiting, live, rows, since):
        new = self.schedule(waiting, live, rows, since)
        if new and self.most_rows is None:
            assert (
                live <= self.schedule.threshold * self.schedule.width
                and live + new <= self.schedule.width
            )
        self.started = max(self.started, len(LENGTHS) - waiting + new)
        return new

    def look(self, beam, log_probs, pool):
        self.steps |= dict.fromkeys(range(self.noted, self.started), 0)
        self.noted = self.started
        self.rows.append(beam.rows)
        self.lines.append((min(self.steps.values()), beam.steps()))
        for s, step in zip(beam.live, beam.steps(), strict=True):
            assert self.steps[s] == step
            self.steps[s] += 1
        return self.select(beam, log_probs, pool)


def watched(**flags) -> Watch:
    generator = ours(**flags)
    watch = Watch(generator)
    stop = generator.strategies.stop

    def forget(candidates, beam, pool, finished, at_limit):
        decision = stop(candidates, beam, pool, finished, at_limit)
        for s, final in zip(beam.live, decision.final.tolist(), strict=True):
            if final:
                del watch.steps[s]
        return decision

    generator.strategies.stop = called_through(stop, forget)
    run(generator, batch(LENGTHS, 9))
    return watch


@covering(1)
@pytest.mark.parametrize("backend", ["transformer", "fairseq"])
@pytest.mark.parametrize(
    "flags",
    [stream(3, 1 / 12), stream(3, 1 / 2, stream_order="fifo"), stream(stream_rows=9)],
    ids=str,
)
def test_every_sentence_is_encoded_once(backend, flags, monkeypatch):
    """What the decoder must admit, and the sources that reach the encoder."""
    generator, sample = ours(decoder_backend=backend, **flags), batch(LENGTHS, 9)
    admitted: list[list[int]] = []
    encoded: list[list[int]] = []

    def note(owner, name: str, take) -> None:
        known = getattr(owner, name)

        def noted(*args):
            take(*args)
            return known(*args)

        monkeypatch.setattr(owner, name, noted)

    def without_padding(tokens) -> list[list[int]]:
        return [row[row != dictionary().pad()].tolist() for row in tokens]

    note(
        generator.decoder,
        "admit",
        lambda inputs: admitted.extend(without_padding(inputs["src_tokens"])),
    )
    note(FastEncoder, "__call__", lambda self, tokens: encoded.extend(without_padding(tokens)))
    encoder = generator.model.models[0].encoder
    note(
        encoder,
        "forward_torchscript",
        lambda inputs: encoded.extend(without_padding(inputs["src_tokens"])),
    )
    run(generator, sample)
    assert admitted == encoded == without_padding(sample["net_input"]["src_tokens"])
    assert generator.stats.encoder_calls > 1


@pytest.mark.parametrize("backend", ["transformer", "fairseq"])
@pytest.mark.parametrize("rows", [None, 9])
def test_shortest_advances_no_longer_sentence_before_the_shorter_have_caught_up(backend, rows):
    watch = watched(decoder_backend=backend, **stream(5, 1 / 2, stream_rows=rows))
    assert all(set(steps) == {fewest} for fewest, steps in watch.lines)


def test_fifo_advances_all_sentences_where_the_decoder_can():
    watch = watched(**stream(5, 1 / 2, stream_order="fifo"))
    assert any(len(set(steps)) > 1 for _, steps in watch.lines)
    again = watched(decoder_backend="fairseq", **stream(5, 1 / 2, stream_order="fifo"))
    assert all(len(set(steps)) == 1 for _, steps in again.lines)


@covering(1)
@pytest.mark.parametrize("order", ["shortest", "fifo"])
@pytest.mark.parametrize("rows", [4, 6, 11, 100])
def test_no_decoder_call_has_more_rows_than_allowed(rows, order):
    watch = watched(**stream(stream_rows=rows, stream_order=order))
    assert max(watch.rows) <= rows


def test_lines_of_an_interactive_session_are_not_kept():
    """fairseq's tasks remember the batches of every data set that they were given,
    and so its sentences."""
    task = made.task("translation_ext")

    def query(dataset) -> None:
        list(
            task.get_batch_iterator(dataset=dataset, max_sentences=2).next_epoch_itr(shuffle=False)
        )

    typed = task.build_dataset_for_inference([torch.tensor([5, 6, 2])], [3])
    query(typed)
    seen = weakref.ref(typed)
    del typed
    gc.collect()
    assert seen() is None
    task.datasets["test"] = task.build_dataset_for_inference([torch.tensor([5, 6, 2])], [3])
    query(task.datasets["test"])
    assert list(task.dataset_to_epoch_iter) == [task.datasets["test"]]
