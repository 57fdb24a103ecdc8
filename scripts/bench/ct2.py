"""CTranslate2 on a converted copy of the same fairseq checkpoint: the rival to name when
a speed is claimed.

fairseq's score is (sum of log-probs) / (length with EOS)^lenpen, and so is CTranslate2's with
`length_penalty` = lenpen; `--unnormalized` is its `length_penalty` 0. Its beam search ends and
breaks ties a little differently, so it is not an exact contender: the report shows its BLEU and how
many best hypotheses equal the reference's.
On two cores two workers of one thread beat one worker of two threads; both belong
into a fair table.
"""

import pickle
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from contenders import load, quiet
from ct2_process import Apart, Here
from equality import Outputs
from harness import BenchError, Contender
from text import Text

from fairseq_ext.plugin.compat import checkpoints

SUPPORTED = ("float32", "int8")


def convert(text: Text, kind: str = "float32") -> Path:
    """Convert the checkpoint once per test folder and type; returns the converted model's
    folder. An int8 model is saved as such, so that nothing is left to convert when it is loaded."""
    folder = text.folder / f"ctranslate2-{kind}"
    if folder.exists():
        return folder
    try:
        from ctranslate2.converters import FairseqConverter
    except ImportError as error:
        raise BenchError("CTranslate2 is not installed: pip install ctranslate2") from error
    converter = FairseqConverter(
        str(text.model / "checkpoint.pt"), str(text.folder), text.source, text.target
    )
    try:
        with quiet(), checkpoints.safe_globals():  # the converter loads with weights_only
            return Path(converter.convert(str(folder), quantization=kind))
    except (ValueError, RuntimeError, KeyError, TypeError, pickle.UnpicklingError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BenchError(f"CTranslate2 does not convert {text.model}: {reason}") from error


def ctranslate2(
    text: Text,
    flags: Sequence[str] = (),
    compute_type: str = "float32",
    workers: int = 1,
    threads: int = 1,
    name: str = "",
    settings: Mapping[str, str] | None = None,
    clock: str = "wall",
) -> Contender:
    """The same batches, beam and length penalty; `workers` translate batches at the same time
    with `threads` threads each.

    settings: environment variables that CTranslate2 reads once, when it is loaded. Where they are
    given, even none, it runs in a process of its own, whose time is that of `clock`."""
    if compute_type not in SUPPORTED:
        raise BenchError(
            f"compute type {compute_type} is not benchmarked: take one of {', '.join(SUPPORTED)}"
        )
    directory = convert(text, compute_type)
    loaded = load([*text.flags, *flags])
    generation = loaded.cfg.generation
    if generation.max_len_a or generation.diverse_beam_groups > 0 or generation.unkpen:
        raise BenchError(
            "CTranslate2 has no counterpart of --max-len-a, --diverse-beam-groups and --unkpen"
        )
    source, target = loaded.task.source_dictionary, loaded.task.target_dictionary
    numbers = [number for batch in loaded.batches for number in batch["id"].tolist()]
    special = {source.pad(), source.eos()}  # the converted model adds EOS itself
    batches = [
        [
            [source[token] for token in row if token not in special]
            for row in batch["net_input"]["src_tokens"].tolist()
        ]
        for batch in loaded.batches
    ]
    del loaded
    made = dict(
        device="cpu",
        compute_type=compute_type,
        inter_threads=workers,
        intra_threads=threads,
        max_queued_batches=-1,
    )
    decoding = dict(
        beam_size=generation.beam,
        length_penalty=0 if generation.unnormalized else generation.lenpen,
        num_hypotheses=generation.nbest,
        no_repeat_ngram_size=generation.no_repeat_ngram_size,
        max_input_length=0,
        min_decoding_length=generation.min_len,
        max_decoding_length=generation.max_len_b,
        return_scores=True,
    )
    if generation.sampling:
        decoding |= dict(
            beam_size=1, num_hypotheses=generation.beam, sampling_temperature=generation.temperature
        )
        decoding |= dict(
            sampling_topk=max(0, generation.sampling_topk),
            sampling_topp=min(1.0, abs(generation.sampling_topp)),
        )
    requested = dict(folder=str(directory), made=made, decoding=decoding, batches=batches)
    apart = settings is not None
    translator = Apart(requested, settings) if apart else Here(requested)

    def read(_: None) -> Outputs:
        found = dict(zip(numbers, translator.results(), strict=True))
        best_first = [found[number] for number in sorted(found)]
        return [
            [
                ([target.index(piece) for piece in pieces] + [target.eos()], score)
                for pieces, score in each
            ]
            for each in best_first
        ]

    name = name or f"CTranslate2 {compute_type}, {workers}x{threads}"
    reported = "".join(f"|{key}={value}" for key, value in (settings or {}).items())
    signature = (
        f"ctranslate2:{version('ctranslate2')}|{compute_type}|workers={workers},threads={threads}"
        f"{reported} ({' '.join(flags)})"
    )
    return Contender(
        name,
        translator,
        read,
        exact=False,
        signature=signature,
        taken=(lambda seconds: seconds[clock]) if apart else None,
        instructions=getattr(translator, "instructions", ""),
    )
