"""Codes of languages as DeepL's API has them: upper case, with a region for some targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_ext.core.language_codes import name_of, two_letters

# those that DeepL names, without regions
CODES = frozenset(
    (
        "ace af an ar as ay az ba be bg bho bn br bs ca ceb ckb cs cy da de el en eo es et eu "
        "fa fi fr ga gl gn gom gu ha he hi hr ht hu hy id ig is it ja jv ka kk kmr ko ky la "
        "lb lmo ln lt lv mai mg mi mk ml mn mr ms mt my nb ne nl oc om pa pag pam pl prs ps "
        "pt qu ro ru sa scn sk sl sq sr st su sv sw ta te tg th tk tl tn tr ts tt uk ur uz vi "
        "wo xh yi yue zh zu"
    ).split()
)
# those whose glossaries DeepL lists; a glossary of any two that it names is kept
LISTED = (
    "ar bg cs da de el en es et fi fr he hu id it ja ko lt lv nb nl pl pt ro ru sk sl sv th tr uk "
    "vi zh"
).split()
CONFIDENCE = 60.0  # per cent, from which a text counts as one in the target language
REGIONS = {"GB": "British", "US": "American", "BR": "Brazilian", "PT": "European"}
# targets that clients name with a region only
REGIONAL = {"en": ("EN-GB", "EN-US"), "pt": ("PT-BR", "PT-PT")}


def plain(code: str) -> str:
    """Return a code in lower case, its parts joined by hyphens."""
    return code.replace("_", "-").lower()


def base(code: str) -> str:
    """Return a code of DeepL's without its region, in lower case."""
    return plain(code).partition("-")[0]


def matching(code: str, served: Sequence[str]) -> list[str]:
    """Return the models' codes for a code of DeepL's: the same code, else all of its language."""
    return [each for each in served if plain(each) == plain(code)] or [
        each for each in served if two_letters(each) == two_letters(code)
    ]


def likely(ranked: Sequence[Mapping[str, Any]], target: str) -> list[str]:
    """Return the languages that a text may be in, the likeliest first. ranked: from `candidates`.

    A few words may be of several languages. Their sender wants a translation, so the target
    language is one of them only from a confidence of `CONFIDENCE`.
    """
    found = [each["language"] for each in ranked]
    others = [code for code in found if two_letters(code) != two_letters(target)]
    is_sure = found[0] in others or ranked[0]["confidence"] >= CONFIDENCE
    return found if is_sure or not others else others


def target_codes(code: str) -> Sequence[str]:
    """Return DeepL's codes of a model's target language: of each of its regions, if it has some."""
    language = two_letters(code)
    if language not in REGIONAL:
        return [language.upper()]
    exact = plain(code).upper()
    return [exact] if exact in REGIONAL[language] else REGIONAL[language]


def full_name(code: str) -> str:
    """Return the name of a code of DeepL's in English, with its region."""
    region = REGIONS.get(code.partition("-")[2])
    return name_of(code) + (f" ({region})" if region else "")
