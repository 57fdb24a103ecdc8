"""The searches behind the paper's Tables 2, 6 and 7: semantic and syntactic parsing, every method
with at most N rows a step.

    python scripts/experiments/streaming/parsing.py --raw DIR --sets atis geo --out DIR
    python scripts/experiments/streaming/parsing.py --trees DIR --sets trees --out DIR

OUT/SET/model is what train.py made; questions and queries are RAW/SET.test.{nl,sql}, trees
TREES/test.trees. Each set becomes OUT/parsing/SET.json or OUT/trees/test.json, which is not made
again. Searches for trees go over legal actions only (tree_actions.py), so all hypotheses of a
sentence are equally long, which the table states. Labelled F1 is PYEVALB's (`pip install PYEVALB`),
of the best hypotheses and, oracle, of each sentence's best tree among its n-best.

    --raw DIR        of questions and queries
    --trees DIR      of trees
    --sets SET ...   (atis geo)
    --limit N        first lines only
    --k N            beam and sentences of a batch (10)
    --delta X        --prune-threshold; 10, and 2.5 of trees, by default
    --children N     --prune-children, the paper's M (3)
    --rows N         of a step (100)
    --out DIR        of the models and the results (required)
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from methods import TIMING, BenchError, Setting, Text, command_line, of_rows, prepare, run_script
from train import SETS, read_trees
from tree_actions import Tree, keep_legal, to_tree

Brackets = tuple[int, int, int]  # matched, of the parse, of the treebank


def words_of(text: Text, outputs: list) -> Iterator[list[list[str]]]:
    """The words of each n-best list."""
    known = Dictionary.load(str(text.folder / f"dict.{text.target}.txt"))
    for nbest in outputs:
        yield [[known[token] for token in tokens if token != known.eos()] for tokens, _ in nbest]


def exact_match(text: Text, outputs: list) -> dict[str, float]:
    """Per cent of queries that the best hypothesis equals word by word, and that any
    of the n-best does."""
    pairs = list(zip(words_of(text, outputs), map(str.split, text.references), strict=True))
    best = sum(found[:1] == [wanted] for found, wanted in pairs)
    oracle = sum(wanted in found for found, wanted in pairs)
    assert best <= oracle <= len(outputs)
    return {"exact match": 100 * best / len(outputs), "oracle": 100 * oracle / len(outputs)}


def scorer() -> Callable[[str, str], Brackets]:
    """A function from two trees as text, the treebank's first, to the brackets
    that evalb counts."""
    try:
        from PYEVALB.parser import create_from_bracket_string as read
        from PYEVALB.scorer import Scorer
    except ImportError as error:
        raise BenchError("labelled F1 is counted by PYEVALB: pip install PYEVALB") from error

    def brackets(gold: str, found: str) -> Brackets:
        counts = Scorer().score_trees(read(gold), read(found))
        return counts.matched_brackets, counts.test_brackets, counts.gold_brackets

    return brackets


def f1(counts: Iterable[Brackets]) -> float:
    """Per cent of brackets: the harmonic mean of precision and recall over all sentences."""
    matched, found, gold = (sum(column) for column in zip(*counts, strict=True))
    return 200 * matched / (found + gold)


def tree_quality(text: Text, trees: Sequence[Tree], outputs: list) -> dict[str, float]:
    """F1 and oracle F1; and for how many sentences in a hundred all hypotheses
    have 4n - 2 actions."""
    brackets, best, oracle, equal = scorer(), [], [], 0
    for found, tree in zip(words_of(text, outputs), trees, strict=True):
        leaves = [(leaf.word, leaf.label) for leaf in tree.leaves()]
        equal += {len(actions) for actions in found} == {4 * len(leaves) - 2}
        counts = [brackets(str(tree), str(to_tree(leaves, actions))) for actions in found]
        best.append(counts[0])
        oracle.append(max(counts, key=lambda count: f1([count])))
    share = 100 * equal / len(trees)
    return {"F1": f1(best), "oracle F1": f1(oracle), "all 4n - 2 actions, %": share}


def legal_only(loaded: Any, generator: Any) -> None:
    keep_legal(generator, loaded.task.target_dictionary)


def search(args: argparse.Namespace, name: str, folder: Path) -> None:
    model, limit, k = args.out / name / "model", args.limit, args.k
    delta = args.delta or (2.5 if name == "trees" else float(k))
    setting = Setting(k, k, delta, args.children, rows=args.rows)
    letters = f"n = k = {k}, delta = {delta:g}, M = {args.children}"
    if name == "trees":
        version_of = scorer() and version("PYEVALB")
        trees = read_trees(args.trees / "test.trees")[:limit]
        text = prepare(folder, model, str(args.out / name / "test"), "words", "actions", limit)
        longest = max(4 * len(list(tree.leaves())) for tree in trees)
        about = f"sentences, {letters}, F1 of all labelled brackets of the text, punctuation kept: "
        about += f"PYEVALB {version_of}"
        file, quality, change = "trees/test", partial(tree_quality, text, trees), legal_only
    else:
        text = prepare(folder, model, str(args.raw / f"{name}.test"), "nl", "sql", limit)
        queries = (args.raw / f"{name}.train.sql").read_text(encoding="utf-8").splitlines()
        longest, about = max(len(line.split()) for line in queries), f"questions, {letters}"
        file, quality, change = f"parsing/{name}", partial(exact_match, text), None
    out = args.out / f"{file}.json"
    of_rows(out, text, model, setting, longest, quality, args, about, change)


def main() -> None:
    args = command_line(f"{__doc__}{TIMING}", {"sets": SETS}).parse_args()
    for name in args.sets:
        with tempfile.TemporaryDirectory() as folder:
            search(args, name, Path(folder))


if __name__ == "__main__":
    run_script(main)
