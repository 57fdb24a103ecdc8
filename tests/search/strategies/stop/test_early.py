"""The end of constrained sentences (`--stop early`): the rule in plain Python at every step,
and what it must keep."""

import math

import pytest
import torch
from fairseq.dataclass.configs import GenerationConfig
from models import build, task
from required_phrases import required_phrases
from search.strategies.select.test_dba import all_met, decode, outputs, wanted
from sizes import covering
from table_model import EOS, Found, called_through, lattice, random_table, stop_plug

from fairseq_ext.core.stats import Stats
from fairseq_ext.search.constraints.report import met
from fairseq_ext.search.finished import Hypothesis, Scoring
from fairseq_ext.search.phrases.sentence import EMPTY, SentenceConstraints
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.strategies.stop.early import LengthRetry

GIVEN = [wanted("ab", "c"), wanted("dd"), wanted("a"), wanted(), wanted("ba", "cd", "a")]


MEANS = Scoring(True, 1.0)


def worth(total: float, length: int) -> float:
    """The mean; of one below -1.25 that, and what the total lies below so much a token."""
    return total / length if total >= -1.25 * length else -1.25 + total + 1.25 * length


class ByHand:
    """Decides as the plug does and again in plain Python, sentence by sentence, and compares."""

    def __init__(self, k: int, nbest: int):
        self.stats, self.k, self.nbest = Stats(), k, nbest
        self.plug = stop_plug("early", k, MEANS, self.stats)
        self.dropped = self.late = 0  # hypotheses; sentences that only their length ended
        # score and length, in the order in which they finished
        self.done: dict[int, list[tuple[float, int]]] = {}
        self.rows: dict[int, int] = {}

    def __call__(self, candidates, beam, pool, finished, at_limit):
        found = self.plug(candidates, beam, pool, finished, at_limit)
        for i, s in enumerate(beam.live):
            t, C, done = beam.steps()[i] + 1, int(candidates.goal[i]), self.done.setdefault(s, [])
            of = candidates.token[i], candidates.score[i], candidates.group[i]
            token, score, bank = (each.tolist() for each in of)
            places, enough = range(len(token)), self.k * (2 if C else 1) - len(done)
            beats = self.last(done) if C else -math.inf
            ends = [c for c in places[: self.k] if token[c] == EOS and worth(score[c], t) > beats]
            ends = ends[:enough]
            done += [(worth(score[c], t), t) for c in ends]
            assert [c for c in places if found.done is not None and found.done[i, c]] == ends
            goes_on = goes_on_of(token, score)[: self.k]
            final, stays = len(ends) >= enough or not goes_on, goes_on
            if C and len(done) >= self.nbest:

                def reach(c: int, C=C, t=t, bank=bank, score=score) -> float:
                    lacks = C - bank[c]
                    more = ((score[c] - 0.3 * lacks - 0.1 * n, t + lacks + n) for n in range(1, 6))
                    return max(worth(*each) for each in more)

                better = [c for c in goes_on if reach(c) > self.last(done)]
                stays = sorted(in_turn(better, score, bank)[: self.rows.get(s, 1)])
                self.dropped += len(goes_on) - len(stays)
                is_late = t > 2 * done[0][1] + 16
                final = final or not stays
                self.late += not final and is_late
                final = final or is_late
            self.rows[s] = len(stays)
            assert bool(found.final[i]) == (final or (at_limit is not None and bool(at_limit[i])))
            if not found.final[i]:
                kept = [found.stays is None or bool(found.stays[i, c]) for c in places]
                assert [c for c in goes_on_of(token, score) if kept[c]][: self.k] == stays
        return found

    def decode(self, tables, constraints: list[SentenceConstraints], max_len: int) -> Found:
        how = dict(nbest=self.nbest, stop=called_through(self.plug, self), scoring=MEANS)
        return decode(tables, constraints, self.k, max_len, **how)

    def last(self, done: list[tuple[float, int]]) -> float:
        """The n-th best score."""
        listed = sorted((score for score, _ in done), reverse=True)
        return listed[self.nbest - 1] if len(listed) >= self.nbest else -math.inf


def goes_on_of(token: list[int], score: list[float]) -> list[int]:
    return [c for c in range(len(token)) if token[c] != EOS and score[c] > -math.inf]


def in_turn(places: list[int], score: list[float], bank: list[int]) -> list[int]:
    """One of each bank in turn, from the highest down."""
    banks = [
        sorted((c for c in places if bank[c] == b), key=lambda c: -score[c])
        for b in reversed(range(20))
    ]
    return [of[n] for n in range(len(places)) for of in banks if n < len(of)]


@covering(1)
@pytest.mark.parametrize("nbest", [1, 2])
@pytest.mark.parametrize("k", [3, 5, 9])
def test_every_step_is_as_the_rule_says(k, nbest):
    dropped = 0
    for seed in range(10):
        tables = [random_table(seed + 50 * i, ending=0.1) for i in range(len(GIVEN))]
        by_hand = ByHand(k, nbest)
        for found, c in zip(by_hand.decode(tables, GIVEN, 16).lists, GIVEN, strict=True):
            assert found and all(all_met(h, c) for h in found)
        dropped += by_hand.dropped
        assert by_hand.stats.as_dict()["dropped_rows"] == by_hand.dropped
    assert dropped > 0


def test_a_sentence_far_behind_its_first_hypothesis_is_final():
    """One word that costs little behind itself, and an end that costs much: the longer a
    hypothesis, the better its mean."""
    by_hand = ByHand(20, 1)
    table = random_table(0, possible=1, spread=0.0, ending=0.0)
    found = by_hand.decode([table], [wanted("a")], 60)
    first = min(length for _, length in by_hand.done[0])
    assert by_hand.late == 1 and found.step[0] == 2 * first + 17


def test_a_costly_word_does_not_pay_for_words_behind_it():
    """ "b" costs 9 nats. Each "c" behind it costs 1.6 and so raises the mean of the hypothesis, as
    it does of a longer and longer one."""
    arcs = {"b" + "c" * n: {"$": 0.8, "c": 0.2} for n in range(12)}
    arcs[""] = {"a": 1 - math.exp(-9), "b": math.exp(-9)}
    how = dict(nbest=1, stop=stop_plug("early", 4, MEANS), scoring=MEANS)
    found = decode([lattice(arcs)], [wanted("b")], 4, 12, **how)
    assert outputs(found)[0][0] == ("b", round((-9 + math.log(0.8)) / 2, 9))


# ---- the flag


@pytest.mark.parametrize(
    ("flags", "constraints", "expected"),
    [
        ({}, None, "count"),
        ({}, "unordered", "early"),
        ({"avoid_file": __file__}, None, "early"),
        ({"select": "gbs"}, "unordered", "early"),
        ({"patience": 1}, "unordered", "count,patience=1"),
        ({"patience": 2}, "unordered", "count,patience=2"),
        ({"stop": "count"}, "unordered", "count"),
        ({"stop": "first"}, "unordered", "first"),
    ],
)
def test_constraints_choose_it_where_the_command_names_no_stop_and_no_patience(
    flags, constraints, expected
):
    built = task("translation_ext", **flags).build_generator(
        [build("transformer")], GenerationConfig(constraints=constraints)
    )
    [stop] = [part for part in built.stats.signature.split("|") if part.startswith("stop:")]
    assert stop == f"stop:{expected}"


# ---- A sentence whose constrained search ran to its length limit is searched again with less ro


LIMIT = 200


WORD = SentenceConstraints(required_phrases((((7,), (8, 9)),), ("word",)))


def hypothesis(*tokens: int) -> Hypothesis:
    return Hypothesis(torch.tensor([*tokens, EOS]), -1.0, torch.zeros(len(tokens) + 1))


RAMBLES = hypothesis(*[5] * (LIMIT - 1), 7)


def searched(
    second: Hypothesis,
    length: int = 20,
    constraints: SentenceConstraints = WORD,
    first: Hypothesis = RAMBLES,
    min_len: int = 1,
):
    """The answers for two sentences, of which the first is in question, and the pools
    that were searched."""
    pools = []

    def search(pool, answer):
        pools.append(pool)
        for number in pool.sentences_to_decode():
            answer(number, [hypothesis(7, 5) if number else first if len(pools) == 1 else second])

    lengths, limits = torch.tensor([length, 4]), [LIMIT, LIMIT]
    pool = Pool({}, lengths, limits, torch.arange(2), EOS, constraints=[constraints, WORD])
    answers = {}
    LengthRetry(search, lambda pool: met, min_len)(pool, answers.__setitem__)
    return {number: found[0].tokens.tolist() for number, found in answers.items()}, pools


def test_a_sentence_at_its_limit_gets_room_for_its_source_and_its_words():
    answers, (_, again) = searched(hypothesis(5, 8, 9))
    assert answers == {0: [5, 8, 9, EOS], 1: [7, 5, EOS]}
    # 20 source tokens, and the shorter form
    assert (again.to_decode, again.max_len[0], again.limit()[0]) == ([0], 21, 21)
    answers, pools = searched(hypothesis(5, 6))  # what then lacks a word is not taken
    assert len(pools) == 2 and answers[0] == RAMBLES.tokens.tolist()


@pytest.mark.parametrize(
    "more",
    [
        {"length": LIMIT},  # as long as that anyway
        {"min_len": 22},  # and 21 would be too few
        {"constraints": EMPTY},  # no one requests a word
        {"first": hypothesis(*[5] * 100, 7)},  # ended by itself
    ],
    ids=list,
)
def test_other_sentences_are_searched_once(more):
    assert len(searched(hypothesis(7), **more)[1]) == 1
