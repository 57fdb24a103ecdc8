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
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from models import ENSEMBLES, RECIPES
from saved_models import Saved, lines

from fairseq_ext import UsageError
from fairseq_ext.model.choose import refusal_reason

PAGE = Path(__file__).resolve().parents[1] / "docs" / "supported-models.md"
# flags that some architecture cannot have, as the table shows them
TRIED = {
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
def log_lines():
    """What fairseq_ext logs inside."""
    said = []
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


def difference(expected, got):
    """Largest difference of scores between equal n-best lists; infinite where tokens differ."""
    pairs = [
        pair
        for theirs, ours in zip(expected, got, strict=True)
        for pair in zip(theirs, ours, strict=True)
    ]
    if any(a["tokens"].tolist() != b["tokens"].tolist() for a, b in pairs):
        return float("inf")
    return max(abs(float(a["score"]) - float(b["score"])) for a, b in pairs)


def row(saved, *names):
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


def refusals(saved):
    """Names that fairseq registers and translation_ext refuses, by the reason."""
    task = saved.task("translation_ext", saved.data("transformer"))
    out = {}
    for name in ARCH_MODEL_REGISTRY:
        reason = refusal_reason(name, task)
        if reason is not None:
            out.setdefault(reason, []).append(name)
    return out


def short(sentence):
    """What a refusal says of a flag: without the flag, the model's name and what
    the user is to do."""
    return re.split(
        r", and |, because |: ", re.sub(r"^--.*?(?=needs|reads|forms|has|bounds)", "", sentence)
    )[0]


def markdown(rows, refusals):
    """Both tables. Architectures of which the same is to be said share a line."""
    alike = {}
    for each in rows:
        reason = each.reason or "-"
        alike.setdefault(
            (each.backend, reason, *((flag, short(why)) for flag, why in each.refused.items())), []
        ).append(each.name)
    out = [
        "| architectures and settings | backend | why not the fast one | refused |",
        "| --- | --- | --- | --- |",
    ]
    notes = {}
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


def all_rows(saved):
    """Every recipe, and the ensembles."""
    return [row(saved, name) for name in RECIPES] + [row(saved, *names) for names in ENSEMBLES]


def page(rows, refusals):
    """The whole page."""
    head = PAGE.read_text(encoding="utf-8").partition("| architectures")[0]  # the page's own words
    return head + markdown(rows, refusals)


def main():
    for name in ("fairseq", "fairseq_ext"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        saved = Saved(Path(folder))
        PAGE.write_text(page(all_rows(saved), refusals(saved)), encoding="utf-8")


if __name__ == "__main__":
    main()
