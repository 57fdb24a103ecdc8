"""A model of random weights in the size of Firefox's, as a fairseq checkpoint and as Bergamot's,
with text and a table of translations."""

import io
import json
import random
import struct
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import marian
import numpy as np
import sentencepiece
import shapes
import torch
from contenders import decode, load, make_generator
from text import Text

SIZES = dict(layers=6, embed_dim=256, ffn_embed_dim=1536, attention_heads=8)
FIREFOX: dict[str, Any] = shapes.BASE | {
    **{f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in SIZES.items()},
    "decoder_layers": 2,
}
WORDS, LINE, FIRST, BEST = 32_000, 25, 50, 50  # of the vocabulary, a line, the shortlist
MAGIC = 0xF11A48D5013417F5  # a shortlist file begins with it


def make(folder: Path, words: int, settings: dict[str, Any]) -> None:
    """A checkpoint, dictionaries, text and a table of translations; Bergamot's model, vocabulary
    and table, without multipliers."""
    shapes.SHAPES["firefox"] = (words + 2, settings)  # fairseq has <s> and <pad> too
    shapes.make("firefox", folder, 0)
    names = [line.split()[0] for line in (folder / "dict.de.txt").read_text().splitlines()]
    chance, often = random.Random(1), list(accumulate(1 / (i + 10) for i in range(len(names))))
    drawn = partial(chance.choices, cum_weights=often)
    lines = [" ".join(drawn(names, k=LINE)) for _ in range(shapes.SENTENCES)]
    (folder / "text.de").write_text("\n".join(lines) + "\n")
    listed = [sorted(set(drawn(range(len(names)), k=BEST))) for _ in names]
    with (folder / "lexicon").open("w") as file:
        for name, found in zip(names, listed, strict=True):
            file.writelines(f"{name} {names[i]} 0.02\n" for i in found)
    saved = torch.load(folder / "checkpoint.pt", weights_only=False)
    for key, weight in saved["model"].items():
        # as they are made, all sentences have one translation
        weight *= 4 if "attn" in key and key.endswith("proj.weight") else 1
    # </s>, <unk>, the words: SentencePiece sorts equally frequent ones by name
    order = [2, 3, *range(4, words + 2)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        **dict(sentence_iterator=iter(names), model_writer=model, model_type="word"),
        **dict(vocab_size=words, bos_id=-1, pad_id=-1, eos_id=0, unk_id=1, minloglevel=2),
    )
    (folder / "vocab.spm").write_bytes(model.getvalue())
    arrays: dict[str, Any] = dict(marian.weights(saved["model"], saved["args"], order))
    config = json.dumps(marian.settings(saved["args"], words)).encode()
    arrays["special:model.yml"] = np.frombuffer(config + b"\0", np.int8)
    np.savez(folder / "bergamot.npz", **arrays)
    # ids of each word's translations, one word after the other; none for </s> and <unk>
    offsets = np.cumsum([0, 0, 0, *map(len, listed)], dtype=np.uint64)
    ids = np.array([2 + i for found in listed for i in found], np.uint32)
    head = struct.pack("<6Q", MAGIC, 0, FIRST, BEST, len(offsets), len(ids))
    (folder / "shortlist.bin").write_bytes(head + offsets.tobytes() + ids.tobytes())
    torch.save(marian.with_marians_positions(saved, longest=128), folder / "checkpoint.pt")


def add_multipliers(folder: Path, text: Text, flags: Sequence[str]) -> None:
    """127 over the largest input of each of the model's matrices, over the whole text."""
    loaded = load([*text.flags, *flags])
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
    marked = {
        key: torch.full_like(value, largest.get(value.data_ptr(), 0.0))
        for key, value in loaded.models[0].state_dict().items()
    }
    arrays = dict(np.load(folder / "bergamot.npz"))
    order = range(arrays["Wemb"].shape[0])
    found = marian.weights(marked, loaded.models[0].args, list(order))
    for name, value in found.items():
        if "_W" in name and value.ndim == 2 and "_ln_" not in name:
            arrays[f"{name}_QuantMultA"] = np.array([127 / value.flat[0]], np.float32)
    of_words = np.array([127 / float(found["Wemb"].flat[0])], np.float32)
    arrays |= {"Wemb_QuantMultA": of_words, "none_QuantMultA": of_words}
    np.savez(folder / "bergamot.npz", **arrays)
