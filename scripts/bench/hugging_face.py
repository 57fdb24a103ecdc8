"""How fast is a converted OPUS-MT or NLLB-200 next to CTranslate2, `transformers`, OpenVINO and
ONNX Runtime, which read the same Hugging Face folder?

    python scripts/bench/hugging_face.py --shape opus-mt --out results/hugging_face
        --openvino PYTHON --onnxruntime PYTHON
    python scripts/bench/hugging_face.py --shape tiny --repeats 1

The weights are random, and every contender makes exactly --tokens words a sentence, so that
all read equally much; OPUS-MT's best translations are compared with those of `transformers`.
Contenders take turns (A B A B); the time is what their process's threads have used, one thread
each, tokenizing included, loading not. Needs `transformers`, `sacremoses` and `ctranslate2`; each
PYTHON is that of an environment of its own (engines.py). Some engines make translations of other
lengths (`words`): their times are of other work. NLLB's outputs do not compare: its tokenizer, made
up here, splits words otherwise than SentencePiece.

    --shape SHAPE           (opus-mt)
    --lines N               sentences in bulk; a quarter of them one at a time (8)
    --tokens N              words of each translation (25)
    --repeats N             timed rounds (3)
    --openvino PYTHON       that has optimum-intel[openvino]
    --onnxruntime PYTHON    that has optimum-onnx[onnxruntime]
    --out OUT               write OUT.md and OUT.json
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from engines import Engine, groups, with_transformers
from harness import Contender, Result, compare
from random_models import distinguishing
from report import Page
from text import run_bench

from fairseq_ext import Translator
from fairseq_ext.convert.__main__ import convert
from fairseq_ext.kernels import library as kernels
from fairseq_ext.search.request import Request

SHAPES: dict[str, dict[str, Any]] = {
    "opus-mt": dict(vocab_size=58_101, d_model=512, layers=6, heads=8, ffn=2048),
    "nllb-600m": dict(vocab_size=256_206, d_model=1024, layers=12, heads=16, ffn=4096),
    "m2m-418m": dict(vocab_size=128_112, d_model=1024, layers=12, heads=16, ffn=4096),
    "tiny": dict(vocab_size=700, d_model=32, layers=2, heads=4, ffn=64),
}
MARIAN = ("opus-mt", "tiny")
ENGINES = {"openvino": ("f32", "bf16", "int8"), "onnxruntime": ("float32", "int8")}
RIVALS = ("ctranslate2 float32", "ctranslate2 int8")
# lines, beam, in bulk -> the best translation of each line, its pieces joined by spaces
Run = Callable[..., list[str]]


@dataclass(frozen=True)
class Kind:
    """transformers' class of a model, its tokenizer, and the languages, where a model has many."""

    model: Any
    tokenizer: Any
    source: str = ""
    target: str = ""


def made_up_lines(count: int, words: int, seed: int = 1) -> list[str]:
    """Lines of made-up words."""
    syllables, chance = "ka lo mi ne ru sta vo".split(), random.Random(seed)
    word = lambda: "".join(chance.choices(syllables, k=3))  # noqa: E731
    return [" ".join(word() for _ in range(words)) for _ in range(count)]


def write_pieces(folder: Path, name: str) -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece model of 300 pieces: name.model."""
    text, prefix = iter(made_up_lines(500, 12)), str(folder / name)
    how = dict(sentence_iterator=text, model_prefix=prefix, vocab_size=300, minloglevel=2)
    sentencepiece.SentencePieceTrainer.train(**how)
    return sentencepiece.SentencePieceProcessor(f"{prefix}.model")


def sizes(shape: dict[str, Any]) -> dict[str, int]:
    """The settings of a shape, in the library's names."""
    names = dict(layers="layers", attention_heads="heads", ffn_dim="ffn")
    sides = ("encoder", "decoder")
    of_sides = {f"{side}_{name}": shape[own] for side in sides for name, own in names.items()}
    return {"d_model": shape["d_model"], "scale_embedding": True, **of_sides}


def save(model: Any, folder: Path) -> None:
    distinguishing(dict(model.named_parameters()), 8)
    model.save_pretrained(folder)


def write_marian(folder: Path, shape: dict[str, Any]) -> Kind:
    """A folder as OPUS-MT's are."""
    from transformers import MarianConfig, MarianMTModel, MarianTokenizer

    pieces = []
    for name in ("source", "target"):
        model = write_pieces(folder, name)
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        pieces += [model.id_to_piece(i) for i in range(3, model.get_piece_size())]
    words = list(dict.fromkeys(["</s>", "<unk>", *pieces]))
    words += [f"▁more{i}" for i in range(shape["vocab_size"] - len(words) - 1)] + ["<pad>"]
    numbers = json.dumps({word: i for i, word in enumerate(words)}, ensure_ascii=False)
    (folder / "vocab.json").write_text(numbers, encoding="utf-8")
    settings = {"tokenizer_class": "MarianTokenizer", "source_lang": "de", "target_lang": "en"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    pad = len(words) - 1
    special = dict(pad_token_id=pad, eos_token_id=0, decoder_start_token_id=pad)
    special |= dict(activation_function="swish", max_position_embeddings=512)
    save(MarianMTModel(MarianConfig(vocab_size=len(words), **special, **sizes(shape))), folder)
    return Kind(MarianMTModel, MarianTokenizer.from_pretrained(folder))


def write_m2m100(folder: Path, shape: dict[str, Any]) -> Kind:
    """A folder as NLLB-200's are; M2M-100's model is of the same class."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration, NllbTokenizer
    from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

    write_pieces(folder, "sentencepiece.bpe")
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps({"tokenizer_class": "NllbTokenizer"}))
    pair = dict(src_lang="deu_Latn", tgt_lang="eng_Latn")
    pair |= dict(additional_special_tokens=list(FAIRSEQ_LANGUAGE_CODES))  # type: ignore
    tokenizer = NllbTokenizer.from_pretrained(folder, **pair)
    tokenizer.save_pretrained(folder)
    # transformers 4, which rivals have, reads this name
    written = settings.read_text(encoding="utf-8")
    settings.write_text(written.replace('"extra_special', '"additional_special'), encoding="utf-8")
    config = M2M100Config(vocab_size=shape["vocab_size"], **sizes(shape))
    model = M2M100ForConditionalGeneration(config)
    # else it repeats the language's token, which is no word of a translation
    torch.nn.init.normal_(model.model.decoder.layer_norm.weight)
    save(model, folder)
    return Kind(M2M100ForConditionalGeneration, tokenizer, "deu_Latn", "eng_Latn")


def ours(folder: Path, kind: Kind, tokens: int, int8: bool = False) -> Run:
    """The converted model."""
    made: dict[int, Translator] = {}
    how: dict[str, Any] = dict(min_len=tokens, max_len_b=tokens, cpu=True, int8=int8)
    how |= {"source_lang": kind.source, "target_lang": kind.target} if kind.source else {}

    def run(**requested: Any) -> list[str]:
        if (beam := requested["beam"]) not in made:
            made.clear()
            made[beam] = Translator.from_folder(folder, beam=beam, **how)
        found = made[beam]
        encoded = (
            [Request(tokens=found.encode(line), nbest=1) for line in group]
            for group in groups(requested)
        )
        return [" ".join(each[0].tokens) for group in encoded for each in found.search(group)]

    return run


def ctranslate2(folder: Path, hf: Path, kind: Kind, tokens: int, numbers: str) -> Run:
    """CTranslate2's conversion of the same folder."""
    import ctranslate2 as library

    if not folder.exists():
        library.converters.TransformersConverter(str(hf)).convert(str(folder))
    one = dict(device="cpu", compute_type=numbers, inter_threads=1, intra_threads=1)
    translator, tokenizer = library.Translator(str(folder), **one), kind.tokenizer
    how = dict(max_decoding_length=tokens, min_decoding_length=tokens, max_batch_size=0)

    def pieces(line: str) -> list[str]:
        return tokenizer.convert_ids_to_tokens(tokenizer(line)["input_ids"])

    def number(match: re.Match[str]) -> str:
        """Words without a piece are numbered from the last piece's on."""
        return f"madeupword{int(match[1]) + len(tokenizer):04d}"

    def run(**requested: Any) -> list[str]:
        best = []
        for group in groups(requested):
            first = [[kind.target]] * len(group) if kind.target else None
            batch = [pieces(line) for line in group]
            found = translator.translate_batch(batch, first, beam_size=requested["beam"], **how)
            best += [" ".join(each.hypotheses[0]) for each in found]
        return [re.sub(r"madeupword(\d+)", number, line) for line in best]

    return run


def transformers(hf: Path, kind: Kind, tokens: int) -> Run:
    """The library itself."""
    model = kind.model.from_pretrained(hf).eval()
    decode = with_transformers(model, str(hf), kind.target, tokens, kind.tokenizer)
    return torch.no_grad()(lambda **requested: decode(requested))


def words_of(line: str, kind: Kind, tokens: int) -> list[str]:
    """A translation without what not all contenders give: the language, </s>, the last word, for
    which some force </s>."""
    special = {kind.target, "</s>", "<s>", "<pad>"}
    return [word for word in line.split() if word not in special][: tokens - 1]


def mean_words(result: Result) -> dict[str, str]:
    lengths = [len(best[0][0]) + 1 for best in result.outputs]
    return {"words": f"{sum(lengths) / len(lengths):.1f}"}


def main(args: Namespace, page: Page, place: Path) -> None:
    shape = ", ".join(f"{name} {value}" for name, value in SHAPES[args.shape].items())
    own = f"ours {kernels.level()}, torch {torch.backends.cpu.get_cpu_capability()}"
    own += "".join(f", ctranslate2 {isa}" for isa in [os.environ.get("CT2_FORCE_CPU_ISA")] if isa)
    page.add(
        f"## {args.shape}: {shape}\n\nRandom weights, {args.tokens} words a translation, one "
        f"thread, CPU time. Instructions: {own}; the other engines choose their own.\n"
    )
    hf, converted, other = (place / name for name in ("hf", "converted", "ct2"))
    hf.mkdir()
    torch.manual_seed(1)
    kind = (write_marian if args.shape in MARIAN else write_m2m100)(hf, SHAPES[args.shape])
    convert(str(hf), str(converted))
    of = kind, args.tokens
    runs = {"transformers": transformers(hf, *of), "ours": ours(converted, *of)}
    runs["ours --int8"] = ours(converted, *of, True)
    runs |= {name: ctranslate2(other, hf, *of, name.split()[1]) for name in RIVALS}
    how = dict(folder=str(hf), target=kind.target, tokens=args.tokens)
    for engine, numbers in ENGINES.items():
        for each in numbers if (python := getattr(args, engine)) else ():
            requested = {"engine": engine, "numbers": each, **how}
            runs[f"{engine} {each}"] = Engine(f"{engine} {each}", python, requested)
    read = lambda found: [[(words_of(x, *of), 0.0)] for x in found]  # noqa: E731
    lines = made_up_lines(args.lines, 12, seed=2)
    for beam, bulk in ((1, True), (1, False), (5, True), (5, False)):
        some, made = lines if bulk else lines[: max(1, len(lines) // 4)], []
        for name, run in runs.items():
            called = partial(run, lines=some, beam=beam, bulk=bulk)
            taken = (lambda _, run=run: run.seconds) if isinstance(run, Engine) else None
            made.append(Contender(name, called, read, exact=False, taken=taken))
        title = f"beam {beam}, {len(some)} {'in bulk' if bulk else 'one at a time'}"
        found = compare(made, args.repeats, title=title, clock=time.process_time)
        page.add_comparison(found, RIVALS, mean_words)


if __name__ == "__main__":
    run_bench(main, __doc__, {"shape": SHAPES}, has_text=False)
