"""Language codes: models have their own (deu_Latn, de_DE, pt-BR); libraries and clients use codes
of two letters.

langcodes has the codes without this table, but its names of languages are a package of 24 MB with a
compiled part, know neither `castellano` nor a name in two languages at once, and it takes 45 ms to
import.
"""

from __future__ import annotations

import re

# a language in a line: its code of two letters; its name in English; its other codes, among them
# that of NLLB-200; its names in the language itself and in German
TABLE = """
ar | Arabic | arb ara | العربية arabisch
bg | Bulgarian | bul | български bulgarisch
bn | Bengali | ben | বাংলা bengalisch bengali
ca | Catalan | cat | català katalanisch
cs | Czech | ces cze | čeština tschechisch
da | Danish | dan | dansk dänisch
de | German | deu ger | deutsch
el | Greek | ell gre | ελληνικά griechisch
en | English | eng | englisch
es | Spanish | spa | español castellano spanisch
et | Estonian | est | eesti estnisch
fa | Persian | pes per | فارسی persisch farsi
fi | Finnish | fin | suomi finnisch
fr | French | fra fre | français französisch
he | Hebrew | heb | עברית hebräisch
hi | Hindi | hin | हिन्दी hindi
hr | Croatian | hrv | hrvatski kroatisch
hu | Hungarian | hun | magyar ungarisch
id | Indonesian | ind | indonesia indonesisch
it | Italian | ita | italiano italienisch
ja | Japanese | jpn | 日本語 japanisch
ko | Korean | kor | 한국어 koreanisch
lt | Lithuanian | lit | lietuvių litauisch
lv | Latvian | lvs lav | latviešu lettisch
nb | Norwegian | nob nor no | norsk norwegisch bokmål
nl | Dutch | nld dut | nederlands niederländisch
pl | Polish | pol | polski polnisch
pt | Portuguese | por | português portugiesisch
ro | Romanian | ron rum | română rumänisch
ru | Russian | rus | русский russisch
sk | Slovak | slk slo | slovenčina slowakisch
sl | Slovenian | slv | slovenščina slowenisch
sv | Swedish | swe | svenska schwedisch
th | Thai | tha | ไทย thailändisch thai
tr | Turkish | tur | türkçe türkisch
uk | Ukrainian | ukr | українська ukrainisch
vi | Vietnamese | vie | việt vietnamesisch
zh | Chinese | zho chi cmn | 中文 chinesisch
"""
NAMES: dict[str, str] = {}  # the English name by the code of two letters
SHORT: dict[str, str] = {}  # the code of two letters by other codes
CODE_OF_NAME: dict[str, str] = {}  # the code of two letters by names, in small letters
for two, english, others, own in (line.split(" | ") for line in TABLE.strip().splitlines()):
    NAMES[two] = english
    SHORT |= dict.fromkeys(others.split(), two)
    CODE_OF_NAME |= dict.fromkeys([*own.split(), english.lower()], two)
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
