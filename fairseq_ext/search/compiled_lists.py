"""The shortlists of the compiled search: a list of words for each of its sentences."""

from __future__ import annotations

from collections.abc import Collection

import torch

from fairseq_ext.kernels.beam import CompiledBatch, CompiledSentence
from fairseq_ext.kernels.shortlist import WordLists
from fairseq_ext.kernels.transformer import CompiledRows
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.protocols import ListSoftmax, SearchSetup


class CompiledLists:
    """Sets the words that the sentences of a batch score, and the output layer of all of them."""

    def __init__(self, setup: SearchSetup):
        softmax = setup.strategies.softmax
        assert isinstance(softmax, ListSoftmax)
        self.softmax, self.decoder = softmax, setup.decoder
        self.clear()

    def clear(self) -> None:
        """Forget all sentences."""
        self.covered: set[int] = set()  # the sentences (their addresses) whose words are in `lists`
        self.lists: WordLists | None = None

    def update_(self, batch: CompiledBatch, running: Collection[CompiledSentence]) -> None:
        """Make an output layer of the running sentences' words, if there are new sentences, or
        half of those of the last layer have ended."""
        new = {sentence.address for sentence in running}
        if not new or (new <= self.covered and 2 * len(new) > len(self.covered)):
            return
        output = self.decoder.compiled_output
        assert output is not None
        self.covered = new
        self.lists = WordLists(output, [sentence.words for sentence in running])
        for sentence, columns in zip(running, self.lists.columns, strict=True):
            sentence.list_(sentence.words, columns)
        batch.set_output_(self.lists.output)

    def forget_(self, sentence: CompiledSentence) -> None:
        """Count the words that a sentence has scored. It ends, or another search takes it over."""
        steps = sentence.struct.length + 1
        self.softmax.count_lists(steps, steps * sentence.struct.listed)
        self.covered.discard(sentence.address)

    def steps_to_sample(self, most: int) -> tuple[int, bool]:
        """Return the number of steps before the next sample of recall, at most `most`, or 1 if the
        next step is one; and whether it is."""
        calls = self.softmax.calls_to_sample()
        return (1, True) if calls == 1 else (min(most, calls - 1), False)

    def sample(self, batch: CompiledBatch, rows: list[int], reader: CompiledRows) -> None:
        """Compare the lists with the full softmax for the last step's rows, of which the sentences
        had this many each."""
        C = max(sentence.words.numel() for sentence in batch.live)
        ids = torch.cat(
            [
                torch.cat([words, words[-1:].expand(C - words.numel())]).expand(n, -1)
                for words, n in zip((s.words for s in batch.live), rows, strict=True)
            ]
        )
        full = self.decoder.log_probs([reader.x[: len(ids)]], 1.0)
        self.softmax.sample_recall(full, LogProbs(torch.zeros(ids.shape), ids, full.size(1)))
