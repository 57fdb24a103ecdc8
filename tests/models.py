"""Small random fairseq models, batches for them, generators over them, and the plainest
search to compare with.

For the test files of strategies:

    pair = generators([build("lstm", seed=3)], strategy={"stop": "optimal"}, beam=5, lenpen=0.6)
    stock, ours = pair.stock, pair.ours  # fairseq's generator and ours, over the same models
    # whole n-best lists, scores to 1e-9
    same(run(stock, batch([3, 1, 7])), run(ours, batch([3, 1, 7])))

`plain_beam_search` is an oracle that shares no code with either: Python lists, full recomputation,
one sentence at a time. Models are double precision by default (conftest.py keeps
fairseq's softmax double as well).
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import random
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.data import Dictionary, data_utils
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor

import fairseq_ext  # noqa: F401  registers translation_ext
from fairseq_ext.search.checks import parts
from fairseq_ext.search.phrases.sentence import SentenceConstraints
from fairseq_ext.search.registry import all_strategies, refusal
from fairseq_ext.search.request import Request
from fairseq_ext.search.settings import Settings

DEVICE = torch.device("cpu")  # of models and batches, as --device says
WORDS = 21  # with fairseq's four special symbols: a vocabulary of 25


# ---- architectures


@dataclass(frozen=True)
class Recipe:
    """How one model is made."""

    arch: str  # fairseq's --arch
    args: dict[str, Any]  # its arguments, where they differ from the architecture's own
    joined: bool = False  # source and target side share a dictionary
    # weights times this, where initial ones are so small that the source would hardly matter
    spread: float = 1.0


def both(**args: Any) -> dict[str, Any]:
    """Arguments of encoder and decoder."""
    return {f"{side}_{name}": args[name] for side in ("encoder", "decoder") for name in args}


RECIPES: dict[str, Recipe] = {}
# like: another recipe, of which this one has all that it does not give itself
for name, row in json.loads(Path(__file__).with_name("recipes.json").read_text()).items():
    base = RECIPES.get(row.pop("like", ""), Recipe("", {}))
    RECIPES[name] = replace(base, **row | {"args": base.args | row["args"]})
TRANSFORMER = RECIPES["transformer"].args
POSITIONS = {name: size for name, size in TRANSFORMER.items() if "positions" in name}
ENSEMBLES = [
    ("transformer", "lstm"),
    ("fconv", "transformer, tied output"),
    ("transformer, pre-norm", "transformer"),
    ("lightconv", "fconv_self_att"),
    ("dynamicconv", "transformer, adaptive softmax"),
    ("transformer, cross-self-attention", "lstm, no attention"),
    ("bart", "roberta_enc_dec"),
]
# those of `build`
ARCHITECTURES = {
    **{name: RECIPES[name] for name in ("transformer", "bart", "fconv", "lightconv")},
    "transformer-pre-norm": RECIPES["transformer, pre-norm"],
    "transformer-tied": Recipe(
        "transformer", TRANSFORMER | dict(share_all_embeddings=True, decoder_learned_pos=True)
    ),
    "transformer-align": RECIPES["transformer_align"],
    "lstm": RECIPES["lstm, bidirectional"],
}
# fairseq's attention of these masks in float32, whatever the model
MASKED_IN_FLOAT32 = ("lstm", "fconv")
OUTPUT_LAYERS = ("output_projection", "fc_out", "fc3", "embed_out", "adaptive_softmax.head")


def recipe(name: str) -> Recipe:
    """A recipe by its name above, or one for a name that fairseq registers."""
    if name in RECIPES:
        return RECIPES[name]
    kind = ARCH_MODEL_REGISTRY[name]
    like = next(each for each in RECIPES.values() if ARCH_MODEL_REGISTRY[each.arch] is kind)
    return replace(like, arch=name, joined=like.joined or "big_t2t" in name)


def sharpen(model, eos: int, spread: float, peak: float = 3.0, ending: float = 2.0) -> None:
    """Make distributions far from uniform, and hypotheses end: every matrix times `spread`, the
    output layer times `peak`, and the row of EOS times `ending` more."""
    with torch.no_grad():
        for weight in model.parameters():
            weight *= spread if weight.dim() > 1 else 1.0
        for place, weight in model.decoder.named_parameters(remove_duplicate=False):
            if place.startswith(OUTPUT_LAYERS) and weight.dim() > 1:
                weight *= peak
                weight[eos] *= ending


# ---- models


@functools.cache
def dictionary(words: int = WORDS, pieces: bool = False) -> Dictionary:
    """A made-up dictionary: w0, w1, ..., or pieces of words, of which a text can be written in
    several ways: ▁a b ab . ▁A ▁ab c ..."""
    out = Dictionary()
    for i in range(words):
        out.add_symbol(piece(i) if pieces else f"w{i}")
    return out


# then others that start a word and that continue one, in turn
PIECES = ["▁a", "b", "ab", ".", "▁A", "▁ab", "B"]


def piece(i: int) -> str:
    """A symbol of the dictionary of pieces."""
    return PIECES[i] if i < len(PIECES) else "▁" * (i % 2) + f"c{i}"


def task(name: str = "translation", words: int = WORDS, pieces: bool = False, **flags):
    """A translation task over the made-up dictionary."""
    languages = dict(source_lang="de", target_lang="en")
    cfg = TASK_DATACLASS_REGISTRY[name](**languages, **POSITIONS, **flags)
    return TASK_REGISTRY[name](cfg, *[dictionary(words, pieces)] * 2)


def build(
    architecture: str,
    seed: int = 1,
    dtype: torch.dtype = torch.float64,
    words: int = WORDS,
    peak: float = 3.0,
    eos: float = 2.0,
):
    """A random model in code, sharpened."""
    torch.manual_seed(seed)
    recipe = ARCHITECTURES[architecture]
    args = Namespace(arch=recipe.arch, dropout=0.0, **recipe.args)
    ARCH_CONFIG_REGISTRY[recipe.arch](args)
    model = ARCH_MODEL_REGISTRY[recipe.arch].build_model(args, task(words=words))
    sharpen(model, dictionary(words).eos(), recipe.spread, peak, eos)
    return model.to(dtype).to(DEVICE).eval()


def with_ties(model, read_alike: bool = False):
    """The model, each second word being as likely as the one before it; read_alike: and as good as
    it for what follows."""
    layers = [model.decoder.output_projection, *[model.decoder.embed_tokens] * read_alike]
    with torch.no_grad():
        for layer in layers:
            layer.weight[5::2] = layer.weight[4 : len(layer.weight) - 1 : 2]
    return model


def language_model(seed: int = 9, dtype: torch.dtype = torch.float64, words: int = WORDS):
    """A random Transformer language model over the same dictionary, for --lm-path."""
    torch.manual_seed(seed)
    sizes = {name: TRANSFORMER[name] for name in TRANSFORMER if name.startswith("decoder")}
    cfg = TransformerLanguageModelConfig(
        **sizes | dict(decoder_layers=1), tokens_per_sample=80, max_target_positions=80
    )
    made = TransformerLanguageModel.build_model(OmegaConf.structured(cfg), task(words=words))
    return made.to(dtype).to(DEVICE).eval()


# ---- batches


def batch(lengths: list[int], seed: int = 7, words: int = WORDS) -> dict:
    """A left-padded sample of random source sentences with this many words each (EOS not counted;
    0: an empty line), the longest first, as fairseq's collater sorts them."""
    torch.manual_seed(seed)
    d = dictionary(words)
    lines = [
        torch.cat([torch.randint(d.nspecial, len(d), (n,)), torch.tensor([d.eos()])])
        for n in sorted(lengths, reverse=True)
    ]
    return on_device(
        {
            "id": torch.arange(len(lines)),
            "nsentences": len(lines),
            "net_input": {
                "src_tokens": data_utils.collate_tokens(lines, d.pad(), d.eos(), left_pad=True),
                "src_lengths": torch.tensor([len(line) for line in lines]),
            },
        }
    )


def requests_of(constraints: Sequence[SentenceConstraints]) -> list[Request]:
    """The requests of a sample's sentences with these constraints."""
    return [Request(number, constraints=each) for number, each in enumerate(constraints)]


def on_device(sample: dict, device: torch.device | None = None) -> dict:
    """A sample whose tensors lie on a device."""
    return utils.apply_to_sample(lambda tensor: tensor.to(device or DEVICE), sample)


def alone(sample: dict, i: int) -> dict:
    """The i-th sentence of a sample as a sample of its own, without padding."""
    n = int(sample["net_input"]["src_lengths"][i])
    return {
        "id": sample["id"][i : i + 1],
        "nsentences": 1,
        "net_input": {
            "src_tokens": sample["net_input"]["src_tokens"][i : i + 1, -n:],
            "src_lengths": torch.tensor([n], device=DEVICE),
        },
    }


# ---- generators


@dataclass
class Pair:
    """fairseq's generator and ours over the same models, each as its task builds it."""

    stock: Any
    ours: Any


def generators(
    models: list,
    strategy: dict | None = None,
    extra: dict | None = None,
    words: int = WORDS,
    pieces: bool = False,
    **generation,
) -> Pair:
    """strategy: our flags; extra: extra_gen_cls_kwargs (lm_model, ...); pieces: as `dictionary` has
    them; generation: stock flags."""
    cfg = GenerationConfig(**generation)
    stock = task("translation", words, pieces).build_generator(
        models, cfg, extra_gen_cls_kwargs=dict(extra or {})
    )
    ours = task("translation_ext", words, pieces, **(strategy or {})).build_generator(
        models, cfg, extra_gen_cls_kwargs=dict(extra or {})
    )
    return Pair(stock, ours)


def run(generator, sample: dict, seed: int = 5, **arguments) -> list[list[dict]]:
    """n-best lists; the random seed is for --sampling."""
    torch.manual_seed(seed)
    # with the sample, as fairseq-generate moves it
    if arguments.get("prefix_tokens") is not None:
        there = sample["net_input"]["src_tokens"].device
        arguments["prefix_tokens"] = arguments["prefix_tokens"].to(there)
    return generator.generate([], sample, **arguments)


def close(expected: dict, got: dict, tolerance: float) -> bool:
    """Whether two hypotheses' scores are within the tolerance; those of equal tokens must be, at
    each position."""
    if equal := got["tokens"].tolist() == expected["tokens"].tolist():
        torch.testing.assert_close(
            *(each["positional_scores"].cpu() for each in (got, expected)), rtol=0, atol=tolerance
        )
    theirs, ours = float(expected["score"]), float(got["score"])
    assert theirs == ours or abs(ours - theirs) <= tolerance
    return equal


def near_ties(
    expected: list[list[dict]], got: list[list[dict]], tolerance: float = 1e-4
) -> list[tuple[int, int]]:
    """Sentence and rank of hypotheses that differ in single precision: scores at each rank are
    within the tolerance, so that either order is right, and equal tokens have equal scores.
    Any other difference fails."""
    return [
        (sentence, rank)
        for sentence, (theirs, ours) in enumerate(zip(expected, got, strict=True))
        for rank, pair in enumerate(zip(theirs, ours, strict=True))
        if not close(*pair, tolerance)
    ]


def same(expected: list[list[dict]], got: list[list[dict]], tolerance: float = 1e-9) -> None:
    """Equal n-best lists: tokens, and scores within the tolerance."""
    assert [[h["tokens"].tolist() for h in nbest] for nbest in got] == [
        [h["tokens"].tolist() for h in nbest] for nbest in expected
    ]
    assert not near_ties(expected, got, tolerance)


# ---- settings of registered strategies


def settings(kind: str) -> dict[str, dict]:
    """Every registered strategy's settings of a kind ("neutral" or "example") by a readable name;
    what is the same twice is left out."""
    out: dict[str, dict] = {}
    for strategy in all_strategies():
        for setting in getattr(strategy, kind):
            reported = " ".join(f"{name}={value}" for name, value in setting.items())
            if dict(setting) not in out.values():
                out[reported or "no flag of ours"] = dict(setting)
    return out


def separated(setting: dict) -> tuple[dict, dict]:
    """A setting's flags of ours, and those of stock."""
    stock = {f.name for f in fields(GenerationConfig)}
    return {n: v for n, v in setting.items() if n not in stock}, {
        n: v for n, v in setting.items() if n in stock
    }


def is_search_of_fairseqs(setting: dict) -> bool:
    """Whether a setting requests another search than fairseq's beam search by
    a flag of fairseq's."""
    return not {"sampling", "diverse_beam_groups"}.isdisjoint(setting)


def with_files(flags: dict, folder: Path) -> dict:
    """The flags, their placeholders replaced by files over the made-up dictionary."""
    table = folder / "table.txt"
    if not table.exists():
        chance = random.Random(3)
        pairs = ((i, j) for i in range(WORDS) for j in range(1, 5))
        rows = (f"w{i} w{chance.randrange(WORDS)} 0.{j}\n" for i, j in pairs)
        table.write_text("".join(rows))
    names = {"{lexical table}": str(table)}
    return {name: names.get(str(value), value) for name, value in flags.items()}


def refused(flags: dict, generation: dict) -> str | None:
    """The sentence by which the declared needs rule these flags out, None where they do not."""
    return refusal(parts(Settings({**flags, **generation})))


# ---- the oracle


def forced(model, sample: dict, tokens: list[list[int]]) -> Tensor:
    """Log-probabilities (n, L, V) of teacher forcing a sample of one sentence with n rows of target
    tokens (first one included)."""
    each = sample["net_input"].items()
    source = {name: value.expand(len(tokens), *value.shape[1:]) for name, value in each}
    with torch.no_grad():
        out = model(**source, prev_output_tokens=torch.tensor(tokens, device=DEVICE))
        return model.get_normalized_probs(out, log_probs=True, sample=None)


def totals(model, sample: dict, sequences: Sequence[Sequence[int]]) -> list[float]:
    """The sum of each sequence's log-probabilities, that of EOS behind it included, by teacher
    forcing a sample of one sentence."""
    eos, out = dictionary().eos(), {}
    for _, group in itertools.groupby(sorted(map(tuple, sequences), key=len), len):
        rows = torch.tensor([(eos, *each, eos) for each in group], device=DEVICE)
        values = forced(model, sample, rows[:, :-1].tolist())
        sums = values.gather(2, rows[:, 1:, None]).sum((1, 2)).tolist()
        out |= {tuple(row[1:-1]): each for row, each in zip(rows.tolist(), sums, strict=True)}
    return [out[tuple(each)] for each in sequences]


def plain_beam_search(
    model,
    sample: dict,
    k: int,
    max_len: int,
    ban: Callable[[list[int]], set[int]] = lambda row: set(),
    drop: Callable[[list[int]], bool] = lambda row: False,
) -> list[tuple[list[int], float]]:
    """fairseq's beam search over a sample of one sentence, as lists. Returns (tokens, sum of
    log-probabilities), best mean first.

    ban: the tokens that may not follow a row (without its first EOS). drop: whether pruning takes a
    continued row (the same) out of the step's 2k candidates; the next beam is the first k that are
    left, and EOS still counts among the first k of all.
    """
    d = dictionary()
    rows: list[tuple[float, list[int]]] = [(0.0, [d.eos()])]
    done: list[tuple[list[int], float]] = []
    for step in range(max_len + 1):
        log_probs = forced(model, sample, [row for _, row in rows])[:, -1].tolist()
        candidates = []
        for (score, row), values in zip(rows, log_probs, strict=True):
            banned = {d.pad()} | ban(row[1:]) | ({d.eos()} if step == 0 else set())
            allowed = range(len(d)) if step < max_len else [d.eos()]
            candidates += [(score + values[t], [*row, t]) for t in allowed if t not in banned]
        candidates = sorted(candidates, key=lambda c: -c[0])[: 2 * k]
        ended = [
            (row[1:], score)
            for score, row in candidates[:k]
            if row[-1] == d.eos() and not drop(row[1:])
        ]
        done += ended[: k - len(done)]
        rows = [
            (score, row) for score, row in candidates if row[-1] != d.eos() and not drop(row[1:])
        ][:k]
        if len(done) == k or not rows:
            break
    return sorted(done, key=lambda h: -h[1] / len(h[0]))


def same_as_plain(
    expected: list[tuple[list[int], float]], got: list[dict], tolerance: float = 1e-9
) -> None:
    """A generator's n-best list equals the oracle's."""
    assert [h["tokens"].tolist() for h in got] == [tokens for tokens, _ in expected]
    for h, (tokens, total) in zip(got, expected, strict=True):
        assert math.isclose(float(h["score"]), total / len(tokens), abs_tol=tolerance)
