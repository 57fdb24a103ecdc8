"""How fast is a converted OPUS-MT or NLLB-200 beside CTranslate2 and `transformers`, which read the same Hugging Face folder?

    python scripts/bench/hugging_face.py --shape opus-mt --out results/hugging_face
    python scripts/bench/hugging_face.py --shape tiny --rounds 1

The weights are random, and every contender makes exactly --tokens words a sentence, so that all read equally much. Contenders take turns
(A B A B); the time is what this process's threads have used, one thread each, tokenizing included, loading not. Needs `transformers`,
`sacremoses` and `ctranslate2`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from report import machine, where_and_when

from fairseq_ext import Translator
from fairseq_ext.convert.__main__ import convert

SHAPES: dict[str, dict[str, Any]] = {
    "opus-mt": dict(vocab_size=58_101, d_model=512, layers=6, heads=8, ffn=2048),
    "tiny": dict(vocab_size=700, d_model=32, layers=2, heads=4, ffn=64),
}
Run = Callable[[list[str], int, bool], int]  # lines, beam, in bulk -> words made


def made_up_lines(count: int, words: int, seed: int = 1) -> list[str]:
    """Lines of made-up words."""
    chance = random.Random(seed)
    return [" ".join("".join(chance.choices(["ka", "lo", "mi", "ne", "ru", "sta", "vo"], k=3)) for _ in range(words)) for _ in range(count)]


def write_model(folder: Path, shape: dict[str, Any]) -> None:
    """A folder as OPUS-MT's are."""
    from transformers import MarianConfig, MarianMTModel

    folder.mkdir(parents=True)
    pieces = []
    for name in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(made_up_lines(500, 12)), model_prefix=str(folder / name), vocab_size=300, minloglevel=2
        )
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        model = sentencepiece.SentencePieceProcessor(str(folder / f"{name}.spm"))
        pieces += [model.id_to_piece(i) for i in range(3, model.get_piece_size())]
    words = list(dict.fromkeys(["</s>", "<unk>", *pieces]))
    words += [f"▁more{i}" for i in range(shape["vocab_size"] - len(words) - 1)] + ["<pad>"]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}, ensure_ascii=False), encoding="utf-8")
    settings = {"tokenizer_class": "MarianTokenizer", "source_lang": "de", "target_lang": "en"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    pad = len(words) - 1
    sizes = {f"{side}_{name}": shape[own] for side in ("encoder", "decoder") for name, own in
             (("layers", "layers"), ("attention_heads", "heads"), ("ffn_dim", "ffn"))}  # fmt: skip
    config = MarianConfig(
        vocab_size=len(words), d_model=shape["d_model"], pad_token_id=pad, eos_token_id=0, decoder_start_token_id=pad,
        activation_function="swish", scale_embedding=True, max_position_embeddings=512, **sizes,
    )  # fmt: skip
    torch.manual_seed(1)
    MarianMTModel(config).save_pretrained(folder)


def ours(folder: Path, tokens: int, int8: bool = False) -> Run:
    """The converted model, on lines that are numbers of words already."""
    made: dict[int, Translator] = {}

    def run(lines: list[str], beam: int, bulk: bool) -> int:
        if beam not in made:
            made[beam] = Translator.from_folder(folder, beam=beam, min_len=tokens, max_len_b=tokens, cpu=True, int8=int8)
        found = made[beam]
        encoded = [found.encode(line) for line in lines]
        groups = [encoded] if bulk else [[each] for each in encoded]
        return sum(len(each[0].tokens) for group in groups for each in found.search(group, None, 1))

    return run


def ctranslate2(folder: Path, hf: Path, tokens: int, kind: str) -> Run:
    """CTranslate2's conversion of the same folder."""
    import ctranslate2 as library
    from transformers import MarianTokenizer

    tokenizer = MarianTokenizer.from_pretrained(hf)
    if not folder.exists():
        library.converters.TransformersConverter(str(hf)).convert(str(folder))
    translator = library.Translator(str(folder), device="cpu", compute_type=kind, inter_threads=1, intra_threads=1)

    def run(lines: list[str], beam: int, bulk: bool) -> int:
        encoded = [tokenizer.convert_ids_to_tokens(tokenizer(line)["input_ids"]) for line in lines]
        groups = [encoded] if bulk else [[each] for each in encoded]
        how = dict(beam_size=beam, max_decoding_length=tokens, min_decoding_length=tokens, max_batch_size=0)
        return sum(len(each.hypotheses[0]) for group in groups for each in translator.translate_batch(group, **how))

    return run


def transformers(hf: Path, tokens: int) -> Run:
    """The library itself."""
    from transformers import MarianMTModel, MarianTokenizer

    model, tokenizer = MarianMTModel.from_pretrained(hf).eval(), MarianTokenizer.from_pretrained(hf)

    def run(lines: list[str], beam: int, bulk: bool) -> int:
        groups = [lines] if bulk else [[line] for line in lines]
        how = dict(num_beams=beam, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
        batches = [tokenizer(group, return_tensors="pt", padding=True) for group in groups]
        with torch.no_grad():
            return sum(row.numel() - 1 for batch in batches for row in model.generate(**batch, **how))

    return run


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="opus-mt")
    parser.add_argument("--lines", type=int, default=8, help="sentences in bulk; a quarter of them one at a time")
    parser.add_argument("--tokens", type=int, default=25, help="words of each translation")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a file without its suffix, for the table")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        hf, converted, other = (Path(place, name) for name in ("hf", "converted", "ct2"))
        write_model(hf, SHAPES[args.shape])
        convert(str(hf), str(converted))
        contenders = {"ours": ours(converted, args.tokens), "ours --int8": ours(converted, args.tokens, True)}
        contenders |= {f"ctranslate2 {kind}": ctranslate2(other, hf, args.tokens, kind) for kind in ("float32", "int8")}
        contenders["transformers"] = transformers(hf, args.tokens)
        table = measure(contenders, args)
    print(table)
    if args.out:
        args.out.with_suffix(".md").write_text(table, encoding="utf-8")
    return 0


def measure(contenders: dict[str, Run], args: argparse.Namespace) -> str:
    """The table: CPU seconds of each contender and setting, the medians of rounds, and ratios to CTranslate2 of the same numbers."""
    text = made_up_lines(args.lines, 12, seed=2)
    rivals = [f"ctranslate2 {kind}" for kind in ("float32", "int8")]
    columns = ["beam", "", "contender", "CPU seconds (min-max)", *(f"times {rival}" for rival in rivals)]
    rows = [columns, ["---:", "---", "---", "---:", "---:", "---:"]]
    for beam in (1, 5):
        for bulk in (True, False):
            lines = text if bulk else text[: max(1, len(text) // 4)]
            times: dict[str, list[float]] = {name: [] for name in contenders}
            for turn in range(args.rounds + 1):
                for name, run in contenders.items():
                    start = time.process_time()
                    words = run(lines, beam, bulk)
                    assert abs(words - len(lines) * args.tokens) <= len(lines), f"{name} made {words} words"
                    if turn:  # the first warms up
                        times[name].append(time.process_time() - start)
            for name, own in times.items():
                ratios = [statistics.median(b / a for a, b in zip(own, times[rival], strict=True)) for rival in rivals]
                mode = f"{len(lines)} in bulk" if bulk else f"{len(lines)} one at a time"
                seconds = f"{statistics.median(own):.3f} ({min(own):.3f}-{max(own):.3f})"
                rows.append([str(beam), mode, name, seconds, *(f"{ratio:.2f}x" for ratio in ratios)])
    shape = ", ".join(f"{name} {value}" for name, value in SHAPES[args.shape].items())
    how = f"Random weights, {args.tokens} words a translation, one thread, CPU time, {args.rounds} interleaved rounds."
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"## {args.shape}: {shape}\n\n{how}\n\n{table}\n\n{where_and_when(machine())}\n"


if __name__ == "__main__":
    raise SystemExit(main())
