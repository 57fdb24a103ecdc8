"""Term bases in XML: TBX-Basic, and TMX.

TBX-Basic (ISO 30042, https://www.tbxinfo.net/tbx-basic) has concepts with their terms in each
language, TMX units with a text in each language.

Both dialects are read: `termEntry/langSet/tig/term` of version 2 and
`conceptEntry/langSec/termSec/term` of version 3. Each source term of a concept is an entry, and the
concept's target terms are its alternatives.
"""

from __future__ import annotations

from collections.abc import Iterator

from lxml import etree

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.core.language_codes import language_of, two_letters

CONCEPTS = ("termEntry", "conceptEntry", "tu")
SECTIONS = ("langSet", "langSec", "tuv")
TERM_GROUPS = ("tig", "ntig", "termSec", "seg")


LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


CODES = ("bpt", "ept", "ph", "it", "ut")


NOT_USED = ("deprecatedTerm-admn-sts", "supersededTerm-admn-sts")


def rows(
    path: str, flag: str, source_lang: str | None, target_lang: str | None
) -> Iterator[tuple[int, tuple[str, list[str]]]]:
    """Yield (line, (source, targets)) for each source term; concepts that lack one of the languages
    are left out.

    Errors: UsageError for a file that is not XML or has no concepts, and for languages that are
    unknown or not in the file.
    """
    if not source_lang or not target_lang:
        kind = "TMX" if path.lower().endswith(".tmx") else "TBX"
        raise UsageError(
            f"{flag} {path} is {kind}, and the languages are not known: name them by --source-lang "
            "and --target-lang"
        )
    # entities are not resolved and no address is opened: the source of a glossary is not trusted
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False
    )
    try:
        root = etree.parse(path, parser).getroot()
    except OSError as error:
        raise UsageError(
            f"{flag}: cannot read {path} ({error}): name a file that exists and is readable"
        ) from None
    except etree.XMLSyntaxError as error:
        raise UsageError(
            f"line {error.lineno} of {path} is not valid XML ({cut(str(error.msg))}): export "
            "the glossary again"
        ) from None
    seen: dict[str, None] = {}
    concepts = entries = 0
    for concept in root.iter():
        if name_of(concept) not in CONCEPTS:
            continue
        concepts += 1
        terms: dict[str, list[tuple[int, str]]] = {}
        for language, found in sections(concept):  # a language may have several sections
            terms.setdefault(language, []).extend(found)
        seen.update(dict.fromkeys(terms))
        targets = [text for _, text in of_language(terms, target_lang)]
        for line, source in of_language(terms, source_lang) if targets else ():
            entries += 1
            yield line, (source, targets)
    if not entries:
        there = f"terms in {', '.join(seen)}" if seen else f"{concepts} concepts with terms"
        raise UsageError(
            f"{flag} {path} has {there}, none in both {source_lang} and {target_lang}: "
            "name its languages"
        )


def sections(concept: etree._Element) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Yield a concept's languages, each with (line, term) of the terms in use."""
    for section in concept:
        if name_of(section) in SECTIONS:
            found = []
            for group in section:
                if name_of(group) in TERM_GROUPS and not any(
                    note.text and note.text.strip() in NOT_USED for note in group.iter()
                ):
                    terms = (each for each in group.iter() if name_of(each) in ("term", "seg"))
                    found += [(each.sourceline, "".join(shown(each)).strip()) for each in terms]
            yield str(section.get(LANGUAGE) or section.get("lang") or "").lower(), found


def of_language(terms: dict[str, list[tuple[int, str]]], language: str) -> list[tuple[int, str]]:
    """Return the terms of a language. `de` includes those of `de-AT`, `de_DE` and `deu`; `de_AT`
    has those of `de` if it has no own terms."""
    code = language.lower().replace("_", "-")
    named = {name: name.replace("_", "-") for name in terms}
    own = [name for name, each in named.items() if each == code or each.startswith(f"{code}-")]
    short = two_letters(code)
    near = [name for name in terms if language_of(name) == short]
    return [term for name in (own or near) for term in terms[name]]


def shown(element: etree._Element) -> Iterator[str]:
    """Yield the text of a term, without formatting codes of a program (TMX's bpt, ept, ph and
    it)."""
    yield element.text or ""
    for child in element:
        if name_of(child) and name_of(child) not in CODES:
            yield from shown(child)
        yield child.tail or ""


def name_of(element: etree._Element) -> str:
    """Return the element's name without its namespace; "" for comments."""
    return etree.QName(element).localname if isinstance(element.tag, str) else ""
