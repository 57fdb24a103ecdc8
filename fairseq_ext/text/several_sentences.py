"""Whether a text holds several sentences: a model of single sentences merges them, or drops
some without a word."""

from __future__ import annotations

import regex

from fairseq_ext.core.errors import counted

# what a full stop shortens
SHORT = (
    r"\b(?:\p{L}{1,2}|usw|bzw|vgl|etc|evtl|inkl|Abs|Art|Mrs|Prof|Rev|Gen|Col|Sen|Gov|"
    r"cie|env|ecc|sig)"
)
# `.`, `?` or `!`, not behind such a word or a number, and then a capital; or a blank line
END, START = r"[.?!][\p{Pe}\p{Pf}\"']*\s+", r"[\p{Ps}\p{Pi}\"'¿¡]*\p{Lu}"
BREAK = regex.compile(rf"(?<!{SHORT}|\d|\.){END}(?={START})|[。！？](?=\s*\p{{L}})|\n\s*\n")


def warning(text: str, where: str) -> str:
    """Return the warning for a source with several sentences; "" for one.

    where: how messages name it.
    """
    count = 1 + len(BREAK.findall(text.strip()))
    return (
        (
            f"{where} holds {counted(count, 'sentence')}, and the model may merge or drop some: "
            "give each by itself"
        )
        if count > 1
        else ""
    )
