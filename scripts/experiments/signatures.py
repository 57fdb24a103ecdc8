"""The signatures of a results file as a short list: what all of them share stands once, and what
differ in the beam alone are one line."""

from collections.abc import Iterable, Iterator
from typing import Any


def signatures(value: Any) -> Iterator[str]:
    """Every "signature" in a JSON value."""
    if isinstance(value, dict):
        if isinstance(value.get("signature"), str) and value["signature"]:
            yield value["signature"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from signatures(item)


def folded(names: Iterable[str]) -> str:
    """A folded paragraph with the signatures, each once, in their order; "" where there are none.

    A signature is `name:value` fields between bars. Fields that all of them have stand in the
    first line. A name without bars is another program's and has none. Flags in brackets behind
    a signature are left out.
    """
    found = list(dict.fromkeys(name.partition(" (")[0] for name in names))
    if not found:
        return ""
    others = [f"`{name}`" for name in found if "|" not in name]
    split = [name.split("|") for name in found if "|" in name]
    shared = (
        [field for field in split[0] if all(field in fields for fields in split)]
        if len(split) > 1
        else []
    )
    lines: dict[str, list[int]] = {}
    for fields in split:
        apart = [field for field in fields if field not in shared]
        beams = [field for field in apart if field.startswith("beam:")] if shared else []
        rest = "|".join(field for field in apart if field not in beams)
        lines.setdefault(rest, []).extend(int(beam.removeprefix("beam:")) for beam in beams)
    title = "1 signature" if len(found) == 1 else f"{len(found)} signatures"
    out = [f"<details><summary>{title}</summary>", ""]
    if shared:
        out += [
            f"All{' but ' + ', '.join(others) if others else ''} have `{'|'.join(shared)}`, and:",
            "",
        ]
    else:
        out += [f"- {name}" for name in others]
    for rest, beams_of in lines.items():
        parts = ([f"`{rest}`"] if rest else []) + (
            ["beam " + ", ".join(map(str, sorted(beams_of)))] if beams_of else []
        )
        out.append("- " + (", ".join(parts) or "nothing more"))
    return "\n".join([*out, "", "</details>"])
