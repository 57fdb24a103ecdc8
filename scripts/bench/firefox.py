"""Bergamot, the translator that Firefox has, as a contender; and a model of random weights in the
size of Firefox's, as a fairseq checkpoint and as Bergamot's, with text and a table of translations.

N. Bogoychev et al., TranslateLocally: Blazing-fast translation running on the local CPU,
EMNLP 2021, https://aclanthology.org/2021.emnlp-demo.20/

The model (6 + 2 layers of 256, 32,000 words) has self-attention in its decoder, where Firefox's has
a simpler recurrence that fairseq lacks, and Marian's positions and start, so that translations can
be compared. All get the same lines, beam, length and table: up to 50 translations of a source word,
next to the 50 most frequent words; the n-th word is as frequent as 1 / (n + 10). Bergamot's model
holds what its activations are multiplied by, as Firefox's does.
"""

import io
import os
import random
import struct
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import marian
import numpy as np
import random_models
import sentencepiece
import torch
from contenders import decode, load, make_generator
from engines import Engine
from harness import BenchError, Contender, Outputs
from text import Text, prepare

FIREFOX = random_models.sizes(6, 256, 1536, 8, decoder_layers=2)
WORDS, LINE, FIRST, BEST = 32_000, 25, 50, 50  # of the vocabulary, a line, the shortlist
MAGIC = 0xF11A48D5013417F5  # a shortlist file begins with it
PYTHON = "FAIRSEQ_EXT_BERGAMOT"  # the variable that names a Python with `pip install bergamot`


def build(
    text: Text, flags: Sequence[str], name: str, words: Sequence[str], clock: str, apart: bool
) -> Contender:
    """The same beam and length; name: "bergamot", precision, "lexical" for the shortlist."""
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
    marian.save(folder / "bergamot.npz", saved, [2, 3, *range(4, words + 2)])
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
    torch.save(marian.with_marians_positions(saved, longest=128), folder / "checkpoint.pt")
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
    inputs = marian.weights(marked, loaded.models[0].args, list(range(arrays["Wemb"].shape[0])))
    for name, value in inputs.items():
        if "_W" in name and value.ndim == 2 and "_ln_" not in name:
            arrays[f"{name}_QuantMultA"] = np.array([127 / value.flat[0]], np.float32)
    of_words = np.array([127 / float(inputs["Wemb"].flat[0])], np.float32)
    arrays |= {"Wemb_QuantMultA": of_words, "none_QuantMultA": of_words}
    np.savez(folder / "bergamot.npz", **arrays)
