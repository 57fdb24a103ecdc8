"""Decoding dependency graphs of sentences as data, written as JSON (`--ddg-dir`).

viz/ddg.py draws them.

Shapes: L target positions, EOS included.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import replace
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.parallel.blocks import Iteration
from fairseq_ext.search.parallel.driver import ParallelSearch
from fairseq_ext.search.phrases.sentence import Dictionary
from fairseq_ext.search.pool import Pool

NEVER = -1


@dataclass
class Graph:
    """One sentence."""

    name: str
    source: list[str]
    tokens: list[str]  # with </s>
    method: str
    # first: position of the first cell; verified: positions final afterwards; cells: the token that
    # the iteration computed for each position, its probability, and whether it is the final one
    iterations: list[dict[str, Any]]
    solved: list[int]  # per position: the first iteration from which it stayed right
    waits_for: list[int]  # per position: the position that it depends on, NEVER for none
    source_text: str = ""  # plain text; joined from the tokens if it is not given
    text: str = ""

    def __post_init__(self) -> None:
        self.source_text = self.source_text or " ".join(self.source)
        self.text = self.text or " ".join(self.tokens[:-1])

    @staticmethod
    def build(
        name: str,
        source: Sequence[str],
        tokens: Sequence[str],
        method: str,
        calls: Sequence[Iteration],
        symbol: Callable[[int], str],
        text: Callable[[str], str] = str,
    ) -> Graph:
        """Build the graph of a sentence that was decoded in these calls.

        tokens: with </s>; symbol: returns the token of an id; text: returns the plain text of
        tokens, separated by spaces.
        """
        L = len(tokens)
        solved = np.full(L, NEVER)
        iterations = []
        for k, call in enumerate(calls):
            texts = [symbol(int(t)) for t in call.out[: L - call.length]]
            right = [text == tokens[call.length + j] for j, text in enumerate(texts)]
            cells = [
                {"token": t, "probability": round(float(np.exp(p)), 6), "right": r}
                for t, p, r in zip(texts, call.score, right, strict=False)
            ]
            iterations.append(
                {
                    "first": call.length,
                    "verified": min(L, call.length + call.verified),
                    "cells": cells,
                }
            )
            place = slice(call.length, call.length + len(cells))
            solved[place] = np.where(
                right, np.where(solved[place] == NEVER, k, solved[place]), NEVER
            )
        plain = (text(" ".join(source)), text(" ".join(tokens[:-1])))
        return Graph(
            name,
            list(source),
            list(tokens),
            method,
            iterations,
            solved.tolist(),
            waits(solved),
            *plain,
        )

    def save(self, path: Path) -> None:
        """Write the graph as JSON, in one step. Errors: OSError."""
        replace(path, [json.dumps(asdict(self), ensure_ascii=False, indent=1).encode(), b"\n"])

    @staticmethod
    def load(path: Path) -> Graph:
        """Read a graph that `save` has written. Raises UsageError for any other file."""
        try:
            graph = Graph(**json.loads(path.read_text(encoding="utf-8")))
            if graph.name != Path(graph.name).name:  # it names the files of the pictures
                raise ValueError(graph.name)
            return graph
        except OSError as error:
            raise UsageError(
                f"{path} cannot be read ({error.strerror}): name a file that --ddg-dir has written"
            ) from error
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(
                f"{path} is not a dependency graph: name a JSON file that --ddg-dir has written"
            ) from error


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Make the folder of graphs.

    Raises UsageError if it, or a file that is written inside the context, cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UsageError(
            f"the graphs cannot be written to {folder} ({error.strerror or error}): make "
            "room, or name another"
        ) from error


def waits(solved: np.ndarray) -> list[int]:
    """Return for each position (L,) the nearest one to its left that was solved one iteration
    earlier; NEVER if there is none."""
    out = []
    for i, k in enumerate(solved):
        earlier = (solved[:i] == k - 1).nonzero()[0] if k > 0 else []
        out.append(int(earlier[-1]) if len(earlier) else NEVER)
    return out


# ---- The writer of the graphs of all sentences that parallel decoding finishes (`--ddg-dir`)


class GraphWriter:
    """A driver that runs `driver` and writes graphs.

    text: returns the plain text of tokens, separated by spaces.
    """

    def __init__(
        self,
        driver: ParallelSearch,
        directory: str,
        method: str,
        source: Dictionary,
        target: Dictionary,
        text: Callable[[str], str],
    ):
        self.driver, self.directory, self.method = driver, Path(directory), method
        self.source, self.target, self.text = source, target, text
        self.written = 0  # graphs

    def __call__(self, pool: Pool, answer: Callable[[int, list[Hypothesis]], None]) -> None:
        calls: dict[int, list[Iteration]] = {}
        self.driver.trace = lambda call: calls.setdefault(call.sentence, []).append(call)

        def finished(sentence: int, found: list[Hypothesis]) -> None:
            for hypothesis in found:
                self.write(pool, sentence, hypothesis, calls.pop(sentence))
            answer(sentence, found)

        self.driver(pool, finished)

    def write(
        self, pool: Pool, sentence: int, hypothesis: Hypothesis, calls: list[Iteration]
    ) -> None:
        """Write one sentence's graph, NAME.json.

        Raises UsageError where the folder cannot be written.
        """
        symbols = self.source
        source = [
            symbols[t]
            for t in pool.net_input["src_tokens"][sentence].tolist()
            if t not in (symbols.pad(), symbols.eos())
        ]
        output = [self.target[t] for t in hypothesis.tokens.tolist()]
        number = int(pool.ids[sentence]) if pool.numbered else self.written
        graph = Graph.build(
            str(number), source, output, self.method, calls, self.target.__getitem__, self.text
        )
        with writing(self.directory):
            graph.save(self.directory / f"{graph.name}.json")
        self.written += 1
