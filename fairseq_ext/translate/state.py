"""What is kept of a model and its flags from one start to the next, in this user's cache folder: a small file for each set of flags, and an
image of the weights that those of one checkpoint share.

Kept are models that compiled code reads throughout, searched as search/searchers/compiled.py does, with text cut by SentencePiece. For all
others, and where a file has changed since, the command loads the model as every command does.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_ext.files import replace, sealed, unsealed
from fairseq_ext.kernels.library import build, private_folder
from fairseq_ext.translate.image import Image, save
from fairseq_ext.translate.search import SavedModel

if TYPE_CHECKING:
    from fairseq_ext.translator import Translator

# flags whose whole effect is in what is kept
KNOWN = {
    "batch_size", "beam", "bpe", "cpu", "data", "int8", "lenpen", "max_len_a", "max_len_b", "max_tokens", "min_len", "no_repeat_ngram_size",
    "path", "prune_threshold", "sentencepiece_model", "source_lang", "stop", "target_lang", "task", "temperature", "unnormalized",
}  # fmt: skip


def stamps(paths: Iterable[str]) -> dict[str, list[int]]:
    """By file: its size and when it was changed. Errors: OSError."""
    return {path: [found.st_size, found.st_mtime_ns, found.st_ino] for path in paths for found in [os.stat(path)]}


def place(kind: str, *known: Any) -> Path:
    """The file for what is known of it. Errors: RuntimeError, OSError."""
    return private_folder() / f"{kind}-{hashlib.sha256(json.dumps(known).encode()).hexdigest()[:32]}"


def of_flags(arguments: list[str]) -> Path:
    """The file of a command's flags; a GPU that has come or gone asks for another."""
    return place("flags", os.getcwd(), arguments, os.path.exists("/dev/nvidiactl"), os.environ.get("CUDA_VISIBLE_DEVICES"))


def find(arguments: list[str]) -> SavedModel | None:
    """The model as it was kept for these flags; None where there is none that holds."""
    try:
        known = unsealed(of_flags(arguments).read_bytes())
        return SavedModel(known, Image(known["image"])) if stamps(known["files"]) == known["files"] else None
    except (OSError, RuntimeError, ValueError):
        return None


def keep(arguments: list[str], flags: dict[str, Any], translator: Translator) -> None:
    """Keep a model that has been loaded, if it is one of those that can be."""
    from fairseq_ext.decoders.transformer.decoder import TransformerBackend
    from fairseq_ext.decoders.transformer.one_row import is_compiled_throughout
    from fairseq_ext.kernels.decoder.transformer import StepStruct
    from fairseq_ext.kernels.parallel.parallel_decode import CompiledReader
    from fairseq_ext.loading.lengths import source_limit
    from fairseq_ext.search.searchers.compiled import CompiledSearch

    setup, bpe = translator.generator.setup, translator.bpe
    decoder, spec = setup.decoder, setup.spec
    if type(decoder) is not TransformerBackend or translator.cuda or not set(flags) <= KNOWN or not CompiledSearch.knows(setup):
        return
    [encoder], [weights] = decoder.encoders, decoder.weights
    if encoder is None or encoder.compiled is None or encoder.positions is None or encoder.embedding_norm is not None:
        return
    if not is_compiled_throughout([weights]) or translator.tokenizer or type(bpe).__name__ != "SentencepieceBPE" or spec.scoring.reward:
        return
    assert weights.compiled is not None and weights.positions is not None
    cfg, task = translator.cfg, translator.task
    files = [cfg.common_eval.path, cfg.bpe.sentencepiece_model, str(build())]
    files += [os.path.join(cfg.task.data, f"dict.{language}.txt") for language in (cfg.task.source_lang, cfg.task.target_lang)]
    known = stamps(map(os.path.abspath, files))
    image = place("image", known, bool(cfg.task.int8))
    if not image.exists():
        layers = [*encoder.layers, *weights.layers]
        maps = [each.pack() for layer in layers for each in layer.linears.values()]
        cross = [layer.cross_source.pack() for layer in weights.layers]
        parts = [part for each in (*maps, *cross, weights.output.pack()) for part in (each.weight, each.bias, each.scale, each.offset)]
        norms = [norm for layer in layers for norm in layer.norms.values()] + [encoder.final_norm, weights.final_norm, weights.embedding_norm]
        parts += [part for norm in norms if norm is not None for part in norm.arguments[1:3]] + [weights.embedding, weights.positions]
        reader = CompiledReader(weights.compiled, weights.output.pack(), weights.embedding, weights.scale, StepStruct(), weights.embedding_norm)
        reader.room_(weights.positions, len(weights.positions))
        structures = {
            "encoder": encoder.compiled.struct, "decoder": weights.compiled.struct, "reader": reader.struct,
            "output": weights.output.pack().struct, "encoder_layers": encoder.compiled.kept[0], "decoder_layers": weights.compiled.kept[0],
        } | {f"cross{i}": each.struct for i, each in enumerate(cross)}  # fmt: skip
        arrays = {"source_embedding": encoder.embedding.numpy(), "source_positions": encoder.positions.numpy()}
        about = {"layers": len(cross), "heads": weights.heads, "scale": encoder.scale, "unk": task.source_dictionary.unk()}
        about |= {"source": task.source_dictionary.symbols, "target": task.target_dictionary.symbols}
        save(image, about, structures, arrays, [part.numpy() for part in parts if part is not None])
    left_out = {*translator.generator.symbols_to_strip_from_output, task.target_dictionary.bos(), task.target_dictionary.eos()}
    about = {
        "files": known, "image": str(image), "segmentation": os.path.abspath(cfg.bpe.sentencepiece_model),
        "rules": bytes(CompiledSearch(setup).rules).hex(), "left_out": sorted(left_out), "longest": source_limit(translator.max_positions),
        "batch_size": translator.max_sentences, "max_tokens": translator.batch_limit,
        "max_len_a": spec.max_len_a, "max_len_b": spec.max_len_b, "max_len": spec.max_len,
    }  # fmt: skip
    replace(of_flags(arguments), [json.dumps(sealed(about)).encode()])
