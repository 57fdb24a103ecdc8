"""Language codes: models have their own (deu_Latn, de_DE, pt-BR); libraries and clients use codes
of two letters."""

from __future__ import annotations

import re

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
# ISO 639-3 codes of NLLB-200, in the order of NAMES
LONG = (
    "arb bul ben cat ces dan deu ell eng spa est pes fin fra heb hin hrv hun ind ita jpn kor lit "
    "lvs nob nld pol por ron rus slk slv swe tha tur ukr vie zho"
)
SHORT = dict(zip(LONG.split(), NAMES, strict=True)) | {
    "ara": "ar",
    "deu": "de",
    "ger": "de",
    "fre": "fr",
    "dut": "nl",
    "gre": "el",
    "cze": "cs",
    "rum": "ro",
    "slo": "sk",
    "chi": "zh",
    "cmn": "zh",
    "zho": "zh",
    "per": "fa",
    "lav": "lv",
    "nor": "nb",
    "no": "nb",
    "est": "et",
}
# the languages' names in the language itself and in German
OWN = {
    "ar": "العربية arabisch",
    "bg": "български bulgarisch",
    "bn": "বাংলা bengalisch bengali",
    "ca": "català katalanisch",
    "cs": "čeština tschechisch",
    "da": "dansk dänisch",
    "de": "deutsch",
    "el": "ελληνικά griechisch",
    "en": "englisch",
    "es": "español castellano spanisch",
    "et": "eesti estnisch",
    "fa": "فارسی persisch farsi",
    "fi": "suomi finnisch",
    "fr": "français französisch",
    "he": "עברית hebräisch",
    "hi": "हिन्दी hindi",
    "hr": "hrvatski kroatisch",
    "hu": "magyar ungarisch",
    "id": "indonesia indonesisch",
    "it": "italiano italienisch",
    "ja": "日本語 japanisch",
    "ko": "한국어 koreanisch",
    "lt": "lietuvių litauisch",
    "lv": "latviešu lettisch",
    "nb": "norsk norwegisch bokmål",
    "nl": "nederlands niederländisch",
    "pl": "polski polnisch",
    "pt": "português portugiesisch",
    "ro": "română rumänisch",
    "ru": "русский russisch",
    "sk": "slovenčina slowakisch",
    "sl": "slovenščina slowenisch",
    "sv": "svenska schwedisch",
    "th": "ไทย thailändisch thai",
    "tr": "türkçe türkisch",
    "uk": "українська ukrainisch",
    "vi": "việt vietnamesisch",
    "zh": "中文 chinesisch",
}
CODE_OF_NAME = {name: code for code, names in OWN.items() for name in names.split()} | {
    name.lower(): code for code, name in NAMES.items()
}
CODE = re.compile(r"([a-z]{2,3})(?:-[a-z]{4})?(?:-(?:[a-z]{2}|\d{3}))?")
PARENTHESES = re.compile(r"\s*[(\[]([^)\]]*)[)\]]\s*")
WORDS = frozenset("term terms text source target translation word begriff terme término".split())


def two_letters(code: str) -> str:
    """Return the two-letter code of a code's language; the code's first part if it is unknown."""
    first = code.replace("-", "_").partition("_")[0].lower()
    return SHORT.get(first, first)


def name_of(code: str) -> str:
    """Return the language's name in English; the code if the language is unknown."""
    return NAMES.get(two_letters(code), code)


def language_of(text: str) -> str | None:
    """Return the two-letter code of the language that a text names; None if it names none.

    A name is in English, in German or in the language itself, or is a code (`deu_Latn`, `de_DE`);
    it stands alone, in brackets, or as in `German term`.
    """
    text = text.strip().lower().replace("_", "-")
    inside = PARENTHESES.search(text)
    words = PARENTHESES.sub(" ", text).split()
    for each in [text, inside[1] if inside else "", " ".join(words)]:
        code = CODE.fullmatch(each.strip())
        if each.strip() in CODE_OF_NAME:
            return CODE_OF_NAME[each.strip()]
        if code and (SHORT.get(code[1], code[1]) in NAMES):
            return SHORT.get(code[1], code[1])
    known = [CODE_OF_NAME[word] for word in words if word in CODE_OF_NAME]
    rest = [word for word in words if word not in CODE_OF_NAME]
    return known[0] if len(known) == 1 and rest and WORDS.issuperset(rest) else None
