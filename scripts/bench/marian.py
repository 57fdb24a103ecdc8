"""Marian (`pip install pymarian`) on a converted copy of a fairseq checkpoint: a rival in C++ with
8-bit products of its own.

M. Junczys-Dowmunt et al., Marian: Fast Neural Machine Translation in C++, ACL 2018,
https://arxiv.org/abs/1804.00344

Marian's Transformer is fairseq's but for two things that its file has no place for: positions count
from 0 (fairseq's from 2), and decoding begins with a vector of zeros (fairseq's with </s>). A
trained checkpoint's translations suffer from that, so only checkpoints of which no hypothesis ends
before --max-len-b (random_models.py) are compared. A model that normalises in front of its layers
cannot be converted at all: Marian normalises the queries of its attention alone.

Marian limits translations to a multiple of the source, so all source lines must have one length
(--spread 0).
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contenders import in_order, load, pieces_of
from harness import BenchError, Contender, Outputs, run_command
from text import Text

TYPES = ("float32", "intgemm8", "packed8avx2", "packed8avx512")
ATTENTIONS = {"self_attn": "self", "encoder_attn": "context"}
# what Marian insists on finding, at its defaults
UNUSED: dict[str, Any] = {
    **dict.fromkeys(
        "skip layer-normalization right-left ulr ulr-trainable-transformation tied-embeddings "
        "tied-embeddings-src output-omit-bias embedding-normalization transformer-aan-nogate "
        "transformer-no-projection transformer-train-position-embeddings transformer-no-bias "
        "transformer-depth-scaling transformer-pool transformer-no-affine".split(),
        False,
    ),
    **dict.fromkeys(
        "ulr-dim-emb lemma-dim-emb factors-dim-emb transformer-decoder-dim-ffn "
        "transformer-decoder-ffn-depth".split(),
        0,
    ),
    **dict.fromkeys("enc-cell-depth dec-cell-base-depth dec-cell-high-depth dim-rnn".split(), 1),
    **json.loads(
        """{"enc-type": "bidirectional", "enc-cell": "gru", "dec-cell": "gru", "input-types": [],
        "transformer-tied-layers": [], "lemma-dependency": "", "factors-combine": "sum",
        "bert-train-type-embeddings": true, "bert-type-vocab-size": 2, "char-stride": 5,
        "char-highway": 4, "char-conv-filters-num": [200], "char-conv-filters-widths": [1],
        "transformer-dim-aan": 2048, "transformer-aan-depth": 2,
        "transformer-aan-activation": "relu", "type": "transformer", "version": "v1.12.0",
        "transformer-ffn-depth": 2, "tied-embeddings-all": true, "transformer-preprocess": "",
        "transformer-postprocess": "dan", "transformer-postprocess-emb": "d",
        "transformer-postprocess-top": "", "transformer-decoder-autoreg": "self-attention",
        "transformer-guided-alignment-layer": "last"}"""
    ),
}


def settings(model: Any, words: int) -> dict[str, Any]:
    """What Marian calls the settings of a fairseq model; BenchError for one that it cannot hold."""
    if model.encoder_normalize_before or model.decoder_normalize_before:
        raise BenchError(
            "Marian cannot hold this model, which normalises in front of its layers: take a "
            "shape that does not"
        )
    if not model.share_all_embeddings or model.encoder_embed_dim != model.decoder_embed_dim:
        raise BenchError(
            "only models with one table of embeddings are converted to Marian: take such a shape"
        )
    same = ("attention_heads", "ffn_embed_dim")
    if any(getattr(model, f"encoder_{name}") != getattr(model, f"decoder_{name}") for name in same):
        raise BenchError(
            "encoder and decoder differ in heads or feed-forward width, which is not converted to "
            "Marian: take another shape"
        )
    return UNUSED | {
        "dim-emb": model.encoder_embed_dim,
        "dim-vocabs": [words, words],
        "enc-depth": model.encoder_layers,
        "dec-depth": model.decoder_layers,
        "transformer-heads": model.encoder_attention_heads,
        "transformer-dim-ffn": model.encoder_ffn_embed_dim,
        "transformer-ffn-activation": getattr(model, "activation_fn", "relu"),
    }


def weights(
    given: Mapping[str, torch.Tensor], model: Any, order: list[int]
) -> dict[str, np.ndarray]:
    """Marian's weights: matrices the other way round, vectors as rows.

    order: the fairseq token of each of Marian's words.
    """
    table = given["encoder.embed_tokens.weight"][order]
    out = {"Wemb": table.numpy(), "decoder_ff_logit_out_b": np.zeros((1, len(order)), np.float32)}

    def take(ours: str, theirs: str, number: str) -> None:
        out[f"{theirs}_W{number}"] = np.ascontiguousarray(given[f"{ours}.weight"].numpy().T)
        out[f"{theirs}_b{number}"] = given[f"{ours}.bias"].numpy()[None]

    def norm(ours: str, theirs: str) -> None:
        out[f"{theirs}_ln_scale"], out[f"{theirs}_ln_bias"] = (
            given[f"{ours}.{part}"].numpy()[None] for part in ("weight", "bias")
        )

    for side, count in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        for i in range(count):
            ours, theirs = f"{side}.layers.{i}", f"{side}_l{i + 1}"
            for attention, name in list(ATTENTIONS.items())[: 1 + (side == "decoder")]:
                for part in ("q", "k", "v"):
                    take(f"{ours}.{attention}.{part}_proj", f"{theirs}_{name}", part)
                take(f"{ours}.{attention}.out_proj", f"{theirs}_{name}", "o")
                norm(f"{ours}.{attention}_layer_norm", f"{theirs}_{name}_Wo")
            take(f"{ours}.fc1", f"{theirs}_ffn", "1")
            take(f"{ours}.fc2", f"{theirs}_ffn", "2")
            norm(f"{ours}.final_layer_norm", f"{theirs}_ffn_ffn")
    return out


def with_marians_positions(saved: dict[str, Any], longest: int) -> dict[str, Any]:
    """A checkpoint whose positions count from 0 and whose decoder begins with zeros: as a table,
    of which </s> is taken away."""
    weights, args = saved["model"], saved["args"]
    table = weights["decoder.embed_tokens.weight"]
    d = table.size(1)
    rates = torch.exp(torch.arange(d // 2) * -(math.log(10_000) / (d // 2 - 1)))
    angles = torch.arange(longest)[:, None] * rates
    for side in ("encoder", "decoder"):
        del weights[f"{side}.embed_positions._float_tensor"]
        rows = [torch.zeros(2, d), torch.cat([angles.sin(), angles.cos()], 1)]
        weights[f"{side}.embed_positions.weight"] = torch.cat(rows)
    weights["decoder.embed_positions.weight"][2] -= math.sqrt(d) * table[2]
    args.encoder_learned_pos = args.decoder_learned_pos = True
    args.max_source_positions = args.max_target_positions = longest
    return saved


def save(file: Path, saved: dict[str, Any], order: list[int]) -> None:
    """Write a checkpoint as Marian's model."""
    made = saved.get("args") or saved["cfg"]["model"]
    config = json.dumps(settings(made, len(order))).encode()  # which is YAML too
    arrays: dict[str, Any] = dict(weights(saved["model"], made, order))
    np.savez(file, **arrays, **{"special:model.yml": np.frombuffer(config + b"\0", np.int8)})


def convert(text: Text, kind: str, dictionary: Any) -> tuple[Path, Path]:
    """Convert the checkpoint once per test folder and type; the model's file and
    the vocabulary's."""
    model, words = text.folder / "marian.npz", text.folder / "marian.yml"
    if not model.exists():
        first = [dictionary.eos(), dictionary.unk()]
        order = first + [token for token in range(len(dictionary)) if token not in first]
        checkpoint = text.model / "checkpoint.pt"
        save(model, torch.load(checkpoint, map_location="cpu", weights_only=False), order)
        numbers = {dictionary[token]: i for i, token in enumerate(order)}
        words.write_text(json.dumps(numbers, ensure_ascii=False), encoding="utf-8")
    packed = model.with_name(f"marian.{kind}.bin") if kind != "float32" else model
    if not packed.exists():
        command = ["convert", "--from", str(model), "--to", str(packed), "--gemm-type", kind]
        run_command([str(Path(sys.executable).with_name("pymarian")), *command])
    return packed, words


def build(
    text: Text, flags: Sequence[str], name: str, words: Sequence[str], clock: str, apart: bool
) -> Contender:
    """The contender of a name, "marian float32 1 64" (type, threads, sentences in one of Marian's
    batches, 0 for fairseq's): the same beam, length penalty and length."""
    kind, threads, batch, *_ = [*words, *("float32", "1", "0")[len(words) :]]
    if kind not in TYPES:
        raise BenchError(f"Marian's type {kind} is not benchmarked: take one of {', '.join(TYPES)}")
    try:
        from pymarian import Translator
    except ImportError as error:
        raise BenchError("Marian is not installed: pip install pymarian") from error
    loaded = load([*text.flags, *flags])
    generation, dictionary = loaded.cfg.generation, loaded.task.source_dictionary
    model, vocabulary = convert(text, kind, dictionary)
    numbers, rows = pieces_of(loaded)
    widths = {len(row) + 1 for each in rows for row in each}
    if generation.max_len_a or len(widths) > 1:
        raise BenchError(
            "Marian's limit is a multiple of the source: take lines of one length (--spread 0) "
            "and --max-len-b"
        )
    lines = [" ".join(row) for each in rows for row in each]
    size = 1 if loaded.cfg.dataset.batch_size == 1 else int(batch) or max(map(len, rows))
    translator = Translator(
        models=str(model),
        vocabs=[str(vocabulary)] * 2,
        beam_size=generation.beam,
        n_best=True,
        quiet=True,
        cpu_threads=int(threads),
        normalize=0 if generation.unnormalized else generation.lenpen,
        mini_batch=size,
        maxi_batch=1,
        # the first length at which a translation is too long
        max_length_factor=(generation.max_len_b + 0.99) / min(widths),
    )

    def read(answers: list[str]) -> Outputs:
        # n-best lines of one sentence begin with its number
        best: dict[int, list] = {}
        for line in (line for each in answers for line in each.split("\n") if line):
            number, pieces, _, score = (part.strip() for part in line.split("|||"))
            tokens = [dictionary.index(piece) for piece in pieces.split()]
            best.setdefault(int(number), []).append((tokens, float(score)))
        return in_order(numbers, [best[i] for i in sorted(best)])

    signature = f"marian:{version('pymarian')}|{kind}|threads={threads},batch={size}"
    run = lambda: translator.translate(lines)  # noqa: E731
    return Contender(name, run, read, False, f"{signature} ({' '.join(flags)})")
