"""Arguments of wrong types: one sentence each, whichever argument it is."""

import json
import random
import re
from dataclasses import fields
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.dataclass.configs import GenerationConfig
from sizes import part_of
from test_translator import SETTINGS

from fairseq_ext import Engine, Translator, UsageError
from fairseq_ext.plugin.flag_help import all_flags

LINES = ["de1 de2", "de3"]


@pytest.fixture(scope="module")
def given(tiny):
    """Arguments of a Translator that works."""
    return {"path": tiny / "model.pt", "data": tiny / "data", "beam": 2, **SETTINGS}


@pytest.fixture(scope="module")
def translator(given):
    return Translator(**given)


# arguments of calls that work, and the names of all that a call has
CALLS = {
    "translate": {"lines": LINES},
    "translate_iter": {"lines": LINES},
    "translate_text": {"text": LINES[0]},
    "score": {"sources": LINES, "targets": ["en1", "en2"]},
}
ARGUMENTS = {
    call: sorted(signature(getattr(Translator, call)).parameters.keys() - {"self", "progress"})
    for call in CALLS
}


def called(translator, call, wrong):
    """What a call returns with these arguments in the place of right ones."""
    found = getattr(translator, call)(**CALLS[call] | wrong)
    return list(found) if call == "translate_iter" else found


# calls, arguments and a part of what is said; next to those that JSON has no value for
SAID = list(map(json.loads, Path(__file__).with_name("translator_arguments.jsonl").open()))
SAID += [
    ("translate", {"lines": iter(LINES)}, "lines is a list_iterator, which can be read only"),
    ("translate", {"lines": b"de1"}, "lines is b'de1', and a list is needed"),
    ("translate", {"errors": np.array(["a"])}, "errors is array(['a'], dtype='<U1'): "),
    ("translate", {"nbest": 99 * ["x"]}, "...: give a whole number of hypotheses"),
    ("score", {"targets": ["en1", "en1 " * 60]}, "the target of line 2 has 61 tokens and the"),
]


@pytest.mark.parametrize(("call", "wrong", "said"), SAID)
def test_an_argument_of_a_wrong_type_is_named(translator, call, wrong, said):
    with pytest.raises(UsageError) as raised:
        called(translator, call, wrong)
    assert said in str(raised.value)


# no flag is of these types
WRONG = [object(), {}, {"a": 1}, {"a"}, b"x", bytearray(), len, int, [[1]], [None], [{}]]
WRONG += ["\0", "\ud800", ["a", object()], Path("a\0"), torch.tensor([1, 2]), range(2)]
# some flags are
ODD = [None, 5, -1, 2.5, True, [], "", "x", ["a"], float("nan"), "--cpu", 10**30]


def keywords():
    """Of `Translator`: its arguments, our flags, and those of fairseq's searches."""
    stock = {field.name for field in fields(GenerationConfig)} - {"_name"}
    return ["path", "data", "task", *all_flags(), *sorted(stock)]


@pytest.mark.parametrize("name", ["cpu_workers", "max_queue", "longest", "worker_timeout"])
def test_numbers_of_an_engine_are_checked_before_a_process_starts(given, name):
    wrong = [*WRONG, 0, -1, float("nan"), True, "5", np.int64(0)]
    for value in wrong if name == "worker_timeout" else [*wrong, 2.5, float("inf")]:
        with pytest.raises(UsageError, match=rf"^(--)?{name.replace('_', '.')}.* (is|must be) "):
            Engine(**{**given, name: value})


def test_no_keyword_takes_a_value_that_no_command_line_has(tiny, given):
    for make in (Translator, Engine):
        for name in keywords():
            for value in WRONG if name != "cpu_workers" else WRONG[:1]:
                with pytest.raises(UsageError) as raised:
                    make(**{**given, name: value})
                assert "\n" not in str(raised.value) and len(str(raised.value)) < 200
    for name in ("path", "data", "task"):
        for value in (None, 5, True, ["a"]):
            with pytest.raises(UsageError, match=f"^{name} is .*: give text or a path$"):
                Translator(**{**given, name: value})
    with pytest.raises(UsageError, match=r"^folder is 5: give text or a path$"):
        Translator.from_folder(5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^bpe is {}: give text or a path, a number, True or"):
        Translator.from_folder(tiny / "data", bpe={})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"bpe": "sentencepiece"}, "--sentencepiece-model is needed here and missing"),
        ({"sampling_topk": 5}, "--sampling-topk requires --sampling"),
        ({"sampling": True, "diverse_beam_groups": 2}, "leave all but one out"),
    ],
)
def test_what_fairseq_finds_wrong_in_flags_is_a_usage_error(given, flags, said):
    with pytest.raises(UsageError, match=said):
        Translator(**given, **flags)


def test_a_keyword_of_an_odd_value_gives_a_translator_or_one_sentence(given, monkeypatch, tmp_path):
    """Files that are not there are reported as fairseq reports them."""
    monkeypatch.chdir(tmp_path)  # for flags of files that are written
    # else statistics are written to the working folder of the end
    monkeypatch.setattr("fairseq_ext.plugin.run.at_process_end", lambda function: None)
    cases = [(name, value) for name in keywords() for value in ODD]
    for name, value in random.Random(59).sample(cases, len(part_of(len(cases), 30))):
        try:
            Translator(**{**given, name: value})
        except UsageError as error:
            assert "\n" not in str(error), (name, value)
        except OSError as error:
            assert re.search("not found|No such file|Is a directory", str(error)), (name, value)
        except Exception as error:
            raise AssertionError(f"{name}={value!r} raises {error!r}") from error


def values(chance, depth=2):
    """A value of some type, right or wrong, with a few inside of it."""
    plain = [None, 0, 1, -3, 2.5, float("nan"), True, "", "de1", "en3", "\ud800", b"de1"]
    plain += [object(), int, range(2), Ellipsis]
    if (kind := chance.randrange(8 if depth else 3)) < 3:
        return chance.choice(plain)
    inside = [values(chance, depth - 1) for _ in range(chance.randrange(4))]
    kinds = (tuple, iter, lambda each: dict(zip(map(str, range(9)), each, strict=False)), set, list)
    try:
        return kinds[kind - 3](inside)
    except TypeError:  # a set of what has no hash
        return {str(inside)}


def drawn_calls(count, seed=59):
    chance = random.Random(seed)
    for _ in range(count):
        call = chance.choice(list(CALLS))
        names = chance.sample(ARGUMENTS[call], chance.randint(1, 2))
        yield call, {name: values(chance) for name in names}


def test_arguments_of_any_type_give_a_result_or_one_sentence(translator):
    refused = 0
    for call, given in drawn_calls(len(part_of(20_000, 1_000))):
        try:
            called(translator, call, given)
        except UsageError as error:
            refused += 1
            assert "\n" not in str(error), given
        except Exception as error:
            raise AssertionError(f"{call}(**{given}) raises {error!r}") from error
    assert refused > 500
    assert translator.translate(["de1"])[0][0].text  # it is as before
