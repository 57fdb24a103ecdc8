"""What stays as it is in every translation: URLs, e-mail addresses, `{name}`, `%s`, `%1$d`,
`&nbsp;`, and what --protect names.

A placeholder is taken out of its sentence and put back by word alignment (marks.py), whatever the
model does: exactly once, unchanged. So the rest of the sentence is translated as it is without it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from fairseq_ext.core.errors import UsageError

KNOWN = (
    # URLs, without the mark behind them
    r"https?://[^\s<>\"']*[^\s<>\"'.,;:!?)\]}“”’»]",
    r"www\.[^\s<>\"']*[^\s<>\"'.,;:!?)\]}“”’»]",
    r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+",  # e-mail addresses
    r"\$?\{\{?[^{}\s][^{}\n]{0,80}\}?\}",
    r"%(?:\d+\$|\(\w+\))?[-+0# ]?\d*(?:\.\d+)?[sdifgexXuc@](?!\w)",
    r"%%",
    # emoji and arrows
    r"(?:[\u2190-\u21ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff][\ufe0f\u200d]*)+",
)
ENTITIES = {
    False: r"&(?:[a-zA-Z]\w{1,30}|#\d{1,7}|#[xX][\da-fA-F]{1,6});",
    True: "&(?:nbsp|shy|ensp|emsp|thinsp|#160|#xA0);",
}  # by of_markup
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


@cache
def pattern(protect: tuple[str, ...], of_markup: bool) -> re.Pattern[str]:
    """What finds placeholders.

    protect: regular expressions of more of them. Errors: UsageError for one that is none.
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
    return re.compile("|".join(f"(?:{each})" for each in (*protect, *KNOWN, ENTITIES[of_markup])))


def find(text: str, protect: Sequence[str] = (), of_markup: bool = False) -> list[tuple[int, int]]:
    """Where placeholders stand, with the brackets or quotes that hold nothing else.

    of_markup: of entities, those of spaces alone.
    """
    found: list[tuple[int, int]] = []
    for match in pattern(tuple(protect), of_markup).finditer(text):
        start, end = match.span()
        while start and end < len(text) and AROUND.get(text[start - 1]) == text[end]:
            start, end = start - 1, end + 1
        found.append((start, end) if not found or start >= found[-1][1] else match.span())
    return found
