"""Semantic parsing with an automaton of the queries as the allowed outputs, and without.

    python scripts/experiments/logical_forms.py --raw DIR --models DIR [--sets atis geo]
        --out scripts/bench/results/allowed_queries

DIR/SET.{train,test}.{nl,sql} are parallel, a question and a query a line, split at spaces (ATIS and
GeoQuery of Finegan-Dollak et al. 2018, https://aclanthology.org/P18-1033); MODELS/SET/model is what
streaming/train_parsing.py makes. Without a model, only the automaton is made and checked.

The automaton is read off the training queries. Words have kinds (a keyword itself, a table, an
alias, a column, a value); a kind may follow another one in a clause if it does in a training query.
Brackets must close, and have at most 3 subqueries and --groups other brackets open at once, so the
language is finite-state. Exact match is of the best output; oracle: of any in the n-best list.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

from report import write_page  # noqa: E402
from text import command_line  # noqa: E402

from fairseq_ext import Translator
from fairseq_ext.search.phrases.token_automaton import TokenAutomaton, trimmed

CLAUSES = ("SELECT", "FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT")
OTHERS = (
    "AS AND OR NOT IN IS NULL BETWEEN LIKE BY ASC DESC DISTINCT ALL ANY EXISTS LEFT OUTER INNER "
    "JOIN ON UNION"
)
SUBQUERIES = 3
State = tuple[str, str, tuple[tuple[str, str], ...]]  # clause, last kind, open brackets
START: State = ("", "", ())
END: State = ("", ";", ())


def kind(word: str) -> str:
    """The kind of a word: what may stand in its place as well."""
    if word in CLAUSES or word in OTHERS.split() or not re.search(r"\w", word):
        return word
    if word.endswith("("):
        return "call("
    if word[0] in "\"'" or not word[0].isupper():
        return "value"
    if "." in word:
        return "column"
    return "alias" if re.search(r"alias\d+$", word) else "name"


def after(state: State, of: str, groups: int) -> State | None:
    """The state after a word of this kind; None if brackets forbid it."""
    clause, last, stack = state
    if last == "(":  # only now it is known whether it opens a subquery
        opened = "query" if of == "SELECT" else "group"
        stack = (*stack, (opened, clause))
        most = SUBQUERIES if opened == "query" else groups
        if sum(each == opened for each, _ in stack) > most:
            return None
    if of == "call(":
        stack = (*stack, ("group", clause))
        if sum(each == "group" for each, _ in stack) > groups:
            return None
    if of == ")":
        if not stack:
            return None
        return stack[-1][1], ")", stack[:-1]
    if of == ";":
        return END if not stack else None
    return (of if of in CLAUSES else clause), of, stack


def states(query: str, groups: int) -> Iterator[tuple[State, str, str]]:
    """The state before each word of a query, the word and its kind, as far as brackets allow it."""
    state: State | None = START
    for word in query.split():
        if state is None:
            return
        of = kind(word)
        yield state, word, of
        state = after(state, of, groups)


def key(state: State) -> tuple[str, str, str]:
    """What decides which kinds may follow: the clause, the last kind, the bracket around them."""
    clause, last, stack = state
    return clause, last, stack[-1][0] if stack else ""


class Queries:
    """The automaton of the queries of a training set."""

    def __init__(self, training: list[str], dictionary: Dictionary, groups: int):
        self.groups, self.dictionary = groups, dictionary
        follows: dict[tuple[str, str, str], set[str]] = defaultdict(set)
        for query in training:
            for state, _, of in states(query, 99):
                follows[key(state)].add(of)
        words: dict[str, list[int]] = defaultdict(list)
        for token in range(dictionary.nspecial, len(dictionary)):
            if not dictionary[token].startswith("madeupword"):
                words[kind(dictionary[token])].append(token)
        number: dict[State, int] = {START: 0}
        waiting, arcs = [START], []
        while waiting:
            state = waiting.pop()
            for of in sorted(follows[key(state)]) if state != END else ():
                then = after(state, of, groups)
                if then is None:
                    continue
                if then not in number:
                    number[then] = len(number)
                    waiting.append(then)
                arcs += [(number[state], token, number[then]) for token in words[of]]
        final = np.zeros(len(number), bool)
        final[number[END]] = True
        columns = np.array(arcs)
        found = trimmed(columns[:, 0], columns[:, 1], columns[:, 2], final)
        assert found is not None  # it has the training queries
        self.automaton: TokenAutomaton = found

    def allows(self, query: str) -> bool:
        """Whether it has a query."""
        return self.automaton.accepts(map(self.dictionary.index, query.split()))


def report(raw: Path, models: Path, name: str, groups: int, beams: list[int]) -> list[str]:
    """Print the table of one set, and return its lines."""
    read = {
        (part, side): (raw / f"{name}.{part}.{side}").read_text("utf-8").splitlines()
        for part in ("train", "test")
        for side in ("nl", "sql")
    }
    model, references = models / name / "model", read["test", "sql"]
    if not (model / "checkpoint.pt").exists():
        dictionary = Dictionary()
        for word in " ".join(read["train", "sql"]).split():
            dictionary.add_symbol(word)
    else:
        dictionary = Dictionary.load(str(model / "dict.sql.txt"))
    queries = Queries(read["train", "sql"], dictionary, groups)
    unknown = dictionary.unk()
    wrong = [line for line in references if not queries.allows(line)]
    unseen = [x for x in wrong if any(dictionary.index(word) == unknown for word in x.split())]
    table = [
        f"{name}: {len(queries.automaton):,} states, {len(queries.automaton.token):,} arcs. "
        f"{len(wrong)} of {len(references)} references are outside, {len(unseen)} of them with "
        "words that the dictionary does not have.",
        "",
    ]
    print(f"{table[0]} The others:")
    for each in dict.fromkeys(x for x in wrong if x not in unseen):
        print(f"  {wrong.count(each)} x {each}")
    if not (model / "checkpoint.pt").exists():
        print(f"{model} has no checkpoint.pt: nothing is searched")
        return table
    wanted = [" ".join(line.split()) for line in references]
    table.append("| set | beam | allowed | in the automaton | exact match | oracle |")
    table.append("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/{name}.allowed"
        queries.automaton.write(file)
        for beam in beams:
            for allowed in (None, file):
                translator = Translator(
                    str(model / "checkpoint.pt"),
                    str(model),
                    source_lang="nl",
                    target_lang="sql",
                    beam=beam,
                    nbest=beam,
                    max_len_b=400,
                    cpu=True,
                    allowed_file=allowed,
                )
                found = [
                    [h.text for h in each] for each in translator.translate(read["test", "nl"])
                ]
                inside = sum(map(queries.allows, (each[0] for each in found)))
                exact = sum(each[0] == line for each, line in zip(found, wanted, strict=True))
                oracle = sum(line in each for each, line in zip(found, wanted, strict=True))
                shares = " | ".join(f"{100 * x / len(wanted):.1f}" for x in (inside, exact, oracle))
                table.append(f"| {name} | {beam} | {'yes' if allowed else 'no'} | {shares} |")
                print(table[-1], flush=True)
    return [*table, ""]


def main() -> None:
    parse = command_line(__doc__)
    parse.add_argument(
        "--raw", type=Path, required=True, help="folder of the questions and queries"
    )
    parse.add_argument("--models", type=Path, required=True, help="folder with SET/model")
    parse.add_argument("--sets", nargs="+", default=["atis", "geo"])
    parse.add_argument("--beams", type=int, nargs="+", default=[1, 5, 10])
    parse.add_argument("--groups", type=int, default=5, help="other brackets open at once (5)")
    parse.add_argument("--out", type=Path, help="write OUT.md")
    args = parse.parse_args()
    tables: list[str] = []
    for name in args.sets:
        tables += report(args.raw, args.models, name, args.groups, args.beams)
        write_page(args.out, tables)


if __name__ == "__main__":
    main()
