"""Parts that stay unchanged in every translation: URLs, e-mail addresses, `{name}`, `%s`, `%1$d`,
and matches of --protect.

A placeholder is taken out of its sentence and put back by word alignment (marks.py), whatever the
model does: exactly once, unchanged. So the rest of the sentence is translated as it is without it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from fairseq_ext.core.errors import UsageError

URL_END = r"[^\s<>\"'`|]*[^\s<>\"'`|.,;:!?)\]}“”’»*_]"
# kinds of placeholders
KINDS = {
    "URL": rf"\b(?:https?|ftps?|file)://{URL_END}|\bmailto:[^\s<>\"'`]+\w",
    "domain": rf"\bwww\.{URL_END}",
    "e-mail address": r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+",
    # GUIDs, and numbers to the base of 16 such as those of git
    "identifier": (
        r"(?<![\w-])[\da-fA-F]{8}(?:-[\da-fA-F]{4}){3}-[\da-fA-F]{12}(?![\w-])|"
        r"(?<![\w-])(?=[a-f]{0,63}\d)(?=\d{0,63}[a-f])[\da-f]{16,64}(?![\w-])"
    ),
    # of printf, with length modifiers; Python's %(name)s; Objective-C's %@
    "printf": (
        r"(?<![\d%])%(?:\d{1,6}\$|\(\w{1,80}\))?[-+0#']{0,4}(?:\d{1,4}|\*)?(?:\.(?:\d{1,3}|\*))?"
        r"(?:hh?|ll?|[Lqjzt])?(?:[diouxXeEfFgGaAcsSp@]|n(?=\W|$))"
        r"(?=(?:px|th|st|nd|rd|m?s|h|m|min|[kKMGT]?i?B)?(?![\w%])|x?%[\d(a-zA-Z.$%-])"
    ),
    "Qt": r"(?<![\d%])%(?:L?\d{1,2}|n)(?![\w%])",
    "percent sign": r"%%(?!\w)",
    "Ruby": r"[%#]\{[^{}\n]{1,80}\}",
    "mustache": r"\{\{\{?[^{}\n]{1,80}\}?\}\}|\{%[^{}\n]{1,120}%\}",
    # Python's and .NET's format fields, ICU's simple arguments, shell variables
    "braces": r"\$?\{(?:[^{}\s][^{}\n]{0,80})?\}|\$\([\w.]{1,40}\)",
    "emoji": (
        r"(?:[\u2190-\u21ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff][\ufe0f\u200d]*)+"
    ),
}
ENTITY = r"&(?:[a-zA-Z]\w{1,30}|#\d{1,7}|#[xX][\da-fA-F]{1,6});"  # where it is no markup
AROUND = {
    "(": ")",
    "[": "]",
    "{": "}",
    "<": ">",
    "„": "“",
    "“": "”",
    "‚": "‘",
    "‘": "’",
    "«": "»",
    "»": "«",
    '"': '"',
    "'": "'",
}
BETWEEN = re.compile(r"\s*[-–—:&/|+=*×x·•→@#^~]{0,2}\s*")  # of two placeholders: stays there


@cache
def pattern(protect: tuple[str, ...], of_markup: bool) -> re.Pattern[str]:
    """Return the pattern that finds placeholders.

    protect: regular expressions of more of them; of_markup: entities are characters.
    Errors: UsageError for one that is none.
    """
    for each in protect:
        try:
            if re.compile(each).search("") is not None:
                raise UsageError(
                    f"--protect {each} matches nothing at all as well: write what it must hold"
                )
        except re.error as error:
            raise UsageError(
                f"--protect {each} must be a regular expression ({error}): correct it"
            ) from None
    return re.compile(
        "|".join(f"(?:{each})" for each in (*protect, *KINDS.values(), *[ENTITY][of_markup:]))
    )


def find(text: str, protect: Sequence[str] = (), of_markup: bool = False) -> list[tuple[int, int]]:
    """Return where placeholders stand, with the brackets or quotes that hold nothing else; those
    with nothing but a sign such as `:` or `/` between them are one.

    of_markup: see `pattern`.
    """
    found: list[tuple[int, int]] = []
    for match in pattern(tuple(protect), of_markup).finditer(text):
        start, end = match.span()
        while start and end < len(text) and AROUND.get(text[start - 1]) == text[end]:
            start, end = start - 1, end + 1
        start, end = (start, end) if not found or start >= found[-1][1] else match.span()
        between = text[found[-1][1] : start] if found else " "
        if not between.isspace() and BETWEEN.fullmatch(between):
            start = found.pop()[0]
        found.append((start, end))
    return found
