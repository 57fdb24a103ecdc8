"""Marian (`pip install pymarian`) on a converted copy of a fairseq checkpoint, a rival in C++ with
8-bit products of its own; and Bergamot, the translator that Firefox has, with a model of random
weights in the size of Firefox's, as a fairseq checkpoint and as Bergamot's.

M. Junczys-Dowmunt et al., Marian: Fast Neural Machine Translation in C++, ACL 2018,
https://arxiv.org/abs/1804.00344
N. Bogoychev et al., TranslateLocally: Blazing-fast translation running on the local CPU,
EMNLP 2021, https://aclanthology.org/2021.emnlp-demo.20/

Marian's Transformer is fairseq's but for two things that its file has no place for: positions count
from 0 (fairseq's from 2), and decoding begins with a vector of zeros (fairseq's with </s>). A
trained checkpoint's translations suffer from that, so only checkpoints of which no hypothesis ends
before --max-len-b (random_models.py) are compared. A model that normalises in front of its layers
cannot be converted at all: Marian normalises the queries of its attention alone. Marian limits
translations to a multiple of the source, so all source lines must have one length (--spread 0).

Firefox's model (6 + 2 layers of 256, 32,000 words) has self-attention in its decoder here, where
Firefox's has a simpler recurrence that fairseq lacks, and Marian's positions and start, so that
translations can be compared. All get the same lines, beam, length and table: up to 50 translations
of a source word, next to the 50 most frequent words; the n-th word is as frequent as 1 / (n + 10).
Bergamot's model holds what its activations are multiplied by, as Firefox's does.
"""

import io
import json
import math
import os
import random
import struct
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import random_models
import sentencepiece
import torch
from contenders import decode, in_order, load, make_generator, pieces_of
from engines import Engine
from fairseq.data import Dictionary
from harness import BenchError, Contender, Outputs, run_command
from text import Text, prepare

FIREFOX = random_models.sizes(6, 256, 1536, 8, decoder_layers=2)
WORDS, LINE, FIRST, BEST = 32_000, 25, 50, 50  # of the vocabulary, a line, the shortlist
MAGIC = 0xF11A48D5013417F5  # a shortlist file begins with it
PYTHON = "FAIRSEQ_EXT_BERGAMOT"  # the variable that names a Python with `pip install bergamot`
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
    same = ("embed_dim", "attention_heads", "ffn_embed_dim")
    differ = [n for n in same if getattr(model, f"encoder_{n}") != getattr(model, f"decoder_{n}")]
    before = model.encoder_normalize_before or model.decoder_normalize_before
    if before or not model.share_all_embeddings or differ:
        raise BenchError(
            "only models with one table of embeddings, sides of the same sizes and layers that "
            "normalise behind them are converted to Marian: take such a shape"
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


def convert(text: Text, kind: str, dictionary: Dictionary) -> tuple[Path, Path]:
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
    """The contender of a name, with the same beam, length penalty and length: "marian float32 1 64"
    (type, threads, sentences in one of Marian's batches, 0 for fairseq's), or "bergamot
    int8shiftAlphaAll", with "lexical" behind it for the shortlist."""
    if name.startswith("bergamot"):
        return bergamot(text, flags, name, words, clock)
    kind, threads, batch, *_ = [*words, *("float32", "1", "0")[len(words) :]]
    from pymarian import Translator

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


def bergamot(
    text: Text, flags: Sequence[str], name: str, words: Sequence[str], clock: str
) -> Contender:
    if not (python := os.environ.get(PYTHON)):
        raise BenchError(f"Bergamot is not there: name a Python that has it in {PYTHON}")
    loaded = load([*text.flags, *flags])
    generation, dictionary = loaded.cfg.generation, loaded.task.target_dictionary
    lines = text.file.read_text(encoding="utf-8").splitlines()
    kind, *lexical = words
    config = {
        "models": [str(text.model / "bergamot.npz")],
        "vocabs": [str(text.model / "vocab.spm")] * 2,
        "gemm-precision": kind,
        "beam-size": generation.beam,
        "skip-cost": generation.beam == 1,
        "normalize": generation.lenpen,
        "word-penalty": 0,
        # the first length at which a translation is too long
        "max-length-factor": (generation.max_len_b - 0.01) / (LINE + 1),
        "max-length-break": 2 * LINE,
        "mini-batch-words": 1000,
        "workspace": 128,
        "ssplit-mode": "sentence",
        "quiet": True,
        "quiet-translation": True,
    }
    if lexical:
        config["shortlist"] = [str(text.model / "shortlist.bin"), False]
    engine = Engine(name, python, {"engine": "bergamot", "config": config}, clock)
    bulk = loaded.cfg.dataset.batch_size != 1

    def read(answers: list[str]) -> Outputs:
        translations = (line.split() for each in answers for line in each.split("\n"))
        return [[([*map(dictionary.index, t), dictionary.eos()], 0.0)] for t in translations]

    return Contender(
        name,
        # a text of many lines is cut into batches by length; texts are not waited for
        lambda: engine(lines=["\n".join(lines)] if bulk else lines, bulk=bulk),
        read,
        exact=False,
        signature=f"{engine.version}|{kind}|threads=1 ({' '.join(flags)})",
        taken=lambda _: engine.seconds,
    )


def lexicon(folder: Path) -> list[str]:
    """Flags of ours with the table; fairseq's <s> and <pad> are among its most frequent words."""
    flags = f"--softmax lexical --shortlist-top {FIRST + 2} --shortlist-words {BEST}"
    flags += " --shortlist-share sentence --shortlist-file"
    return [*flags.split(), str(folder / "lexicon")]


def make(folder: Path, words: int = WORDS, settings: dict[str, Any] = FIREFOX) -> Path:
    """A checkpoint, dictionaries, text and a table of translations; Bergamot's model, vocabulary
    and table."""
    if (folder / "shortlist.bin").exists():
        return folder
    random_models.make((words + 2, settings), folder)  # fairseq has <s> and <pad> too
    names = [line.split()[0] for line in (folder / "dict.de.txt").read_text().splitlines()]
    chance, often = random.Random(1), list(accumulate(1 / (i + 10) for i in range(len(names))))
    drawn = partial(chance.choices, cum_weights=often)
    lines = [" ".join(drawn(names, k=LINE)) for _ in range(random_models.SENTENCES)]
    (folder / "text.de").write_text("\n".join(lines) + "\n")
    listed = [sorted(set(drawn(range(len(names)), k=BEST))) for _ in names]
    with (folder / "lexicon").open("w") as file:
        for name, numbers in zip(names, listed, strict=True):
            file.writelines(f"{name} {names[i]} 0.02\n" for i in numbers)
    saved = torch.load(folder / "checkpoint.pt", weights_only=False)
    random_models.distinguishing(saved["model"])
    # </s>, <unk>, the words: SentencePiece sorts equally frequent ones by name
    save(folder / "bergamot.npz", saved, [2, 3, *range(4, words + 2)])
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        **dict(sentence_iterator=iter(names), model_writer=model, model_type="word"),
        **dict(vocab_size=words, bos_id=-1, pad_id=-1, eos_id=0, unk_id=1, minloglevel=2),
    )
    (folder / "vocab.spm").write_bytes(model.getvalue())
    # ids of each word's translations, one word after the other; none for </s> and <unk>
    offsets = np.cumsum([0, 0, 0, *map(len, listed)], dtype=np.uint64)
    ids = np.array([2 + i for numbers in listed for i in numbers], np.uint32)
    head = struct.pack("<6Q", MAGIC, 0, FIRST, BEST, len(offsets), len(ids))
    torch.save(with_marians_positions(saved, longest=128), folder / "checkpoint.pt")
    text = prepare(folder / "all", folder, str(folder / "text"), "de", "en", 64)
    add_multipliers(folder, text)
    (folder / "shortlist.bin").write_bytes(head + offsets.tobytes() + ids.tobytes())
    return folder


def add_multipliers(folder: Path, text: Text) -> None:
    """127 over the largest input of each of the model's matrices, over the whole text."""
    loaded = load([*text.flags, *"--cpu --beam 1 --max-len-b 5".split()])
    largest: dict[int, float] = {}
    functional, linear = torch.nn.functional, torch.nn.functional.linear

    def watched(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        key = weight.data_ptr()
        largest[key] = max(largest.get(key, 0.0), float(x.abs().max()))
        return linear(x, weight, bias)

    functional.linear = watched
    try:
        decode(loaded, make_generator(loaded, "stock"))
    finally:
        functional.linear = linear
    state = loaded.models[0].state_dict().items()
    marked = {
        key: torch.full_like(value, largest.get(value.data_ptr(), 0.0)) for key, value in state
    }
    arrays = dict(np.load(folder / "bergamot.npz"))
    inputs = weights(marked, loaded.models[0].args, list(range(arrays["Wemb"].shape[0])))
    for name, value in inputs.items():
        if "_W" in name and value.ndim == 2 and "_ln_" not in name:
            arrays[f"{name}_QuantMultA"] = np.array([127 / value.flat[0]], np.float32)
    of_words = np.array([127 / float(inputs["Wemb"].flat[0])], np.float32)
    arrays |= {"Wemb_QuantMultA": of_words, "none_QuantMultA": of_words}
    np.savez(folder / "bergamot.npz", **arrays)
