"""`ParallelGenerator`: greedy decoding by blocks (--decoding) under the contract of generator.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from fairseq_ext.decoders.fairseq.uncached import UncachedDecoder
from fairseq_ext.errors import UsageError
from fairseq_ext.generator import BeamSearchGenerator
from fairseq_ext.parallel.block_reader import BlockReader
from fairseq_ext.registry import STRATEGIES, choice
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.pool import Pool


class ParallelGenerator(BeamSearchGenerator):
    """Greedy decoding by blocks (--decoding): the other driver, parallel/driver.py, under the same contract."""

    def __init__(self, models, tgt_dict, **rest):
        super().__init__(models, tgt_dict, **rest)
        if self.decoder.name == "fairseq":
            if choice(self.flags, "schedule") == "stream":
                raise UsageError(
                    f"--schedule stream with --decoding {self.flags.decoding} needs rows of different lengths in one call, which only the "
                    "transformer backend can read: leave one of the two out"
                )
            self.decoder = UncachedDecoder(list(self.model.models))
        build = STRATEGIES["decoding"][choice(self.flags, "decoding")].build
        self.graphs = 0  # dependency graphs written
        self.ddg_dir: str | None = self.flags.ddg_dir
        make, plugs = build(self.flags, self.context), self.plugs
        self.driver = make(BlockReader(self.decoder, plugs.softmax, self.rules), self.scoring, self.stats, plugs.schedule)

    def pool(self, sample, prefix_tokens: Tensor | None, bos_token: int | None) -> Pool:
        pool = super().pool(sample, prefix_tokens, bos_token)
        if "draft_lines" in sample:  # an interactive session
            pool.aux["draft_lines"] = sample["draft_lines"]
        return pool

    def decode(self, pool: Pool, answer: Callable[[int, list[Hypothesis]], None]) -> None:
        if any(c.any_of or c.avoid or c.prefix for c in pool.aux.pop("constraints", ())):
            raise UsageError("constraints need a beam of rows, and --decoding other than beam has one row: leave one of the two out")
        if not self.ddg_dir:
            self.driver(pool, answer)
            return
        calls: dict[int, list] = {}
        self.driver.trace = lambda call: calls.setdefault(call.sentence, []).append(call)

        def drawn(sentence: int, found: list[Hypothesis]) -> None:
            for hypothesis in found:
                self.write_graph(pool, sentence, hypothesis, calls.pop(sentence))
            answer(sentence, found)

        self.driver(pool, drawn)

    def write_graph(self, pool: Pool, sentence: int, hypothesis: Hypothesis, calls: list) -> None:
        """The sentence's decoding dependency graph, into --ddg-dir."""
        from fairseq_ext.viz.files import write  # needs matplotlib
        from fairseq_ext.viz.graph import Graph

        words, symbols = self.tgt_dict, self.task.source_dictionary
        source = [symbols[t] for t in pool.net_input["src_tokens"][sentence].tolist() if t not in (symbols.pad(), symbols.eos())]
        output = [words[t] for t in hypothesis.tokens.tolist()]
        number = int(pool.ids[sentence]) if self.numbered else self.graphs
        graph = Graph.build(str(number), source, output, str(self.flags.decoding), calls, words.__getitem__)
        write(graph, Path(self.ddg_dir or ""))
        self.graphs += 1
