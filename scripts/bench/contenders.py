"""Contenders on a fairseq checkpoint, by name: stock, ours, CTranslate2, Marian and Bergamot, which
have their own files.

Each loads its own copy of the model and decodes the batches that fairseq-generate would build from
the same flags, through the same `task.inference_step`. Batches are collated beforehand; loading,
segmenting and printing are not timed.
"""

import contextlib
import ctypes
import importlib
import io
import logging
import re
import shlex
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fairseq
import torch
from fairseq import checkpoint_utils, options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.token_generation_constraints import pack_constraints
from harness import BenchError, Contender, Outputs
from text import Text, prepare

import fairseq_ext
from fairseq_ext.kernels import library

PLUG_IN = Path(fairseq_ext.__file__).parent  # of the package that is imported
OURS = ("--user-dir", str(PLUG_IN), "--task", "translation_ext")
# flags that change translations: contenders with one are not compared with the first contender's
CHANGING = {"--int8", "--no-repeat-ngram-size", "--constraints-file", "--glossary"}
STOCK = ("stock", "set_beam_size")
RIVALS = {"ctranslate2": "engines", "marian": "marian", "bergamot": "marian"}  # name -> module


@dataclass
class Loaded:
    """What fairseq-generate holds just before it starts to decode."""

    cfg: Any
    task: Any
    models: list
    batches: list[dict]


Change = Callable[[Loaded, Any], None]  # of what is loaded and the generator


def build(
    name: str, text: Text, flags: Sequence[str], clock: str = "wall", apart: bool = True
) -> Contender:
    """The contender that `name` describes: a word and what belongs to it.

    "stock", "ours FLAGS" (of fairseq-generate), "ctranslate2 float32 2x1" (compute type, workers x
    threads) and behind it settings of its process such as CT2_USE_MKL=1, "marian float32 1 64"
    (type, threads, sentences a batch), "bergamot int8shiftAlphaAll lexical".
    clock: of contenders with a process of their own; apart: whether CTranslate2 has one.
    """
    kind, *rest = shlex.split(name)
    if kind in RIVALS:
        return importlib.import_module(RIVALS[kind]).build(text, flags, name, rest, clock, apart)
    if kind == "ours":
        made = ours(text, [*flags, *rest], name, exact=not CHANGING & set(rest))
    elif kind in STOCK:
        made = stock(text, [*flags, *rest], name, set_beam_size=kind != "stock")
    else:
        raise BenchError(f"no contender {name!r}: take {', '.join((*STOCK, 'ours', *RIVALS))}")
    # what this process uses of the processor: torch, or the compiled step
    if kind == "ours" and "fairseq" not in rest:  # --decoder-backend fairseq
        level = "" if library.is_off() else library.level()
        made.instructions = level if "--int8" in rest else level.replace("vnni", "")
    else:
        made.instructions = f"torch {torch.backends.cpu.get_cpu_capability()}"
    return made


def stock(
    text: Text,
    flags: Sequence[str] = (),
    name: str = "stock",
    set_beam_size: bool = False,
    change: Change | None = None,
) -> Contender:
    """fairseq's own SequenceGenerator; set_beam_size: with one copy of the encoder's keys and
    values per sentence, a switch that it has and turns on for BART only; change: what is done to it
    before it runs."""
    loaded = load([*text.flags, *flags])
    for module in (m for model in loaded.models for m in model.decoder.modules()):
        if set_beam_size and getattr(module, "encoder_decoder_attention", False):
            module.set_beam_size(loaded.cfg.generation.beam)
    switch = "|set_beam_size" * set_beam_size
    signature = f"fairseq:{fairseq.__version__}{switch} ({' '.join(flags)})"
    return contender(name, loaded, signature, change=change)


def ours(
    text: Text,
    flags: Sequence[str] = (),
    name: str = "ours",
    exact: bool = True,
    change: Change | None = None,
) -> Contender:
    """fairseq_ext with any fairseq-generate flags, its own among them; change as in `stock`."""
    loaded = load([*OURS, *text.flags, *flags])
    return contender(name, loaded, f"({' '.join(flags)})", exact, change)


class StockFailed(BenchError):
    """fairseq's own constrained search ended with an error."""


def stock_constrained(
    text: Text,
    flags: Sequence[str],
    phrases: Sequence[Sequence[str]],
    pieces: Callable[[str], list[str]],
    name: str = "fairseq",
) -> Contender:
    """fairseq's `--constraints unordered` over batches that carry the phrases of each sentence, as
    fairseq-interactive makes them.

    pieces: a phrase as symbols of the target dictionary. The contender's run raises StockFailed
    where fairseq's search stops at an assertion, as it does when a batch reaches the length limit
    with words unmet.
    """
    flags = [*flags, "--constraints", "unordered"]
    loaded = load([*text.flags, *flags])
    index = loaded.task.target_dictionary.index
    tokens = [[torch.tensor([*map(index, pieces(each))]) for each in line] for line in phrases]
    data = loaded.task.dataset(loaded.cfg.dataset.gen_subset)
    data.constraints = [pack_constraints([line])[0] for line in tokens]
    loaded.batches = batches(loaded.cfg, loaded.task, loaded.models)
    made = contender(name, loaded, f"fairseq ({' '.join(flags)})", exact=False)

    def run() -> list:
        try:
            return decode_all()
        except AssertionError as error:
            step = re.fullmatch(r"(\d+) < \1", str(error))
            limit = f"its length limit (step {step and step[1]}) with words unmet"
            why = limit if step else f"an assertion ({error})"
            raise StockFailed(f"fairseq's constrained search stopped at {why}") from error

    decode_all, made.run = made.run, run
    return made


def stock_translations(
    model: Path,
    prefix: str,
    languages: tuple[str, str],
    flags: Sequence[str],
    phrases: Sequence[Sequence[str]],
    pieces: Callable[[str], list[str]],
    limit: int | None = None,
) -> tuple[list[str], float]:
    """The best hypotheses of fairseq's own constrained search as plain text, and the seconds that
    it took. prefix: of the two text files; other arguments as in `stock_constrained`."""
    with tempfile.TemporaryDirectory() as folder:
        text = prepare(Path(folder), model, prefix, *languages, limit)
        made = stock_constrained(text, flags, phrases, pieces)
        start = time.perf_counter()
        decoded = made.run()
        seconds = time.perf_counter() - start
        return text.lines([each or [([], 0.0)] for each in made.read(decoded)]), seconds


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
    """Every batch through the task: the timed part. The C- lines are not printed."""
    step = loaded.task.inference_step
    with contextlib.redirect_stdout(io.StringIO()):
        return [
            (b["id"].tolist(), step(generator, loaded.models, b, constraints=b.get("constraints")))
            for b in loaded.batches
        ]


def contender(
    name: str, loaded: Loaded, signature: str, exact: bool = True, change: Change | None = None
) -> Contender:
    """Decoding of all batches, with what the search counted; of fairseq's the decoder's calls, rows
    and expansions."""
    loaded.task.build_tokenizer(loaded.cfg.tokenizer)  # constraints are segmented by them
    loaded.task.build_bpe(loaded.cfg.bpe)
    generator = make_generator(loaded, name)
    # as a command does: weights are held once
    if hasattr(generator, "release_models") and generator.release_models():
        give_back_memory()
    stats = getattr(generator, "stats", None)
    counted = Counter[str]()
    if stats is None:
        count_calls(loaded.models[0].decoder, loaded.cfg.generation.beam, counted)
    if change is not None:
        change(loaded, generator)

    def run() -> list:
        before = stats and stats.copy()
        counted.clear()
        decoded = decode(loaded, generator)
        made.stats = stats.since(before).as_dict() if stats else dict(counted)
        return decoded

    # ours says how its output is made; stock does not
    own = getattr(stats, "signature", "")
    made = Contender(name, run, read, exact, f"{own} {signature}".strip())
    return made


def count_calls(decoder: Any, beam: int, counted: Counter[str]) -> None:
    """Count the calls of fairseq's decoder by its `forward`, which no hook sees; of the first step
    over k copies of a sentence's one hypothesis one expansion."""
    forward = decoder.forward

    def counting(tokens, *args, **kwargs):
        rows = tokens.size(0)
        expansions = rows // (beam if tokens.size(1) == 1 else 1)
        counted.update(decoder_calls=1, decoder_rows=rows, expansions=expansions)
        return forward(tokens, *args, **kwargs)

    decoder.forward = counting


def pieces_of(loaded: Loaded) -> tuple[list[int], list[list[list[str]]]]:
    """The numbers of the sentences in the order of the batches, and each batch's sources as the
    dictionary's words, without EOS."""
    numbers = [number for batch in loaded.batches for number in batch["id"].tolist()]
    source = loaded.task.source_dictionary
    special = {source.pad(), source.eos()}
    rows = (batch["net_input"]["src_tokens"].tolist() for batch in loaded.batches)
    words = [[[source[t] for t in row if t not in special] for row in batch] for batch in rows]
    return numbers, words


def in_order(numbers: Sequence[int], outputs: Sequence[Any]) -> list[Any]:
    """Outputs by the numbers of their sentences."""
    return [outputs[i] for i in sorted(range(len(numbers)), key=numbers.__getitem__)]


def give_back_memory() -> None:
    """Let glibc give back the pages that hold nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def read(decoded: list[tuple[list[int], list]]) -> Outputs:
    """fairseq's hypotheses in the order of the sentences."""
    sides = zip(*decoded, strict=True)
    numbers, nbests = ([each for batch in side for each in batch] for side in sides)
    return [
        [(hypo["tokens"].tolist(), float(hypo["score"])) for hypo in nbest]
        for nbest in in_order(numbers, nbests)
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
