"""Arguments of wrong types: one sentence each, whichever argument it is."""

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from sizes import part_of
from test_translator import SETTINGS

from fairseq_ext import Engine, Translator, UsageError
from fairseq_ext.plugin.typed_flags import Flags

LINES = ["de1 de2", "de3"]


@pytest.fixture(scope="module")
def translator(tiny) -> Translator:
    return Translator(str(tiny / "model.pt"), str(tiny / "data"), beam=2, **SETTINGS)


CALLS: dict[str, Callable[[Translator, dict[str, Any]], Any]] = {
    "translate": lambda t, given: t.translate(**{"lines": LINES, **given}),
    "translate_iter": lambda t, given: list(t.translate_iter(**{"lines": LINES, **given})),
    "translate_text": lambda t, given: t.translate_text(**{"text": LINES[0], **given}),
    "score": lambda t, given: t.score(**{"sources": LINES, "targets": ["en1", "en2"], **given}),
}
ARGUMENTS = {
    "translate": "lines nbest constraints avoid prefixes allowed errors beam seed",
    "translate_iter": "lines nbest constraints avoid prefixes allowed errors beam buffer seed",
    "translate_text": "text format protect",
    "score": "sources targets",
}


@pytest.mark.parametrize(
    ("call", "given", "said"),
    [
        *(
            (call, {name: value}, f"{name} is {said}, and a list is needed")
            for call in ("translate", "translate_iter")
            for name in ("lines", "constraints", "avoid", "allowed", "prefixes")
            for value, said in ((5, "5"), ("en3", "one string"))
        ),
        # its characters would be translated one by one
        ("translate", {"lines": "de1"}, "lines is one string, and a list is needed: put it into a"),
        ("translate", {"lines": iter(LINES)}, "lines is a list_iterator, which can be read only"),
        ("translate", {"lines": b"de1"}, "lines is b'de1', and a list is needed"),
        ("translate", {"lines": ["de1", 5]}, "line 2 is 5: give text"),
        ("translate", {"constraints": ["en3", "en4"]}, "constraints of line 1 is 'en3': give"),
        ("translate", {"constraints": [[None], []]}, "a constraint of line 1 is None: give"),
        ("translate", {"avoid": [None]}, "avoid has None: give text"),
        ("translate", {"avoid": [["en3"], "en4"]}, "avoid of line 2 is 'en4': give a list"),
        ("translate", {"allowed": ["en3", None]}, "allowed of line 1 is 'en3': give a list"),
        ("translate", {"allowed": [["en3"], [5]]}, "allowed of line 2 has 5 for a phrase: give"),
        ("translate", {"allowed": [["en3"], []]}, "allowed of line 2 is empty, so no output"),
        ("translate", {"prefixes": [0, None]}, "prefixes of line 1 has 0 for a phrase: give text"),
        (
            "translate",
            {"errors": np.array(["a", "b"])},
            "errors is array(['a', 'b'], dtype='<U1'): ",
        ),
        ("translate", {"nbest": 99 * ["x"]}, "...: give a whole number of hypotheses"),
        ("translate_iter", {"avoid": [["en3"], ["en4"]]}, "avoid has ['en3']: give text"),
        ("translate_iter", {"buffer": "9"}, "buffer is '9': give the number"),
        ("translate_text", {"text": None}, "the text is None: give a str"),
        ("translate_text", {"format": "htlm"}, "format must be one of text, html, xml, markdown"),
        ("translate_text", {"protect": "de1"}, "protect is one string, and a list is needed"),
        ("translate", {"nbest": 3, "beam": 2}, "nbest=3 is more than beam=2 keeps"),
        ("translate", {"beam": "5"}, "beam is '5': give a whole number"),
        ("translate", {"constraints": [["en1"]]}, "constraints has 1 entry for 2 lines"),
        (
            "translate",
            {"constraints": [[], ["no-such-word"]]},
            "in line 2, the phrase 'no-such-word' contains",
        ),
        ("translate", {"constraints": [[], [" "]]}, "line 2 has an empty phrase"),
        ("translate", {"avoid": ["</s>"]}, "in line 1, the phrase '</s>'"),
        ("translate", {"constraints": [["en1", ["en2", 3]], []]}, "of line 1 has 3 for a phrase"),
        ("translate", {"constraints": [[], [[]]]}, "a constraint of line 2 is an empty list"),
        ("score", {"sources": ["de1"], "targets": []}, "there are 1 sources and 0 targets"),
        (
            "score",
            {"targets": ["en1", "en1 " * 60]},
            "the target of line 2 has 61 tokens and the model takes 40",
        ),
        ("score", {"sources": None}, "sources is None, and a list is needed"),
        ("score", {"sources": ["de1", 5]}, "the source of line 2 is 5: give text"),
        ("score", {"targets": ["en1", "\ud800"]}, "the target of line 2 is not valid Unicode"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(translator, call, given, said):
    with pytest.raises(UsageError) as raised:
        CALLS[call](translator, given)
    assert str(raised.value).startswith(said) or said in str(raised.value)


# no flag is of these types
WRONG: list[Any] = [object(), {}, {"a": 1}, {"a"}, b"x", bytearray(), len, int, [[1]], [None], [{}]]
WRONG += ["\0", "\ud800", ["a", object()], Path("a\0"), torch.tensor([1, 2]), range(2)]
# some flags are
ODD: list[Any] = [None, 5, -1, 2.5, True, [], "", "x", ["a"], float("nan"), "--cpu", 10**30]


def keywords() -> list[str]:
    """Of `Translator`: its arguments, and every flag."""
    return ["path", "data", "task", *get_type_hints(Flags)]


@pytest.mark.parametrize("name", ["cpu_workers", "max_queue", "longest", "worker_timeout"])
def test_numbers_of_an_engine_are_checked_before_a_process_starts(tiny, name):
    given = {"path": tiny / "model.pt", "data": tiny / "data", **SETTINGS}
    wrong = [*WRONG, 0, -1, float("nan"), True, "5", np.int64(0)]
    for value in wrong if name == "worker_timeout" else [*wrong, 2.5, float("inf")]:
        with pytest.raises(UsageError, match=rf"^(--)?{name.replace('_', '.')}.* (is|must be) "):
            Engine(**{**given, name: value})


def test_no_keyword_takes_a_value_that_no_command_line_has(tiny):
    given = {"path": tiny / "model.pt", "data": tiny / "data", **SETTINGS}
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
def test_what_fairseq_finds_wrong_in_flags_is_a_usage_error(tiny, flags, said):
    given = {"path": tiny / "model.pt", "data": tiny / "data", "beam": 2, **SETTINGS}
    with pytest.raises(UsageError, match=said):
        Translator(**given, **flags)


def test_a_keyword_of_an_odd_value_gives_a_translator_or_one_sentence(tiny, monkeypatch, tmp_path):
    """Files that are not there are reported as fairseq reports them."""
    monkeypatch.chdir(tmp_path)  # for flags of files that are written
    # else statistics are written to the working folder of the end
    monkeypatch.setattr("fairseq_ext.plugin.run.at_process_end", lambda function: None)
    given = {"path": tiny / "model.pt", "data": tiny / "data", **SETTINGS}
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


def values(chance: random.Random, depth: int = 2) -> Any:
    """A value of some type, right or wrong, with a few inside of it."""
    plain: list[Any] = [None, 0, 1, -3, 2.5, float("nan"), True, "", "de1", "en3", "\ud800", b"de1"]
    plain += [object(), int, range(2), Ellipsis]
    kind = chance.randrange(8 if depth else 3)
    inside = [values(chance, depth - 1) for _ in range(chance.randrange(4))] if kind > 2 else []
    if kind == 3:
        return tuple(inside)
    if kind == 4:
        return iter(inside)
    if kind == 5:
        return {str(i): each for i, each in enumerate(inside)}
    if kind == 6:
        return {
            each for each in inside if each.__hash__ is not None and not isinstance(each, tuple)
        }
    return inside if kind == 7 else chance.choice(plain)


def drawn_calls(count: int, seed: int = 59) -> Iterator[tuple[str, dict[str, Any]]]:
    chance = random.Random(seed)
    for _ in range(count):
        call = chance.choice(list(CALLS))
        names = chance.sample(ARGUMENTS[call].split(), chance.randint(1, 2))
        yield call, {name: values(chance) for name in names}


def test_arguments_of_any_type_give_a_result_or_one_sentence(translator):
    refused = 0
    for call, given in drawn_calls(len(part_of(20_000, 1_000))):
        try:
            CALLS[call](translator, given)
        except UsageError as error:
            refused += 1
            assert "\n" not in str(error), given
        except Exception as error:
            raise AssertionError(f"{call}(**{given}) raises {error!r}") from error
    assert refused > 500
    assert translator.translate(["de1"])[0][0].text  # it is as before
