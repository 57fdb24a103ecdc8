"""The language of a text, of those that are served, by the package lingua."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from fairseq_ext.core.errors import UsageError
from fairseq_ext.text.language_codes import two_letters

MOST = 3  # candidates that are told
READ = 2000  # characters that are looked at


@cache
def detector(codes: tuple[str, ...]) -> Any:
    """From lingua, for languages of these codes; None where it knows fewer than two of them. Errors: UsageError where it is missing."""
    try:
        from lingua import IsoCode639_1, LanguageDetectorBuilder
    except ImportError:
        raise UsageError("a language is detected by lingua, which is not installed: pip install 'fairseq_ext[text]', or name it") from None
    known = {code.upper() for code in codes if hasattr(IsoCode639_1, code.upper())}
    if len(known) < 2:
        return None
    return LanguageDetectorBuilder.from_iso_codes_639_1(*(getattr(IsoCode639_1, code) for code in sorted(known))).build()


def candidates(texts: Sequence[str], served: Sequence[str]) -> list[dict[str, Any]]:
    """The most likely languages of texts together, with their confidence in per cent. served: codes, such as `de` or `pt_BR`."""
    short = {two_letters(code): code for code in reversed(served)}
    found = detector(tuple(sorted(short)))
    if found is None:
        return [{"confidence": 0.0, "language": served[0]}]
    ranked = found.compute_language_confidence_values("\n".join(texts)[:READ])[:MOST]
    return [{"confidence": round(100.0 * each.value, 1), "language": short[each.language.iso_code_639_1.name.lower()]} for each in ranked]
