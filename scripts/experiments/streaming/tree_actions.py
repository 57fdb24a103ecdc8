"""Trees to the actions of Cross and Huang's structure-label system and back: a tree over n
words is 4n - 2 actions.

A tree is a line of brackets, `(S (NP (PRP it)) (VP ...))`.
Structural and label actions take turns (https://aclanthology.org/D16-1001):

    sh          the next word becomes the topmost span
    comb        the two topmost spans become one
    label:X+Y   the topmost span is an X over one Y
    nolabel     the topmost span is no constituent, or not all of one

A constituent of more than two children is combined from the left, as soon as two spans are its own.
n shifts and n - 1 combinations, each with a label action, make 4n - 2, so all action sequences of
a sentence are equally long.

The legal next actions keep a search, fairseq's or ours, to sequences that are a tree:
A search over m rows whose sentences have w words: after an even number of actions the next one is
structural, `sh` while words are left, `comb` while two spans are there; after an odd number it is a
label action, and the last one cannot be `nolabel`. After 4w - 2 actions only EOS is left. Every row
has a legal next action at every step, so all hypotheses of a sentence have the same length.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.search import BeamSearch
from torch import Tensor

from fairseq_ext.search.beam import Beam
from fairseq_ext.search.interpreted import LoopSearch
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.processors import LogitsProcessors
from fairseq_ext.search.scheduler import BeamSearch as OurBeamSearch

SHIFT, COMBINE, NO_LABEL, LABEL, CHAIN = "sh", "comb", "nolabel", "label:", "+"
TOKEN = re.compile(r"[()]|[^\s()]+")


class TreeError(ValueError):
    """A tree or a sequence of actions that is none, in a sentence."""


@dataclass(frozen=True)
class Tree:
    """A constituent with children, or a tag with a word."""

    label: str
    children: tuple[Tree, ...] = ()
    word: str = ""

    def __str__(self) -> str:
        return f"({self.label} {self.word or ' '.join(map(str, self.children))})"

    def leaves(self) -> Iterator[Tree]:
        """The tags with their words, from left to right."""
        if self.word:
            yield self
        for child in self.children:
            yield from child.leaves()


@dataclass
class Open:
    """A bracket that is not closed yet."""

    label: str = ""
    word: str = ""
    children: list[Tree] = field(default_factory=list)

    def close(self) -> Tree:
        if not self.label or bool(self.word) == bool(self.children):
            raise TreeError("a bracket needs a label, and either a word or brackets in it")
        return Tree(self.label, tuple(self.children), self.word)


def read_tree(line: str) -> Tree:
    """The tree of a line. Errors: TreeError."""
    outside = Open("outside")
    opened = [outside]
    for token in TOKEN.findall(line):
        if token == "(":
            opened.append(Open())
        elif token == ")":
            if len(opened) == 1:
                raise TreeError(f"a bracket is closed that was not opened: {line}")
            tree = opened.pop().close()
            opened[-1].children.append(tree)
        elif not opened[-1].label:
            opened[-1].label = token
        elif opened[-1].word or opened[-1] is outside:
            raise TreeError(f"{token} stands where no word can stand: {line}")
        else:
            opened[-1].word = token
    if len(opened) > 1 or len(outside.children) != 1:
        raise TreeError(f"a line must be one tree: {line}")
    return outside.children[0]


def to_actions(tree: Tree) -> list[str]:
    """The 4n - 2 actions of a tree over n words.

    Errors: TreeError for a label with the sign of chains in it.
    """
    chain = []
    while len(tree.children) == 1:
        chain.append(tree.label)
        tree = tree.children[0]
    if tree.children:
        chain.append(tree.label)
    if any(CHAIN in label for label in chain):
        raise TreeError(
            f"a label with {CHAIN} cannot be told from a chain of labels: {' '.join(chain)}"
        )
    label = LABEL + CHAIN.join(chain) if chain else NO_LABEL
    if tree.word:
        return [SHIFT, label]
    actions = to_actions(tree.children[0])
    for child in tree.children[1:]:
        actions += [*to_actions(child), COMBINE, NO_LABEL]
    return [*actions[:-1], label]


def to_tree(words: list[tuple[str, str]], actions: list[str]) -> Tree:
    """The tree of actions over (word, tag) pairs.

    Errors: TreeError for actions that are no tree of these words.
    """
    if len(actions) != 4 * len(words) - 2:
        raise TreeError(f"{len(words)} words take {4 * len(words) - 2} actions, not {len(actions)}")
    spans: list[list[Tree]] = []
    read = 0
    for structural, label in zip(actions[::2], actions[1::2], strict=True):
        if structural == SHIFT and read < len(words):
            spans.append([Tree(words[read][1], word=words[read][0])])
            read += 1
        elif structural == COMBINE and len(spans) > 1:
            right = spans.pop()
            spans[-1] = spans[-1] + right
        else:
            raise TreeError(
                f"{structural} is no structural action after {read} of {len(words)} words and "
                f"{len(spans)} spans"
            )
        if label.startswith(LABEL):
            for name in reversed(label.removeprefix(LABEL).split(CHAIN)):
                spans[-1] = [Tree(name, tuple(spans[-1]))]
        elif label != NO_LABEL:
            raise TreeError(f"{label} is no label action")
    if len(spans) != 1 or len(spans[0]) != 1:
        raise TreeError("the actions end before one constituent spans all words")
    return spans[0][0]


class LegalActions:
    """The legal next words of a dictionary of actions."""

    def __init__(self, dictionary: Dictionary):
        self.eos = dictionary.eos()
        self.shift, self.combine, self.no_label = (
            dictionary.index(action) for action in (SHIFT, COMBINE, NO_LABEL)
        )
        labels = [symbol == NO_LABEL or symbol.startswith(LABEL) for symbol in dictionary.symbols]
        self.labels = torch.tensor(labels)  # (V,)

    def __call__(self, history: Tensor, words: Tensor) -> Tensor:
        """(m, V) whether an action may come next, given the actions before (m, T), negative where
        a row has none yet, and words (m,)."""
        done = (history >= 0).sum(1)  # (m,)
        shifts, combined = ((history == action).sum(1) for action in (self.shift, self.combine))
        all_actions = 4 * words - 2
        structural = done % 2 == 0
        legal = self.labels & ~structural[:, None]  # (V,) x (m,) -> (m, V)
        legal[:, self.no_label] &= done < all_actions - 1
        legal[:, self.shift] = structural & (shifts < words)
        legal[:, self.combine] = structural & (shifts - combined > 1)
        legal[:, self.eos] = done >= all_actions
        return legal


class StockSearch(BeamSearch):
    """fairseq's beam search over legal actions."""

    def __init__(self, dictionary: Dictionary, legal: LegalActions):
        super().__init__(dictionary)
        self.legal = legal

    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Any,
        prev_output_tokens: Any = None,
        original_batch_idxs: Any = None,
    ):  # type: ignore[override]
        """As fairseq's; lprobs (S, k, V), prev_output_tokens (S x k, step + 1) with EOS first."""
        words = self.src_lengths[: lprobs.size(0)].repeat_interleave(lprobs.size(1))
        legal = self.legal(prev_output_tokens[:, 1:], words).view_as(lprobs)
        return super().step(
            step,
            lprobs.masked_fill(~legal, -torch.inf),
            scores,
            prev_output_tokens,
            original_batch_idxs,
        )


@dataclasses.dataclass
class LegalProcessors(LogitsProcessors):
    """Our logits processors, then legal actions only."""

    legal: LegalActions | None = None

    @property
    def is_plain(self) -> bool:
        return False

    def __call__(
        self, log_probs: LogProbs, beam: Beam, pool: Pool, at_limit: Tensor | None
    ) -> LogProbs:
        assert self.legal is not None and log_probs.is_dense
        log_probs = super().__call__(log_probs, beam, pool, at_limit)
        words = pool.length[beam.live_index()[beam.sentence_of_row()]] - 1  # less EOS
        legal = self.legal(beam.generated_tokens(), words)
        log_probs.add_dense_(
            torch.zeros(legal.shape, device=legal.device).masked_fill_(~legal, -torch.inf)
        )
        return log_probs


def keep_legal(generator: Any, dictionary: Dictionary) -> None:
    """Let a generator, fairseq's or ours, search over legal actions only."""
    legal = LegalActions(dictionary)
    if hasattr(generator, "setup"):
        fields = {
            field.name: getattr(generator.setup.processors, field.name)
            for field in dataclasses.fields(LogitsProcessors)
        }
        legal_only = LegalProcessors(**fields, legal=legal)
        object.__setattr__(generator.setup, "processors", legal_only)  # a setup is frozen
        # no compiled search: it was chosen for the processors that a generator is built with
        generator.driver = OurBeamSearch(generator.setup, [], LoopSearch)
        return
    generator.search = StockSearch(dictionary, legal)
    # fairseq's count of words, EOS left out, of the sentences that are live
    generator.should_set_src_lengths = True
