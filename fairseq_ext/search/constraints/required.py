"""The flags that say which constraints each sentence has, shared by every constrained search."""

import os
from dataclasses import dataclass, field
from typing import Any, Literal

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import Lines
from fairseq_ext.search.constraints.lines import is_json

# defaults of flags that need phrases, and of those among them that need required ones
REQUIRED = {"constraint_case": None, "constraint_bonus": None, "dba_allocation": "even"}
PHRASES = {"constraint_boundary": None, "constraint_end": False, "avoid_case": "any"} | REQUIRED


@dataclass
class ConstraintFlags:
    constraints_file: str | None = field(
        default=None,
        metadata={
            "help": "phrases that must appear: one line a sentence in corpus order, tab-separated, "
            "or JSONL (default: none; in any order unless --constraints is ordered)",
            "file": True,
        },
    )
    avoid_file: str | None = field(
        default=None,
        metadata={
            "help": "phrases that must never appear, one a line (default: none)",
            "file": True,
        },
    )
    glossary: str | None = field(
        default=None,
        metadata={
            "help": "terms for every sentence whose source holds them: TSV, CSV, TBX-Basic "
            "or JSONL of source and target term (or a|b) (default: none; in any order unless "
            "--constraints is ordered)",
            "file": True,
        },
    )
    glossary_match: Literal["surface", "casefold", "lemma"] = field(
        default="surface",
        metadata={
            "help": "how --glossary finds terms in sources: as written, in any case, or in any "
            "form of the words (default: surface)"
        },
    )
    glossary_repeat: Literal["once", "each"] = field(
        default="once",
        metadata={
            "help": "a term of --glossary that a source has n times is required once, or n times "
            "(each) (default: once)"
        },
    )
    glossary_placement: Literal["align", "free"] | None = field(
        default=None,
        metadata={
            "help": "where a term of --glossary stands: in the place of the words that translate "
            "its source term (align), or wherever the search puts it (free) (default: align with "
            "--select dba where --bpe or --tokenizer is given and no other flag needs the search's "
            "own hypotheses, else free)"
        },
    )
    glossary_documents: str | None = field(
        default=None,
        metadata={
            "help": "keep the target form that a document first has for a source term: blank "
            "(blank lines separate documents), or a file with the name of each line's document, "
            "in the order of the lines (default: each line has a form of its own)",
            "file": True,
        },
    )
    constraint_boundary: Literal["word", "prefix", "none"] | None = field(
        default=None,
        metadata={
            "help": "where a required or banned phrase counts: as whole words; from the start "
            "of a word, a suffix may follow (prefix: a banned phrase then bans the words that "
            "begin with it); or inside words as well (none) (default: word where the target's "
            "segmentation is known, else none)"
        },
    )
    constraint_case: Literal["exact", "initial", "any"] | None = field(
        default=None,
        metadata={
            "help": "in which case a required phrase counts: as written; with a capital "
            "too where it starts the translation (initial); or any (default: initial for "
            "--glossary, else exact)"
        },
    )
    avoid_case: Literal["any", "exact"] = field(
        default="any",
        metadata={
            "help": "in which case a banned phrase must not appear: in any, or as written "
            "(exact) (default: any)"
        },
    )
    constraint_end: bool = field(
        default=False,
        metadata={
            "help": "nothing but EOS and closing quotes follows the end of a sentence, and "
            "required phrases come before it (default: off)"
        },
    )
    constraint_bonus: float | None = field(
        default=None,
        metadata={
            "help": "prefer required phrases by so many nats for each of their tokens, instead of "
            "forcing them (default: they are forced)",
            "range": (0, 1000, "bonus in nats"),
        },
    )


def given_of(flags: Any, defaults: dict[str, Any]) -> list[str]:
    """Those of the flags that differ from their defaults, as they are typed."""
    return [
        "--" + name.replace("_", "-")
        for name, default in defaults.items()
        if vars(flags)[name] not in (default, None)
    ]


def check_phrases(flags: Any, typed: bool, corpus: bool) -> None:
    """UsageError for a flag that shapes phrases of which the command has none.

    typed: --constraints is given; corpus: sentences come from a data set, so that no phrases
    can be typed behind them.
    """
    required = bool(flags.constraints_file or flags.glossary)
    if not (required or typed or flags.avoid_file) and (given := given_of(flags, PHRASES)):
        raise UsageError(f"{given[0]} shapes phrases, and the command has none: {ways(given[0])}")
    if corpus and not required and (given := given_of(flags, REQUIRED)):
        raise UsageError(
            f"{given[0]} shapes required phrases, and the command has none: {ways(given[0])}"
        )
    if (
        str(flags.avoid_case) != "any"
        and not flags.avoid_file
        and not may_ban(flags.constraints_file)
    ):
        raise UsageError(
            "--avoid-case shapes banned phrases, and the command has none: add --avoid-file, or "
            "leave --avoid-case out"
        )


def may_ban(path: str | None) -> bool:
    """Whether a constraints file can hold banned phrases; a pipe, which can be read
    only once, is trusted."""
    return path is not None and (
        not os.path.isfile(path) or is_json(Lines(path, "--constraints-file"))
    )


def ways(flag: str) -> str:
    """The way out for a flag that has no phrases to shape."""
    if flag == "--avoid-case":
        return f"add --avoid-file, or leave {flag} out"
    files = (
        "--constraints-file or --glossary"
        if flag[2:].replace("-", "_") in REQUIRED
        else "--constraints-file, --avoid-file or --glossary"
    )
    return f"add {files}, or leave {flag} out"


def expect_phrases(flags: Any, generation: Any) -> str | None:
    """Return the flag that shapes phrases, where the search is to take constraints for it.

    For a task whose phrases come with each call (translator.py).
    """
    if (
        flags.select
        or str(flags.decoding) != "beam"
        or generation.constraints
        or not (given := given_of(flags, PHRASES))
    ):
        return None
    return given[0]


def check_bonus(flags: Any) -> None:
    """UsageError for a bonus that the search would not read."""
    if flags.constraint_bonus is not None and str(flags.select) not in ("bonus", "topk", "None"):
        raise UsageError(
            f"--constraint-bonus prefers phrases and --select {flags.select} forces them: leave "
            "one of the two out"
        )


def case_of(flags: Any, default: str = "exact") -> str:
    """--constraint-case, or the default of a route where it is not given."""
    return default if flags.constraint_case is None else str(flags.constraint_case)


def boundary_mode(flags: Any) -> str | None:
    """--constraint-boundary, None where it is not given."""
    return None if flags.constraint_boundary is None else str(flags.constraint_boundary)
