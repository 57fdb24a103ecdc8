"""What the results of a run depend on besides its sentences, by the name of the flag: `--resume` compares it with the file's.

A flag that names a file counts with the content of the file, whatever its name. Flags that change no result are left out: a run that
was too large for the machine may go on with fewer sentences at once.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import fingerprint, fingerprint_of_dictionary
from fairseq_ext.plugin.config import MADE_WITH, fingerprint_of_weights, flags_dataclass
from fairseq_ext.search.registry import STRATEGIES, choice
from fairseq_ext.search.strategies.decoding._parallel import table_path

if TYPE_CHECKING:
    from fairseq_ext.plugin.generator import BeamSearchGenerator

# the search (below) tells the backend; --lsh-index says where an index is kept, which is checked against the weights and its settings
NO_RESULTS = {
    "_name", "print_step", "score_reference", "retain_iter_history", "results_file", "resume", "stats_file", "strict", "schedule",
    "cpu_workers", "cuda_graphs", "decoder_backend", "ddg_dir", "glossary_report", "lsh_index", "shortlist_recall_every",
}  # fmt: skip


def run_key(generator: BeamSearchGenerator, models: list) -> dict[str, str]:
    """Name -> value, or fingerprint of the file that is named: our flags, fairseq's generation flags, the dictionaries, the weights.

    Errors: UsageError for a file that cannot be read.
    """
    flags, context = generator.flags, generator.context
    of_schedule = {f.name for s in STRATEGIES["schedule"].values() if s.flags for f in dataclasses.fields(s.flags)}
    ours = {f.name: getattr(flags, f.name) for f in dataclasses.fields(flags_dataclass()) if f.name != "_name"}
    settings = {**settings_of(generator.generation), **{name: value for name, value in ours.items() if name not in of_schedule}}
    if choice(flags, "decoding") != "beam":
        settings["draft_table"] = table_path(flags, context)
    found = {"--" + name.replace("_", "-"): told(name, value) for name, value in settings.items() if name not in NO_RESULTS}
    found = {name: value for name, value in sorted(found.items()) if value}
    left_out = ("schedule", *MADE_WITH)  # the schedule changes no result; the others are compared on their own, versions may change
    search = [part for part in generator.stats.signature.split("|") if part.partition(":")[0] not in left_out]
    found["the search"] = without_paths("|".join(search), ours.values())
    if context.source_dictionary is not None:
        found["the source dictionary"] = fingerprint_of_dictionary(context.source_dictionary)
    found["the target dictionary"] = fingerprint_of_dictionary(context.dictionary)
    found["the model"] = fingerprint_of_weights(models)
    return found


def without_paths(signature: str, values: Iterable[Any]) -> str:
    """The signature without the names of files, whose contents are compared instead."""
    for path in sorted({value for value in values if isinstance(value, str) and os.path.exists(value)}, key=len, reverse=True):
        signature = signature.replace(f"={path}", "=FILE")
    return signature


def settings_of(generation: Any) -> Mapping[str, Any]:
    """fairseq's generation flags by name."""
    return generation if isinstance(generation, Mapping) else vars(generation)


def told(name: str, value: Any) -> str:
    """A flag's value in a line; "" where it is off."""
    if value is None or value is False:
        return ""
    if isinstance(value, str) and os.path.isfile(value):
        try:
            return fingerprint(value)
        except OSError as error:
            raise UsageError(f"--{name.replace('_', '-')}: cannot read {value} ({error.strerror}): name a file that is readable") from None
    if isinstance(value, str) and os.path.exists(value) and not os.path.isdir(value):
        return "a pipe"  # what comes out of it is in the checksums of the sentences
    return "given" if value is True else str(value)
