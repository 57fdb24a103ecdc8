"""Keeps a prepared model, for a model folder and flags, in this user's cache folder (image.py), and finds it again.

Only models that the compiled search decodes alone (search/compiled.py), with text segmented by SentencePiece, are kept. All
others, and those of which a file has changed since, are loaded as every command loads them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fairseq_ext.kernels.library import build, library, private_folder
from fairseq_ext.translate.image import Image, save
from fairseq_ext.translate.search import SavedModel

MOST = 8  # files, the newest: each has all weights
KNOWN = {  # flags whose whole effect is in what is kept
    "batch_size", "beam", "bpe", "buffer_size", "cpu", "data", "int8", "lenpen", "max_len_a", "max_len_b", "max_tokens", "min_len", "path",
    "no_repeat_ngram_size", "prune_threshold", "sentencepiece_model", "source_lang", "stop", "target_lang", "task", "temperature",
    "unnormalized",
}  # fmt: skip


def stamps(paths: Iterable[str]) -> dict[str, list[int]]:
    """By file: its size, when it was changed, its number. Errors: OSError."""
    return {path: [found.st_size, found.st_mtime_ns, found.st_ino] for path in paths for found in [os.stat(path)]}


def place(arguments: list[str]) -> Path:
    """The file of a command's flags; a GPU that has come or gone asks for another. Errors: RuntimeError, OSError."""
    pairs = [word.rpartition("=") for word in arguments]
    asked = [(name, os.path.abspath(value) if os.path.exists(value) else value) for name, _, value in pairs]
    told = json.dumps([asked, os.path.exists("/dev/nvidiactl"), os.environ.get("CUDA_VISIBLE_DEVICES")])
    return private_folder() / f"model-{hashlib.sha256(told.encode()).hexdigest()[:32]}"


def find(arguments: list[str]) -> SavedModel | None:
    """The model as it was kept for these flags; None where there is none that holds."""
    try:
        image = Image(place(arguments))
        holds = library() is not None and stamps([*image.about["files"], str(build())]) == image.about["files"]
        return SavedModel(image) if holds else None
    except (OSError, RuntimeError, ValueError):
        return None


def keep(arguments: list[str], flags: dict[str, Any], translator: Any) -> None:
    """Keep a model that has been loaded, a `Translator`, if it is one of those that can be."""
    from fairseq_ext.kernels.transformer import CompiledReader, StepStruct
    from fairseq_ext.model.transformer.decoder import TransformerBackend
    from fairseq_ext.model.transformer.readers import is_compiled_throughout
    from fairseq_ext.plugin.loading.lengths import limit_of, source_limit
    from fairseq_ext.search.compiled import CompiledSearch

    setup, cfg, task = translator.generator.setup, translator.cfg, translator.task
    is_plain = task.registered == "translation_ext" and getattr(cfg.bpe, "_name", None) == "sentencepiece" and translator.tokenizer is None
    if not is_plain or translator.cuda or type(setup.decoder) is not TransformerBackend or not set(flags) <= KNOWN:
        return
    encoder, weights = setup.decoder.encoders[0], setup.decoder.weights[0]
    if not CompiledSearch.knows(setup) or not is_compiled_throughout(setup.decoder.weights) or setup.spec.scoring.reward:
        return
    if encoder is None or encoder.compiled is None or encoder.positions is None or encoder.embedding_norm is not None:
        return
    assert weights.compiled is not None and weights.positions is not None
    output, cross, layers = weights.output.pack(), [each.cross_source.pack() for each in weights.layers], [*encoder.layers, *weights.layers]
    norms = [norm for each in layers for norm in each.norms.values()] + [encoder.final_norm, weights.final_norm, weights.embedding_norm]
    maps = [each.pack() for layer in layers for each in layer.linears.values()]
    parts = [part for each in (output, *cross, *maps) for part in (each.weight, each.bias, each.scale, each.offset)]
    parts += [part for norm in norms if norm is not None for part in norm.arguments[1:3]] + [weights.embedding, weights.positions]
    reader = CompiledReader(weights.compiled, output, weights.embedding, weights.scale, StepStruct(), weights.embedding_norm)
    reader.room_(weights.positions, len(weights.positions))
    structures = {
        "rules": CompiledSearch(setup).rules, "reader": reader.struct, "output": output.struct,
        "encoder": encoder.compiled.struct, "encoder_layers": encoder.compiled.kept[0],
        "decoder": weights.compiled.struct, "decoder_layers": weights.compiled.kept[0],
    } | {f"cross{i}": each.struct for i, each in enumerate(cross)}  # fmt: skip
    source, target, spec = task.source_dictionary, task.target_dictionary, setup.spec
    files = [cfg.common_eval.path, cfg.bpe.sentencepiece_model]
    files += [os.path.join(cfg.task.data, f"dict.{language}.txt") for language in (cfg.task.source_lang, cfg.task.target_lang)]
    limits = [len(encoder.positions), source_limit(translator.max_positions), limit_of(translator.batch_limit)]
    try:
        about = {
            "files": stamps([*map(os.path.abspath, files), str(build())]), "segmentation": os.path.abspath(cfg.bpe.sentencepiece_model),
            "source": source.symbols, "target": target.symbols, "unk": source.unk(), "longest": min(filter(None, limits)),
            "left_out": sorted({*translator.generator.symbols_to_strip_from_output, target.bos(), target.eos()}),
            "layers": len(cross), "heads": weights.heads, "scale": encoder.scale,
            "max_len_a": spec.max_len_a, "max_len_b": spec.max_len_b, "max_len": spec.max_len,
        }  # fmt: skip
        arrays = {"embedding": encoder.embedding.numpy(), "positions": encoder.positions.numpy()}
        save(path := place(arguments), about, structures, arrays, [part.numpy() for part in parts if part is not None])
        for old in sorted(path.parent.glob("model-*"), key=lambda each: -each.stat().st_mtime)[MOST:]:
            old.unlink(missing_ok=True)
    except (OSError, RuntimeError):  # a full disk, or files that are not where they are expected: the next start loads the model again
        return
