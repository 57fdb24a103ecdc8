"""A data directory and a tiny checkpoint of every task that has a twin, made by fairseq's own
commands in forked children.

    made = make("multilingual_translation", tmp_path)
    # arguments of fairseq-generate and fairseq-interactive, without a strategy
    made.stock, made.ours

A checkpoint is a model after one update whose vocabulary is sharpened, so that distributions are
far from uniform and hypotheses end.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fairseq
import pytest
import torch
from fairseq_cli.preprocess import cli_main as preprocess
from fairseq_cli.train import cli_main as train
from forked import forked, inside, succeeded

WORDS = 30
SIZES = {"embed-dim": 16, "ffn-embed-dim": 16, "layers": 1, "attention-heads": 2}
ENCODER, DECODER = (
    [f"--{side}-{what}={n}" for what, n in SIZES.items()] for side in ("encoder", "decoder")
)
LENGTHS = ["--max-source-positions=40", "--max-target-positions=40"]
TRANSFORMER = ["--arch=transformer", *ENCODER, *DECODER, *LENGTHS]
ONE_DICTIONARY = [*TRANSFORMER, "--share-all-embeddings"]
LANGUAGE_MODEL = ["--arch=transformer_lm", *DECODER, "--tokens-per-sample=40"]
LANGUAGE_MODEL += ["--sample-break-mode=eos"]
ONCE = "--max-update 1 --optimizer adam --lr 1e-3 --max-tokens 500 --disable-validation".split()
ONCE += ["--no-epoch-checkpoints", "--no-progress-bar", "--cpu"]
SEARCH = ["--cpu", "--max-len-b", 14, "--batch-size", 4]
PAIR = "-s de -t en".split()
MULTI = "--langs de,en --lang-pairs de-en --encoder-langtok src --decoder-langtok".split()
BOTH_WAYS = ["--lang-pairs", "de-en,en-de"]
THEIRS = Path(fairseq.__path__[0]) / "examples"
EACH = "encoders decoders encoder-embeddings decoder-embeddings".split()
NLLB_TAGS = ["<MINED_DATA>", "<MMT_BT_DATA>", "<SMT_BT_DATA>"]


@dataclass(frozen=True)
class Case:
    """A task with one setting of its flags."""

    task: str  # the stock one
    model: list[Any]  # flags of the training alone
    flags: list[Any] = field(default_factory=list)  # of the task, in training and search
    pair: bool = True  # whether the data are of two languages
    # how training gets the pair, where the flags do not
    of_pair: list[Any] = field(default_factory=list)
    search: list[Any] = field(default_factory=list)  # flags of the search alone


SIMPLE = "translation_multi_simple_epoch"
CASES = {
    SIMPLE: Case(SIMPLE, ONE_DICTIONARY, MULTI),
    "the same, bos and eos replaced": Case(
        SIMPLE, ONE_DICTIONARY, [*MULTI, "--lang-tok-replacing-bos-eos"]
    ),
    "mBART-50": Case(
        SIMPLE,
        ONE_DICTIONARY,
        ["--lang-dict", "languages.txt", *MULTI[2:], "--lang-tok-style", "mbart"],
    ),
    "NLLB": Case(SIMPLE, ONE_DICTIONARY, MULTI),
    "translation_from_pretrained_bart": Case(
        "translation_from_pretrained_bart",
        ONE_DICTIONARY,
        ["--langs", "de,en", "--prepend-bos"],
        of_pair=PAIR,
    ),
    "multilingual_translation": Case(
        "multilingual_translation",
        ["--arch=multilingual_transformer", *ENCODER, *DECODER, *LENGTHS],
        [*BOTH_WAYS, "--encoder-langtok", "tgt", "--decoder-langtok"],
    ),
    "language_modeling": Case(
        "language_modeling", LANGUAGE_MODEL, pair=False, search=["--sample-break-mode", "eos"]
    ),
    "multilingual_language_modeling": Case(
        "multilingual_language_modeling",
        LANGUAGE_MODEL,
        ["--langs", "xx,yy", "--multilang-sampling-alpha", 0.5],
        False,
        search=["--sample-break-mode", "eos"],
    ),
}
EXAMPLES = {  # of fairseq's examples/, which a --user-dir registers
    "translation_moe": Case(
        "translation_moe",
        TRANSFORMER,
        ["--user-dir", THEIRS / "translation_moe" / "translation_moe_src"]
        + ["--num-experts", 3, "--gen-expert", 2],
        of_pair=PAIR,
    ),
    "multilingual_translation_latent_depth": Case(
        "multilingual_translation_latent_depth",
        ["--arch=latent_multilingual_transformer", *ENCODER, *DECODER, "--decoder-layers=3"]
        + [f"--share-{part}" for part in EACH],
        ["--user-dir", THEIRS / "latent_depth" / "latent_depth_src", *BOTH_WAYS]
        + ["--encoder-latent-layer", "--decoder-latent-layer"],
    ),
}


@dataclass
class Made:
    """A checkpoint with all that a command must know of it."""

    root: Path
    case: Case
    data: Path
    checkpoint: Path
    sentences: int = 7  # of the test set
    # flags that stock, or ours, needs next to the case's
    given: dict[str, list[Any]] = field(default_factory=dict)

    def arguments(self, which):
        """Of a command with the stock task, or with ours."""
        case, task = self.case, self.case.task + ("_ext" if which == "ours" else "")
        pair = PAIR if case.pair else []
        flags = [self.root / flag if flag == "languages.txt" else flag for flag in case.flags]
        out = [self.data, "--path", self.checkpoint, "--task", task, *SEARCH, *pair, *flags]
        return [*out, *case.search, *self.given.get(which, [])]

    def keywords(self):
        """Of a Translator, and of a corpus job's flags: ours as keywords, without
        checkpoint and data."""
        out = {}
        name = ""
        for argument in map(str, self.ours[1:]):
            if argument.startswith("-"):
                name = {"-s": "source_lang", "-t": "target_lang"}.get(
                    argument, argument.lstrip("-").replace("-", "_")
                )
            out[name] = True if argument.startswith("-") else argument
        return {key: value for key, value in out.items() if key != "path"}

    def folder(self, place):
        """A folder as archives are: checkpoint, dictionaries and the list of languages, no data."""
        place.mkdir()
        shutil.copy(self.checkpoint, place / "model.pt")
        one = self.root / "dictionary.txt"  # of all languages: NLLB's
        for path in [one] if one.exists() else self.data.glob("dict*.txt"):
            shutil.copy(path, place / ("dict.txt" if path is one else path.name))
        shutil.copy(self.root / "languages.txt", place)
        return place

    @property
    def stock(self):
        return self.arguments("stock")

    @property
    def ours(self):
        return self.arguments("ours")


def write_lines(root, names, words, test, longest):
    """Made-up lines: of each language (names: the word in front of its words' numbers), every one
    of its first words in the training set."""
    chance = random.Random(1)
    for split, lines in (("train", 40), ("valid", 3), ("test", test)):
        for language, name in names.items():
            text = [
                " ".join(f"{name}{chance.randrange(words)}" for _ in range(n))
                for n in (chance.randint(1, longest) for _ in range(lines))
            ]
            text[0] = " ".join(f"{name}{i}" for i in range(WORDS)) if split == "train" else text[0]
            (root / f"{split}.{language}").write_text("\n".join(text) + "\n")


def binarised(root, to, *sides, end=""):
    splits = [f"--{split}pref={root / split}{end}" for split in ("train", "valid", "test")]
    words = [*sides, *splits, "--destdir", to, "--workers", 1]
    succeeded(forked(preprocess, "fairseq-preprocess", *words))


def trained(root, *arguments):
    """The checkpoint after one update, sharpened."""
    save = ["--save-dir", root / "saved"]
    succeeded(forked(train, "fairseq-train", *arguments, *ONCE, *save))
    sharpen(root / "saved" / "checkpoint_last.pt")
    return root / "saved" / "checkpoint_last.pt"


def tiny(root):
    """data/ and model.pt: a translation task of two languages with words of their own."""
    write_lines(root, {"de": "de", "en": "en"}, WORDS, 11, 12)
    binarised(root, root / "data", *PAIR)
    with pytest.MonkeyPatch.context() as patch:
        # fairseq clips gradients on a GPU, where there is one, in spite of --cpu
        patch.setattr(torch.cuda, "is_available", lambda: False)
        trained(root, root / "data", *TRANSFORMER).rename(root / "model.pt")


def sharpen(checkpoint):
    """Give the words far-apart probabilities, and EOS a good one, where the output layer
    is one of its own."""
    state = torch.load(checkpoint, weights_only=False)
    weights = state["model"]
    for name, weight in weights.items():
        if name.endswith("output_projection.weight"):
            if not torch.equal(weight, weights[name.replace("output_projection", "embed_tokens")]):
                weight *= 4
                weight[2] *= 2  # EOS
    torch.save(state, checkpoint)


def let_end(checkpoint, end, more):
    """Raise the score of the token that ends sentences, at every step, by some nats, and let the
    source matter: some hypotheses end, others reach their limit."""
    state = torch.load(checkpoint, weights_only=False)
    weights = state["model"]
    row = weights["decoder.output_projection.weight"][end]
    if "decoder.project_out_dim.weight" in weights:
        row = row @ weights["decoder.project_out_dim.weight"]
    for name, weight in weights.items():
        if "encoder_attn" in name and weight.dim() > 1:
            weight *= 4
    weights["decoder.layers.0.final_layer_norm.bias"] += more * row / row.dot(row)
    torch.save(state, checkpoint)


def make(name, root, words=WORDS):
    """Preprocess, train and sharpen; words: of the dictionary, w0, w1, ..."""
    case = {**CASES, **EXAMPLES}[name]
    write_lines(root, dict.fromkeys(["de", "en"] if case.pair else ["xx"], "w"), words, 7, 9)
    (root / "languages.txt").write_text("de\nen\n")
    end = "" if case.pair else ".xx"
    sides = [*PAIR, "--joined-dictionary"] if case.pair else ["--only-source"]
    if words > WORDS:
        (root / "words.txt").write_text("".join(f"w{i} 1\n" for i in range(words)))
        sides += ["--srcdict", root / "words.txt"]
    data = root / "data"
    with inside(root):
        binarised(root, data, *sides, end=end)
        made = Made(root, case, data, root / "saved" / "checkpoint_last.pt")
        if name == "multilingual_language_modeling":  # a folder for each language, one dictionary
            shutil.copytree(data, root / "languages" / "xx")
            shutil.copy(data / "dict.txt", root / "languages")
            lines = (root / "train.xx").read_text().splitlines()
            # of equally many lines the stock task takes no sample
            (root / "train.xx").write_text("\n".join(lines[::2]) + "\n")
            made.data, made.sentences = root / "languages", 2 * made.sentences
            sides += ["--srcdict", made.data / "dict.txt"]
            binarised(root, made.data / "yy", *sides, end=end)
        if name == "NLLB":
            made.given = nllb_dictionaries(root, data / "dict.de.txt")
        arguments = [*case.flags, *made.given.get("stock", []), *case.of_pair, *case.model]
        trained(root, made.data, "--task", case.task, *arguments)
    # not a model a pair
    weights = torch.load(made.checkpoint, weights_only=False)["model"]
    if "decoder.output_projection.weight" in weights:
        # the language's token, the last but <mask>
        last = -2 if case.task == "translation_from_pretrained_bart" else 2
        let_end(made.checkpoint, last, 3.0 if case.pair else 0.6)
    return made


def nllb_dictionaries(root, words):
    """What NLLB's branch reads is its words; languages and tags follow from the flags.

    The stock task is given all of them in a file.
    """
    shutil.copy(words, root / "dictionary.txt")
    added = ["__de__", "__en__", *NLLB_TAGS]
    (root / "extended.txt").write_text(
        words.read_text() + "".join(f"{token} 1\n" for token in added)
    )
    ours = ["--fixed-dictionary", root / "dictionary.txt", "--add-data-source-prefix-tags"]
    return {"stock": ["--fixed-dictionary", root / "extended.txt"], "ours": ours}
