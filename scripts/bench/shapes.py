"""What do models of real shapes cost: small, base, big, 12 + 1 layers; M2M-100 418M, NLLB-200
600M distilled, WMT19's big?

    python scripts/bench/shapes.py --limit 12 --limit-one 4 --beams 5 --repeats 2 --threads 2
        --out results/shapes
    python scripts/bench/shapes.py --shapes base big 12+1 --beams 5 --modes one

The weights are random and the sentences made up, of the lengths of news: the time of a step does
not depend on what the weights are, and no hypothesis ends before --max-len-b, so that every
contender reads equally many tokens. Each shape is saved as a fairseq checkpoint (up to 2.3 GiB,
in a temporary folder, or in --folder, which keeps it) and measured by default_vs_stock.py: in bulk
and one sentence at a time, ours, stock, and CTranslate2 where its converter takes the checkpoint;
outputs are compared first, and peak memory is each contender's own. The multilingual shapes are run
as plain translation; a language token would add one step. NLLB's needs 16 GiB of memory.

What --out has already is not measured again, so that a run that was stopped goes on; OUT/tables.md
has all that is there.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import default_vs_stock
import torch
from arguments import run_script
from contenders import quiet
from default_vs_stock import MODES
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.tasks.translation import TranslationConfig, TranslationTask

MULTILINGUAL: dict[str, Any] = dict(
    encoder_layers=12,
    decoder_layers=12,
    encoder_embed_dim=1024,
    decoder_embed_dim=1024,
    encoder_ffn_embed_dim=4096,
    decoder_ffn_embed_dim=4096,
    encoder_attention_heads=16,
    decoder_attention_heads=16,
    encoder_normalize_before=True,
    decoder_normalize_before=True,
    share_all_embeddings=True,
)
BASE: dict[str, Any] = dict(
    encoder_layers=6,
    decoder_layers=6,
    encoder_embed_dim=512,
    decoder_embed_dim=512,
    encoder_ffn_embed_dim=2048,
    decoder_ffn_embed_dim=2048,
    encoder_attention_heads=8,
    decoder_attention_heads=8,
    share_all_embeddings=True,
)
SMALL: dict[str, Any] = BASE | dict(
    encoder_layers=3,
    decoder_layers=3,
    encoder_embed_dim=256,
    decoder_embed_dim=256,
    encoder_ffn_embed_dim=1024,
    decoder_ffn_embed_dim=1024,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
)
# words, fairseq's special ones included, and settings
SHAPES: dict[str, tuple[int, dict[str, Any]]] = {
    "small": (7_800, SMALL),
    "base": (32_000, BASE),
    "big": (
        32_000,
        BASE
        | dict(
            encoder_embed_dim=1024,
            decoder_embed_dim=1024,
            encoder_ffn_embed_dim=4096,
            decoder_ffn_embed_dim=4096,
            encoder_attention_heads=16,
            decoder_attention_heads=16,
        ),
    ),
    "12+1": (32_000, BASE | dict(encoder_layers=12, decoder_layers=1)),
    "m2m": (128_112, MULTILINGUAL),
    "nllb": (256_206, MULTILINGUAL),
    "wmt19": (
        42_024,
        dict(
            encoder_layers=6,
            decoder_layers=6,
            encoder_embed_dim=1024,
            decoder_embed_dim=1024,
            encoder_ffn_embed_dim=8192,
            decoder_ffn_embed_dim=4096,
            encoder_attention_heads=16,
            decoder_attention_heads=16,
            share_all_embeddings=True,
        ),
    ),
    "tiny": (
        500,
        MULTILINGUAL
        | dict(
            encoder_layers=1,
            decoder_layers=1,
            encoder_embed_dim=32,
            decoder_embed_dim=32,
            encoder_ffn_embed_dim=64,
            decoder_ffn_embed_dim=64,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
        ),
    ),  # tries the script
}
LONGEST = 512  # positions
# of which fairseq 0.12's encoder layers hold a second one, under names with _
COPIES = ("in_proj", "out_proj", "fc1", "fc2")
SECOND_COPIES = tuple(f".{name}_{kind}" for name in COPIES for kind in ("weight", "bias"))
SENTENCES, MEAN = 200, 25  # of the made-up text: lines, tokens a line


def main(argv: list[str] | None = None) -> int:
    args, measured = parser().parse_known_args(argv)
    found = importlib.util.find_spec("ctranslate2") is not None
    workers = f"1x{args.threads}"  # as many threads as stock and ours have
    rivals = [f"ctranslate2 float32 {workers}", f"ctranslate2 int8 {workers}"]
    contenders = ["stock", "ours", "ours --int8", *rivals * found]
    if args.spread == 0 and importlib.util.find_spec("pymarian"):
        kinds = [("float32", 32), ("float32", 64), ("intgemm8", 64)]  # type, mini-batch
        if os.environ.get("FAIRSEQ_EXT_KERNELS") != "avx2":
            kinds.append(("packed8avx512", 64))  # packed8avx2 aborts on a processor with AVX-512
        contenders += [f"marian {kind} {args.threads} {batch}" for kind, batch in kinds]
    if not found:
        print("CTranslate2 is not installed, and is left out")
    status = 0
    for shape in args.shapes:
        missing = [
            mode
            for mode in args.modes
            if not (args.out and (args.out / f"{shape}-{mode}.md").exists())
        ]
        with tempfile.TemporaryDirectory() as temporary:
            folder = (args.folder or Path(temporary)) / shape
            if missing and not (folder / "text.en").exists():
                with quiet():
                    make(shape, folder, args.spread)
            for mode in missing:
                print(f"## {title(shape)}\n", flush=True)
                out = ["--out", str(args.out / f"{shape}-{mode}")] if args.out else []
                flags = [
                    "--model",
                    str(folder),
                    "--text",
                    str(folder / "text"),
                    f"--flags=--max-len-b {args.tokens}",
                    *out,
                ]
                if "--contenders" not in measured:
                    flags += ["--contenders", *contenders]
                flags += ["--threads", str(args.threads)]
                status |= default_vs_stock.main(
                    [*flags, "--over", "stock", *measured, "--modes", mode]
                )
    if args.out:
        tables(args.out)
    return status


def title(shape: str) -> str:
    """What a shape is."""
    words, settings = SHAPES[shape]
    layers = (
        f"{settings['encoder_layers']} + {settings['decoder_layers']} layers of "
        f"{settings['decoder_embed_dim']}"
    )
    return f"{shape}: {words:,} words, {layers}"


def tables(out: Path) -> None:
    """Write OUT/tables.md of all comparisons that there are."""
    parts = []
    for shape in SHAPES:
        found = [
            out / f"{shape}-{mode}.md" for mode in MODES if (out / f"{shape}-{mode}.md").exists()
        ]
        parts += (
            [f"## {title(shape)}\n", *(file.read_text(encoding="utf-8") for file in found)]
            if found
            else []
        )
    (out / "tables.md").write_text("\n".join(parts), encoding="utf-8")


def make(shape: str, folder: Path, spread: float) -> None:
    """Write a checkpoint of the shape, dictionaries and text, which comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    words, settings = SHAPES[shape]
    dictionary = Dictionary()
    for i in range(words - len(dictionary)):
        dictionary.add_symbol(f"w{i:06d}")
    chance = random.Random(shape)
    for language in ("de", "en"):
        dictionary.save(str(folder / f"dict.{language}.txt"))
    torch.save(checkpoint(settings, folder), folder / "checkpoint.pt")
    for language in ("de", "en"):
        lengths = (max(1, round(chance.gauss(MEAN, spread))) for _ in range(SENTENCES))
        lines = [" ".join(f"w{chance.randrange(words - 4):06d}" for _ in range(n)) for n in lengths]
        (folder / f"text.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")


def checkpoint(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A random model as the published ones are saved: without what training needs, nor the second
    copies of fairseq 0.12's encoder."""
    limits = dict(max_source_positions=LONGEST, max_target_positions=LONGEST)
    args = Namespace(
        arch="transformer",
        task="translation",
        data=str(folder),
        source_lang="de",
        target_lang="en",
        dropout=0.1,
        **limits,
    )
    vars(args).update(settings)
    ARCH_CONFIG_REGISTRY["transformer"](args)
    words = Dictionary.load(str(folder / "dict.de.txt"))
    task = TranslationTask(
        TranslationConfig(data=str(folder), source_lang="de", target_lang="en", **limits),
        words,
        words,
    )
    torch.manual_seed(1)
    model = task.build_model(args)
    with torch.no_grad():
        # never among the best
        model.decoder.output_projection.weight[task.target_dictionary.eos()] = 0.0
    history = {
        "criterion_name": "CrossEntropyCriterion",
        "optimizer_name": "FairseqAdam",
        "lr_scheduler_state": {},
        "num_updates": 0,
    }
    return {
        "args": args,
        "model": {
            name: value
            for name, value in model.state_dict().items()
            if not name.endswith(SECOND_COPIES)
        },
        "optimizer_history": [history],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}, "val_loss": None},
        "last_optimizer_state": None,
    }


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog="All other flags are those of default_vs_stock.py: --beams, --limit, --limit-one, "
        "--repeats, ...",
    )
    parse.add_argument(
        "--shapes",
        nargs="+",
        choices=SHAPES,
        default=["m2m", "nllb", "wmt19"],
        help="(m2m nllb wmt19)",
    )
    parse.add_argument(
        "--tokens", type=int, default=30, help="target tokens of every sentence (30)"
    )
    parse.add_argument(
        "--spread",
        type=float,
        default=10,
        help="standard deviation of a line's tokens around 25 (10); Marian needs 0",
    )
    parse.add_argument("--threads", type=int, default=2, help="of every contender (2)")
    parse.add_argument(
        "--modes", nargs="+", choices=MODES, default=list(MODES), help="bulk, one (both)"
    )
    parse.add_argument(
        "--folder",
        type=Path,
        help="where checkpoints are written and kept for the next run (a temporary folder)",
    )
    parse.add_argument(
        "--out", type=Path, help="folder for SHAPE-MODE.md, SHAPE-MODE.json and tables.md"
    )
    return parse


if __name__ == "__main__":
    run_script(main)
