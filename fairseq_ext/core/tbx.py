"""Term bases in XML: TBX-Basic, and TMX.

TBX-Basic (ISO 30042, https://www.tbxinfo.net/tbx-basic) has concepts with their terms in each
language, TMX units with a text in each language.

Both dialects are read: `termEntry/langSet/tig/term` of version 2 and
`conceptEntry/langSec/termSec/term` of version 3. Each source term of a concept is an entry, and the
concept's target terms are its alternatives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lxml import etree

from fairseq_ext.core.errors import UsageError, cut

CONCEPTS, SECTIONS, TERM_GROUPS = (
    ("termEntry", "conceptEntry", "tu"),
    ("langSet", "langSec", "tuv"),
    ("tig", "ntig", "termSec", "seg"),
)


LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


NOT_USED = ("deprecatedTerm-admn-sts", "supersededTerm-admn-sts")


def rows(
    path: str, flag: str, source_lang: str | None, target_lang: str | None
) -> Iterator[tuple[int, Any]]:
    """(line, (source, targets)) for each source term; concepts that lack one of the
    languages are left out.

    Errors: UsageError for a file that is no XML, has no concepts, or for languages that are not
    known or not in the file.
    """
    if not source_lang or not target_lang:
        kind = "TMX" if path.lower().endswith(".tmx") else "TBX"
        raise UsageError(
            f"{flag} {path} is {kind}, and the languages are not known: name them by --source-lang "
            "and --target-lang"
        )
    # entities are not resolved and nothing is fetched: a glossary may come from anywhere
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
        terms = {language: found for language, found in sections(concept)}
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


def sections(concept: Any) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """A concept's languages, each with (line, term) of the terms in use."""
    for section in concept:
        if name_of(section) in SECTIONS:
            found = []
            for group in section:
                if name_of(group) in TERM_GROUPS and not any(
                    note.text and note.text.strip() in NOT_USED for note in group.iter()
                ):
                    terms = (each for each in group.iter() if name_of(each) in ("term", "seg"))
                    found += [(each.sourceline, "".join(each.itertext()).strip()) for each in terms]
            yield str(section.get(LANGUAGE) or section.get("lang") or "").lower(), found


def of_language(terms: dict[str, list[tuple[int, str]]], language: str) -> list[tuple[int, str]]:
    """The terms of a language; `de` takes those of `de-AT` as well."""
    code = language.lower().replace("_", "-")
    return [
        term
        for name, found in terms.items()
        if name == code or name.startswith(f"{code}-")
        for term in found
    ]


def name_of(element: Any) -> str:
    """The element's name without its namespace; empty for comments."""
    return etree.QName(element).localname if isinstance(element.tag, str) else ""
