"""Sentences that come and go while the search runs: each gets what the search gives it alone,
whatever is next to it."""

import random

import pytest
import torch
from models import alone, batch, build, dictionary, generators, run, same
from required_phrases import required_phrases
from sizes import drawn, part_of

from fairseq_ext.plugin.pools import dictionary_of
from fairseq_ext.search.interpreted import LoopSearch, OpenPool
from fairseq_ext.search.phrases.sentence import EMPTY, SentenceConstraints
from fairseq_ext.search.scheduler import Request, common_prefix
from fairseq_ext.search.strategies.stop.early import LengthRetry

WORD, LAST = dictionary().nspecial, len(dictionary()) - 1
K, MAX_LEN = 4, 12
PRUNED = {"prune_threshold": 1.0, "prune_children": 3}
LOOSE = {"lstm": 1e-5, "fconv": 1e-5}


class Arriving:
    """Random sentences as pools of the sentences that start together, and what each
    is when it is alone."""

    def __init__(
        self,
        model,
        strategy: dict,
        wanted: list[SentenceConstraints] | None,
        lengths: list[int],
        seed: int,
        **stock,
    ):
        self.settings = (model, strategy, {"beam": K, "max_len_b": MAX_LEN} | stock)
        self.generator = self.made()
        self.sample, self.constraints = batch(lengths, seed), wanted

    def made(self, nbest: int = 1):
        model, strategy, stock = self.settings
        ours = generators([model], strategy, **(stock | {"nbest": nbest})).ours
        # one search, not a second one behind it
        ours.driver = ours.driver.search if isinstance(ours.driver, LengthRetry) else ours.driver
        return ours

    def given(self, numbers: list[int]) -> dict:
        """These sentences as a batch, padded on the left."""
        rows = self.sample["net_input"]["src_tokens"][numbers]
        lengths = self.sample["net_input"]["src_lengths"][numbers]
        sample = {
            "id": torch.tensor(numbers),
            "net_input": {"src_tokens": rows[:, -int(lengths.max()) :], "src_lengths": lengths},
        }
        return sample | (
            {}
            if self.constraints is None
            else {"sentence_constraints": [self.constraints[i] for i in numbers]}
        )

    def pool(self, numbers: list[int]):
        return self.generator.pool(self.given(numbers))

    def alone(self, number: int, nbest: int) -> list[dict]:
        sample = alone(self.sample, number)
        if self.constraints is not None:
            sample["sentence_constraints"] = [self.constraints[number]]
        return run(self.made(nbest), sample)[0][:nbest]


def interleaved(
    arriving: Arriving, places: int, seed: int, cancelled: float = 0.06, tolerance: float = 1e-9
) -> int:
    """Let all sentences arrive at random, some of which are cancelled at random; compare the
    others; return how many those are."""
    draw = random.Random(seed)
    generator = arriving.generator
    search = LoopSearch(
        generator.setup,
        OpenPool(places, generator.pad, arriving.sample["net_input"]["src_tokens"].device),
    )
    waiting = list(range(len(arriving.sample["id"])))
    draw.shuffle(waiting)
    here: set[Request] = set()
    reported: dict[Request, list[int]] = {}  # the prefix that was reported
    got: list[tuple[int, int, list[dict], list[int]]] = []
    while waiting or here:
        room = places - search.live
        if waiting and room and draw.random() < 0.6:
            # longest first
            numbers = sorted(waiting.pop() for _ in range(min(len(waiting), draw.randint(1, room))))
            pool = arriving.pool(numbers)
            requests = [
                Request(n, draw.randint(1, generator.setup.k), pool=pool, sentence=i)
                for i, n in enumerate(numbers)
            ]
            search.admit(requests)
            here |= set(requests)
            assert search.live == len(here)
        if here and draw.random() < cancelled:
            leaves = draw.sample(
                sorted(here, key=lambda request: request.number), draw.randint(1, min(2, len(here)))
            )
            rows = search.rows
            search.cancel(leaves)
            assert search.rows <= rows - len(leaves), "rows of cancelled sentences are free at once"
            for request in leaves:
                here.remove(request)
                reported.pop(request, None)
        final = search.step()
        for request in here:
            if request not in final:
                prefix = search.common_prefix(request)
                before = reported.get(request, [])
                assert prefix[: len(before)] == before, "what has been told stays"
                reported[request] = prefix
        for request in final:
            here.remove(request)
            answer = generator.answer(request.pool, request.sentence, search.take(request))
            found = [dictionary_of(h) for h in answer[: request.nbest]]
            got.append((request.number, request.nbest, found, reported.pop(request, [])))
    assert search.live == 0 and search.rows == 0
    # subtle: afterwards, as a generator that is made changes BART's model
    for number, nbest, found, prefix in got:
        same([arriving.alone(number, nbest)], [found], tolerance)
        assert found[0]["tokens"][: len(prefix)].tolist() == prefix
    return len(got)


def lengths(draw: random.Random, n: int) -> list[int]:
    return [draw.choice([0, 1, 2, 3, 4, 5, 7, 9]) for _ in range(n)]


def phrases(draw: random.Random, most: int) -> list[tuple[int, ...]]:
    return [
        tuple(draw.randint(WORD, LAST) for _ in range(draw.choice([1, 1, 2, 3])))
        for _ in range(draw.randint(0, most))
    ]


def random_constraints(
    draw: random.Random, most: int = 3, without: float = 0.3
) -> SentenceConstraints:
    """Phrases with and without alternatives, avoided phrases and a prefix, or nothing at all."""
    if draw.random() < without:
        return EMPTY
    any_of = tuple((phrase, *phrases(draw, 1)) for phrase in phrases(draw, most))
    avoid = tuple(dict.fromkeys(phrases(draw, 2)))
    avoid = tuple(
        p
        for p in avoid
        if not any(p[0] in phrase for alternatives in any_of for phrase in alternatives)
    )
    prefix = tuple(draw.randint(WORD, LAST) for _ in range(draw.choice([0, 0, 1, 2])))
    prefix = () if any(set(p) & set(prefix) for p in avoid) else prefix
    return SentenceConstraints(
        required_phrases(any_of, tuple(map(str, any_of))),
        banned=avoid,
        banned_text=tuple(map(str, avoid)),
        prefix=prefix,
        unmet=(),
        prefix_text=str(prefix),
    )


@drawn(3)
@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"beam": 1},
        {"stop": "optimal", "unnormalized": True, "prune_bound": True},
        {"stop": "optimal", "unnormalized": True, "length_reward": 0.4},
        {"stop": "shrink"},
        {"stop": "ranked"},
        {"stop": "first"},
        {"patience": 2},
        PRUNED,
        PRUNED | {"stop": "ranked"},
        {"no_repeat_ngram_size": 2, "min_len": 3},
        {"schedule": "stream", "stream_order": "fifo"},
        {"schedule": "stream", "stream_order": "fifo", "stream_rows": 7},
        {"softmax": "top", "shortlist_top": 12, "shortlist_share": "sentence"},
    ],
    ids=str,
)
def test_each_gets_what_it_gets_alone(flags):
    stock = {
        name: flags[name]
        for name in ("beam", "unnormalized", "no_repeat_ngram_size", "min_len")
        if name in flags
    }
    strategy = {name: value for name, value in flags.items() if name not in stock}
    for seed in part_of(2, 1):
        draw = random.Random(seed)
        arriving = Arriving(
            build("transformer", seed), strategy, None, lengths(draw, 14), seed, **stock
        )
        assert interleaved(arriving, draw.randint(1, 6), seed)


@drawn(2)
@pytest.mark.parametrize("architecture", ["lstm", "fconv", "bart", "transformer-tied"])
def test_each_architecture(architecture):
    for backend in ("auto", "fairseq"):
        draw = random.Random(5)
        arriving = Arriving(
            build(architecture, 5), {"decoder_backend": backend}, None, lengths(draw, 10), 5
        )
        assert interleaved(arriving, 4, 5, tolerance=LOOSE.get(architecture, 1e-9))


@drawn(1)
@pytest.mark.parametrize("order", ["shortest", "fifo"])
@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"stop": "optimal"},
        {"prune_threshold": 2.0},
        {"prune_finished": 1.0},
        {"select": "gbs", "gbs_base": 2},
        {"select": "cbs", "stop": "count"},
    ],
    ids=str,
)
def test_constraints_of_each_sentence(flags, order):
    """Different phrases, alternatives, avoided phrases and prefixes next to each other; the tables
    change while rows are live."""
    for seed in part_of(2, 1):
        draw = random.Random(seed)
        made = lengths(draw, 14)
        constraints = [
            random_constraints(draw, 2 if flags.get("select") == "cbs" else 3) for _ in made
        ]
        strategy = {"select": "dba", "schedule": "stream", "stream_order": order} | flags
        arriving = Arriving(build("transformer", seed), strategy, constraints, made, seed)
        assert interleaved(arriving, draw.randint(2, 6), seed)


@drawn(1)
@pytest.mark.parametrize(
    "flags",
    [{"select": "dba"}, {"select": "dba", "prune_children": 2}, {"select": "gbs", "gbs_base": 3}],
    ids=str,
)
def test_now_and_then_a_sentence_with_constraints(flags):
    """While there is none, the plug of plain search selects; the one of constraints takes over live
    rows, and gives them back."""
    selected = set()
    for seed in part_of(3, 1):
        draw = random.Random(seed)
        made = lengths(draw, 16)
        constraints = [random_constraints(draw, without=0.85) for _ in made]
        arriving = Arriving(
            build("transformer", seed), {"stop": "count"} | flags, constraints, made, seed
        )
        for plug in (
            arriving.generator.strategies.select,
            arriving.generator.strategies.select.unconstrained(),
        ):
            selected.add(type(plug).__name__)
        assert interleaved(arriving, draw.randint(2, 4), seed)
    assert len(selected) == 2


def test_ordered_constraints():
    draw = random.Random(3)
    made = lengths(draw, 14)
    constraints = [random_constraints(draw) for _ in made]
    arriving = Arriving(
        build("transformer", 3), {"select": "dba"}, constraints, made, 3, constraints="ordered"
    )
    assert interleaved(arriving, 5, 3)


def test_the_compiled_step_in_single_precision():
    """Rows lie in shared slots of one store there, also while sentences come and go."""
    for seed in part_of(2, 1):
        draw = random.Random(seed)
        made = lengths(draw, 20)
        constraints = [random_constraints(draw) for _ in made]
        arriving = Arriving(
            build("transformer", seed, torch.float32), {"select": "dba"}, constraints, made, seed
        )
        assert interleaved(arriving, 5, seed, tolerance=1e-4)


def test_a_place_is_used_again_and_nothing_of_its_last_sentence_is_left():
    """One place, so that every sentence has that of the one before it, which was cancelled
    at some step or finished."""
    draw = random.Random(8)
    made = lengths(draw, 12)
    constraints = [random_constraints(draw) for _ in made]
    arriving = Arriving(
        build("transformer", 8), {"select": "dba", "stop": "optimal"}, constraints, made, 8
    )
    assert interleaved(arriving, 1, 8, cancelled=0.1)


def test_certificates_are_those_of_the_sentence():
    model = build("transformer", 2)
    arriving = Arriving(model, {"stop": "optimal"}, None, [5, 4, 3], 2, unnormalized=True)
    pool = arriving.pool([0, 1, 2])
    search = LoopSearch(arriving.generator.setup, OpenPool(3, 1, pool.length.device))
    search.admit([Request(i, 1, pool=pool, sentence=i) for i in range(3)])
    gaps = {}
    while search.live:
        for request in search.step():
            gaps[request.number] = search.take(request)[0].ending.gap
    proved = sum(gap == 0.0 for gap in gaps.values())
    counted = arriving.made()
    run(counted, arriving.given([0, 1, 2]))
    certificates = counted.stats.as_dict()["certificates"]
    assert (proved, 3 - proved) == (certificates["proved"], certificates["open"])
    assert all(gap is not None and gap >= 0 for gap in gaps.values())


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], []),
        ([[1, 2]], [1, 2]),
        ([[1, 2, 3], [1, 2]], [1, 2]),
        ([[3, 1], [3, 2], [3, 1, 1]], [3]),
        ([[1], [2]], []),
        ([[], [4]], []),
    ],
)
def test_common_prefix(rows, expected):
    assert common_prefix(rows) == expected
