"""Allowed outputs through the commands and from Python: with other constraints, by patterns, built
before, and compiled; and against teacher forcing. With a beam as wide as the set, the n-best list
is the ranking of the whole set by the model. fairseq makes no beam wider than the vocabulary, which
has 6 to 12 tokens here; this limit is lifted. test_random_flags.py has them with every strategy."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import demo_model
import numpy as np
import pytest
import torch
from demo_model import MODEL, ROOT
from models import DEVICE, batch, build, dictionary, forced, generators, requests_of, run
from required_phrases import accepts, prefix_of, required_phrases
from search.constraints.test_constraints_cli import (
    generate,
    hypotheses,
    interactive,
    write,
)
from search.test_compiled import both
from sizes import drawn, part_of
from test_cli import EXT

from fairseq_ext import Translator, UsageError
from fairseq_ext.allowed import main
from fairseq_ext.core.errors import SentenceError
from fairseq_ext.kernels.library import library
from fairseq_ext.plugin import generator
from fairseq_ext.plugin.options import search_spec
from fairseq_ext.search.compiled import CompiledSearch
from fairseq_ext.search.constraints import allowed_product
from fairseq_ext.search.constraints.allowed_product import Demands, Matcher, product
from fairseq_ext.search.phrases.phrase_table import Compiler
from fairseq_ext.search.phrases.sentence import EMPTY, SentenceConstraints, met, occurrences
from fairseq_ext.search.phrases.token_automaton import TokenAutomaton, minimal

DEMO = demo_model.FLAGS | dict(beam=4, nbest=2)
SET = [
    "en1",
    "en1 en2 en3",
    "en1 en2 en4 en4",
    "en5 en6",
    "en9 en8 en7 en6 en5",
    "en5 en6 en20",
    "en12 en1 en2",
    "en3 en3 en3",
]
LINES = (ROOT / "data" / "demo" / "test.de").read_text(encoding="utf-8").splitlines()
SENTENCES = 11  # of the tiny corpus


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> str:
    return write(tmp_path_factory.mktemp("allowed") / "set.txt", SET)


# ---- with other constraints


def test_a_sentence_without_an_output_is_an_error_of_its_own(tiny, file, tmp_path):
    texts = "de1 de2\ten2\nde3\ten30\nde4\nde5\ten3\ten20\nde1\t<s> en7\nde2\t<s> en5\n"
    banned = write(tmp_path / "avoid.txt", ["en12"])
    flags = ["--constraints", "--allowed-file", file, "--avoid-file", banned, "--buffer-size", 9]
    done = interactive(tiny, *EXT, *flags, stdin=texts, check=False)
    found = hypotheses(done)
    errors = dict(re.findall(r"^E-(\d+)\t(.*)$", done.stderr, re.MULTILINE))
    assert sorted(errors) == ["1", "3", "4"]
    assert "en30" in errors["1"] and "together" in errors["3"]
    assert "starts with the prefix 'en7'" in errors["4"]
    assert all("en2" in text and "en12" not in text for text in found[0])
    assert found[2][0] in SET and found[5][0].startswith("en5")


def test_strings_that_cannot_be_written_are_left_out_in_one_line(tiny, tmp_path):
    path = write(tmp_path / "set.txt", ["", "en1", "ship en2", "en1", "  ", "en2 ", "boat"])
    done = interactive(tiny, *EXT, "--allowed-file", path, stdin="de1\nde2\n")
    assert set(sum(hypotheses(done).values(), [])) <= {"en1", "en2"}
    said = [line for line in done.stderr.splitlines() if "left out" in line]
    assert len(said) == 1 and "2 strings of 4" in said[0] and "'ship en2'" in said[0]
    path = write(tmp_path / "none.txt", ["ship", ""])
    done = interactive(tiny, *EXT, "--allowed-file", path, stdin="de1\n", check=False)
    assert "1 string of 1 cannot be written" in done.stderr and "Traceback" not in done.stderr


@drawn(1)
@pytest.mark.parametrize("kind", ["tabs", "json"])
def test_a_set_of_each_line(tiny, file, tmp_path, kind):
    sets = [[SET[i % len(SET)], SET[(i + 3) % len(SET)]] for i in range(SENTENCES)]
    sets[4] = []
    rows = ["\t".join(each) if kind == "tabs" else json.dumps(each) for each in sets]
    rows[4] = ""
    path = write(tmp_path / "sets", rows)
    done = generate(tiny, *EXT, "--allowed-file-per-line", path, "--allowed-file", file)
    for number, texts in hypotheses(done).items():
        assert set(texts) <= set(sets[number] or SET)
    path = write(tmp_path / "short", rows[:-1])
    done = generate(tiny, *EXT, "--allowed-file-per-line", path, check=False)
    assert f"has {SENTENCES - 1} lines and the input has {SENTENCES} sentences" in done.stderr


def test_a_prefix_of_the_data_set_counts_as_a_part_of_the_output(tiny, tmp_path):
    references = [line.split() for line in (tiny / "test.en").read_text().splitlines()]
    strings = [" ".join(each) for each in references]
    strings += [" ".join([*each[:1], "en1", "en2"]) for each in references]
    path = write(tmp_path / "set.txt", strings)
    done = generate(tiny, *EXT, "--allowed-file", path, "--prefix-size", 1)
    for number, texts in hypotheses(done).items():
        assert set(texts) <= set(strings)
        assert all(text.split()[:1] == references[number][:1] for text in texts)


# ---- patterns


def test_a_regular_expression(tiny):
    pattern = r"(en[1-3] ){2,3}en(7|8)+"
    done = generate(tiny, *EXT, "--allowed-regex", pattern)
    found = sum(hypotheses(done).values(), [])
    assert found and all(re.fullmatch(pattern, text) for text in found)
    for wrong in ("(en1", r"(en1)\1", "xx"):
        done = generate(tiny, *EXT, "--allowed-regex", wrong, check=False)
        assert "--allowed-regex" in done.stderr and "Traceback" not in done.stderr


def test_an_automaton_of_words(tiny, tmp_path):
    given = {
        "start": "a",
        "final": ["c"],
        "arcs": [["a", "en1 en2", "b"], ["a", "en1", "b"], ["b", "en3", "b"], ["b", "en4", "c"]],
    }
    path = write(tmp_path / "a.json", [json.dumps(given)])
    found = sum(hypotheses(generate(tiny, *EXT, "--allowed-automaton", path)).values(), [])
    assert found and all(re.fullmatch(r"en1( en2)?( en3)* en4", text) for text in found)
    empty = '{"start": 0, "final": [0], "arcs": []}'
    for wrong in ("[]", "{", empty, json.dumps(given | {"x": 1})):
        path = write(tmp_path / "wrong.json", [wrong])
        done = generate(tiny, *EXT, "--allowed-automaton", path, check=False)
        assert "wrong.json" in done.stderr and "Traceback" not in done.stderr


@drawn(1)
@pytest.mark.parametrize("seed", range(3))
def test_any_segmentation_allows_the_same_texts_and_scores_no_less(seed):
    strings = ["The house was red.", "A brother called.", "We go around the lake again."]
    source = ["Mein Bruder hat gestern angerufen.", "Das Haus war rot.", "Wir gehen um den See."]
    canonical, free = (
        Translator(**(DEMO | {"beam": 40}), allowed_segmentation=kind).translate(
            source, allowed=strings
        )[seed]
        for kind in ("canonical", "any")
    )
    assert {h.text for h in canonical} <= set(strings) and {h.text for h in free} <= set(strings)
    assert free[0].score >= canonical[0].score - 1e-4


# ---- from Python


def test_calls_of_a_translator():
    translator, source = Translator(**DEMO), "Das Haus war rot."
    plain = translator.translate([source])
    strings = ["The house was red.", "My brother called.", "Yes."]
    found = translator.translate([source], allowed=strings)
    assert [h.text for h in found[0]] != [h.text for h in plain[0]] or len(found[0]) == 2
    assert found[0][0].text == strings[0]
    assert translator.translate([source])[0][0].text == plain[0][0].text
    with pytest.raises(UsageError, match="empty"):
        translator.translate([source], allowed=[[]])
    (failed, good) = translator.translate(
        [source] * 2, allowed=strings, constraints=[["port"], ["brother"]], errors="return"
    )
    assert "no allowed output has the required phrase 'port'" in str(failed)
    assert good[0].text == strings[1]


# ---- the command


def test_a_built_set_is_the_same_set(tiny, tmp_path, capsys):
    strings = write(
        tmp_path / "set.txt", ["The house was red.", "My brother called.", "Yes.", "Yes."]
    )
    out = str(tmp_path / "set.allowed")
    flags = ["--data", str(MODEL), "--path", str(MODEL / "checkpoint.pt"), "-s", "de", "-t", "en"]
    flags += ["--bpe", "sentencepiece", "--sentencepiece-model", str(MODEL / "spm.model"), "--cpu"]
    main(["build", out, *flags, "--allowed-file", strings])
    assert "3 strings" in capsys.readouterr().err
    sources = ["Das Haus war rot.", "Mein Bruder hat gestern angerufen."]
    plain, built = (
        Translator(**DEMO, allowed_file=file).translate(sources) for file in (strings, out)
    )
    assert [[(h.text, h.score) for h in each] for each in plain] == [
        [(h.text, h.score) for h in each] for each in built
    ]
    for wrong in ([out, *flags], [strings, *flags, "--allowed-file", strings]):
        with pytest.raises(UsageError):
            main(["build", *wrong])
    assert Path(strings).read_text().startswith("The house")
    done = generate(tiny, *EXT, "--allowed-file", out, check=False)
    assert done.returncode and "built for another target dictionary" in done.stderr
    content = Path(out).read_bytes()
    for damaged in (content[:-9], content[:-9] + b"?" + content[-8:], content[:40]):
        Path(out).write_bytes(damaged)
        with pytest.raises(UsageError, match="damaged: build it again"):
            Translator(**DEMO, allowed_file=out).translate(sources)


# ---- the compiled search


def test_the_compiled_search_reads_no_output_that_cannot_win_to_its_end(monkeypatch):
    """Its hypotheses are the loop's (test_compiled.py)."""
    words = "The house was red brother called around lake again . Yes no is a my your".split()
    chance = random.Random(2)
    strings = [" ".join(chance.choices(words, k=chance.randint(1, 7))) for _ in range(200)]
    rows = []
    for supports in (CompiledSearch.supports, lambda setup: False):
        monkeypatch.setattr(CompiledSearch, "supports", staticmethod(supports))
        made = Translator(**DEMO)
        made.translate(LINES[:7], allowed=[strings[i::3] for i in range(7)])
        rows.append(made.stats.as_dict()["decoder_rows"])
    assert rows[0] < 0.8 * rows[1]


# ---- a ranking of the whole set, by teacher forcing and plain comparison of tokens


CASES, BY_DEFAULT = 5_000, 30


@dataclass
class Case:
    """A random model, source and set of outputs, with phrases over the same words."""

    words: int
    outputs: list[tuple[int, ...]]
    constraints: SentenceConstraints
    seed: int
    min_len: int
    max_len: int

    @property
    def expected(self) -> list[tuple[int, ...]]:
        """The outputs that meet all."""
        return [
            each
            for each in self.outputs
            if all(met(each, self.constraints, ordered=False))
            and not any(occurrences(banned, each) for banned in self.constraints.banned)
            and each[: len(self.constraints.beginning)] == self.constraints.beginning
            and self.min_len <= len(each) <= self.max_len
        ]


def automaton(outputs: list[tuple[int, ...]], vocabulary: int) -> TokenAutomaton:
    flat = np.array([token for each in outputs for token in each])
    return minimal(flat, np.array(list(map(len, outputs))), vocabulary)


def drawn_case(seed: int) -> Case:
    chance = random.Random(seed)
    words = chance.randint(2, 8)  # a vocabulary of 6 to 12
    first, last = dictionary(words).nspecial, dictionary(words).nspecial + words - 1
    size = chance.choice([1, 2, 5, 20, 60, 60, 300] if seed % 10 == 0 else [1, 2, 5, 20, 40])
    outputs = list(
        {
            tuple(chance.randint(first, last) for _ in range(chance.randint(1, 6)))
            for _ in range(size)
        }
    )

    def phrases(most: int, long: int = 3) -> list[tuple[int, ...]]:
        found = []
        for _ in range(chance.randint(0, most)):
            of = chance.choice(outputs)
            start = chance.randrange(len(of))
            found.append(of[start : start + chance.randint(1, long)])
        return found

    required, banned, prefix = [], [], ()
    kind = seed % 4
    if kind in (1, 3):
        required = phrases(2)
    if kind in (2, 3):
        banned = [phrase for phrase in phrases(2) if phrase not in required]
    if kind == 3 or chance.random() < 0.2:
        of = chance.choice(outputs)
        prefix = of[: chance.randint(1, len(of))]
    constraints = SentenceConstraints(
        required_phrases(tuple((phrase,) for phrase in required), tuple(map(str, required))),
        banned={each: str(each) for each in banned},
        prefix=prefix_of(prefix),
        allowed=automaton(outputs, first + words),
    )
    min_len = chance.choice([1, 1, 1, 2, 3])
    return Case(words, outputs, constraints, seed, min_len, chance.choice([12, 12, 12, 4]))


def cumulated(model, sample: dict, outputs: list[tuple[int, ...]]) -> list[list[float]]:
    """The log-probability of each beginning of each output with EOS, by its length from 1."""
    eos, width = 2, max(map(len, outputs), default=0)
    rows = [[eos, *each, *[eos] * (width - len(each))] for each in outputs]
    found = []
    for each, values in zip(outputs, forced(model, sample, rows) if rows else [], strict=True):
        tokens = torch.tensor([*each, eos], device=DEVICE)
        found.append(values[: len(tokens)].gather(1, tokens[:, None]).cumsum(0)[:, 0].tolist())
    return found


def ranked(model, sample: dict, outputs: list[tuple[int, ...]]) -> list[tuple[float, tuple]]:
    """The outputs by the mean log-probability of their tokens and EOS, best first."""
    totals = cumulated(model, sample, outputs)
    means = [of[-1] / len(of) for of in totals]
    return sorted(zip(means, [(*each, 2) for each in outputs], strict=True), reverse=True)


def last_step(model, sample: dict, case: Case, n: int) -> int:
    """The step in which a search that ranks the whole set can prove its n best outputs: no prefix
    that goes on can beat them with the mean over its longest output."""
    outputs, most = replace(case, max_len=99).expected, case.max_len
    totals = cumulated(model, sample, outputs)
    for t in range(1, most + 1):
        done = sorted((of[-1] / len(of) for of in totals if len(of) <= t), reverse=True)
        reach = -float("inf")
        for each, of in zip(outputs, totals, strict=True):
            alike = [len(other) for other in outputs if other[:t] == each[:t]]
            if t <= len(each) and min(alike) <= most:
                reach = max(reach, of[t - 1] / (min(max(alike), most) + 1))
        if (done[n - 1] if len(done) >= n else -float("inf")) >= reach:
            return t
    return most + 1


def check(seed: int) -> None:
    case = drawn_case(seed)
    # in single precision the search is compiled
    dtype, tolerance = (torch.float32, 1e-5) if seed // 4 % 2 else (torch.float64, 1e-9)
    model = build("transformer", seed % 50, dtype, words=case.words)
    sample = batch([1 + seed % 5], seed, words=case.words)
    expected = ranked(model, sample, case.expected)
    k = len(case.outputs)
    proves = seed % 3 == 0  # --stop optimal
    n = 1 + seed % k if proves else k
    generation = {"beam": k, "nbest": n, "max_len_b": case.max_len, "min_len": case.min_len}

    def wide(settings, stock):
        return replace(search_spec(settings, stock), k=k, nbest=n)

    with patch.object(generator, "search_spec", wide):
        strategy = {"stop": "optimal"} if proves else {}
        ours = generators([model], strategy, words=case.words, **generation).ours
    given = {**sample, "requests": requests_of([case.constraints])}
    if not expected:
        with pytest.raises(UsageError) as refused:
            run(ours, given)
        assert "allowed output" in str(refused.value)
        return
    got = run(ours, given)[0][:n]
    assert [tuple(h["tokens"].tolist()) for h in got] == [tokens for _, tokens in expected[:n]]
    if proves:
        saved = case.max_len + 1 - last_step(model, sample, case, n)
        assert ours.stats.as_dict()["saved"]["steps"] == saved
    scores = [float(h["score"]) for h in got]
    assert scores == pytest.approx([score for score, _ in expected[:n]], abs=tolerance)


@pytest.mark.parametrize("part", range(10))
def test_a_beam_as_wide_as_the_set_ranks_the_whole_set(part):
    for number in part_of(CASES // 10, BY_DEFAULT // 10):
        check(part * (CASES // 10) + number)


@pytest.mark.skipif(library() is None, reason="there is no compiled library")
@pytest.mark.usefixtures("on_the_cpu")
def test_a_narrow_beam_has_no_row_that_cannot_end_in_time():
    """Compiled, it finds what the loop does, the length limit being that of some outputs."""
    for seed in part_of(1000, 60):
        case = drawn_case(seed)
        limit = min(map(len, case.outputs)) + seed % 2
        k = 1 + seed % 3
        generation = {"beam": k, "nbest": k, "max_len_b": limit, "sampling": seed % 5 == 0}
        model = build("transformer", seed % 50, torch.float32, words=case.words)
        ours = generators([model], words=case.words, **generation).ours
        constraints = replace(EMPTY, allowed=case.constraints.allowed)
        sample = batch([1 + seed % 5], seed, words=case.words)
        given = {**sample, "requests": requests_of([constraints])}
        assert both(ours, given, counted=())


def test_a_product_has_room_for_what_matters_of_a_large_vocabulary(monkeypatch):
    """Of 256,000 tokens 24 are in the 12 phrases; all others are of one kind."""
    phrases = [(2 * i, 2 * i + 1) for i in range(2, 14)]
    demands = Demands(required_phrases([[phrase] for phrase in phrases]))
    matcher = Matcher(demands, Compiler(), 256_000)
    tokens = np.arange(256_000)
    after = matcher.advance(np.zeros_like(tokens), tokens)
    assert set(np.flatnonzero(after != after[-1])) == {phrase[0] for phrase in phrases}
    assert len(matcher.example) < 30
    rows = [sum(random.sample(phrases, 12), ()) for _ in range(50)]
    found = product(automaton(rows, 256_000), demands, None, 256_000)
    assert found is not None and all(accepts(found, row) for row in rows)
    monkeypatch.setattr(allowed_product, "MOST", 10_000)
    with pytest.raises(SentenceError, match="take too much memory: require fewer phrases"):
        product(automaton(rows, 256_000), demands, None, 256_000)
