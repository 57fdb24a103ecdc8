"""A translation that an exception ends anywhere, as Ctrl-C does, leaves the Translator as it was:
the next one is right."""

import os
import random
import sys
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import Any

import pytest
from sizes import ALL, drawn
from test_translator import SETTINGS

from fairseq_ext import Translator

LINES = ["de1 de2 de3 de4", "de5", "de6 de7 de8"]
PHRASES = [["en3"], [], ["en4 en5", "en9"]]
CALLS = 400 if os.environ.get(ALL) else 15  # of about 1,000 that are broken off in each way
# where requests come and go: with --all each call there is broken off
ALWAYS = ("admit", "take", "cancel", "clear", "keep", "keep_", "start_", "places_", "step")
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "beam": ({}, {}),
    "stream": ({"schedule": "stream", "stream_width": 2}, {}),
    "sampling": ({"sampling": True, "nbest": 2}, {}),
    "phrases": ({}, {"constraints": PHRASES}),
    "another beam": ({}, {"beam": 2}),
    "jacobi": ({"beam": 1, "decoding": "jacobi"}, {}),
    "loop": ({"decoder_backend": "fairseq"}, {}),
}


class Calls:
    """Counts the calls of Python functions, and raises at one of them."""

    def __init__(self, at: int | None = None):
        self.request_of_sentence, self.names = at, list[str]()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        self.names.append(frame.f_code.co_name)
        if len(self.names) - 1 == self.request_of_sentence:
            raise KeyboardInterrupt

    def of(self, translate: Callable[[], object]) -> list[str]:
        """The names of the functions that are called."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            translate()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        return self.names


def found(translator: Translator, lines: list[str], arguments: dict[str, Any]) -> list:
    nbest = translator.translate(lines, **arguments)
    return [[(each.text, each.score) for each in some] for some in nbest]


def in_another_thread(function: Callable[[], list]) -> list:
    """What it returns there: the thread that was interrupted may have left a lock taken, which it
    can take again, and no other thread (raises Empty where it waits for ever)."""
    out: SimpleQueue = SimpleQueue()
    threading.Thread(target=lambda: out.put(function()), daemon=True).start()
    return out.get(timeout=60)


# in generators that no one waits for, Python ignores it
@drawn(3)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("lines", [LINES, LINES[:1]], ids=["many", "alone"])
@pytest.mark.parametrize("way", WAYS)
def test_the_translation_after_one_that_was_broken_off_is_right(tiny, way, lines):
    flags, arguments = WAYS[way]
    translator = Translator(
        str(tiny / "model.pt"), str(tiny / "data"), **{"beam": 4, **SETTINGS, **flags}
    )
    arguments = {
        name: value[: len(lines)] if name == "constraints" else value
        for name, value in arguments.items()
    }
    translate = partial(found, translator, lines, arguments)
    expected = translate()
    names = Calls().of(translate)
    always = [i for i, name in enumerate(names) if name in ALWAYS]
    draw = random.Random(way)
    many = len(always) if os.environ.get(ALL) else min(CALLS, len(always))
    at = {*draw.sample(always, many), *draw.sample(range(len(names)), min(CALLS, len(names)))}
    for i in sorted(at):
        Calls(i).of(translate)
        assert in_another_thread(translate) == expected, (i, names[i])
    assert translate() == expected
