"""The ends of the sentences of a line: by the package sentencex, corrected by one short list;
without the package, by a plain rule."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cache, partial

import regex

from fairseq_ext.core.errors import counted
from fairseq_ext.core.language_codes import two_letters
from fairseq_ext.text.atoms import Ends
from fairseq_ext.text.stopping import check

logger = logging.getLogger("fairseq_ext")
PLACEHOLDER = "\ufffc"  # stands for a placeholder in the line
WORD = "Xyzzy"  # what sentencex reads in its place: a word that may begin a sentence
LONGEST_BRACKET = 2000
CLOSING = r"[\p{Pe}\p{Pf}\"'“‘]*"
MONTHS = "Januar|Jänner|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember"
# abbreviations of three letters and more that stand before numbers
BEFORE_NUMBERS = (
    r"Abb|Abs|Abt|Art|Aufl|Az|Best|Bsp|Fig|Geb|Hrsg|Kap|Konto|Nrn|Rdnr|Reg|Tab|Tel|Verf|Ziff|"
    r"abzgl|approx|art|bzgl|bzw|circa|dept|entspr|etwa|evtl|exkl|fig|gegr|gem|geb|gest|ggf|inkl|"
    r"insb|lfd|max|mind|min|nat|nom|núm|pág|pag|rys|sec|tab|tel|tél|usw|vgl|vol|zzgl|"
    r"рис|стр|табл|тел"
)
BEFORE_QUOTES = r"bzw|ca|vgl|Nr|ggf|inkl|sog|etc|evtl|Abb|Kap|Art|gen|lat|engl|dt|bspw"
# a word in front of a sentence that no space parts from it: not System.Windows, nor .NET
GLUED = r"(?<![\p{L}\d._-])\p{Ll}{3,30}[.!?]"
# more ends of sentences, each with what sentencex passes over
MORE = tuple(
    map(
        regex.compile,
        (
            rf"(?<=\p{{L}}(?:…|\.\.\.){CLOSING})\s+(?=[\p{{Ps}}\p{{Pi}}„‚]*\p{{Lu}})",  # warten… Er
            r"(?<=[.!?…][\p{Pe}\p{Pf}\"'“‘]+)\s+(?=[„‚«»“‘\"]\p{Lu})",  # “Ja.” “Nein.”
            # Neu? «Ja.»
            rf"(?<=[.!?…])(?<!\b(?:\p{{L}}|{BEFORE_QUOTES})\.)\s+(?=[„‚«»¿¡]\p{{Lu}})",
            rf"(?<={GLUED})(?=\p{{Lu}}\p{{Ll}}+\s)",  # bellt.Die Katze
            r"(?<=\b(?:usw|etc|ecc|osv|enz|itd|itp|т\.\s?[дп])\.)\s+(?=\p{Lu})",  # usw. Dann
            r"(?<=\p{L}{2}!)\s+(?=\p{Lu})",  # Yahoo! She
            r"(?<=[。！？]）)(?=\S)",  # （雨です。）待つ
            # ist da. 12 Hunde
            rf"(?<=\p{{L}}{{3}}[.!?…]{CLOSING}|\b(?:19|20)\d\d[.!?]{CLOSING})"
            rf"(?<!\b(?i:{BEFORE_NUMBERS})\.)\s+(?=[„“«\"(]?\d)",
        ),
    )
)
# a bracket that holds a whole sentence ends one: (Das war gestern.) Heute
BRACKET = regex.compile(r"(?<=[.!?…][\p{Pf}\"'“‘]*[)\]])\s+(?=[\p{Pi}\"'„‚(\[]*\p{Lu})")
# a quotation or a bracket of whole sentences, within which sentencex sees no end
QUOTATION = regex.compile(
    "|".join(
        rf"[{marks[0]}][^{marks}]{{4,{LONGEST_BRACKET}}}+(?<=[.!?…。！？।؟۔])[{marks[1:]}]"
        for marks in ("„“”", "“”", "»«", "«»", "‚‘", '""', "()", r"[\]", "（）", "「」", "『』")
    )
)
# where sentencex sees an end and none is: in front of it, and behind it
SHORT = (
    r"Abb|Abs|Anh|Bd|Kap|Tab|Ziff|Rdnr|Anm|[Aa]rt|[Ff]ig|[Nn]o|[Nn]r|[Nn]ro|[Nn]úm|[Pp]ág|[Pp]ag|"
    r"[Rr]ys|[Nn]|[Тт]абл|[Рр]ис|[Сс]тр|[Гг]л|[Пп]п?|[Сс]м|[Сс]|[Cc]h|[Vv]ol|[Pp]p?|[Ss]tr|"
    r"[Tt]ab|[Uu]l"
)
BEFORE_NAMES = (
    r"Drs?|Mrs?|Ms|D|Dña|Sra?|MM?|Mme|Mlle|Mgr|Me|ing|avv|dott|prof|Prof|sig|Sig|ks|"
    r"inż|śp|г|ул|им|акад|проф"
)
NUMBERED = (  # headings
    r"Kapitel|Abschnitt|Anhang|Teil|Chapter|Section|Appendix|Part|Chapitre|Capítulo|Capitolo|"
    r"Rozdział|Глава|Kapitola|Hoofdstuk"
)
SMALL = (
    r"(?i:der|die|das|dem|den|des|am|im|zum|zur|vom|beim|ab|bis|seit|jede[mnrs]?|diese[mnrs]?|"
    r"ein|eine[mnrs]?|[mdsk]?eine[mnrs]?|ihre?[mnrs]?|unsere?[mnrs]?|und|oder|på|den|det|dne|od|do|"
    r"a|az|w|z)"
)
NO_END = tuple(
    (regex.compile(before), regex.compile(behind))
    for before, behind in (
        (rf"\b(?:{SHORT})\.\s+$", r"[\d\p{Lu}]?[\dIVXLC]|\p{Lu}\.|_|Xyzzy"),  # pag. 3
        (rf"\b(?:{BEFORE_NAMES})\.\s+$", r"\p{Lu}|Xyzzy"),  # M. Dupont
        (rf"(?:^|[\s(]){SMALL}\s+\d{{1,3}}\.\s+$", r"\p{Lu}\p{Ll}"),  # Der 3. Mann
        (r"\d\.\s+$", r"\p{Ll}"),  # 3. kat
        (rf"^\s*(?:{NUMBERED})\s+[\d.]+\.\s+$", r"\p{Lu}"),  # Kapitel 4. Der Hund
        (r"/(?:\.\.\.|…)\s+$", r""),  # Red-Hat-/Slackware-/... Systeme
        (r"\b\d{1,2}\.\s+$", rf"(?:{MONTHS})\b"),  # Montag, 19. Oktober
        (rf"\b(?i:{BEFORE_NUMBERS})\.\s+$", r"\d"),  # approx. 5
        (r"\.$", r"[ºª°]"),  # n.º 5
        (r"(?:^|[\s(\p{Pi}„])[\p{L}.]{1,3}\.\s+$", r"\p{Ll}"),  # 1990 r. urodził; p. ex.
        (r"(?<![.!?…][\p{Pf}\"'“‘]*)[)\]\"'“”’‘»]+\s+$", r"\p{Ll}"),  # (laut!) und
    )
)
ENDS_WITH_MARK, FINISHED = regex.compile(r"[.!?]$"), regex.compile(GLUED + "$")
BEGUN = regex.compile(r"\p{Lu}\p{Ll}+\s|[^\p{Latin}\p{Cyrillic}\p{N}\p{P}\p{S}]")
CLOSED = regex.compile(r"[\p{Pe}\p{Pf}“‘\"']+(?=\s|$)\s*")
# a line that nothing can end within; most short ones are, and the rest takes 20 times as long
ONE = regex.compile(r"[\p{L}\p{M}\p{N},' -]*+[.!?]?")
AT_ONCE = 10_000  # characters
BEFORE_END = 40  # characters in front of an end that say whether it is one
LAST = 24  # and those behind it


@cache
def splitter(language: str | None) -> Ends:
    """Return a function from a line to the ends of its sentences, in characters, white space after
    them included; the last is the line's. Placeholders of the line are `PLACEHOLDER`."""
    try:
        from sentencex import get_sentence_boundaries
    except ImportError:
        logger.warning(
            "sentences are told apart by a plain rule, which knows few abbreviations: pip install "
            "'fairseq_ext[text]'"
        )
        return plain_ends
    return partial(ends_of, split=partial(get_sentence_boundaries, two_letters(language or "en")))


def plain_ends(line: str) -> list[int]:
    """Find ends by full stops and the like in front of a capital letter."""
    return [*(match.end() for match in BREAK.finditer(line)), len(line)]


def ends_of(line: str, split: Callable[[str], list[dict[str, int]]]) -> list[int]:
    """Return the ends by sentencex (split), and by the lists above."""
    if ONE.fullmatch(line):
        return [len(line)]
    text = line.replace(PLACEHOLDER, WORD)
    found = set(ends_in_parts(text, split))
    found.update(ends_in_quotations(text, found, split))
    for pattern in MORE:
        found.update(match.end() for match in pattern.finditer(text))
    found = {end for end in behind_closing(text, sorted(found)) if not is_inside(text, end)}
    found.add(len(text) - len(text.lstrip()))
    for match in BRACKET.finditer(text):
        mark, at = "(" if text[match.start() - 1] == ")" else "[", match.start()
        if text.rfind(mark, max(0, at - LONGEST_BRACKET), at) in found:
            found.add(match.end())
    found.discard(len(text) - len(text.lstrip()))
    ends = sorted(found - {0, len(text)})
    return [*(ends if text == line else shorter(line, ends)), len(line)]


def ends_in_parts(text: str, split: Callable[[str], list[dict[str, int]]]) -> Iterator[int]:
    """Yield sentencex's ends; it gets parts of a text, since its time grows with the square."""
    at = 0
    while at < len(text):
        check()
        part = text[at : at + AT_ONCE]
        ends = [at + each["end_index"] for each in split(part)]
        if at + len(part) < len(text):
            ends = [end for end in ends if end < at + len(part)]
        yield from ends
        at = ends[-1] if ends and ends[-1] > at else at + len(part)


def ends_in_quotations(
    text: str, ends: set[int], split: Callable[[str], list[dict[str, int]]]
) -> Iterator[int]:
    """Yield the ends within quotations and brackets that begin where a sentence does, or behind a
    colon. ends: those of the text."""
    first = len(text) - len(text.lstrip())
    for match in QUOTATION.finditer(text):
        start, at = match.start(), match.start() + 1
        if start in ends or start == first or text[max(0, start - 2) : start].strip() == ":":
            within = [at + end for end in ends_in_parts(text[at : match.end() - 1], split)]
            yield from within[:-1]


def behind_closing(text: str, ends: list[int]) -> Iterator[int]:
    """Yield the ends, where a mark that closes what is before an end does not begin what is behind
    it: `‚Ja.‘ Dann`."""
    for end in ends:
        mark = CLOSED.match(text, end)
        yield mark.end() if mark and end and not text[end - 1].isspace() else end


def is_inside(text: str, end: int) -> bool:
    """Return whether an end of sentencex's stands inside of a sentence."""
    before = text[max(0, end - BEFORE_END) : end]
    behind = text[end : end + LAST]
    if behind.startswith("-") and not before[-1:].isspace():  # „Hallo!“-Beispiel
        return True
    if ENDS_WITH_MARK.search(before) and not CLOSED.match(behind):
        return not (FINISHED.search(before) and BEGUN.match(behind))
    return any(one.search(before) and other.match(behind) for one, other in NO_END)


def shorter(line: str, ends: list[int]) -> Iterator[int]:
    """Turn ends in the text with `WORD` into those in the line with `PLACEHOLDER`."""
    places, more = [], len(WORD) - len(PLACEHOLDER)
    for number, at in enumerate(i for i, each in enumerate(line) if each == PLACEHOLDER):
        places.append(at + more * number)  # where the word begins in the text
    for end in ends:
        count = bisect_left(places, end)
        yield end - more * count


# ---- Whether a text holds several sentences: a model of single ones merges them, or drops some


# what a full stop shortens
FULL_STOPPED = (
    r"\b(?:\p{L}{1,2}|usw|bzw|vgl|etc|evtl|inkl|Abs|Art|Mrs|Prof|Rev|Gen|Col|Sen|Gov|"
    r"cie|env|ecc|sig)"
)
# `.`, `?` or `!`, not behind such a word or a number, and then a capital; or a blank line
END, START = r"[.?!][\p{Pe}\p{Pf}\"']*\s+", r"[\p{Ps}\p{Pi}\"'¿¡]*\p{Lu}"
BREAK = regex.compile(rf"(?<!{FULL_STOPPED}|\d|\.){END}(?={START})|[。！？](?=\s*\p{{L}})|\n\s*\n")


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
