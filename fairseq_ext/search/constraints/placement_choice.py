"""The default of --glossary-placement, and the flags that it cannot obey."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fairseq_ext.core.errors import UsageError


def choose_placement(flags: Any, generation: Any, segmented: bool, of_requests: bool) -> Any:
    """Return the flags, with a placement of the glossary's terms if there is a glossary and the
    command names no placement.

    segmented: whether --bpe or --tokenizer defines words; of_requests: whether glossaries are
    passed with requests.

    Errors: UsageError for --glossary-placement align with a flag that it would not obey.
    """
    if not (flags.glossary or of_requests) or str(flags.glossary_placement) == "free":
        return flags
    own = {
        "--constraint-bonus": flags.constraint_bonus is not None,
        "--constraint-end": flags.constraint_end,
        f"--select {flags.select}": str(flags.select) != "dba",
    }
    names = ("print_alignment", "lm_path", "retain_dropout", "no_repeat_ngram_size")
    stock = {"--" + name.replace("_", "-"): bool(vars(generation)[name]) for name in names}
    against = next((flag for flag, is_on in (own | stock).items() if is_on), None)
    if flags.glossary_placement is None:
        placement = "align" if segmented and against is None else "free"
        return replace(flags, glossary_placement=placement)
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
    return flags
