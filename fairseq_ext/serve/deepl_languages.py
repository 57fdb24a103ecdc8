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
MIN_CONFIDENCE = 60.0  # in per cent, of the target language for a text that is not translated
REGIONS = {"GB": "British", "US": "American", "BR": "Brazilian", "PT": "European"}
# targets that clients name with a region only
REGIONAL = {"en": ("EN-GB", "EN-US"), "pt": ("PT-BR", "PT-PT")}


def plain(code: str) -> str:
    """A code in lower case, its parts joined by hyphens."""
    return code.replace("_", "-").lower()


def base(code: str) -> str:
    """A code of DeepL's without its region, in lower case."""
    return plain(code).partition("-")[0]


def matching(code: str, served: Sequence[str]) -> list[str]:
    """The codes of models that a code of DeepL's means: the same, else all of its language."""
    return [each for each in served if plain(each) == plain(code)] or [
        each for each in served if two_letters(each) == two_letters(code)
    ]


def likely(ranked: Sequence[Mapping[str, Any]], target: str) -> list[str]:
    """The languages that a text may be in, the likeliest first. ranked: of `candidates`.

    A few words may be of several languages. The target language is left out below
    `MIN_CONFIDENCE`, because a client sends texts to have them translated.
    """
    found = [each["language"] for each in ranked]
    others = [code for code in found if two_letters(code) != two_letters(target)]
    is_clear = found[0] in others or ranked[0]["confidence"] >= MIN_CONFIDENCE
    return found if is_clear or not others else others


def target_codes(code: str) -> Sequence[str]:
    """What a model's target language is called as a target."""
    language = two_letters(code)
    if language not in REGIONAL:
        return [language.upper()]
    exact = plain(code).upper()
    return [exact] if exact in REGIONAL[language] else REGIONAL[language]


def full_name(code: str) -> str:
    """The name of a code of DeepL's in English, with its region."""
    region = REGIONS.get(code.partition("-")[2])
    return name_of(code) + (f" ({region})" if region else "")
