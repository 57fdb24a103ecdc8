"""Small random models of Hugging Face's classes, with tokenizers trained on made-up text in eight
scripts, and what is converted of them.

`transformers` is the oracle: it makes the models, writes their folders, and says what is right.
No weights come from anywhere.
"""

from __future__ import annotations

import json
import random
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from models import both

from fairseq_ext import Translator
from fairseq_ext.convert.__main__ import convert

# words of each script
WORDS = {
    script: words.split()
    for line in Path(__file__).with_name("words.tsv").read_text("utf-8").splitlines()
    for script, words in [line.split("\t")]
}
NO_SPACES = ("Han", "Japanese", "Thai")
SIZES = both(layers=2, attention_heads=4, ffn_dim=48)
SIZES |= dict(d_model=32, max_position_embeddings=128, init_std=0.3)
PIECES = 480
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def lines(count, seed=0, scripts=tuple(WORDS)):
    """Made-up lines, each of one script: words, capitals, numbers and punctuation, some
    with stretches of spaces."""
    chance = random.Random(seed)
    out = []
    for i in range(count):
        script = scripts[i % len(scripts)]
        words = [chance.choice(WORDS[script]) for _ in range(chance.randint(1, 12))]
        words = [word.title() if chance.random() < 0.1 else word for word in words]
        if chance.random() < 0.3:
            words.insert(
                chance.randrange(len(words)),
                chance.choice(["1984", "3,5", "ﬁne", "Ｗ", "a-b", "x²", "💡", "„so“", "E=mc"]),
            )
        text = ("" if script in NO_SPACES else " ").join(words) + chance.choice(
            [".", "!", "?", "。", "", "!?"]
        )
        out.append(text.replace(" ", "  ", chance.random() < 0.1))
    return out


@dataclass(eq=False)
class Made:
    """A model and its tokenizer, the folder that has them, and the converted one."""

    model: Any
    tokenizer: Any
    folder: Path
    out: Path
    source: str  # languages, as fairseq's flags name them
    target: str
    generation: dict[str, Any]  # how generate() gets the target language

    def translator(self, **flags):
        """Of the converted folder."""
        return Translator.from_folder(
            self.out, source_lang=self.source, target_lang=self.target, cpu=True, **flags
        )

    def batch(self, text):
        return self.tokenizer(text, return_tensors="pt", padding=True)

    def number_of(self, dictionary, side=1):
        """fairseq's number of each of Hugging Face's words.

        Only Marian has them in another order than fairseq's models.
        """
        if not self.is_marian:
            return torch.arange(len(dictionary))
        name = (
            "target_vocab.json"
            if side and (self.folder / "target_vocab.json").exists()
            else "vocab.json"
        )
        table = json.loads((self.folder / name).read_text(encoding="utf-8"))
        return torch.tensor(
            [dictionary.index(word) for word in sorted(table, key=table.__getitem__)]
        )

    def typed(self):
        """The words of the README's command, without the echo before it."""
        text = (self.out / "README.md").read_text(encoding="utf-8")
        block = text.split("```")[1].removeprefix("bash\n").replace("\\\n", " ")
        words = shlex.split(block)
        return words[words.index("|") + 1 :]

    @property
    def is_marian(self):
        return self.model.config.model_type == "marian"


def train(folder, name, text, kind="unigram", norm="nmt_nfkc"):
    """A SentencePiece model name.model."""
    how = dict(model_type=kind, normalization_rule_name=norm, vocab_size=PIECES)
    how |= dict(character_coverage=0.999, hard_vocab_limit=False, minloglevel=2)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_prefix=str(folder / name), **how
    )
    return sentencepiece.SentencePieceProcessor(str(folder / f"{name}.model"))


def listed(pieces):
    """Its words."""
    return [pieces.id_to_piece(piece) for piece in range(3, pieces.get_piece_size())]


def numbered(path, words):
    """Write the numbers of these words, in their order."""
    table = {word: i for i, word in enumerate(words)}
    path.write_text(json.dumps(table, ensure_ascii=False), encoding="utf-8")


def marian(folder, joined=True):
    from transformers import MarianConfig, MarianMTModel, MarianTokenizer

    vocabularies = []
    for i, name in enumerate(("source", "target")):
        vocabularies.append(listed(train(folder, name, lines(400, i))))
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
    own = [dict.fromkeys(each) for each in vocabularies]
    own = [own[0] | own[1]] if joined else own
    longest = max(map(len, own))  # the settings have one number of <pad>
    for name, words in zip(("vocab.json", "target_vocab.json"), own, strict=False):
        more = [f"more{i}" for i in range(longest - len(words))]
        table = ["</s>", "<unk>", *words, *more, ">>fra<<", ">>deu<<", "<pad>"]
        numbered(folder / name, table)
    settings = {"source_lang": "de", "target_lang": "en", "separate_vocabs": not joined}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    pad = len(table) - 1
    words = dict.fromkeys(("vocab_size", "decoder_vocab_size"), pad + 1)
    words |= dict.fromkeys(("pad_token_id", "decoder_start_token_id"), pad)
    config = MarianConfig(
        **words,
        **SIZES,
        share_encoder_decoder_embeddings=joined,
        eos_token_id=0,
        forced_eos_token_id=0,
        activation_function="swish",
        scale_embedding=True,
    )
    tokenizer = MarianTokenizer.from_pretrained(folder)
    return MarianMTModel(config), tokenizer, "de", "en", {"decoder_start_token_id": pad}


def m2m100(folder):
    from transformers import M2M100Config, M2M100ForConditionalGeneration, M2M100Tokenizer

    table = [*SPECIAL, *listed(train(folder, "sentencepiece.bpe", lines(800)))]
    numbered(folder / "vocab.json", table)
    tokenizer = M2M100Tokenizer(
        folder / "vocab.json", folder / "sentencepiece.bpe.model", src_lang="de", tgt_lang="en"
    )
    codes = {"additional_special_tokens": list(tokenizer.lang_code_to_token.values())}
    (folder / "special_tokens_map.json").write_text(json.dumps(codes))
    model = M2M100ForConditionalGeneration(M2M100Config(vocab_size=len(table) + 100 + 8, **SIZES))
    return model, tokenizer, "de", "en", {"forced_bos_token_id": tokenizer.get_lang_id("en")}


def with_codes(folder, kind, source, model_type="unigram"):
    """A tokenizer whose words are a SentencePiece model's and languages."""
    import transformers
    from transformers.models import mbart, mbart50, nllb

    module, name = {
        "nllb": (nllb.tokenization_nllb, "NllbTokenizer"),
        "mbart": (mbart.tokenization_mbart, "MBartTokenizer"),
        "mbart50": (mbart50.tokenization_mbart50, "MBart50Tokenizer"),
    }[kind]
    # subtle: transformers 5 normalises nothing where it makes an MBartTokenizer of
    # SentencePiece's file
    norm = "identity" if kind == "mbart" else "nmt_nfkc"
    train(folder, "sentencepiece.bpe", lines(800), model_type, norm)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    codes = list(module.FAIRSEQ_LANGUAGE_CODES)
    made = getattr(transformers, name).from_pretrained(
        folder, additional_special_tokens=codes, src_lang=source
    )
    made.save_pretrained(folder)
    return made


def nllb(folder):
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    tokenizer = with_codes(folder, "nllb", "deu_Latn", "bpe")
    model = M2M100ForConditionalGeneration(M2M100Config(vocab_size=len(tokenizer) + 2, **SIZES))
    english = tokenizer.convert_tokens_to_ids("eng_Latn")
    return model, tokenizer, "deu_Latn", "eng_Latn", {"forced_bos_token_id": english}


def mbart(folder, kind="mbart", begins="decoder_start_token_id"):
    from transformers import MBartConfig, MBartForConditionalGeneration

    tokenizer = with_codes(folder, kind, "de_DE")
    english = tokenizer.convert_tokens_to_ids("en_XX")
    start = english if kind == "mbart" else 2
    words = dict(vocab_size=len(tokenizer), decoder_start_token_id=start, scale_embedding=True)
    model = MBartForConditionalGeneration(MBartConfig(**words, **SIZES))
    return model, tokenizer, "de_DE", "en_XX", {begins: english}


def bart(folder):
    from tokenizers import ByteLevelBPETokenizer
    from transformers import BartConfig, BartForConditionalGeneration, BartTokenizer

    made = ByteLevelBPETokenizer()
    made.train_from_iterator(
        lines(800), vocab_size=500, special_tokens=SPECIAL, show_progress=False
    )
    made.save_model(str(folder))
    # of BART for summaries: the model lacks the last word
    table = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    numbered(folder / "vocab.json", [*sorted(table, key=table.__getitem__), "<mask>"])
    tokenizer = BartTokenizer.from_pretrained(folder)
    model = BartForConditionalGeneration(BartConfig(vocab_size=len(table), **SIZES))
    model.generation_config.forced_bos_token_id = 0
    return model, tokenizer, "source", "target", {"forced_bos_token_id": 0}


def fsmt(folder):
    from transformers import FSMTConfig, FSMTForConditionalGeneration, FSMTTokenizer

    text = lines(800)
    characters = sorted({character for line in text for character in line if character != " "})
    merges = "d e|e r</w>|d er</w>|п о|по ч|м о|с т</w>|мо ст</w>|ν α|क ल</w>|. </w>".split("|")
    vocabulary = [*SPECIAL, *characters[::2], *(f"{each}</w>" for each in characters[1:])]
    vocabulary += [merge.replace(" ", "") for merge in merges]
    vocabulary += ["&apos;</w>", "&quot;</w>", "@-@</w>"]
    (folder / "merges.txt").write_text("".join(f"{merge}\n" for merge in merges), encoding="utf-8")
    sizes, files = {}, []
    for side, words in (("src", vocabulary), ("tgt", [*SPECIAL, *vocabulary[:9:-1]])):
        files.append(folder / f"vocab-{side}.json")
        numbered(files[-1], words := dict.fromkeys(words))
        sizes[f"{side}_vocab_size"] = len(words)
    tokenizer = FSMTTokenizer(["de", "en"], *files, folder / "merges.txt")
    config = FSMTConfig(langs=["de", "en"], max_length=100, **sizes, **SIZES)
    return FSMTForConditionalGeneration(config), tokenizer, "de", "en", {}


def linked(folder, to, *without):
    """A folder whose files are links to those of another, but for some."""
    to.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.name not in without:
            (to / path.name).symlink_to(path)
    return to


def numbers(found, line):
    """The tokens of a line as the model gets them."""
    batch = next(iter(found.batches([found.encode(line)])))
    return batch["net_input"]["src_tokens"][0].tolist()


KINDS = {
    "OPUS-MT": marian,
    "OPUS-MT, two vocabularies": lambda folder: marian(folder, joined=False),
    "M2M-100": m2m100,
    "NLLB-200": nllb,
    "mBART-50": lambda folder: mbart(folder, "mbart50", "forced_bos_token_id"),
    "mBART-25": mbart,
    "WMT19": fsmt,
    "BART": bart,
}


def make(kind, folder, seed=1):
    """A random model of a kind whose distributions are far from uniform and whose sentences end,
    saved in float64 and converted."""
    there = folder / "hf"
    there.mkdir(parents=True)
    torch.manual_seed(seed)
    model, tokenizer, source, target, generation = KINDS[kind](there)
    model = model.double().eval()
    with torch.no_grad():
        if hasattr(model, "final_logits_bias") and seed % 2:
            model.final_logits_bias.normal_()
            model.final_logits_bias[0, model.config.eos_token_id] = (
                7 if kind.startswith("OPUS") else 3
            )
        for name, weight in model.named_parameters():
            if "norm" in name or "bias" in name:
                weight += 0.1 * torch.randn_like(weight)
            if "layers" in name and weight.dim() > 1:
                weight *= 1.5
        last = model.model.decoder
        # of every feature that the output layer sees
        shift = getattr(last, "layer_norm", last.layers[-1].final_layer_norm).bias
        output = getattr(last, "output_projection", None) or model.get_output_embeddings()
        output.weight[model.config.eos_token_id] += (
            (6 if kind == "WMT19" else 3) * shift / shift.square().sum()
        )
    model.save_pretrained(there)
    convert(str(there), str(folder / "out"))
    return Made(model, tokenizer, there, folder / "out", source, target, generation)
