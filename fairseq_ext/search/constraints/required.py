"""The flags of all constrained searches: which constraints each sentence has."""

import os
from dataclasses import dataclass, field
from typing import Literal

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import Lines
from fairseq_ext.search.constraints.banned import AvoidFlags
from fairseq_ext.search.constraints.glossary import GlossaryFlags
from fairseq_ext.search.constraints.lines import is_json
from fairseq_ext.search.constraints.sentence_end import EndFlags
from fairseq_ext.search.registry import OUTPUTS, declared, register_feature, typed, ways
from fairseq_ext.search.settings import Choices, Settings


@dataclass
class ConstraintFlags:
    constraints_file: str | None = field(
        default=None,
        metadata={
            "help": "phrases that must appear: one line a sentence in corpus order, tab-separated, "
            "or JSONL (default: none; in any order unless --constraints is ordered)",
            "file": True,
            "gives": "required phrases",
            "engine": "gives line n its phrases, and requests have no numbers: give them "
            "with each request",
            "implemented": "search/constraints/sources.py",
        },
    )
    constraint_boundary: Literal["word", "prefix", "none"] | None = field(
        default=None,
        metadata={
            "help": "where a required or banned phrase counts: as whole words; from the start "
            "of a word, a suffix may follow (prefix: a banned phrase then bans the words that "
            "begin with it); or as its own tokens (none) (default: word where the target's "
            "segmentation is known, else none)",
            "applies_to": "phrases",
            "implemented": "search/phrases/pieces.py",
        },
    )
    constraint_case: Literal["exact", "initial", "any"] | None = field(
        default=None,
        metadata={
            "help": "in which case a required phrase counts: as written; with a capital "
            "too where it starts the translation (initial); or any (default: of a glossary's terms "
            "any, but for those with a case of their own, such as API; else exact)",
            "applies_to": "required phrases",
            "implemented": "search/phrases/phrase_table.py",
        },
    )
    constraint_bonus: float | None = field(
        default=None,
        metadata={
            "help": "prefer required phrases by this many nats for each of their tokens, instead "
            "of forcing them (default: they are forced)",
            "range": (0, 1000, "bonus in nats"),
            "applies_to": "required phrases",
            "denies": ("scores of at most 0", "softmax's own order"),
            "implemented": "search/strategies/select/bonus.py",
        },
    )


def check(settings: Settings) -> None:
    """Raise UsageError for a bonus that the search would ignore."""
    bonus, select = settings.get(ConstraintFlags).constraint_bonus, settings.choice("select")
    if bonus is not None and select not in ("bonus", "topk"):
        raise UsageError(
            f"--constraint-bonus prefers phrases and --select {select} forces them: leave one of "
            "the two out"
        )


register_feature("constraints", ConstraintFlags, constrains=True, check=check)


def applying_flag(settings: Settings, *kinds: str) -> str | None:
    """Return the first given flag that applies to phrases of these kinds, as it is typed."""
    given = (name for name, kind in declared("applies_to", settings).items() if kind in kinds)
    return next((typed(name) for name in given), None)


def check_phrases(settings: Settings, corpus: bool) -> None:
    """Raise UsageError for a flag that applies to phrases of which the command has none.

    corpus: sentences come from a data set, so that no phrases can be typed after them.
    """
    gives = set(declared("gives", settings).values())
    if (given := applying_flag(settings, OUTPUTS)) and OUTPUTS not in gives:
        raise UsageError(
            f"{given} applies to allowed outputs, and the command has none: {ways(given)}"
        )
    gives.discard(OUTPUTS)
    required = "required phrases" in gives
    given = applying_flag(settings, "phrases", "required phrases", "banned phrases")
    if given and not (gives or settings.has_typed):
        raise UsageError(f"{given} applies to phrases, and the command has none: {ways(given)}")
    given = applying_flag(settings, "required phrases")
    if given and corpus and not required:
        raise UsageError(
            f"{given} applies to required phrases, and the command has none: {ways(given)}"
        )
    avoid, path = settings.get(AvoidFlags), settings.get(ConstraintFlags).constraints_file
    if avoid.avoid_case != "any" and not avoid.avoid_file and not may_ban(path):
        raise UsageError(
            "--avoid-case applies to banned phrases, and the command has none: add --avoid-file, "
            "or leave --avoid-case out"
        )


def may_ban(path: str | None) -> bool:
    """Return whether a constraints file may have banned phrases; assumed of a pipe, which can be
    read only once."""
    return path is not None and (
        not os.path.isfile(path) or is_json(Lines(path, "--constraints-file"))
    )


def expect_phrases(settings: Settings) -> str | None:
    """Set up the search for constraints if a flag applies to phrases; return that flag.

    For a task whose phrases are passed with each call (translator.py).
    """
    choices = settings.get(Choices)
    if choices.select or choices.decoding != "beam" or settings.generation.constraints:
        return None
    return applying_flag(settings, "phrases", "required phrases", "banned phrases")


# ---- The default of --glossary-placement, and the flags that it cannot obey


def choose_placement(settings: Settings, of_requests: bool) -> Settings:
    """Return the settings, with a placement of the glossary's terms if there is a glossary and the
    command names no placement.

    of_requests: whether glossaries are passed with requests.

    Errors: UsageError for --glossary-placement align with a flag that it would not obey.
    """
    glossary, segmented = settings.get(GlossaryFlags), settings.command.segments_text
    if not (glossary.glossary or of_requests) or glossary.glossary_placement == "free":
        return settings
    select = settings.choice("select")
    own = {
        "--constraint-bonus": settings.get(ConstraintFlags).constraint_bonus is not None,
        "--constraint-end": settings.get(EndFlags).constraint_end,
        f"--select {select}": select != "dba",
    }
    names = ("print_alignment", "lm_path", "retain_dropout", "no_repeat_ngram_size")
    stock = {typed(name): bool(settings.values.get(name)) for name in names}
    against = next((flag for flag, is_on in (own | stock).items() if is_on), None)
    if glossary.glossary_placement is None:
        placement = "align" if segmented and against is None else "free"
        return settings.changed(glossary_placement=placement)
    if against is not None:
        raise UsageError(
            f"--glossary-placement align writes terms after the search, in which {against} works: "
            "leave one of the two out"
        )
    if not segmented:
        raise UsageError(
            "--glossary-placement align needs to know what words are: add --bpe or --tokenizer, "
            "or use free in its place"
        )
    return settings
