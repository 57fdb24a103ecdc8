"""`--ddg-dir`: writes the decoding dependency graph of every sentence that parallel decoding finishes, as JSON (ddg.py draws it)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.parallel.driver import ParallelSearch
from fairseq_ext.search.parallel.graph import Graph, writing
from fairseq_ext.search.parallel.rows import Iteration
from fairseq_ext.search.phrases.dictionary import Dictionary
from fairseq_ext.search.pool import Pool


class GraphWriter:
    """A driver that writes graphs beside what `driver` does. text: tokens, parted by spaces, to plain text."""

    def __init__(
        self, driver: ParallelSearch, directory: str, method: str, source: Dictionary, target: Dictionary, text: Callable[[str], str]
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

    def write(self, pool: Pool, sentence: int, hypothesis: Hypothesis, calls: list[Iteration]) -> None:
        """Write one sentence's graph, NAME.json. Raises UsageError where the folder cannot be written."""
        symbols = self.source
        source = [symbols[t] for t in pool.net_input["src_tokens"][sentence].tolist() if t not in (symbols.pad(), symbols.eos())]
        output = [self.target[t] for t in hypothesis.tokens.tolist()]
        number = int(pool.ids[sentence]) if pool.numbered else self.written
        graph = Graph.build(str(number), source, output, self.method, calls, self.target.__getitem__, self.text)
        with writing(self.directory):
            graph.save(self.directory / f"{graph.name}.json")
        self.written += 1
