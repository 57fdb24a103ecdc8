"""What runs which architecture, found out by running it: `python tests/architecture_table.py`
writes docs/supported-models.md.

Every recipe of models.py, and ensembles of them, are saved, loaded as the commands load
them, and translated with by stock and by us; every flag that may be refused for an architecture
is tried. Names that fairseq registers and no search here runs stand in a second table, with the
sentence that a user gets.
"""

from __future__ import annotations

import logging
import re
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from models import ENSEMBLES, RECIPES
from saved_models import Saved, lines

from fairseq_ext import UsageError
from fairseq_ext.model.choose import refusal_reason

PAGE = Path(__file__).resolve().parents[1] / "docs" / "supported-models.md"
HEAD = """# Which architectures run

With every architecture below, n-best lists equal stock fairseq's: \
the test that writes these tables compares them. The fast backend is
`transformer`. Architectures that it does not support run on fairseq's \
own modules, and a log line says why (`--decoder-backend`, default
`auto`). Unsupported flags are refused in one sentence. An ensemble \
is written A + B (`--path a.pt:b.pt`). Your own architecture
(`--user-dir`) also runs: on the fast backend if it is a plain Transformer, else on its own modules.

This page is generated: `python tests/architecture_table.py`.

"""
# flags that some architecture cannot have, as the table shows them
TRIED: dict[str, dict[str, Any]] = {
    "--softmax lsh": {"softmax": "lsh"},
    "--softmax top": {"softmax": "top"},
    "--softmax lexical": {"softmax": "lexical", "shortlist_file": "{lexical table}"},
    "--softmax screened": {"softmax": "screened"},
    "--schedule stream": {"schedule": "stream"},
    "--decoding window": {"decoding": "window"},
    "--decoding window --schedule stream": {"decoding": "window", "schedule": "stream"},
    "--int8": {"int8": True},
    "--print-alignment hard": {},
}


@dataclass
class Row:
    """One architecture at one setting."""

    name: str
    backend: str  # what --decoder-backend auto takes
    reason: str  # why that is fairseq's modules; "" where it is not
    # largest of any hypothesis's score from stock's; infinite where tokens differ
    difference: float
    refused: dict[str, str] = field(default_factory=dict)  # flag -> the sentence
    said: int = 0  # lines of the log that describe the backend


@contextmanager
def log_lines() -> Iterator[list[str]]:
    """What fairseq_ext logs inside."""
    said: list[str] = []
    logger, handler = logging.getLogger("fairseq_ext"), logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    before, disabled = logger.level, logger.manager.disable
    logging.disable(logging.NOTSET)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        logging.disable(disabled)


def difference(expected: list[list[dict]], got: list[list[dict]]) -> float:
    """Largest difference of scores between equal n-best lists; infinite where tokens differ."""
    pairs = [
        pair
        for theirs, ours in zip(expected, got, strict=True)
        for pair in zip(theirs, ours, strict=True)
    ]
    if any(a["tokens"].tolist() != b["tokens"].tolist() for a, b in pairs):
        return float("inf")
    return max(abs(float(a["score"]) - float(b["score"])) for a, b in pairs)


def row(saved: Saved, *names: str) -> Row:
    """Run one recipe, or an ensemble of several."""
    data, text = saved.data(names[0]), lines(4, False)
    expected = saved.ready(
        saved.models(list(names), dtype=torch.float32), data, "translation"
    ).translate(text)
    models = saved.models(list(names), dtype=torch.float32)
    with log_lines() as said:
        ours = saved.ready(models, data, "translation_ext")
    reported = [line for line in said if line.startswith("decoder backend: fairseq, because ")]
    reason = reported[0].removeprefix("decoder backend: fairseq, because ") if reported else ""
    out = Row(
        " + ".join(names),
        ours.generator.decoder.name,
        reason,
        difference(expected, ours.translate(text)),
        said=len(reported),
    )
    for flag, strategy in TRIED.items():
        generation = {"beam": 1} if "decoding" in strategy else {}
        loaded = models
        if flag == "--print-alignment hard":
            generation = {"print_alignment": "hard"}
            # the command makes models keep their attention
            loaded = saved.models(list(names), dtype=torch.float32, **generation)
        try:
            saved.ready(
                loaded,
                data,
                "translation_ext",
                {n: saved.file(v) for n, v in strategy.items()},
                **generation,
            ).translate(text)
        except UsageError as error:
            if "--int8 cannot be used" not in str(error):  # by this machine
                out.refused[flag] = str(error)
    return out


def refusals(saved: Saved) -> dict[str, list[str]]:
    """Names that fairseq registers and translation_ext refuses, by the reason."""
    task = saved.task("translation_ext", saved.data("transformer"))
    out: dict[str, list[str]] = {}
    for name in ARCH_MODEL_REGISTRY:
        reason = refusal_reason(name, task)
        if reason is not None:
            out.setdefault(reason, []).append(name)
    return out


def short(sentence: str) -> str:
    """What a refusal says of a flag: without the flag, the model's name and what
    the user is to do."""
    return re.split(
        r", and |, because |: ", re.sub(r"^--.*?(?=needs|reads|forms|has|bounds)", "", sentence)
    )[0]


def markdown(rows: list[Row], refusals: dict[str, list[str]]) -> str:
    """Both tables. Architectures of which the same is to be said share a line."""
    alike: dict[tuple, list[str]] = {}
    for each in rows:
        reason = each.reason or "-"
        alike.setdefault(
            (each.backend, reason, *((flag, short(why)) for flag, why in each.refused.items())), []
        ).append(each.name)
    out = [
        "| architectures and settings | backend | why not the fast one | refused |",
        "| --- | --- | --- | --- |",
    ]
    notes: dict[str, str] = {}
    for (backend, reason, *flags), names in alike.items():
        reported = ", ".join(
            f"`{flag}` ({notes.setdefault(why, chr(ord('a') + len(notes)))})" for flag, why in flags
        )
        out.append(f"| {'; '.join(names)} | {backend} | {reason} | {reported or '-'} |")
    out += ["", *(f"({letter}) {why}  " for why, letter in notes.items()), ""]
    out += ["| refused, with all names of the same kind | why |", "| --- | --- |"]
    for reason, names in refusals.items():
        # the first name of each
        kinds = {ARCH_MODEL_REGISTRY[name]: name for name in reversed(names)}
        out.append(f"| {', '.join(f'`{name}`' for name in reversed(kinds.values()))} | {reason} |")
    return "\n".join(out) + "\n"


def all_rows(saved: Saved) -> list[Row]:
    """Every recipe, and the ensembles."""
    return [row(saved, name) for name in RECIPES] + [row(saved, *names) for names in ENSEMBLES]


def page(rows: list[Row], refusals: dict[str, list[str]]) -> str:
    """The whole page."""
    return HEAD + markdown(rows, refusals)


def main() -> None:
    for name in ("fairseq", "fairseq_ext"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        saved = Saved(Path(folder))
        PAGE.write_text(page(all_rows(saved), refusals(saved)), encoding="utf-8")


if __name__ == "__main__":
    main()
