"""Python versions of fairseq's three compiled modules, for translation, if fairseq was installed
without a compiler (`python -m fairseq_ext.doctor --install-fairseq`): batches by size, blocks of a
language model's text, and the n-gram counts of its BLEU.

patches.py loads this file by its path, while fairseq is being imported.
"""

import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType

import numpy as np


def batch_by_size_vec(indices, sizes, most_tokens: int, most_sentences: int, multiple: int) -> list:
    """Divide sentences `indices` (n,) with `sizes` (n,) tokens into batches.

    A batch has at most `most_tokens` tokens, padding included, and at most `most_sentences`
    sentences; if it could hold more sentences, their number is a multiple of `multiple` or less
    than it. A limit of 0 or less is none.

    Errors: AssertionError for a sentence longer than a batch.
    """
    assert most_tokens <= 0 or not len(sizes) or max(sizes) <= most_tokens, (
        f"Sentences lengths should not exceed max_tokens={most_tokens}"
    )
    ends: list[int] = []
    start = good = 0  # where the batch begins, and the last place where it may end
    longest = longest_of_tail = 0
    for i, size in enumerate(np.asarray(sizes).tolist()):
        longest_of_tail = max(longest_of_tail, size)
        count, most = i + 1 - start, max(longest, longest_of_tail)
        is_full = 0 < most_sentences < count or 0 < most_tokens < count * most
        if is_full:
            # so is the tail: it ends before this sentence
            if 0 < most_tokens < (i + 1 - good) * longest_of_tail:
                ends.append(good)
                good, longest_of_tail = i, size
            ends.append(good)
            start, most = good, longest_of_tail
        if is_full or count < multiple or count % multiple == 0:
            good, longest, longest_of_tail = i + 1, most, 0
    if good != len(indices):
        ends.append(good)
    return np.split(indices, ends) if len(indices) else []


def batch_by_size_fn(indices, size_of: Callable, *limits: int) -> list:
    """Do the same as `batch_by_size_vec`, with a function that returns a sentence's tokens."""
    return batch_by_size_vec(indices, [size_of(i) for i in indices], *limits)


def slices(sizes, break_mode: str, block_size: int, document_sep_len: int):
    """Return the start and the end of each block of a text, (blocks, 2): one sentence each (`eos`),
    or `block_size` tokens (`none`)."""
    ends = sizes.cumsum()
    if break_mode == "none":
        ends = np.minimum(np.arange(block_size, ends[-1] + block_size, block_size), ends[-1])
    elif break_mode != "eos":
        raise ValueError(
            f"--sample-break-mode {break_mode} needs fairseq's compiled parts: install fairseq "
            "where there is a C++ compiler"
        )
    return np.stack([np.concatenate([[0], ends[:-1]]), ends], 1)


def sentences_of(sizes, blocks):
    """Return the sentence in which each block begins, its offset in that sentence, and the sentence
    in which it ends: (blocks, 3)."""
    ends = sizes.cumsum()
    first, last = (
        np.searchsorted(ends, place, "right") for place in (blocks[:, 0], blocks[:, 1] - 1)
    )
    return np.stack([first, blocks[:, 0] - (ends - sizes)[first], last], 1)


def trimmed(tokens, pad: int, eos: int) -> list[int]:
    """Return tokens (L,) without padding on the left, and without padding and EOS on the right, at
    least one token."""
    found = tokens.tolist()
    while found and found[0] == pad:
        del found[0]
    while len(found) > 1 and found[-1] in (pad, eos):
        del found[-1]
    return found


def count_ngrams(bleu: ModuleType) -> None:
    """Let fairseq.scoring.bleu's Scorer count here."""

    def initialise(self, cfg) -> None:
        self.pad, self.eos, self.unk = cfg.pad, cfg.eos, cfg.unk
        self.reset()

    def reset(self, one_init: bool = False) -> None:
        self.stat = bleu.BleuStat()
        for n in (2, 3, 4) if one_init else ():
            setattr(self.stat, f"match{n}", 1)
            setattr(self.stat, f"count{n}", 1)

    def add(self, ref, pred) -> None:
        rref = ref.clone()
        rref[rref.eq(self.unk)] = -999  # unknown words match nothing
        texts = [trimmed(text, self.pad, self.eos) for text in (rref, pred)]
        self.stat.reflen += len(texts[0])
        self.stat.predlen += len(texts[1])
        for n in (1, 2, 3, 4):
            expected, got = (
                Counter(zip(*(text[i:] for i in range(n)), strict=False)) for text in texts
            )
            for name, more in ((f"count{n}", got), (f"match{n}", expected & got)):
                setattr(self.stat, name, getattr(self.stat, name) + more.total())

    bleu.Scorer.__init__ = initialise  # type: ignore[attr-defined]
    bleu.Scorer.reset = reset  # type: ignore[attr-defined]
    bleu.Scorer.add = add  # type: ignore[attr-defined]


TWINS: dict[str, dict[str, Callable | None]] = {
    "fairseq.data.data_utils_fast": {
        "batch_by_size_vec": batch_by_size_vec,
        "batch_by_size_fn": batch_by_size_fn,
        "batch_fixed_shapes_fast": None,
    },
    "fairseq.data.token_block_utils_fast": {
        "_get_slice_indices_fast": slices,
        "_get_block_to_dataset_index_fast": sentences_of,
    },
}


def replace_compiled(module: ModuleType) -> None:
    """Replace fairseq's compiled modules, for one of its modules that imports them."""
    if module.__name__ == "fairseq.scoring.bleu":
        count_ngrams(module)
        return
    for name, functions in TWINS.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(functions)
