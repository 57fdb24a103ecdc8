"""What do models of real shapes cost: Transformer base, big, and of 12 + 1 layers; M2M-100 418M, NLLB-200 600M distilled, WMT19's big?

    python scripts/bench/shapes.py --limit 64 --limit-one 20 --threads 2 --out results/shapes
    python scripts/bench/shapes.py --shapes base big 12+1 --beams 5 --modes one

The weights are random and the sentences made up, of the lengths of news: the time of a step does not depend on what the weights are, and no
hypothesis ends before --max-len-b, so that every contender reads equally many tokens. Each shape is saved as a fairseq checkpoint
(up to 2.4 GiB, in a temporary folder or --folder) and measured by default_vs_stock.py: in bulk and one sentence at a time, ours, stock, and
CTranslate2 where its converter takes the checkpoint; outputs are compared first, and peak memory is each contender's own. The multilingual
shapes are run as plain translation; a language token would add one step.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import default_vs_stock
import torch
from arguments import run_script
from contenders import quiet
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.tasks.translation import TranslationConfig, TranslationTask

MULTILINGUAL: dict[str, Any] = dict(
    encoder_layers=12, decoder_layers=12, encoder_embed_dim=1024, decoder_embed_dim=1024, encoder_ffn_embed_dim=4096,
    decoder_ffn_embed_dim=4096, encoder_attention_heads=16, decoder_attention_heads=16, encoder_normalize_before=True,
    decoder_normalize_before=True, share_all_embeddings=True,
)  # fmt: skip
BASE: dict[str, Any] = dict(
    encoder_layers=6, decoder_layers=6, encoder_embed_dim=512, decoder_embed_dim=512, encoder_ffn_embed_dim=2048,
    decoder_ffn_embed_dim=2048, encoder_attention_heads=8, decoder_attention_heads=8, share_all_embeddings=True,
)  # fmt: skip
SHAPES: dict[str, tuple[int, dict[str, Any]]] = {  # words, fairseq's special ones included, and settings
    "base": (32_000, BASE),
    "big": (32_000, BASE | dict(encoder_embed_dim=1024, decoder_embed_dim=1024, encoder_ffn_embed_dim=4096, decoder_ffn_embed_dim=4096,
                                encoder_attention_heads=16, decoder_attention_heads=16)),
    "12+1": (32_000, BASE | dict(encoder_layers=12, decoder_layers=1)),
    "m2m": (128_112, MULTILINGUAL),
    "nllb": (256_206, MULTILINGUAL),
    "wmt19": (
        42_024,
        dict(
            encoder_layers=6, decoder_layers=6, encoder_embed_dim=1024, decoder_embed_dim=1024, encoder_ffn_embed_dim=8192,
            decoder_ffn_embed_dim=4096, encoder_attention_heads=16, decoder_attention_heads=16, share_all_embeddings=True,
        ),
    ),
    "tiny": (500, MULTILINGUAL | dict(encoder_layers=1, decoder_layers=1, encoder_embed_dim=32, decoder_embed_dim=32,
                                      encoder_ffn_embed_dim=64, decoder_ffn_embed_dim=64, encoder_attention_heads=2,
                                      decoder_attention_heads=2)),  # tries the script
}  # fmt: skip
LONGEST = 512  # positions
SENTENCES, MEAN, SPREAD = 200, 25, 10  # of the made-up text: lines, tokens a line


def main(argv: list[str] | None = None) -> int:
    args, measured = parser().parse_known_args(argv)
    found = importlib.util.find_spec("ctranslate2") is not None
    contenders = ["stock", "ours", "ours --int8", *["ctranslate2 float32 1x1", "ctranslate2 int8 1x1"] * found]
    if not found:
        print("CTranslate2 is not installed, and is left out")
    status = 0
    for shape in args.shapes:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            with quiet():
                make(shape, Path(folder))
            size = (Path(folder) / "checkpoint.pt").stat().st_size / 2**30
            print(f"## {shape}: {SHAPES[shape][0]:,} words, {size:.1f} GiB\n", flush=True)
            out = ["--out", f"{args.out}-{shape}"] if args.out else []
            flags = ["--model", folder, "--text", str(Path(folder, "text")), f"--flags=--max-len-b {args.tokens}", *out]
            if "--contenders" not in measured:
                flags += ["--contenders", *contenders]
            status |= default_vs_stock.main([*flags, "--over", "stock", *measured])
    return status


def make(shape: str, folder: Path) -> None:
    """Write dictionaries, text and a checkpoint of the shape."""
    words, settings = SHAPES[shape]
    dictionary = Dictionary()
    for i in range(words - len(dictionary)):
        dictionary.add_symbol(f"w{i}")
    chance = random.Random(shape)
    for language in ("de", "en"):
        dictionary.save(str(folder / f"dict.{language}.txt"))
        lengths = (max(1, round(chance.gauss(MEAN, SPREAD))) for _ in range(SENTENCES))
        lines = [" ".join(f"w{chance.randrange(words - 4)}" for _ in range(n)) for n in lengths]
        (folder / f"text.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    torch.save(checkpoint(settings, folder), folder / "checkpoint.pt")


def checkpoint(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A random model as fairseq's trainer saves it, without what training needs."""
    limits = dict(max_source_positions=LONGEST, max_target_positions=LONGEST)
    args = Namespace(arch="transformer", task="translation", data=str(folder), source_lang="de", target_lang="en", dropout=0.1, **limits)
    vars(args).update(settings)
    ARCH_CONFIG_REGISTRY["transformer"](args)
    words = Dictionary.load(str(folder / "dict.de.txt"))
    task = TranslationTask(TranslationConfig(data=str(folder), source_lang="de", target_lang="en", **limits), words, words)
    torch.manual_seed(1)
    model = task.build_model(args)
    with torch.no_grad():
        model.decoder.output_projection.weight[task.target_dictionary.eos()] = 0.0  # never among the best
    history = {"criterion_name": "CrossEntropyCriterion", "optimizer_name": "FairseqAdam", "lr_scheduler_state": {}, "num_updates": 0}
    return {
        "args": args,
        "model": model.state_dict(),
        "optimizer_history": [history],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}, "val_loss": None},
        "last_optimizer_state": None,
    }


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        epilog="All other flags are those of default_vs_stock.py: --beams, --modes, --limit, --limit-one, --repeats, --threads, ...",
    )  # fmt: skip
    parse.add_argument("--shapes", nargs="+", choices=SHAPES, default=["m2m", "nllb", "wmt19"], help="(m2m nllb wmt19)")
    parse.add_argument("--tokens", type=int, default=30, help="target tokens of every sentence (30)")
    parse.add_argument("--folder", type=Path, help="where checkpoints are written meanwhile (the system's temporary folder)")
    parse.add_argument("--out", type=Path, help="write OUT-SHAPE.md and OUT-SHAPE.json")
    return parse


if __name__ == "__main__":
    run_script(main)
