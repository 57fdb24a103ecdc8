"""Codes of languages: models have their own (deu_Latn, de_DE, pt-BR), and libraries and clients
know those of two letters."""

from __future__ import annotations

NAMES = {
    "ar": "Arabic",
    "bg": "Bulgarian",
    "bn": "Bengali",
    "ca": "Catalan",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "et": "Estonian",
    "fa": "Persian",
    "fi": "Finnish",
    "fr": "French",
    "he": "Hebrew",
    "hi": "Hindi",
    "hr": "Croatian",
    "hu": "Hungarian",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "nb": "Norwegian",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sk": "Slovak",
    "sl": "Slovenian",
    "sv": "Swedish",
    "th": "Thai",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "vi": "Vietnamese",
    "zh": "Chinese",
}
# ISO 639-3, as NLLB-200 has them, in the order of the names
LONG = (
    "arb bul ben cat ces dan deu ell eng spa est pes fin fra heb hin hrv hun ind ita jpn kor lit "
    "lvs nob nld pol por ron rus slk slv swe tha tur ukr vie zho"
)
SHORT = dict(zip(LONG.split(), NAMES, strict=True))


def two_letters(code: str) -> str:
    """The two letters of a code's language, where they are known; else its first part."""
    first = code.replace("-", "_").partition("_")[0].lower()
    return SHORT.get(first, first)


def name_of(code: str) -> str:
    """The language's name in English; the code where it is not known."""
    return NAMES.get(two_letters(code), code)
