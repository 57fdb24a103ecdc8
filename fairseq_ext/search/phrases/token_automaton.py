"""Deterministic automata over tokens in flat arrays, and several as one table of tensors. An
automaton of allowed outputs, its file format, and its smallest form for a list of token sequences.

A state of a row is one number. State 0 is the start. In an automaton of allowed outputs, a state
has an arc for each token that may follow, and leads to a final one. An automaton of phrases
(automaton.py) has arcs for the tokens that matter, and a state for all others. `minimal` builds the
smallest automaton of a finite list (a DAWG): its strings as a trie, in which nodes with the same
continuations are one state.

Shapes: M states, E arcs, N sequences, V vocabulary.

Compiled twin: kernels/allowed.hpp.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import atomic_write, sha256
from fairseq_ext.kernels.library import address, new

MAGIC = b"fairseq_ext allowed outputs 1\n"  # start of a file
SPAN = 1 << 31  # above every token
NEVER = (1 << 30) - 1  # tokens to a final state from one that reaches none
MOST_TOKENS = 1000  # longer outputs count as without a limit
LARGE = 1 << 20  # bytes from which an automaton goes to other processes as a file


@dataclass(eq=False, repr=False)
class Automaton:
    """States, and arcs between them; its arrays are read-only."""

    first: np.ndarray  # (M + 1,) the first arc of each state
    token: np.ndarray  # (E,) of each arc, ascending within a state
    target: np.ndarray  # (E,) the next state of each arc

    def __len__(self) -> int:
        return len(self.first) - 1


class AutomatonTable:
    """Automata as one table of tensors, their states numbered consecutively.

    first (M + 1,) int64; token, target (E,) int32; key (E,) int64, ascending: state x SPAN + token
    of each arc; starts: the first state of each automaton.
    """

    def __init__(self, automata: Sequence[Automaton], device: torch.device):
        self.device = device
        self.starts = np.cumsum([0, *map(len, automata[:-1])])
        arcs = np.cumsum([0, *(len(each.token) for each in automata)])
        firsts = [each.first[:-1] + n for each, n in zip(automata, arcs, strict=False)]
        self.first = self.joined([*firsts, arcs[-1:]], np.int64)
        self.token = self.joined([each.token for each in automata])
        self.target = self.joined(self.moved([each.target for each in automata]))
        state = torch.arange(len(self.first) - 1, device=device)
        self.key = state.repeat_interleave(self.first.diff()) * SPAN + self.token

    def moved(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return parts, states of each automaton, as states of the table."""
        return [part + n if n else part for part, n in zip(parts, self.starts, strict=True)]

    def joined(self, parts: Sequence[np.ndarray], dtype: Any = np.int32) -> Tensor:
        """Return parts as one tensor; a single one shares its memory."""
        found = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return torch.from_numpy(found.astype(dtype, copy=False)).to(self.device)

    def arcs_struct(self) -> object:
        """Return first, token and target as the compiled search reads them."""
        dense = address(self.token, torch.int32), address(self.target, torch.int32)
        return new("Arcs", address(self.first, torch.int64), *dense)[0]

    def arc(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Return the place of a state's arc for a token (of one shape), and whether it has one."""
        key = state * SPAN + token
        place = torch.searchsorted(self.key, key).clamp_(max=len(self.key) - 1)
        return place, self.key[place] == key


# ---- Allowed outputs


@dataclass(eq=False, repr=False)
class TokenAutomaton(Automaton):
    """An automaton of allowed outputs. notes: anything JSON, kept in its file."""

    shortest: np.ndarray  # (M,) the fewest tokens that lead to a final state, 0 for a final one
    notes: dict[str, object] = field(default_factory=dict)
    path: str | None = None  # of its file, None without one
    temporary_file: object = None  # a temporary file, for other processes

    def __repr__(self) -> str:  # part of the checksums of results files
        return f"TokenAutomaton({self.digest})"

    def __reduce__(self):
        if self.path is None and self.nbytes >= LARGE:
            self.temporary_file = tempfile.NamedTemporaryFile(suffix=".allowed")
            self.path = self.temporary_file.name
            self.write(self.path)
        if self.path is not None:
            return opened, (self.path, self.digest)
        return TokenAutomaton, (*self.arrays.values(), self.notes)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Its arrays (int32) by name, in the order of its file."""
        names = ("first", "token", "target", "shortest")
        return {name: np.ascontiguousarray(getattr(self, name)) for name in names}

    @property
    def nbytes(self) -> int:
        """Number of bytes of its arrays."""
        return sum(each.nbytes for each in self.arrays.values())

    @property
    def final(self) -> np.ndarray:
        """Whether an output may end in each state, (M,) bool."""
        return self.shortest == 0

    @cached_property
    def longest(self) -> np.ndarray:
        """(M,) int32 the most tokens that lead to a final state; NEVER for all if an output has no
        limit."""
        out = np.where(self.final, 0, -NEVER).astype(np.int32)
        at = np.flatnonzero(np.diff(self.first))
        for _ in range(MOST_TOKENS if len(at) else 0):
            most = np.maximum.reduceat(out[self.target], self.first[at]) + 1
            if (most <= out[at]).all():
                return out
            out[at] = np.maximum(out[at], most)
        return np.full(len(self), NEVER if len(at) else 0, np.int32)

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of its arcs, ascending."""
        return tuple(np.unique(self.token).tolist())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of its arrays, in hexadecimal digits."""
        return sha256(self.arrays.values())

    def next_state(self, state: int, token: int) -> int:
        """Return the state after a token, -1 if the token is not allowed."""
        a, b = self.first[state], self.first[state + 1]
        place = a + int(np.searchsorted(self.token[a:b], token))
        return int(self.target[place]) if place < b and self.token[place] == token else -1

    def write(self, path: str) -> None:
        """Write it to a file: MAGIC, a line of JSON with its sizes, notes and digest, its arrays
        (raises OSError)."""
        sizes = {name: len(each) for name, each in self.arrays.items()}
        head = json.dumps({"sizes": sizes, "digest": self.digest, "notes": self.notes}).encode()
        head += b" " * (-(len(MAGIC) + len(head) + 1) % 64) + b"\n"
        with atomic_write(path) as file:
            file.write(MAGIC + head)
            file.writelines(each.data for each in self.arrays.values())


def is_automaton_file(path: str) -> bool:
    """Return whether a file that can be read is an automaton's."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return os.path.isfile(path) and file.read(len(MAGIC)) == MAGIC
    return False


def opened(path: str, digest: str | None = None) -> TokenAutomaton:
    """Return the automaton of a file, mapped into memory: processes share it.

    digest: of the automaton that the file had. Errors: UsageError for a file that is damaged or is
    another automaton's.
    """
    damaged = UsageError(
        f"{path} is not an automaton as `python -m fairseq_ext.allowed build` writes it, or it is "
        "damaged: build it again"
    )
    try:
        with open(path, "rb") as file:
            if file.readline() != MAGIC:
                raise damaged
            head, at = json.loads(file.readline()), file.tell()
        ends = np.cumsum(list(head["sizes"].values()))
        numbers = np.memmap(path, np.int32, "c", at)
        first, token, target, shortest = np.split(numbers, ends[:-1])
        found = TokenAutomaton(first, token, target, shortest, head["notes"], path)
        if {found.digest, digest or found.digest} != {head["digest"]}:
            raise damaged
    except OSError as error:
        raise UsageError(
            f"cannot read {path} ({error.strerror}): name a file that exists and is readable"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise damaged from None
    return found


# ---- Construction of automata of allowed outputs


def trimmed(
    source: np.ndarray,
    token: np.ndarray,
    target: np.ndarray,
    final: np.ndarray,
    notes: Mapping[str, object] | None = None,
) -> TokenAutomaton | None:
    """Return the automaton of arcs (E,) and states final (M,) without states that reach no final
    one; None if the start is one of those. A state has one arc for a token; all are reachable."""
    step = np.diff(source)
    if not ((step > 0) | ((step == 0) & (np.diff(token) > 0))).all():  # a product's are in order
        order = np.lexsort((token, source))
        source, token, target = source[order], token[order], target[order]
    shortest = np.where(final, 0, NEVER)
    begins = np.flatnonzero(np.diff(source, prepend=-1)) if len(source) else source
    changed = len(source) > 0
    while changed:
        least = np.minimum.reduceat(shortest[target], begins) + 1
        at = source[begins]
        better = least < shortest[at]
        shortest[at[better]] = least[better]
        changed = bool(better.any())
    stays = shortest < NEVER
    if not stays[0]:
        return None
    number = np.cumsum(stays) - 1
    kept = stays[source] & stays[target]
    source, token, target = number[source[kept]], token[kept], number[target[kept]]
    first = np.searchsorted(source, np.arange(stays.sum() + 1))
    return of_arrays((first, token, target, shortest[stays]), notes)


def of_arrays(arrays: tuple[np.ndarray, ...], notes: Mapping[str, object] | None) -> TokenAutomaton:
    """Return the automaton of first, token, target and shortest."""
    first, token, target, shortest = (each.astype(np.int32) for each in arrays)
    return TokenAutomaton(first, token, target, shortest, dict(notes or {}))


def mixed(value: np.ndarray) -> np.ndarray:
    """Return a hash (uint64) of each value (uint64): splitmix64."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def minimal(
    flat: np.ndarray,
    length: np.ndarray,
    vocabulary: int,
    notes: Mapping[str, object] | None = None,
    seed: int = 1,
) -> TokenAutomaton:
    """Return the smallest automaton that allows N sequences, the tokens flat (sum of length,) of
    length (N,) each, at least one; duplicates count once.

    Nodes of the trie are one state if a 64-bit hash of their continuations is equal; that they are
    equal is checked, so the result is exact. seed: of the hash.
    """
    kind = np.dtype(">u2" if vocabulary <= 1 << 16 else ">u4")
    data, ends = flat.astype(kind).tobytes(), (np.cumsum(length) * kind.itemsize).tolist()
    # in this form, the order of bytes is that of tokens
    rows = sorted({data[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)})
    flat = np.frombuffer(b"".join(rows), kind).astype(np.int32)
    length = np.fromiter(map(len, rows), np.int64, len(rows)) // kind.itemsize
    del rows, data
    N, first = len(length), np.cumsum(length) - length
    shared = np.zeros(N, np.int64)  # tokens that a sequence shares with the one before it
    equal, depth = np.arange(1, N), 0
    while equal.size:
        equal = equal[(length[equal] > depth) & (length[equal - 1] > depth)]
        equal = equal[flat[first[equal] + depth] == flat[first[equal - 1] + depth]]
        depth += 1
        shared[equal] = depth
    # the trie: a sequence adds a node for each token after the shared ones; node 0 is the root
    new = length - shared
    begin = 1 + np.cumsum(new) - new  # the first of them
    nodes = 1 + int(new.sum())
    depth_of = np.zeros(nodes, np.int32)
    depth_of[1:] = np.arange(1, nodes) - np.repeat(begin - shared, new) + 1
    token = np.zeros(nodes, np.int32)
    token[1:] = flat[np.repeat(first, new) + depth_of[1:] - 1]
    parent = np.arange(-1, nodes - 1)
    parent[begin] = 0
    by_depth = np.argsort(depth_of, kind="stable")
    levels = np.searchsorted(depth_of[by_depth], np.arange(depth_of.max() + 2))
    order = np.argsort(shared, kind="stable")
    of_depth = np.searchsorted(shared[order], np.arange(shared.max() + 2))
    for d in range(1, int(shared.max()) + 1):  # the last node of this depth before each sequence
        sequence = order[of_depth[d] : of_depth[d + 1]]
        level = by_depth[levels[d] : levels[d + 1]]
        parent[begin[sequence]] = level[np.searchsorted(level, begin[sequence]) - 1]
    final = np.zeros(nodes, bool)
    final[begin + new - 1] = True
    # equal continuations have equal hashes; the sum over arcs does not depend on their order
    of_seed = np.uint64(seed * 0x9E3779B97F4A7C15 % (1 << 64))
    code = mixed(final.astype(np.uint64) - of_seed)
    shortest = np.where(final, 0, NEVER)
    for d in range(len(levels) - 2, 0, -1):
        level = by_depth[levels[d] : levels[d + 1]]
        above = parent[level]
        begins = np.flatnonzero(np.diff(above, prepend=-1))
        arc = mixed(mixed(code[level]) + mixed(token[level].astype(np.uint64) + of_seed))
        code[above[begins]] += np.add.reduceat(arc, begins)
        least = np.minimum.reduceat(shortest[level], begins) + 1
        shortest[above[begins]] = np.minimum(shortest[above[begins]], least)
    _, chosen, state = np.unique(code, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(chosen))  # states in the order of their first node, the root first
    state, chosen = rank[state], np.sort(chosen)
    children = np.argsort(parent[1:], kind="stable") + 1
    count = np.bincount(parent[1:], minlength=nodes)
    start = np.cumsum(count) - count
    same = (count == count[chosen[state]]) & (final == final[chosen[state]])
    place = np.arange(nodes - 1) - start[parent[children]]
    twin = start[chosen[state[parent[children]]]] + place
    if (
        not same.all()
        or not (
            (token[children] == token[children[twin]]) & (state[children] == state[children[twin]])
        ).all()
    ):
        return minimal(flat, length, vocabulary, notes, seed + 1)
    kept = children[np.isin(parent[children], chosen, assume_unique=False)]
    bounds = np.concatenate([[0], np.cumsum(count[chosen])])
    return of_arrays((bounds, token[kept], state[kept], shortest[chosen]), notes)


class AllowedTable(AutomatonTable):
    """Automata of allowed outputs as one table."""

    def __init__(self, automata: Iterable[TokenAutomaton], device: torch.device):
        self.automata = list({id(each): each for each in automata}.values())
        super().__init__(self.automata, device)
        self.start_of = dict(zip(map(id, self.automata), self.starts.tolist(), strict=True))
        self.shortest = self.joined([each.shortest for each in self.automata])

    @cached_property
    def longest(self) -> Tensor:
        """(M,) int32 the most tokens to a final state."""
        return self.joined([each.longest for each in self.automata])

    def struct(self, bounded: bool) -> object:
        """Return the table as the compiled search reads it. bounded: with `longest`."""
        longest = self.longest if bounded else None
        return new(
            "Automata",
            self.arcs_struct(),
            address(self.shortest, torch.int32),
            address(longest, torch.int32),
        )

    def starts_of(self, automata: Iterable[TokenAutomaton | None]) -> Tensor:
        """Return (N,) the start of each sentence's automaton, -1 without one."""
        found = [-1 if each is None else self.start_of[id(each)] for each in automata]
        return torch.tensor(found, dtype=torch.long, device=self.device)

    def advance(self, state: Tensor, token: Tensor) -> Tensor:
        """Return the states after tokens (of one shape), -1 after one that is not allowed, and
        after -1."""
        place, is_allowed = self.arc(state, token)
        return torch.where(is_allowed, self.target[place], -1).long()

    def allowed(self, state: Tensor, left: Tensor, eos: int) -> tuple[Tensor, Tensor]:
        """Return the allowed next tokens of rows in these states (n,), as pairs row (P,) and token
        (P,), EOS included; none for state -1.

        left (n,): tokens that may follow before EOS; a token counts if an output can still end in
        time after it.
        """
        possible, at = state >= 0, state.clamp(min=0)
        count = (self.first[at + 1] - self.first[at]).masked_fill_(~possible, 0)
        row = torch.arange(len(at), device=at.device).repeat_interleave(count)
        place = torch.arange(len(row), device=at.device)
        place += (self.first[at] - count.cumsum(0) + count)[row]
        in_time = self.shortest[self.target[place]] < left[row]
        row, token = row[in_time], self.token[place[in_time]].long()
        ends = (possible & (self.shortest[at] == 0)).nonzero()[:, 0]
        return torch.cat([row, ends]), torch.cat([token, torch.full_like(ends, eos)])
