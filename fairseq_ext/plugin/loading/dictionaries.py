"""Warnings of a dictionary that has the right size and other words, with which a model gives nonsense and no error.

fairseq's checkpoints do not hold their dictionaries. What shows them: the checkpoint's folder and the data folder that it was trained on,
where they hold dict.LANGUAGE.txt, and a state of its task, where that holds a dictionary.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairseq.data import Dictionary

from fairseq_ext.core.errors import cut
from fairseq_ext.plugin.loading.settings import checkpoint_of

logger = logging.getLogger("fairseq_ext")


def warn_of_other_words(task: Any, flags: Any) -> None:
    """Log a warning for each dictionary of a task that differs from one that its checkpoint was trained with.

    task: one of ours, which knows what the checkpoint says of itself; flags: its settings.
    """
    data = str(flags.data).split(os.pathsep)[0]
    for side in ("source", "target"):
        dictionary, language = getattr(task, f"{side}_dictionary"), getattr(flags, f"{side}_lang", None)
        if not isinstance(dictionary, Dictionary):
            continue
        for place, words in known_dictionaries(side, language, data, checkpoint_of(flags), task.trained_on, task.task_state or {}):
            if said := difference(dictionary.symbols, words):
                logger.warning(
                    "the %s dictionary in %s is not %s, with which the checkpoint seems to be trained: %s. "
                    "With another dictionary translations are nonsense: use that of the training",
                    side, data, place, said,
                )  # fmt: skip
                break


def known_dictionaries(
    side: str, language: str | None, data: str, checkpoint: str | None, trained_on: str | None, state: Mapping[str, Any]
) -> Iterator[tuple[str, Sequence[str]]]:
    """(where it is, its words by id) of each dictionary of this side that the checkpoint shows and that is not the file in use."""
    kept = state.get(f"{side}_dictionary", state.get("dictionary"))
    words = getattr(kept, "symbols", kept)
    if isinstance(words, (list, tuple)) and all(isinstance(word, str) for word in words):
        yield "that in the state of its task", words
    in_use = os.path.join(data, f"dict.{language}.txt")
    for folder in (os.path.dirname(os.path.abspath(checkpoint)) if checkpoint else None, trained_on):
        path = os.path.join(folder, f"dict.{language}.txt") if folder else ""
        if language and os.path.isfile(path) and not (os.path.exists(in_use) and os.path.samefile(path, in_use)):
            try:
                yield path, Dictionary.load(path).symbols
            except (OSError, ValueError, RuntimeError):  # not one that fairseq could have used
                continue


def difference(ours: Sequence[str], theirs: Sequence[str]) -> str | None:
    """How many of the ids that both have stand for other words; None where all are the same."""
    both = min(len(ours), len(theirs))
    other = [i for i in range(both) if ours[i] != theirs[i]]
    if not other:
        return None
    first = other[0]
    return f"{len(other)} of {both} ids have other words, the first {first}, '{cut(theirs[first])}' there and '{cut(ours[first])}' here"
