"""How fast is a converted OPUS-MT or NLLB-200 next to CTranslate2, `transformers`, OpenVINO and
ONNX Runtime, which read the same Hugging Face folder?

    python scripts/bench/hugging_face.py --shape opus-mt --out results/hugging_face
        --openvino PYTHON --onnxruntime PYTHON
    python scripts/bench/hugging_face.py --shape tiny --rounds 1

The weights are random, and every contender makes exactly --tokens words a sentence, so that
all read equally much; OPUS-MT's best translations are compared with those of `transformers`.
Contenders take turns (A B A B); the time is what their process's threads have used, one thread
each, tokenizing included, loading not. Needs `transformers`, `sacremoses` and `ctranslate2`; each
PYTHON is that of an environment of its own (rival_process.py).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from arguments import command_line, run_script
from harness import BenchError
from report import machine, where_and_when
from rival_process import Rival, named

from fairseq_ext import Translator
from fairseq_ext.convert.__main__ import convert
from fairseq_ext.kernels import library as kernels

SHAPES: dict[str, dict[str, Any]] = {
    "opus-mt": dict(vocab_size=58_101, d_model=512, layers=6, heads=8, ffn=2048),
    "nllb-600m": dict(vocab_size=256_206, d_model=1024, layers=12, heads=16, ffn=4096),
    "m2m-418m": dict(vocab_size=128_112, d_model=1024, layers=12, heads=16, ffn=4096),
    "tiny": dict(vocab_size=700, d_model=32, layers=2, heads=4, ffn=64),
    "tiny-nllb": dict(vocab_size=700, d_model=32, layers=2, heads=4, ffn=64),
}
MARIAN = ("opus-mt", "tiny")
PACKAGES = {
    "openvino": "optimum-intel[openvino]",
    "onnxruntime": "optimum-onnx[onnxruntime]",
}
ENGINES = {"openvino": ("f32", "bf16", "int8"), "onnxruntime": ("float32", "int8")}
# lines, beam, in bulk -> the best translation of each line, its pieces joined by spaces
Run = Callable[[list[str], int, bool], list[str]]


@dataclass(frozen=True)
class Kind:
    """transformers' class of a model, its tokenizer, and the languages, where a model has many."""

    model: Any
    tokenizer: Any
    source: str = ""
    target: str = ""


def made_up_lines(count: int, words: int, seed: int = 1) -> list[str]:
    """Lines of made-up words."""
    chance = random.Random(seed)
    return [
        " ".join(
            "".join(chance.choices(["ka", "lo", "mi", "ne", "ru", "sta", "vo"], k=3))
            for _ in range(words)
        )
        for _ in range(count)
    ]


def write_pieces(folder: Path, name: str) -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece model of 300 pieces: name.model."""
    text = iter(made_up_lines(500, 12))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=text, model_prefix=str(folder / name), vocab_size=300, minloglevel=2
    )
    return sentencepiece.SentencePieceProcessor(str(folder / f"{name}.model"))


def sizes(shape: dict[str, Any]) -> dict[str, int]:
    """The settings of a shape, in the library's names."""
    names = dict(layers="layers", attention_heads="heads", ffn_dim="ffn")
    of_sides = {
        f"{side}_{name}": shape[own]
        for side in ("encoder", "decoder")
        for name, own in names.items()
    }
    return {"d_model": shape["d_model"], "scale_embedding": True, **of_sides}


def distinguishing(model: Any) -> Any:
    """A model that attends to more than the average: else all sentences have one translation."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight *= 8 if "attn" in name and name.endswith("proj.weight") else 1
    return model


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
    (folder / "vocab.json").write_text(
        json.dumps({word: i for i, word in enumerate(words)}, ensure_ascii=False), encoding="utf-8"
    )
    settings = {"tokenizer_class": "MarianTokenizer", "source_lang": "de", "target_lang": "en"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    pad = len(words) - 1
    config = MarianConfig(
        vocab_size=len(words),
        pad_token_id=pad,
        eos_token_id=0,
        decoder_start_token_id=pad,
        activation_function="swish",
        max_position_embeddings=512,
        **sizes(shape),
    )
    distinguishing(MarianMTModel(config)).save_pretrained(folder)
    return Kind(MarianMTModel, MarianTokenizer.from_pretrained(folder))


def write_m2m100(folder: Path, shape: dict[str, Any]) -> Kind:
    """A folder as NLLB-200's are; M2M-100's model is of the same class."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration, NllbTokenizer
    from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

    write_pieces(folder, "sentencepiece.bpe")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "NllbTokenizer"}))
    codes = list(FAIRSEQ_LANGUAGE_CODES)
    tokenizer = NllbTokenizer.from_pretrained(
        folder, additional_special_tokens=codes, src_lang="deu_Latn", tgt_lang="eng_Latn"
    )
    tokenizer.save_pretrained(folder)
    settings = (
        folder / "tokenizer_config.json"
    )  # transformers 4, which rivals have, reads this name
    written = settings.read_text(encoding="utf-8")
    settings.write_text(written.replace('"extra_special', '"additional_special'), encoding="utf-8")
    model = M2M100ForConditionalGeneration(
        M2M100Config(vocab_size=shape["vocab_size"], **sizes(shape))
    )
    # else it repeats the language's token, which is no word of a translation
    torch.nn.init.normal_(model.model.decoder.layer_norm.weight)
    distinguishing(model).save_pretrained(folder)
    return Kind(M2M100ForConditionalGeneration, tokenizer, "deu_Latn", "eng_Latn")


def ours(folder: Path, kind: Kind, tokens: int, int8: bool = False) -> Run:
    """The converted model."""
    made: dict[int, Translator] = {}
    pair = {"source_lang": kind.source, "target_lang": kind.target} if kind.source else {}

    def run(lines: list[str], beam: int, bulk: bool) -> list[str]:
        if beam not in made:
            made.clear()
            made[beam] = Translator.from_folder(
                folder, beam=beam, min_len=tokens, max_len_b=tokens, cpu=True, int8=int8, **pair
            )
        found = made[beam]
        encoded = [found.encode(line) for line in lines]
        groups = [encoded] if bulk else [[each] for each in encoded]
        rows = (each[0].tokens for group in groups for each in found.search(group, None, 1))
        return [" ".join(row) for row in rows]

    return run


def ctranslate2(folder: Path, hf: Path, kind: Kind, tokens: int, numbers: str) -> Run:
    """CTranslate2's conversion of the same folder."""
    import ctranslate2 as library

    if not folder.exists():
        library.converters.TransformersConverter(str(hf)).convert(str(folder))
    translator = library.Translator(
        str(folder), device="cpu", compute_type=numbers, inter_threads=1, intra_threads=1
    )
    tokenizer = kind.tokenizer

    def run(lines: list[str], beam: int, bulk: bool) -> list[str]:
        encoded = [tokenizer.convert_ids_to_tokens(tokenizer(line)["input_ids"]) for line in lines]
        groups = [encoded] if bulk else [[each] for each in encoded]
        how = dict(
            beam_size=beam, max_decoding_length=tokens, min_decoding_length=tokens, max_batch_size=0
        )
        found = (
            translator.translate_batch(
                group, [[kind.target]] * len(group) if kind.target else None, **how
            )
            for group in groups
        )
        best = [" ".join(each.hypotheses[0]) for group in found for each in group]
        # words without a piece, numbered from the last piece's on
        number = lambda match: f"madeupword{int(match[1]) + len(tokenizer):04d}"  # noqa: E731
        return [re.sub(r"madeupword(\d+)", number, line) for line in best]

    return run


def transformers(hf: Path, kind: Kind, tokens: int) -> Run:
    """The library itself."""
    model, tokenizer = kind.model.from_pretrained(hf).eval(), kind.tokenizer
    first = (
        {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(kind.target)} if kind.target else {}
    )

    def run(lines: list[str], beam: int, bulk: bool) -> list[str]:
        groups = [lines] if bulk else [[line] for line in lines]
        how = dict(
            num_beams=beam, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, **first
        )
        batches = [tokenizer(group, return_tensors="pt", padding=True) for group in groups]
        with torch.no_grad():
            rows = [row for batch in batches for row in model.generate(**batch, **how)]
        return [named(tokenizer, row.tolist()[1:]) for row in rows]

    return run


def apart(engine: str, python: str, hf: Path, kind: Kind, tokens: int, numbers: str) -> Run:
    """An engine in a process of its own."""
    how = dict(folder=str(hf), numbers=numbers, target=kind.target, tokens=tokens)
    rival = Rival(f"{engine} {numbers}", python, {"engine": engine, **how})

    def run(lines: list[str], beam: int, bulk: bool) -> list[str]:
        return rival(lines=lines, beam=beam, bulk=bulk)

    vars(run)["rival"] = rival
    return run


def words_of(found: list[str], kind: Kind, tokens: int) -> list[str]:
    """Translations without what not all contenders give: the language, </s>, the last word, for
    which some force </s>."""
    special = {kind.target, "</s>", "<s>", "<pad>"}
    each = ([word for word in line.split() if word not in special] for line in found)
    return [" ".join(line[: tokens - 1]) for line in each]


def main(argv: list[str] | None = None) -> int:
    parser = command_line(__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="opus-mt")
    parser.add_argument(
        "--lines", type=int, default=8, help="sentences in bulk; a quarter of them one at a time"
    )
    parser.add_argument("--tokens", type=int, default=25, help="words of each translation")
    parser.add_argument("--rounds", type=int, default=3)
    for engine, package in PACKAGES.items():
        parser.add_argument(f"--{engine}", metavar="PYTHON", help=f"that has {package}")
    parser.add_argument("--out", type=Path, help="a file without its suffix, for the table")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        hf, converted, other = (Path(place, name) for name in ("hf", "converted", "ct2"))
        hf.mkdir()
        torch.manual_seed(1)
        kind = (write_marian if args.shape in MARIAN else write_m2m100)(hf, SHAPES[args.shape])
        convert(str(hf), str(converted))
        contenders = {
            "ours": ours(converted, kind, args.tokens),
            "ours --int8": ours(converted, kind, args.tokens, True),
        }
        contenders |= {
            f"ctranslate2 {each}": ctranslate2(other, hf, kind, args.tokens, each)
            for each in ("float32", "int8")
        }
        contenders["transformers"] = transformers(hf, kind, args.tokens)
        for engine, chosen in ENGINES.items():
            if python := getattr(args, engine):
                contenders |= {
                    f"{engine} {each}": apart(engine, python, hf, kind, args.tokens, each)
                    for each in chosen
                }
        table = measure(contenders, args, kind)
    print(table)
    if args.out:
        args.out.with_suffix(".md").write_text(table, encoding="utf-8")
    return 0


def measure(contenders: dict[str, Run], args: argparse.Namespace, kind: Kind) -> str:
    """The table: CPU seconds of each contender and setting, the medians of rounds, ratios to
    CTranslate2 of the same numbers, and how many translations are transformers'."""
    text = made_up_lines(args.lines, 12, seed=2)
    rivals = [f"ctranslate2 {kind}" for kind in ("float32", "int8")]
    columns = [
        "beam",
        "",
        "contender",
        "CPU seconds (min-max)",
        *(f"times {rival}" for rival in rivals),
        "best equal",
    ]
    rows = [columns, ["---:", "---", "---", "---:", "---:", "---:", "---:"]]
    left_out: list[str] = []
    for beam in (1, 5):
        for bulk in (True, False):
            lines = text if bulk else text[: max(1, len(text) // 4)]
            times: dict[str, list[float]] = {name: [] for name in contenders}
            best: dict[str, list[str]] = {}
            for turn in range(args.rounds + 1):
                for name, run in list(contenders.items()):
                    start = time.process_time()
                    found = run(lines, beam, bulk)
                    seconds = time.process_time() - start
                    if rival := vars(run).get("rival"):
                        seconds = rival.seconds
                    best[name] = words_of(found, kind, args.tokens)
                    if {len(line.split()) for line in best[name]} != {args.tokens - 1}:
                        if name.startswith("ours") or name in (*rivals, "transformers"):
                            raise BenchError(f"{name} made other lengths: {best[name][0]}")
                        left_out.append(f"{name} from beam {beam}, {'bulk' if bulk else 'one'} on")
                        del contenders[name], times[name]
                        continue
                    if turn:  # the first warms up
                        times[name].append(seconds)
            for name, own in times.items():
                ratios = [
                    statistics.median(b / a for a, b in zip(own, times[rival], strict=True))
                    for rival in rivals
                ]
                mode = f"{len(lines)} in bulk" if bulk else f"{len(lines)} one at a time"
                same = sum(map(str.__eq__, best[name], best["transformers"]))
                # NLLB's tokenizer, made up here, splits words otherwise than SentencePiece
                compared = "not compared" if kind.target else f"{same} of {len(lines)}"
                shown = f"{statistics.median(own):.3f} ({min(own):.3f}-{max(own):.3f})"
                rows.append(
                    [str(beam), mode, name, shown, *(f"{ratio:.2f}x" for ratio in ratios)]
                    + [compared]
                )
    shape = ", ".join(f"{name} {value}" for name, value in SHAPES[args.shape].items())
    own = f"ours {kernels.level()}, torch {torch.backends.cpu.get_cpu_capability()}"
    own += "".join(f", ctranslate2 {isa}" for isa in [os.environ.get("CT2_FORCE_CPU_ISA")] if isa)
    how = (
        f"Random weights, {args.tokens} words a translation, one thread, CPU time, {args.rounds} "
        f"interleaved rounds. Instructions: {own}; the other engines choose their own."
    )
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    if left_out:
        table += f"\n\nLeft out, as they made translations of other lengths: {'; '.join(left_out)}."
    return f"## {args.shape}: {shape}\n\n{how}\n\n{table}\n\n{where_and_when(machine())}\n"


if __name__ == "__main__":
    run_script(main)
