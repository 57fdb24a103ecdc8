"""Trains a word-level model of these experiments on a CPU, its output layer on a sample of the
words: a stock fairseq Transformer, or an LSTM as in the paper's Table 1, but with attention.

    python scripts/experiments/lsh/train.py --data DIR/bin --out DIR/checkpoint_last.pt
        [--arch transformer] [--updates N] [--minutes M]

A large vocabulary makes fairseq-train spend its time on words that a batch does not hold.
So each update scores the batch's own words and a uniform sample of the others, weighted by
what they stand for so that the estimate of the normaliser is unbiased (after Jean et al. 2015,
https://aclanthology.org/P15-1001), and Adam touches those rows of the embedding alone. Products run
through oneDNN, forward and back, which knows more processors than MKL does.
"""

import argparse
import math
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import fairseq_ext  # noqa: F401  (lets fairseq be imported)

# isort: split
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

SHARED = (
    "--share-decoder-input-output-embed --encoder-layers 2 --decoder-layers 2 "
    "--encoder-embed-dim 256 --decoder-embed-dim 256 --dropout 0.1 --source-lang src "
    "--target-lang tgt"
)
ARCHITECTURES = {
    "transformer": "--encoder-ffn-embed-dim 1024 --decoder-ffn-embed-dim 1024 "
    "--encoder-attention-heads 4 --decoder-attention-heads 4 --encoder-normalize-before "
    "--decoder-normalize-before",
    "lstm": "--encoder-bidirectional --encoder-hidden-size 128 --decoder-hidden-size 256 "
    "--decoder-out-embed-dim 256",
}
BETAS, EPS = (0.9, 0.98), 1e-8


class Linear(torch.autograd.Function):
    """x (..., in), weight (out, in) -> (..., out), all three products by oneDNN."""

    @staticmethod
    def product(x: Tensor, weight: Tensor) -> Tensor:
        packed = torch.ops.mkldnn._reorder_linear_weight(
            weight.contiguous(), x.numel() // x.size(-1)
        )
        return torch.ops.mkldnn._linear_pointwise.default(
            x.contiguous(), packed, None, "none", [], ""
        )

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return Linear.product(x, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        flat, grad_flat = x.reshape(-1, x.size(-1)), grad.reshape(-1, grad.size(-1))
        return Linear.product(grad, weight.t()), Linear.product(grad_flat.t(), flat.t())


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out = Linear.apply(x, weight)
    return out if bias is None else out + bias


class RowAdam:
    """Adam for a table (V, d) of which an update touches few rows; moments of the
    others wait (lazy Adam)."""

    def __init__(self, table: Tensor):
        self.table, self.mean, self.square = table, torch.zeros_like(table), torch.zeros_like(table)

    def step(self, rows: Tensor, grad: Tensor, lr: float, number: int) -> None:
        mean = self.mean[rows].mul_(BETAS[0]).add_(grad, alpha=1 - BETAS[0])
        square = self.square[rows].mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
        self.mean[rows], self.square[rows] = mean, square
        scale = math.sqrt(1 - BETAS[1] ** number) / (1 - BETAS[0] ** number)
        self.table[rows] -= lr * scale * mean / square.sqrt_().add_(EPS)


def local(ids: Tensor, tokens: Tensor) -> Tensor:
    """Places of tokens among ascending ids."""
    return torch.searchsorted(ids, tokens.contiguous())


def batches(dataset, tokens: int, seed: int):
    """Batches of similar lengths in random order."""
    draw = random.Random(seed)
    order = sorted(
        range(len(dataset)),
        key=lambda i: (dataset.tgt_sizes[i], dataset.src_sizes[i], draw.random()),
    )
    out: list[list[int]] = [[]]
    for i in order:
        longest = max(dataset.tgt_sizes[i], dataset.src_sizes[i])
        if out[-1] and (len(out[-1]) + 1) * longest > tokens:
            out.append([])
        out[-1].append(i)
    draw.shuffle(out)
    for batch in out:
        yield dataset.collater([dataset[i] for i in batch])


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parse.add_argument("--data", type=Path, required=True)
    parse.add_argument("--out", type=Path, required=True)
    parse.add_argument(
        "--arch", choices=list(ARCHITECTURES), default="transformer", help="(transformer)"
    )
    parse.add_argument("--updates", type=int, default=2400)
    parse.add_argument(
        "--minutes", type=float, default=0, help="shorten the schedule to what fits (0: no limit)"
    )
    parse.add_argument("--max-tokens", type=int, default=2048, help="of a batch (2048)")
    parse.add_argument(
        "--negatives", type=int, default=3000, help="words sampled besides the batch's own (3000)"
    )
    parse.add_argument("--lr", type=float, default=2e-3)
    parse.add_argument("--smoothing", type=float, default=0.1)
    parse.add_argument("--seed", type=int, default=1)
    args = parse.parse_args()
    torch.manual_seed(args.seed)
    F.linear = linear  # of this process alone

    parser = options.get_training_parser()
    chosen = f"--arch {args.arch} {SHARED} {ARCHITECTURES[args.arch]}"
    flags = options.parse_args_and_arch(parser, [str(args.data), *chosen.split()])
    cfg = convert_namespace_to_omegaconf(flags)
    task = tasks.setup_task(cfg.task)
    task.load_dataset("train")
    data = task.datasets["train"]
    model = task.build_model(cfg.model).train()
    encoder, decoder, pad = (
        model.encoder.embed_tokens,
        model.decoder.embed_tokens,
        task.target_dictionary.pad(),
    )
    tables = (RowAdam(encoder.weight.data), RowAdam(decoder.weight.data))
    dense = [p for p in model.parameters() if p is not encoder.weight and p is not decoder.weight]
    adam = torch.optim.Adam(dense, lr=args.lr, betas=BETAS, eps=EPS)
    V, special = decoder.weight.size(0), torch.arange(task.target_dictionary.nspecial)
    number, total, words, start, epoch = 0, args.updates, 0, time.monotonic(), 0
    running = 0.0
    while number < total:
        epoch += 1
        for sample in batches(data, args.max_tokens, args.seed + epoch):
            number += 1
            done = number / total
            if args.minutes:  # the learning rate follows the clock
                done = max(done, (time.monotonic() - start) / 60 / args.minutes)
            if done >= 1:
                break
            lr = args.lr * min(number / 300, (1 - done) / 0.7, 1.0)
            inputs, target = sample["net_input"], sample["target"]
            # the rows of this update: specials, the batch's words, a sample of the others
            sources = torch.cat([special, inputs["src_tokens"].unique()]).unique()
            own = torch.cat([special, target.unique()]).unique()
            others = torch.ones(V, dtype=torch.bool).index_fill_(0, own, False).nonzero()[:, 0]
            drawn = others[torch.randint(others.numel(), (args.negatives,))].unique()
            ids = torch.cat([own, drawn])
            encoder.weight = torch.nn.Parameter(tables[0].table[sources])
            decoder.weight = torch.nn.Parameter(tables[1].table[ids])
            encoded = model.encoder(local(sources, inputs["src_tokens"]), inputs["src_lengths"])
            features, _ = model.decoder.extract_features(
                local(own, inputs["prev_output_tokens"]), encoder_out=encoded
            )
            real = target.ne(pad)
            logits = linear(features[real], decoder.weight)
            logits = torch.cat(
                [
                    logits[:, : own.numel()],
                    logits[:, own.numel() :] + math.log(others.numel() / drawn.numel()),
                ],
                1,
            )
            log_probs = logits.log_softmax(-1)
            nll = F.nll_loss(log_probs, local(own, target[real]))
            loss = (1 - args.smoothing) * nll - args.smoothing * log_probs.mean()
            adam.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(dense, 1.0)
            for group in adam.param_groups:
                group["lr"] = lr
            adam.step()
            tables[0].step(sources, encoder.weight.grad, lr, number)
            tables[1].step(ids, decoder.weight.grad, lr, number)
            words += int(real.sum())
            running += (0.02 if number > 1 else 1.0) * (nll.item() - running)
            if number % 50 == 0:
                seconds = time.monotonic() - start
                speed = f"{words / seconds:.0f} words/s {seconds:.0f} s"
                print(
                    f"epoch {epoch} update {number} nll {running:.3f} lr {lr:.1e} {speed}",
                    flush=True,
                )
        if done >= 1:
            break
    encoder.weight = torch.nn.Parameter(tables[0].table)
    decoder.weight = torch.nn.Parameter(tables[1].table)
    if args.arch == "transformer":  # an LSTM has no other module with these weights
        model.decoder.output_projection.weight = decoder.weight
    history = {
        "criterion_name": "sampled softmax",
        "optimizer_name": "Adam",
        "lr_scheduler_state": {},
        "num_updates": number,
    }
    state = {
        "cfg": OmegaConf.to_container(cfg, enum_to_str=True),
        "model": model.state_dict(),
        "optimizer_history": [history],
    }
    for name in ("model", "task"):  # plain values, as fairseq stores them
        state["cfg"][name] = (
            vars(getattr(cfg, name))
            if isinstance(getattr(cfg, name), argparse.Namespace)
            else state["cfg"][name]
        )
    torch.save(
        state | {"args": None, "extra_state": {"train_iterator": {"epoch": epoch}}}, args.out
    )


if __name__ == "__main__":
    main()
