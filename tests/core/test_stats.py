"""Counts are of work really done, parts of a run add up to the whole, and the file
is whole at any time."""

import json
import random
from collections import ChainMap

import pytest
import torch
from json_counts import close
from models import (
    batch,
    build,
    dictionary,
    generators,
    requests_of,
    run,
    separated,
    settings,
    with_files,
)
from required_phrases import required_phrases
from sizes import drawn

from fairseq_ext.core.stats import Items, Mean, Ratio, Section, Setting
from fairseq_ext.search.phrases.sentence import SentenceConstraints
from fairseq_ext.search.registry import STRATEGIES, all_strategies


def greedy(lengths: list[int]):
    """A greedy run: its statistics and the lengths of its outputs."""
    ours = generators([build("transformer", seed=2)], beam=1, max_len_b=9).ours
    return ours.stats, [len(nbest[0]["tokens"]) for nbest in run(ours, batch(lengths))]


def test_greedy_search_of_one_sentence_calls_the_decoder_once_a_token():
    stats, (length,) = greedy([4])
    assert (stats.sentences, stats.encoder_calls) == (1, 1)
    assert (
        stats.target_tokens
        == stats.decoder_calls
        == stats.decoder_rows
        == stats.decoder_positions
        == length
    )
    assert stats.seconds > 0
    stats.count_step(rows=5, width=4)
    assert stats.as_dict()["decoder_positions"] == length + 20


def test_a_greedy_batch_reads_one_row_for_each_token():
    stats, lengths = greedy([4, 1, 7])
    assert stats.decoder_calls == max(lengths)
    assert stats.decoder_rows == stats.target_tokens == sum(lengths)


def test_what_does_not_apply_is_left_out():
    """Of stock's searches, what is known is counted."""
    known = {"signature", "sentences", "target_tokens", "seconds"}
    work = {"encoder_calls", "decoder_calls", "decoder_rows", "decoder_positions", "parallel"}
    for flags, stock, keys in (
        ({"decoding": "window"}, {"beam": 1}, known | work),
        ({}, {"beam": 3, "match_source_len": True}, known),
    ):
        ours = generators([build("transformer")], flags, max_len_b=5, **stock).ours
        run(ours, batch([3, 2]))
        found = ours.stats.as_dict()
        assert found.keys() == keys and found["sentences"] == 2 and found["target_tokens"] > 0


# ---- merge and difference


class Example(Section):
    """One counter of each kind; some: a few of the counters do not apply."""

    key = "example"

    def __init__(self, chance: random.Random, some: bool = False, depth: int = 2):
        self.count = chance.randrange(9)
        self.time = chance.random()
        self.mean = Mean(chance.random(), chance.randrange(3))
        self.ratio = Ratio(chance.randrange(9), chance.randrange(3))
        self.margin = Setting(0.3)
        self.way = "one"
        self.list = Items([chance.randrange(9)] for _ in range(chance.randrange(3)))
        self.device = torch.tensor(chance.randrange(9))
        self.part = Example(chance, some, depth - 1) if depth else None
        for name in [name for name in vars(self) if some and chance.random() < 0.3]:
            setattr(self, name, None)


def joined(*parts: Section) -> Section:
    """The merge of parts, which stay as they are."""
    total = Section()
    for part in parts:
        total.add(part)
    return total


def as_json(record: dict) -> dict:
    """What a reader of the file gets."""
    return json.loads(json.dumps(record))


@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_the_merge_is_associative(seed, some):
    chance = random.Random(seed)
    a, b, c = (Example(chance, some) for _ in range(3))
    expected = joined(a, b, c).record()
    assert close(joined(joined(a, b), c).record(), expected) and close(
        joined(a, joined(b, c)).record(), expected
    )
    assert Section.restored(as_json(expected)).record() == expected


@pytest.mark.parametrize("seed", range(30))
def test_the_difference_undoes_the_merge(seed):
    chance = random.Random(seed)
    a, b = (Example(chance) for _ in range(2))
    both = a.copy()
    before = both.mark()
    both.add(b)
    assert close(both.since(a).record(), b.record())
    both.rollback(before)
    assert both.record() == a.record()


def test_means_have_their_weights_and_ratios_their_sums():
    """Worked by hand: 3 lists of 10 words and 1 of 50 have 20 words on average, 2 of 4 and
    6 of 6 are 8 of 10."""
    a, b = Section(), Section()
    a.words, a.rate = Mean(30, 3), Ratio(2, 4)
    b.words, b.rate = Mean(50, 1), Ratio(6, 6)
    a.add(b)
    assert a.as_dict() == {"words": 20.0, "rate": 0.8}


def test_parts_that_say_different_things_are_no_parts_of_one_run():
    for name, one, other in (("signature", "a", "b"), ("margin", Setting(0.3), Setting(0.6))):
        a, b = Section(), Section()
        setattr(a, name, one), setattr(b, name, other)
        with pytest.raises(ValueError, match="different things"):
            a.add(b)


# ---- all keys that any strategy writes

RUNS = [
    {},
    *settings("example").values(),
    {"diverse_beam_groups": 4},
    {"decoding": "window", "schedule": "stream", "stream_width": 2, "beam": 1},
]
MORE = {  # of flags that a strategy has, what is to be counted too
    "shortlist_top": {"shortlist_recall_every": 1},
    "lsh_top": {"shortlist_recall_every": 1},
    "decoding": {"draft": "repeat", "parallel_margin": 0.3},
}
LENGTHS = ([6, 3, 4, 0], [5], [2, 7, 1])


def counted(setting: dict, tmp_path):
    """A run over three batches: what it has counted, and what it counted in each."""
    more = [MORE[name] for name in MORE if name in setting]
    flags, stock = separated(dict(ChainMap(with_files(setting, tmp_path), *more)))
    models = [build("transformer", dtype=torch.float32)]
    ours = generators(models, flags, **{"beam": 4, "max_len_b": 12} | stock).ours
    given = [(dictionary().nspecial + 1, dictionary().nspecial + 2), (dictionary().nspecial + 3,)]
    parts = []
    for seed, lengths in enumerate(LENGTHS):
        before, sample = ours.stats.copy(), batch(lengths, seed)
        if STRATEGIES["select"][flags.get("select", "topk")].constrained:
            # the second of the phrases is more than the shortest sentences can say
            wishes = [
                SentenceConstraints(
                    required_phrases(tuple((p,) for p in given[: i % 3]), ("a", "b")[: i % 3])
                )
                for i in range(len(lengths))
            ]
            sample |= {"requests": requests_of(wishes)}
        run(ours, sample)
        parts.append(ours.stats.since(before))
    return ours.stats, parts


def means(section: Section) -> list[tuple[tuple[str, ...], Ratio]]:
    """All means and ratios of a section, with their places."""
    out = []
    for name, value in section.counters().items():
        if isinstance(value, Section):
            out += [((name, *place), mean) for place, mean in means(value)]
        elif isinstance(value, Ratio):
            out.append(((name,), value))
    return out


@drawn(9)
@pytest.mark.parametrize("setting", RUNS, ids=str)
def test_parts_add_up_to_the_whole_in_every_key(setting, tmp_path):
    whole, parts = counted(setting, tmp_path)
    for again in (parts, [Section.restored(as_json(part.record())) for part in parts]):
        total = joined(*again)
        assert close(total.as_dict(), whole.as_dict())
        assert close(total.since(again[0]).as_dict(), joined(*again[1:]).as_dict())
    none = {each.name for each in all_strategies() if not each.example}
    assert none == {"topk", "batch", "full", "beam", "diverse"}  # a new one is counted here
    # a mean lies between those of the parts that have one
    of_parts = [dict(means(part)) for part in parts]
    for place, mean in means(whole):
        values = [
            found[place].value()
            for found in of_parts
            if place in found and found[place].denominator
        ]
        assert not values or min(values) - 1e-9 <= mean.value() <= max(values) + 1e-9


# ---- the JSON object
