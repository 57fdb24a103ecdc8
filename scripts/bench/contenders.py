"""Contenders on a fairseq checkpoint: stock, stock with its shared cross-attention switched on,
ours; CTranslate2 has its own file.

Each loads its own copy of the model and decodes the batches that fairseq-generate would build from
the same flags, through the same `task.inference_step`. Batches are collated beforehand; loading,
segmenting and printing are not timed.
"""

import ctypes
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fairseq
import torch
from equality import Outputs
from fairseq import checkpoint_utils, options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from harness import BenchError, Contender
from text import Text

import fairseq_ext

PLUG_IN = Path(fairseq_ext.__file__).parent  # of the package that is imported
OURS = ("--user-dir", str(PLUG_IN), "--task", "translation_ext")


@dataclass
class Loaded:
    """What fairseq-generate holds just before it starts to decode."""

    cfg: Any
    task: Any
    models: list
    batches: list[dict]


def stock(text: Text, flags: Sequence[str] = (), name: str = "stock") -> Contender:
    """fairseq's own SequenceGenerator."""
    return contender(
        name, load([*text.flags, *flags]), f"fairseq:{fairseq.__version__} ({' '.join(flags)})"
    )


def stock_set_beam_size(
    text: Text, flags: Sequence[str] = (), name: str = "stock set_beam_size"
) -> Contender:
    """Stock with one copy of the encoder's keys and values per sentence: a switch that it has
    and turns on for BART only."""
    loaded = load([*text.flags, *flags])
    for model in loaded.models:
        for module in model.decoder.modules():
            if getattr(module, "encoder_decoder_attention", False):
                module.set_beam_size(loaded.cfg.generation.beam)
    return contender(
        name, loaded, f"fairseq:{fairseq.__version__}|set_beam_size ({' '.join(flags)})"
    )


def stock_fused_encoder(
    text: Text, flags: Sequence[str] = (), name: str = "stock fused_encoder"
) -> Contender:
    """Stock with torch's fused encoder layer, which fairseq_ext keeps it from: it fails on padded
    batches, so one sentence at a time."""
    loaded = load([*text.flags, *flags])
    for layer in (layer for model in loaded.models for layer in model.encoder.layers):
        layer.can_use_fastpath = not layer.normalize_before and layer.activation_relu_or_gelu
    return contender(
        name, loaded, f"fairseq:{fairseq.__version__}|fused_encoder ({' '.join(flags)})"
    )


def ours(
    text: Text, flags: Sequence[str] = (), name: str = "ours", exact: bool = True
) -> Contender:
    """fairseq_ext with any fairseq-generate flags, its own among them."""
    return contender(name, load([*OURS, *text.flags, *flags]), f"({' '.join(flags)})", exact)


@contextmanager
def quiet() -> Iterator[None]:
    """Without what fairseq, hydra and the data loader say while they load: the tables are
    read on the same screen."""
    for name in ("fairseq", "fairseq_ext"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def make_generator(loaded: Loaded, name: str) -> Any:
    """The generator that the task builds."""
    try:
        return loaded.task.build_generator(loaded.models, loaded.cfg.generation)
    except (ValueError, AssertionError) as error:
        # how fairseq and fairseq_ext refuse flags that exclude each other
        raise BenchError(f"{name}: {error}") from error


def decode(loaded: Loaded, generator: Any) -> list[tuple[list[int], list]]:
    """Every batch through the task: the timed part."""
    return [
        (
            batch["id"].tolist(),
            loaded.task.inference_step(
                generator, loaded.models, batch, constraints=batch.get("constraints")
            ),
        )
        for batch in loaded.batches
    ]


def contender(name: str, loaded: Loaded, signature: str, exact: bool = True) -> Contender:
    """Decoding of all batches."""
    generator = make_generator(loaded, name)
    loaded.task.build_tokenizer(loaded.cfg.tokenizer)
    loaded.task.build_bpe(loaded.cfg.bpe)
    # as a command does: weights are held once
    if hasattr(generator, "release_models") and generator.release_models():
        give_back_memory()
    # ours says how its output is made; stock does not
    own = getattr(getattr(generator, "stats", None), "signature", "")
    return Contender(
        name, lambda: decode(loaded, generator), read, exact, f"{own} {signature}".strip()
    )


def give_back_memory() -> None:
    """Let glibc give back the pages that hold nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def read(decoded: list[tuple[list[int], list]]) -> Outputs:
    """fairseq's hypotheses in the order of the sentences."""
    found = {
        number: hypotheses
        for numbers, batch in decoded
        for number, hypotheses in zip(numbers, batch, strict=True)
    }
    return [
        [(hypo["tokens"].tolist(), float(hypo["score"])) for hypo in found[number]]
        for number in sorted(found)
    ]


def load(flags: Sequence[str]) -> Loaded:
    """Parse fairseq-generate flags and load task, model and batches in the order in which
    fairseq-generate does."""
    with quiet():
        cfg = parse(flags)
        task = tasks.setup_task(cfg.task)
        models, saved = checkpoint_utils.load_model_ensemble(
            utils.split_paths(cfg.common_eval.path), task=task
        )
        task.load_dataset(cfg.dataset.gen_subset, task_cfg=saved.task)
        for model in models:
            model.prepare_for_inference_(cfg)
        return Loaded(cfg, task, models, batches(cfg, task, models))


def parse(flags: Sequence[str]) -> Any:
    """The configuration that fairseq-generate makes of a flag list."""
    try:
        args = options.parse_args_and_arch(options.get_generation_parser(), input_args=list(flags))
    except SystemExit as error:  # argparse has printed which flag it refuses
        raise BenchError(
            f"fairseq-generate does not accept these flags: {' '.join(flags)}"
        ) from error
    cfg = convert_namespace_to_omegaconf(args)
    if cfg.dataset.max_tokens is None and cfg.dataset.batch_size is None:
        cfg.dataset.max_tokens = 12000
    return cfg


def batches(cfg: Any, task: Any, models: list) -> list[dict]:
    """fairseq-generate's batches: sorted by length, `--batch-size` or `--max-tokens`."""
    iterator = task.get_batch_iterator(
        dataset=task.dataset(cfg.dataset.gen_subset),
        max_tokens=cfg.dataset.max_tokens,
        max_sentences=cfg.dataset.batch_size,
        max_positions=utils.resolve_max_positions(
            task.max_positions(), *[model.max_positions() for model in models]
        ),
        ignore_invalid_inputs=cfg.dataset.skip_invalid_size_inputs_valid_test,
        required_batch_size_multiple=cfg.dataset.required_batch_size_multiple,
        seed=cfg.common.seed,
    ).next_epoch_itr(shuffle=False)
    made = [batch for batch in iterator if "net_input" in batch]
    if torch.cuda.is_available() and not cfg.common.cpu:
        raise BenchError("these contenders time the CPU: add --cpu to the flags")
    return made
