"""What each rule of --glossary-placement align earns: backward elimination.

    python scripts/experiments/terminology/rules.py --out DIR
        --set NAME MODEL TEXT SRC TGT GLOSSARY [--set ...] [--only RULE ...] [--off RULE ...]
        [--rounds N] [--least N] [--numbers]

RULES is the list of rules: name, languages, an example, and what is replaced in the package to do
without. Of each set (a model folder, the prefix of TEXT.SRC and TEXT.TGT, a glossary) the lines
whose output a glossary changes with all rules or without one of them are compared by sentence chrF.
In each round every rule is left out by itself; the one that earns least, lines better with it less
lines worse, is off from then on while it earns fewer than --least lines (3). With
--numbers, each number (NUMBERS) is compared with other values of it, in one round. DIR/rules.json
gets
every round, DIR/rules.md the table of the last one. It runs on the CPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "bench"), str(HERE.parent / "optimal_ending")]

import sacrebleu  # noqa: E402
from searches import command_line, model_flags, quiet, read_text, run_script  # noqa: E402
from write_up import table  # noqa: E402

from fairseq_ext.search.constraints.placement import Driver, GlossaryPlacement, Searches  # noqa: E402
from fairseq_ext.search.finished import Hypothesis, OnFinal  # noqa: E402
from fairseq_ext.search.pool import Pool  # noqa: E402
from fairseq_ext.translator import Translator  # noqa: E402

FOLDER = "fairseq_ext.search.constraints."
NEVER = re.compile(r"(?!)")


class Rule(NamedTuple):
    """A rule of the placement of terms. off: what to replace, each "module:name" or
    "module:Class.name" of fairseq_ext/search/constraints, by what."""

    name: str
    languages: str
    example: str
    off: dict[str, Any]


def always(value: Any) -> Callable[..., Any]:
    """A function of any arguments with one result."""
    return lambda *_, **__: value


def all_forms(term: Any, *_: Any) -> tuple[str, ...]:
    """In the place of verb_forms: all forms."""
    return term.targets


RULES = [
    Rule(
        "entry alone",
        "all",
        "Banane: Banana, not Bananas",
        {"placement:folded": lambda _: object()},
    ),
    Rule("known may be left", "all", "Open the file", {"placement:KNOWN_SHARE": 2.0}),
    Rule("copied stays", "all", "C:\\Programme\\dotnet", {"drafts:is_copied": always(False)}),
    Rule(
        "other hypothesis",
        "all",
        "the second best has the term",
        {"drafts:Sentence.competes": lambda self, candidate: candidate is self.candidates[0]},
    ),
    Rule(
        "inserted", "all", "a term without a word", {"insertion:Insertion.__call__": always(None)}
    ),
    Rule(
        "word class",
        "de",
        "no noun for 'folgenden'",
        {"placement:is_other_class": always(False)},
    ),
    Rule(
        "verb in the source", "en-de", "to store the", {"word_class:is_verb_mention": always(False)}
    ),
    Rule("verb of a noun", "de-en", "Speichern", {"placement:is_verb_of_noun": always(False)}),
    Rule("verb that is there", "de", "wählen ... aus", {"placement:has_verb": always(False)}),
    Rule(
        "forms of verbs",
        "de",
        "no 'annehmen Sie'",
        dict.fromkeys(("word_class:verb_forms", "term_writer:verb_forms"), all_forms),
    ),
    Rule("phrasal verb", "en-de", "Set up", {"placement:is_phrasal": always(False)}),
    Rule(
        "no noun for a verb",
        "de-en",
        "to move our office",
        {"word_alignment:WordAlignment.is_verb": always(False)},
    ),
    Rule(
        "neighbours join",
        "all",
        "power cable",
        {"word_alignment:WordAlignment.joins": always(False)},
    ),
    Rule(
        "part of a compound",
        "de",
        "Serviceartikel: Dienstleistungsartikel",
        {"word_alignment:WordAlignment.take_parts_": always(None)},
    ),
    Rule(
        "no preposition inserted",
        "all",
        "über",
        {"placement:is_function_word": always(False)},
    ),
    Rule("hyphens", "de", "die Koolant-Mischung", {"inflection:PARTS_BEHIND": NEVER}),
    Rule(
        "another form stays",
        "en",
        "using, automatically",
        {"placement:is_form": always(False)},
    ),
    Rule(
        "number of the displaced",
        "en",
        "buildings: edifices",
        {"term_writer:agreeing": lambda forms, *_: forms},
    ),
    Rule(
        "articles agree",
        "de",
        "dem Verband: der Gruppe",
        {"term_writer:fits": always(False)},
    ),
    Rule(
        "agreement",
        "de",
        "kleinen Gruppen",
        {"term_writer:TermWriter.agrees": always(True)},
    ),
    Rule(
        "number of the source",
        "de",
        "teams: Teams, not Team",
        {"term_writer:NUMBER_BONUS": 0.0},
    ),
    Rule(
        "attributive ending",
        "de",
        "der randomisierten Studie",
        {"term_writer:TermWriter.attributive": lambda self, forms, *_: forms},
    ),
    Rule(
        "repairs",
        "de",
        "einen Differenz",
        {"term_writer:TermWriter.wrong_place": always(None)},
    ),
]

# numbers of fairseq_ext/search/constraints, and other values of each
NUMBERS: dict[str, tuple[float, ...]] = {
    "placement:KNOWN_SHARE": (0.25, 0.75),
    "drafts:SEARCHED": (1, 10),
    "inflection:KNOWN_COST": (4.0, 16.0),
    "inflection:OTHER_COST": (0.0, 2.0),
    "inflection:WRONG_MARGIN": (1.0, 4.0),
    "inflection:COMPARED": (1, 2, 8),
    "insertion:COMPARED": (1, 6),
    "placement:NEAR": (4, 16),
    "renderings:BEAM": (2, 10),
    "renderings:EXTRA": (1, 6),
    "term_writer:NUMBER_BONUS": (3.0, 12.0),
    "word_alignment:ATTENDED": (0.12, 0.5),
    "word_alignment:IS_RENDERING": (0.12, 0.5),
    "word_alignment:MIN_SURE_SCORE": (0.3, 0.9),
    "word_alignment:PART_ATTENDED": (0.05, 0.2),
    "word_alignment:DROP": (0.25, 1.0),
}
USED_BY = {"KNOWN_COST": ("placement",), "SEARCHED": ("placement",)}  # modules with a copy


def other_values() -> Iterator[Rule]:
    """Yield each number with another value as a rule that may be left out."""
    for number, values in NUMBERS.items():
        module, name = number.split(":")
        for value in values:
            targets = (f"{each}:{name}" for each in (module, *USED_BY.get(name, ())))
            yield Rule(f"{number} = {value:g}", "all", "", dict.fromkeys(targets, value))


@contextmanager
def without(rules: Sequence[Rule]) -> Iterator[None]:
    """Leave rules out."""
    undo: list[tuple[Any, str, Any]] = []
    try:
        for target, value in (each for rule in rules for each in rule.off.items()):
            module, name = target.split(":")
            owner: Any = importlib.import_module(FOLDER + module)
            *parents, name = name.split(".")
            for parent in parents:
                owner = getattr(owner, parent)
            old = vars(owner)[name]
            undo.append((owner, name, old))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, old in reversed(undo):
            setattr(owner, name, old)


def remembering(draft: Driver) -> Driver:
    """A driver that searches no sentence twice."""
    known: dict[tuple[int, ...], list[Hypothesis]] = {}

    def run(pool: Pool, answer: OnFinal) -> None:
        sources = {i: tuple(pool.source(i).tolist()) for i in pool.sentences_to_decode()}
        if new := [i for i, source in sources.items() if source not in known]:
            draft(
                replace(pool, to_decode=new),
                lambda number, found: known.__setitem__(sources[number], found),
            )
        for number, source in sources.items():
            answer(number, known[source])

    return run


class Set:
    """A text with a glossary, and what a model makes of it."""

    def __init__(self, args: Sequence[str], limit: int | None):
        self.name, model, text, src, tgt, glossary = args
        self.languages = {"all", tgt, f"{src}-{tgt}"}
        flags = dict(cpu=True, batch_size=64, beam=5, **model_flags(Path(model), src, tgt))
        pairs = list(zip(*read_text(Path(text), src, tgt), strict=True))[:limit]
        init = GlossaryPlacement.__init__
        self.placements: list[GlossaryPlacement] = []

        def wrapped(placement: GlossaryPlacement, searches: Searches, *rest: Any) -> None:
            init(placement, searches._replace(draft=remembering(searches.draft)), *rest)
            self.placements.append(placement)

        GlossaryPlacement.__init__ = wrapped  # type: ignore[method-assign]
        self.translator = Translator(**flags, glossary=glossary)
        found = self.translator.translate([source for source, _ in pairs])
        GlossaryPlacement.__init__ = init  # type: ignore[method-assign]
        plain = Translator(**flags).translate([source for source, _ in pairs])
        kept = [i for i, each in enumerate(found) if each[0].placements]
        self.sources, self.references = zip(*(pairs[i] for i in kept), strict=True)
        self.drafts = [plain[i][0].text for i in kept]

    def forget(self) -> None:
        """Search the renderings of terms again."""
        for placement in self.placements:
            placement.renderings.cache.clear()

    def translated(self) -> tuple[list[str], int]:
        """The outputs, and how many terms they have."""
        found = [nbest[0] for nbest in self.translator.translate(self.sources)]
        placed = sum(each.placed_by != "left" for h in found for each in h.placements)
        return [each.text for each in found], placed

    def better(self, outputs: Sequence[str], others: Sequence[str]) -> tuple[int, int]:
        """How many lines of outputs have a higher chrF than the others, and how many a lower."""
        up = down = 0
        for output, other, reference in zip(outputs, others, self.references, strict=True):
            if output != other:
                own, its = (
                    sacrebleu.sentence_chrf(text, [reference]).score for text in (output, other)
                )
                up, down = up + (own > its), down + (own < its)
        return up, down

    def scores(self, outputs: Sequence[str]) -> tuple[float, float]:
        """BLEU and chrF."""
        return (
            sacrebleu.corpus_bleu(outputs, [self.references]).score,
            sacrebleu.corpus_chrf(outputs, [self.references]).score,
        )


Round = dict[str, Any]


def one_round(sets: Sequence[Set], rules: Sequence[Rule], off: Sequence[Rule]) -> Round:
    """What each rule earns on each set, with others off."""
    found: Round = {"off": [rule.name for rule in off], "sets": {}, "rules": {}}
    with without(off):
        base = [each.translated() for each in sets]
    for each, (outputs, placed) in zip(sets, base, strict=True):
        found["sets"][each.name] = {
            "draft": each.scores(each.drafts),
            "terms": each.scores(outputs),
            "lines": each.better(outputs, each.drafts),
            "placed": placed,
        }
    for rule in rules:
        earned: dict[str, Any] = {}
        is_of_renderings = any(target.startswith("renderings:") for target in rule.off)
        with without([*off, rule]):
            for each, (outputs, placed) in zip(sets, base, strict=True):
                if each.languages.isdisjoint(rule.languages.split(", ")):
                    continue
                if is_of_renderings:
                    each.forget()
                others, now = each.translated()
                bleu = each.scores(outputs)[0] - each.scores(others)[0]
                earned[each.name] = [*each.better(outputs, others), round(bleu, 2), placed - now]
        found["rules"][rule.name] = earned
        for each in sets if is_of_renderings else ():
            each.forget()
        print(rule.name, net(earned), earned, file=sys.stderr, flush=True)
    return found


def net(earned: dict[str, Sequence[float]]) -> int:
    """Lines better less lines worse."""
    return sum(int(up - down) for up, down, *_ in earned.values())


def markdown(found: Round) -> str:
    """The table of a round."""
    names = list(found["sets"])
    head = ["rule", "languages", "example", *names, "lines earned"]
    rows = [
        [
            rule.name,
            rule.languages,
            rule.example,
            *("+{} -{}, {:+.2f}, {:+}".format(*earned[n]) if n in earned else "" for n in names),
            str(net(earned)),
        ]
        for rule in (*RULES, *other_values())
        if (earned := found["rules"].get(rule.name))
    ]
    return table(head, rows)


def main(argv: Sequence[str] | None = None) -> None:
    parse = command_line(__doc__)
    parse.add_argument("--set", nargs=6, action="append", required=True, metavar="WORD")
    parse.add_argument("--only", nargs="+", help="rules (all)")
    parse.add_argument("--off", nargs="+", default=[], help="rules that are off from the start")
    parse.add_argument("--numbers", action="store_true", help="compare numbers, not rules")
    parse.add_argument("--rounds", type=int, default=1, help="most rounds (1)")
    parse.add_argument("--least", type=int, default=3, help="lines that a rule must earn (3)")
    parse.add_argument("--limit", type=int, help="lines of each text (all)")
    parse.add_argument("--out", type=Path, required=True, help="folder for the results")
    args: argparse.Namespace = parse.parse_args(argv)
    quiet()
    sets = [Set(each, args.limit) for each in args.set]
    off = [rule for rule in RULES if rule.name in args.off]
    rounds: list[Round] = []
    args.out.mkdir(parents=True, exist_ok=True)
    for _ in range(args.rounds):
        table_of = list(other_values()) if args.numbers else RULES
        rules = [r for r in table_of if r not in off and (not args.only or r.name in args.only)]
        rounds.append(one_round(sets, rules, off))
        (args.out / "rules.json").write_text(json.dumps(rounds, indent=1), encoding="utf-8")
        (args.out / "rules.md").write_text(markdown(rounds[-1]), encoding="utf-8")
        earned = rounds[-1]["rules"]
        worst = min(rules, key=lambda rule: net(earned[rule.name]))
        if net(earned[worst.name]) >= args.least:
            break
        off.append(worst)


if __name__ == "__main__":
    run_script(main)
