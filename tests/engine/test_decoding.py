"""Requests through one search, in this process: each answer is that of the sentence alone."""

import hashlib
import random
import time
from dataclasses import replace

import demo_model
import pytest
from demo_model import ROOT
from sizes import drawn, part_of

from fairseq_ext import Translator, UsageError
from fairseq_ext.engine.tickets import Partial
from fairseq_ext.engine.worker import STEPS, load
from fairseq_ext.kernels.beam import SearchResult
from fairseq_ext.kernels.library import library
from fairseq_ext.search.compiled import CompiledSearch
from fairseq_ext.search.constraints.lines import text_constraints
from fairseq_ext.search.report import Report, Translation
from fairseq_ext.search.request import GlossaryFile, Request
from fairseq_ext.search.strategies.stop.early import LengthRetry

FLAGS = demo_model.FLAGS | dict(beam=5)
LINES = (ROOT / "data" / "demo" / "test.de").read_text(encoding="utf-8").splitlines()[:24]
compiled = pytest.mark.skipif(library() is None, reason="there is no compiled library")
PORT = "Der Patient hat einen Port."
WORDS = "the a house patient employee port very not".split()


@pytest.fixture(scope="module")
def decoding():
    return load({**FLAGS, "stream_width": 4})


@pytest.fixture(scope="module")
def translator():
    return Translator(**FLAGS)


def job(source, streams=False, nbest=None, **fields):
    given = text_constraints(fields, "the request")
    return Request(0, source, given, nbest=nbest, streams=streams, submitted=time.monotonic())


def answers(decoding, jobs):
    """The result of jobs that arrive together."""
    for number, each in enumerate(jobs):
        decoding.add(number, each)
    last = dict(worked(decoding))
    return [last[number] for number in range(len(jobs))]


def worked(decoding):
    """Its events, once there is nothing to do."""
    while decoding.busy:
        decoding.work()
    events, decoding.events = decoding.events, []
    return events


def same_as_alone(translator, each, answer):
    """The answer has the hypotheses that the offline API finds for the sentence alone."""
    given, more = each.own_constraints, {}
    if given:
        more = {"constraints": [[*given.constraints, *given.any_of]], "avoid": [given.avoid]}
        more["prefixes"] = [next(iter(given.prefix), None)]
    expected = translator.translate([each.source], nbest=each.nbest, **more)[0]
    found = answer.hypotheses
    assert [(h.tokens, h.text) for h in found] == [(h.tokens, h.text) for h in expected]
    assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-4)


def random_job(draw):
    words = draw.sample(WORDS, 5)
    fields = {
        "constraints": (0.4, words[: draw.randint(1, 2)]),
        "any_of": (0.2, [words[2:4]]),
        "avoid": (0.2, words[4:]),
        "prefix": (0.2, "My"),
    }
    fields = {name: value for name, (often, value) in fields.items() if draw.random() < often}
    return job(draw.choice(LINES), draw.random() < 0.5, draw.choice([None, 1, 3, 5]), **fields)


def test_answers_are_those_of_each_sentence_alone_as_they_come_and_go(decoding, translator):
    draw = random.Random(4)
    given, ended, partial, most = {}, set(), {}, len(part_of(40, 12))
    while len(given) < most or decoding.busy:
        if len(given) < most and draw.random() < 0.3:
            number = len(given)
            given[number] = random_job(draw)
            decoding.add(number, given[number])
        if draw.random() < 0.02 and (here := [n for n in given if n not in ended]):
            number = draw.choice(here)
            ended.add(number)
            decoding.cancel(number)
        decoding.work()
        events, decoding.events = decoding.events, []
        for number, what in events:
            assert number not in ended
            if isinstance(what, Partial):
                assert given[number].streams and what.tokens > partial.get(number, (0, ""))[0]
                partial[number] = (what.tokens, what.text)
            else:
                ended.add(number)
                same_as_alone(translator, given[number], what)
                tokens, text = partial.get(number, (0, ""))
                pieces = what.hypotheses[0].tokens[:tokens]
                assert len(pieces) == tokens and translator.decode(" ".join(pieces)) == text
    assert ended == set(given) and partial


def test_what_comes_to_its_length_limit_is_searched_again_as_offline(monkeypatch):
    flags = {**FLAGS, "beam": 2, "max_len_b": 10, "no_repeat_ngram_size": 1}
    decoding = load({**flags, "stream_width": 3})
    translator = Translator(**flags, constraints="unordered")
    better, again = LengthRetry.choose, []
    monkeypatch.setattr(
        LengthRetry, "choose", lambda self, *found: again.append(self) or better(self, *found)
    )
    draw = random.Random(4)
    lines = ["Ja.", "Nein.", "Gut.", "Danke.", *LINES[:8]]
    jobs = [job(line, streams=True, constraints=draw.sample(WORDS, 3)) for line in lines]
    for each, answer in zip(jobs, answers(decoding, jobs), strict=True):
        same_as_alone(translator, each, answer)
    assert again and again.count(decoding.steps.shorter) * 2 == len(again)  # as often there as here


def test_phrases_of_live_requests_outlast_others_that_leave_and_start(translator):
    """In the loop (banned phrases), one request leaves while the next one runs; then one starts in
    compiled steps, with phrases too."""
    decoding = load({**FLAGS, "stream_width": 4})
    short = job("Ja.", prefix="My", constraints=["port"])
    long = job(
        max(LINES, key=len),
        constraints=["very not very not", "patient the patient", "employee", "port"],
        avoid=["house"],
    )
    decoding.add(0, short)
    decoding.work()  # else the longer one would have the first place
    decoding.add(1, long)
    while not decoding.events:
        decoding.work()
    assert [number for number, _ in decoding.events] == [0]
    decoding.add(2, job("Nein.", constraints=["employee"]))
    same_as_alone(translator, long, dict(worked(decoding))[1])


@compiled
def test_a_request_that_the_compiled_search_cannot_decode_goes_to_the_loop(monkeypatch):
    decoding, translator = load(FLAGS), Translator(**FLAGS)
    taken = []
    take = CompiledSearch.take
    monkeypatch.setattr(
        CompiledSearch, "take", lambda self, request: taken.append(take(self, request)) or taken[-1]
    )
    plain = decoding.search.searchers[0]
    plain.step = lambda most: list(plain.sentences)  # they end at once, with no result
    jobs = [job(LINES[0], nbest=3), job(LINES[1], nbest=3)]
    given = answers(decoding, jobs)
    assert taken == [None, None] and plain.live == 0
    for each, answer in zip(jobs, given, strict=True):
        same_as_alone(translator, each, answer)


@compiled
def test_what_a_model_cannot_score_is_reported_to_the_caller(monkeypatch):
    decoding, take = load(FLAGS), CompiledSearch.take

    def broken(self, request):
        if request.number == 1:
            self.sentences[request].struct.result = SearchResult.NOT_A_NUMBER
        return take(self, request)

    monkeypatch.setattr(CompiledSearch, "take", broken)
    first, error, third = answers(decoding, [job(line) for line in LINES[:3]])
    assert first.text and third.text and isinstance(error, UsageError)
    assert str(error).startswith("the model gives NaN at target position ")


@drawn(2)
@pytest.mark.parametrize("next_to", [[], LINES[1:3]], ids=["alone", "beside others"])
@pytest.mark.parametrize("fields", [{}, {"avoid": ["very"]}], ids=str)
def test_a_translation_that_cannot_be_made_text_is_reported_to_the_caller(
    fields, next_to, monkeypatch
):
    decoding = load(FLAGS)
    (wrong,) = answers(decoding, [job(LINES[0], **fields)])
    translation = Translator.translation

    def broken(self, hypothesis):
        made = translation(self, hypothesis)
        if made.text == wrong.text:
            # as the decoder of GPT-2's segmentation says
            raise ValueError("invalid literal for int() with base 10: 'madeupword'")
        return made

    monkeypatch.setattr(Translator, "translation", broken)
    error, *others = answers(decoding, [job(line, **fields) for line in [LINES[0], *next_to]])
    assert str(error).startswith(
        "the sentence could not be translated: ValueError: invalid literal"
    )
    assert all(answer.text for answer in others)


@compiled
def test_a_request_that_is_given_up_in_a_step_that_then_fails_is_answered_once():
    decoding = load(FLAGS)
    first, loop = decoding.search.searchers

    def broken(most):
        raise RuntimeError("out of order")

    # the first one ends with no result: it is for the loop
    first.step, loop.step = lambda most: list(first.sentences), broken
    decoding.add(0, job(LINES[0]))
    decoding.add(1, job(LINES[1], avoid=["very"]))
    events = worked(decoding)  # each has run again, alone
    assert sorted((number, type(what)) for number, what in events) == [(0, Report), (1, Report)]


def test_arrivals_start_together_after_some_steps(decoding):
    stats, steps = decoding.generator.stats, STEPS
    before = stats.encoder_calls
    # the first starts at once, the two that come behind it together
    for number, line in enumerate((" ".join(LINES[:3]), *LINES[:2])):
        decoding.add(number, job(line))
        decoding.work()
    assert stats.encoder_calls == before + 1
    for _ in range(steps - 3):
        decoding.work()
    assert len(decoding.live) == 1 and stats.encoder_calls == before + 1
    decoding.work()
    assert len(decoding.live) == 3 and stats.encoder_calls == before + 2
    assert sorted(number for number, _ in worked(decoding)) == [0, 1, 2]


def test_a_request_of_parallel_decoding_ends_where_it_is_cancelled():
    decoding = load({**FLAGS, "beam": 1, "decoding": "window", "block_size": 2})
    counted = decoding.generator.stats
    decoding.add(0, job(" ".join(LINES[:3])))
    decoding.add(1, job(LINES[1]))
    before = counted.decoder_calls
    for _ in range(2):
        decoding.work()
    decoding.cancel(0)
    assert decoding.events == [] and decoding.busy
    ((number, answer),) = worked(decoding)
    assert 0 < counted.decoder_calls - before < len(LINES[1].split()) * 3
    (expected,) = Translator(**FLAGS | {"beam": 1}).translate([LINES[1]])
    assert (number, answer.text) == (1, expected[0].text)


PHRASE, THE = {"constraints": ["port"]}, {"constraints": ["the"]}
CONFLICT = "conflicts with the banned phrase 'the'"
# a request's source, fields and terms, and its constraints: phrase, term, reason why it is not met
REPORTS = {
    "terms": (  # as they stand
        (PORT, {}, {"Port": "house|port", "Patient": "patient"}),
        [("patient", "Patient", ""), ("house|port", "Port", "")],
    ),
    "equal phrases": (
        (LINES[0], {"constraints": ["the", "the"], "prefix": "My"}, {}),
        [("My", "", ""), ("the", "", ""), ("the", "", "")],
    ),
    "a phrase that is a term": ((PORT, PHRASE, {"Port": "port"}), [("port", "Port", "")]),
    "a phrase of a term's": ((PORT, PHRASE, {"Port": "house|port"}), [("port", "Port", "")]),
    "a banned phrase": ((LINES[0], THE | {"avoid": ["the"]}, {}), [("the", "", CONFLICT)]),
    "no source": (("", {}, {}), []),
    "an empty source": ((" \t", THE, {}), [("the", "", "the source is empty")]),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_has_each_phrase_once_and_where_it_stands(decoding, name):
    (source, fields, terms), expected = REPORTS[name]
    (answer,) = answers(decoding, [replace(job(source, **fields), terms=tuple(terms.items()))])
    assert bool(answer.text) is bool(source.strip())
    assert [(c.phrase, c.term, c.reason) for c in answer.constraints] == expected
    spans = [span for c in answer.constraints for span in c.spans]
    assert len({*spans}) == len(spans) == sum(c.met for c in answer.constraints)
    for each in answer.constraints:
        assert each.met is not bool(each.reason)
        assert not each.met or answer.text[slice(*each.spans[0])] in each.phrase.split("|")
        assert [source[slice(*span)] for span in each.source_spans] == [each.term] * bool(each.term)
    if name.startswith("a phrase"):
        (alone,) = answers(decoding, [replace(job(source), terms=(("Port", "port"),))])
        assert answer.text == alone.text and answer.text.count("port") == 1


@pytest.mark.parametrize(
    ("terms", "held"),
    [
        # "The patient has a port.": one place for two equal terms; the first one makes room;
        # a place inside another one's
        ({"Patient": "patient", "Port": "patient"}, ["patient", None]),
        ({"Patient": "house|port", "Port": "port"}, ["house", "port"]),
        ({"Patient": "patient has", "Port": "patient"}, ["patient has", "patient"]),
    ],
    ids=str,
)
def test_a_place_serves_one_of_equal_terms(decoding, terms, held):
    """The text is given, so that what a search makes of these terms is of no account."""
    text = {"house": "The house has a port."}.get(held[0], "The patient has a port.")
    requested = Request(0, PORT, terms=tuple(terms.items()))
    requirements = decoding.requirements
    tokens = decoding.translator.encode(requested.source)
    requested = requirements.with_constraints(replace(requested, tokens=tokens))
    best = Translation(text, [], 0.0, [])
    reported = decoding.translator.sentences.report(requested, best, text)
    assert [c.term for c in reported] == list(terms)
    assert [text[slice(*c.spans[0])] if c.spans else None for c in reported] == held


def test_a_glossary_is_read_once_and_again_when_it_has_changed(decoding, tmp_path):
    path = tmp_path / "terms.tsv"

    def with_terms(content):
        path.write_text(content, encoding="utf-8")
        digest = hashlib.sha256(content.encode()).hexdigest()
        return Request(0, PORT, glossaries=(GlossaryFile(str(path), digest),))

    first = with_terms("Port\thouse\n")
    (answer,) = answers(decoding, [first])
    old, new = answers(decoding, [first, with_terms("Port\tvaccination\n")])
    assert "house" in answer.text == old.text and "vaccination" in new.text
    gone = with_terms("Port\tdoor\n")
    path.unlink()
    (error,) = answers(decoding, [gone])
    assert str(error) == "a glossary of the request has been deleted: put it again, or leave it out"


WINDOW = {"decoding": "window", "beam": 1}
WIDTH = "--stream-width says how requests share a search, and with --decoding w"
UNUSABLE = {
    WIDTH: WINDOW | {"stream_width": 4},
    "--glossary-match needs a glossary": WINDOW | {"glossary_match": "lemma"},
    "--constraint-compete search .*: use rows or off": {"constraint_compete": "search"},
    "add --lsh-share sentence": {"softmax": "lsh"},
    "add --shortlist-share sentence": {"softmax": "top", "shortlist_share": "batch"},
    "--match-source-len": {"match_source_len": True},
    "nonsense": {"stop": "nonsense"},
}


@drawn(4)
@pytest.mark.parametrize("message", UNUSABLE)
def test_flags_that_have_no_place_here_are_refused(message):
    with pytest.raises(UsageError, match=message):
        load(FLAGS | UNUSABLE[message])


def test_where_constraints_cannot_be_requests_with_them_are_refused_and_others_answered():
    plain = load({**FLAGS, "select": "topk", "beam": 2})
    answer, error = answers(plain, [job(LINES[0]), job(LINES[0], constraints=["the"])])
    assert answer.text and str(error).startswith("requests with constraints are refused here: ")
    assert "--select topk" in str(error)
