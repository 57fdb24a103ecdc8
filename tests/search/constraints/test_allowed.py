"""Allowed outputs through the commands and from Python: with other constraints, by patterns, built
before, and compiled; and against teacher forcing. With a beam as wide as the set, the n-best list
is the ranking of the whole set by the model. fairseq makes no beam wider than the vocabulary, which
has 6 to 12 tokens here; this limit is lifted. test_random_flags.py has them with every strategy."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import demo_model
import numpy as np
import pytest
import torch
from demo_model import ROOT
from models import DEVICE, batch, build, dictionary, forced, generators, requests_of, run
from required_phrases import accepts, prefix_of, required_phrases
from search.constraints.test_constraints_cli import (
    generate,
    hypotheses,
    interactive,
    write,
)
from sizes import drawn, part_of
from test_cli import EXT

from fairseq_ext import Translator, UsageError
from fairseq_ext.allowed import main
from fairseq_ext.core.errors import SentenceError
from fairseq_ext.plugin import generator
from fairseq_ext.plugin.loading.settings import as_arguments
from fairseq_ext.plugin.options import search_spec
from fairseq_ext.search.compiled import CompiledSearch
from fairseq_ext.search.constraints import allowed_product
from fairseq_ext.search.constraints.allowed_product import Demands, Matcher, product
from fairseq_ext.search.phrases.phrase_table import Compiler
from fairseq_ext.search.phrases.sentence import SentenceConstraints, met, occurrences
from fairseq_ext.search.phrases.token_automaton import TokenAutomaton, minimal

DEMO = demo_model.FLAGS | dict(beam=4, nbest=2)
SET = [
    *("en1", "en1 en2 en3", "en1 en2 en4 en4", "en5 en6", "en9 en8 en7 en6 en5", "en5 en6 en20"),
    *("en12 en1 en2", "en3 en3 en3"),
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
    assert {*every(done)} <= {"en1", "en2"}
    said = [line for line in done.stderr.splitlines() if "left out" in line]
    assert len(said) == 1 and "2 strings of 4" in said[0] and "'ship en2'" in said[0]
    path = write(tmp_path / "none.txt", ["ship", ""])
    done = interactive(tiny, *EXT, "--allowed-file", path, stdin="de1\n", check=False)
    assert "1 string of 1 cannot be written" in done.stderr and "Traceback" not in done.stderr


def every(done) -> list[str]:
    """All hypotheses."""
    return sum(hypotheses(done).values(), [])


@drawn(1)
@pytest.mark.parametrize("kind", ["tabs", "json"])
def test_a_set_of_each_line(tiny, file, tmp_path, kind):
    sets = [[SET[i % len(SET)], SET[(i + 3) % len(SET)]] for i in range(SENTENCES)]
    rows = ["\t".join(each) if kind == "tabs" else json.dumps(each) for each in sets]
    sets[4], rows[4] = SET, ""
    path = write(tmp_path / "sets", rows)
    done = generate(tiny, *EXT, "--allowed-file-per-line", path, "--allowed-file", file)
    assert all({*texts} <= {*sets[number]} for number, texts in hypotheses(done).items())
    path = write(tmp_path / "short", rows[:-1])
    done = generate(tiny, *EXT, "--allowed-file-per-line", path, check=False)
    assert f"has {SENTENCES - 1} lines and the input has {SENTENCES} sentences" in done.stderr


def test_a_prefix_of_the_data_set_counts_as_a_part_of_the_output(tiny, tmp_path):
    references = [line.split() for line in (tiny / "test.en").read_text().splitlines()]
    strings = [" ".join(each) for of in references for each in (of, [of[0], "en1", "en2"])]
    path = write(tmp_path / "set.txt", strings)
    done = generate(tiny, *EXT, "--allowed-file", path, "--prefix-size", 1)
    for number, texts in hypotheses(done).items():
        assert {*texts} <= {*strings}
        assert all(text.split()[0] == references[number][0] for text in texts)


# ---- patterns


def wrong(tiny, *flags) -> str:
    """What a command says that fails."""
    log = generate(tiny, *EXT, *flags, check=False).stderr
    assert "Traceback" not in log
    return log


def test_a_regular_expression(tiny):
    pattern = r"(en[1-3] ){2,3}en(7|8)+"
    found = every(generate(tiny, *EXT, "--allowed-regex", pattern))
    assert found and all(re.fullmatch(pattern, text) for text in found)
    for each in ("(en1", r"(en1)\1", "xx"):
        assert "--allowed-regex" in wrong(tiny, "--allowed-regex", each)


def test_an_automaton_of_words(tiny, tmp_path):
    arcs = [["a", "en1 en2", "b"], ["a", "en1", "b"], ["b", "en3", "b"], ["b", "en4", "c"]]
    given = {"start": "a", "final": ["c"], "arcs": arcs}
    path = write(tmp_path / "a.json", [json.dumps(given)])
    found = every(generate(tiny, *EXT, "--allowed-automaton", path))
    assert found and all(re.fullmatch(r"en1( en2)?( en3)* en4", text) for text in found)
    empty = '{"start": 0, "final": [0], "arcs": []}'
    for each in ("[]", "{", empty, json.dumps(given | {"x": 1})):
        path = write(tmp_path / "wrong.json", [each])
        assert "wrong.json" in wrong(tiny, "--allowed-automaton", path)


# ---- from Python

SOURCES = ["Das Haus war rot.", "Mein Bruder hat gestern angerufen."]
STRINGS = ["The house was red.", "My brother called.", "Yes."]


def test_any_segmentation_allows_the_same_texts_and_scores_no_less():
    canonical, free = (
        Translator(**(DEMO | {"beam": 40}), allowed_segmentation=kind).translate(
            SOURCES, allowed=STRINGS
        )
        for kind in ("canonical", "any")
    )
    for one, other in zip(canonical, free, strict=True):
        assert {h.text for h in [*one, *other]} <= {*STRINGS}
        assert other[0].score >= one[0].score - 1e-4


def test_calls_of_a_translator():
    """A call's set is gone behind it; a line without an output is an error of its own."""
    translator, source = Translator(**DEMO), SOURCES[:1]
    plain = translator.translate(source)[0][0].text
    assert translator.translate(source, allowed=STRINGS)[0][0].text == STRINGS[0]
    assert translator.translate(source)[0][0].text == plain
    with pytest.raises(UsageError, match="empty"):
        translator.translate(source, allowed=[[]])
    (failed, good) = translator.translate(
        source * 2, allowed=STRINGS, constraints=[["port"], ["brother"]], errors="return"
    )
    assert "no allowed output has the required phrase 'port'" in str(failed)
    assert good[0].text == STRINGS[1]


# ---- the command


def test_a_built_set_is_the_same_set(tiny, tmp_path, capsys):
    strings, out = write(tmp_path / "set.txt", [*STRINGS, "Yes."]), str(tmp_path / "set.allowed")
    flags = as_arguments(demo_model.FLAGS)
    main(["build", out, *flags, "--allowed-file", strings])
    assert "3 strings" in capsys.readouterr().err

    def found(file: str) -> list:
        nbests = Translator(**DEMO, allowed_file=file).translate(SOURCES)
        return [[(h.text, h.score) for h in each] for each in nbests]

    assert found(strings) == found(out)
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
            found(out)


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


Output = tuple[int, ...]


def automaton(outputs: list[Output], vocabulary: int) -> TokenAutomaton:
    flat = np.array([token for each in outputs for token in each])
    return minimal(flat, np.array(list(map(len, outputs))), vocabulary)


def drawn_case(seed: int, chance: random.Random) -> tuple[int, list[Output], SentenceConstraints]:
    """The words of a random model, outputs of them, and phrases over the same words."""
    words = chance.randint(2, 8)  # a vocabulary of 6 to 12
    first, last = dictionary(words).nspecial, dictionary(words).nspecial + words - 1
    size = chance.choice([1, 2, 5, 20, 60, 60, 300] if seed % 10 == 0 else [1, 2, 5, 20, 40])
    lengths = (chance.randint(1, 6) for _ in range(size))
    outputs = [*{tuple(chance.randint(first, last) for _ in range(n)) for n in lengths}]

    def phrases(most: int) -> list[Output]:
        found = []
        for of in (chance.choice(outputs) for _ in range(most)):
            start = chance.randrange(len(of))
            found.append(of[start : start + chance.randint(1, 3)])
        return found

    required = phrases(chance.randint(0, 2) * (seed % 2))
    banned = phrases(chance.randint(0, 2) * (seed % 4 > 1))
    of, prefix = chance.choice(outputs), ()
    if seed % 4 == 3 or chance.random() < 0.2:
        prefix = of[: chance.randint(1, len(of))]
    constraints = SentenceConstraints(
        required_phrases([(phrase,) for phrase in required], map(str, required)),
        banned={each: str(each) for each in banned if each not in required},
        prefix=prefix_of(prefix),
        allowed=automaton(outputs, first + words),
    )
    return words, outputs, constraints


def meeting(
    outputs: list[Output], constraints: SentenceConstraints, shortest: int, longest: int
) -> list[Output]:
    """The outputs that meet all."""
    return [
        each
        for each in outputs
        if all(met(each, constraints, ordered=False))
        and not any(occurrences(banned, each) for banned in constraints.banned)
        and each[: len(constraints.beginning)] == constraints.beginning
        and shortest <= len(each) <= longest
    ]


def cumulated(model, sample: dict, outputs: list[Output]) -> list[list[float]]:
    """The log-probability of each beginning of each output with EOS, by its length from 1."""
    eos, width = 2, max(map(len, outputs), default=0)
    rows = [[eos, *each, *[eos] * (width - len(each))] for each in outputs]
    found = []
    for each, values in zip(outputs, forced(model, sample, rows) if rows else [], strict=True):
        tokens = torch.tensor([*each, eos], device=DEVICE)
        found.append(values[: len(tokens)].gather(1, tokens[:, None]).cumsum(0)[:, 0].tolist())
    return found


def ranked(model, sample: dict, outputs: list[Output]) -> list[tuple[float, tuple]]:
    """The outputs by the mean log-probability of their tokens and EOS, best first."""
    totals = cumulated(model, sample, outputs)
    means = [of[-1] / len(of) for of in totals]
    return sorted(zip(means, [(*each, 2) for each in outputs], strict=True), reverse=True)


def last_step(model, sample: dict, outputs: list[Output], most: int, n: int) -> int:
    """The step in which a search that ranks the whole set can prove its n best outputs: no prefix
    that goes on can beat them with the mean over its longest output. outputs: of any length; most:
    tokens."""
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
    chance = random.Random(seed)
    words, outputs, constraints = drawn_case(seed, chance)
    shortest, longest = chance.choice([1, 1, 1, 2, 3]), chance.choice([12, 12, 12, 4])
    # in single precision the search is compiled
    dtype, tolerance = (torch.float32, 1e-5) if seed // 4 % 2 else (torch.float64, 1e-9)
    model = build("transformer", seed % 50, dtype, words=words)
    sample = batch([1 + seed % 5], seed, words=words)
    expected = ranked(model, sample, meeting(outputs, constraints, shortest, longest))
    k, proves = len(outputs), seed % 3 == 0  # --stop optimal
    n = 1 + seed % k if proves else k
    generation = {"beam": k, "nbest": n, "max_len_b": longest, "min_len": shortest}

    def wide(settings, stock):
        return replace(search_spec(settings, stock), k=k, nbest=n)

    with patch.object(generator, "search_spec", wide):
        strategy = {"stop": "optimal"} if proves else {}
        ours = generators([model], strategy, words=words, **generation).ours
    given = {**sample, "requests": requests_of([constraints])}
    if not expected:
        with pytest.raises(UsageError, match="allowed output"):
            run(ours, given)
        return
    got = run(ours, given)[0][:n]
    assert [tuple(h["tokens"].tolist()) for h in got] == [tokens for _, tokens in expected[:n]]
    if proves:
        step = last_step(model, sample, meeting(outputs, constraints, shortest, 99), longest, n)
        assert ours.stats.as_dict()["saved"]["steps"] == longest + 1 - step
    scores = [float(h["score"]) for h in got]
    assert scores == pytest.approx([score for score, _ in expected[:n]], abs=tolerance)


@pytest.mark.parametrize("part", range(10))
def test_a_beam_as_wide_as_the_set_ranks_the_whole_set(part):
    for number in part_of(CASES // 10, BY_DEFAULT // 10):
        check(part * (CASES // 10) + number)


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
