"""BART and its multilingual relatives: BartForConditionalGeneration, mBART, M2M-100 and NLLB-200.

M. Lewis et al., BART: Denoising Sequence-to-Sequence Pre-training, ACL 2020,
https://aclanthology.org/2020.acl-main.703

BART is used for summaries and other tasks that it was fine-tuned for. A word of the dictionary is
its number in vocab.json, as in fairseq's dictionaries of GPT-2's byte pairs. `--task
translation_bart_ext` puts <s> in front of the source, and in front of translations if the model's
settings force that.
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser
from collections.abc import Iterable

import sentencepiece
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask

from fairseq_ext.convert.source import HuggingFaceFolder
from fairseq_ext.convert.transformer import SPECIAL, Folder, ModelFamily, Vocabulary, transformer
from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.core.words import LANGUAGE

BART = ModelFamily(norm_of_embedding=True, positions="learned", activation="gelu")
FILES = {"gpt2_encoder_json": "encoder.json", "gpt2_vocab_bpe": "vocab.bpe"}


def convert_bart(source: HuggingFaceFolder) -> Folder:
    """Return the folder of one model (raises UsageError)."""
    given, size = source.read_json("vocab.json"), source.number("vocab_size")
    if given.get("<mask>") == size:  # the last word: BART for summaries has no row for it
        del given["<mask>"]
    words = Vocabulary.from_numbers(
        {word if word in SPECIAL else str(number): number for word, number in given.items()},
        size,
        "vocab.json",
    )
    made = transformer(source, BART, (words, words), joined=True)
    pair = {"source_lang": "source", "target_lang": "target"}
    first = source.read_json("generation_config.json", needed=False).get(
        "forced_bos_token_id", source.config.get("forced_bos_token_id")
    )
    flags = {} if first is not None else {"free_start": True}
    merges = source.file("merges.txt").read_text(encoding="utf-8")
    texts: dict[str, str | bytes] = {
        "encoder.json": json.dumps(given),
        "vocab.bpe": merges if merges.startswith("#version") else f"#version: 0.2\n{merges}",
    }
    dictionaries = {f"dict.{name}.txt": words for name in pair.values()}
    return Folder(
        made,
        "translation_bart",
        pair | flags,
        {"bpe": "gpt2"} | FILES,
        dictionaries,
        pair,
        flags,
        texts,
    )


# ---- Models of many languages
#
# M2M100ForConditionalGeneration (M2M-100, NLLB-200) and MBartForConditionalGeneration (mBART-25
# and -50) were trained with fairseq.
# All have one SentencePiece model and one dictionary, whose last words are the languages. A
# language's token comes before the source and is the first word of the translation; with mBART-25
# it comes after the source's </s>, and the decoder begins with it.
#
# A. Fan et al., Beyond English-Centric Multilingual Machine Translation, 2020,
# https://arxiv.org/abs/2010.11125 NLLB Team, No Language Left Behind, 2022,
# https://arxiv.org/abs/2207.04672
# Y. Liu et al., Multilingual Denoising Pre-training for Neural Machine Translation, 2020,
# https://arxiv.org/abs/2001.08210 Y. Tang et al., Multilingual Translation with Extensible
# Multilingual Pretraining and Finetuning, 2020, https://arxiv.org/abs/2008.00401


M2M100 = ModelFamily(pre_norm=True, scales=True)
MBART = ModelFamily(pre_norm=True, norm_of_embedding=True, positions="learned", activation="gelu")
SENTENCEPIECE_FILE = "sentencepiece.bpe.model"
MASK = "<mask>"
ENGLISH = ("en", "eng_Latn", "en_XX")
# language tokens: M2M-100's __fr__, NLLB's fra_Latn, mBART's fr_XX
LANGUAGE_TOKEN = re.compile(r"__\w+__|[a-z]{2,3}_(?:[A-Z]{2}|[A-Z][a-z]{3})")
CODES = {  # languages of M2M-100 and of its successor for WMT21, in the order of their tokens
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga "
    "gd gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
    "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn "
    "tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}


def convert_m2m100(source: HuggingFaceFolder) -> Folder:
    """Return the folder of an M2M-100 or NLLB-200 (raises UsageError)."""
    return convert_multilingual(source, M2M100, "multilingual", {})


def convert_mbart(source: HuggingFaceFolder) -> Folder:
    """Return the folder of an mBART (raises UsageError). Only mBART-50's decoder begins with
    </s>."""
    is_mbart25 = source.config.get("decoder_start_token_id") != source.config.get("eos_token_id", 2)
    return convert_multilingual(
        source, MBART, "mbart", {"lang_tok_behind_eos": True} if is_mbart25 else {}
    )


def convert_multilingual(
    source: HuggingFaceFolder, kind: ModelFamily, style: str, more: dict[str, object]
) -> Folder:
    """Return the folder of a multilingual model (raises UsageError).

    style: fairseq's --lang-tok-style, the form of a language's token; more: settings of the task.
    """
    model, pieces = pieces_of(source)
    added = added_tokens(source, len(pieces))
    mark = "__{}__" if style == "multilingual" else "[{}]"
    languages = {
        language_code(name): number
        for name, number in added.items()
        if LANGUAGE_TOKEN.fullmatch(name)
    }
    if len(languages) < 2:
        raise UsageError(
            f"{source.folder} names no languages: copy tokenizer.json or special_tokens_map.json "
            "of the model into it"
        )
    numbers = pieces | {
        mark.format(language_code(name)) if LANGUAGE_TOKEN.fullmatch(name) else name: number
        for name, number in added.items()
    }
    by_number = {number: language for language, number in languages.items()}
    # words that were added to the model's vocabulary
    more_words = [name for name in added if name != MASK and not LANGUAGE_TOKEN.fullmatch(name)]
    if wrong := next((word for word in more_words if added[word] in by_number), None):
        raise UsageError(
            f"{source.folder} gives the added token '{cut(wrong)}' the number of the language "
            f"{by_number[added[wrong]]}, as transformers 5 does with M2M-100: add it with another "
            "version, or name the model without it"
        )
    words = Vocabulary.from_numbers(
        numbers, source.number("vocab_size"), f"{source.folder}'s vocabulary"
    )
    made = transformer(source, kind, (words, words), joined=True)
    pair = example_pair(source, languages)
    flags = {
        "lang_pairs": "-".join(pair.values()),
        "encoder_langtok": "src",
        "decoder_langtok": True,
        "lang_tok_style": style,
    } | more
    files = {"fixed_dictionary": "dict.txt", "lang_dict": "languages.txt"}
    # fairseq's own checkpoints contain the task's defaults, and ct2-fairseq-converter reads them
    stock = ArgumentParser()
    TranslationMultiSimpleEpochTask.add_args(stock)
    settings = {"seed": 1, **vars(stock.parse_args(["."]))} | flags | files
    return Folder(
        made,
        "translation_multi_simple_epoch",
        settings,
        {"bpe": "sentencepiece", "sentencepiece_model": SENTENCEPIECE_FILE},
        {"dict.txt": words},
        pair,
        flags | files,
        {
            "languages.txt": "".join(f"{language}\n" for language in languages),
            SENTENCEPIECE_FILE: with_words(model, more_words) if more_words else model,
        },
    )


def language_code(name: str) -> str:
    """Return the language code of a token: "fr" for M2M-100's __fr__."""
    return name.strip("_") if name.startswith("__") else name


def example_pair(source: HuggingFaceFolder, languages: dict[str, int]) -> dict[str, str]:
    """Return an example language pair: English and the language in the settings, if there is one.

    languages: language codes with the numbers of their tokens.
    """
    named = [
        source.config.get(field) for field in ("decoder_start_token_id", "forced_bos_token_id")
    ]
    target = next((code for code, number in languages.items() if number in named), None)
    target = target or next(code for code in languages if code not in ENGLISH)
    ranked = sorted(languages, key=lambda code: code not in ENGLISH)
    return {"source_lang": next(code for code in ranked if code != target), "target_lang": target}


def pieces_of(source: HuggingFaceFolder) -> tuple[bytes, dict[str, int]]:
    """Return the content of the SentencePiece model, and the number of each word that was not
    added: from vocab.json (M2M-100), else SentencePiece's number plus one."""
    model, content = source.pieces(SENTENCEPIECE_FILE), source.file(SENTENCEPIECE_FILE).read_bytes()
    if source.has("vocab.json"):
        return content, source.read_json("vocab.json")
    begin = [model.id_to_piece(i) for i in range(3)]
    if begin != ["<unk>", "<s>", "</s>"]:
        raise UsageError(
            f"{source.folder / SENTENCEPIECE_FILE} begins with {', '.join(begin)} and not with "
            "<unk>, <s>, </s>: name a folder of the model's own tokenizer"
        )
    numbers = {word: i for i, word in enumerate(SPECIAL)}
    return content, numbers | {
        model.id_to_piece(i): i + 1 for i in range(3, model.get_piece_size())
    }


def with_words(content: bytes, words: Iterable[str]) -> bytes:
    """Return a SentencePiece model with these words as additional pieces, at which text is cut."""
    known = sentencepiece.SentencePieceProcessor(model_proto=content)
    pieces = {known.id_to_piece(i) for i in range(known.get_piece_size())}
    return content + b"".join(user_defined(word) for word in words if word not in pieces)


def user_defined(word: str) -> bytes:
    """Return a piece of sentencepiece_model.proto: field 1 of the model; its text is the piece's
    field 1, its type (4: user-defined) field 3."""
    text = word.encode()
    piece = b"\x0a" + varint(len(text)) + text + b"\x18\x04"
    return b"\x0a" + varint(len(piece)) + piece


def varint(number: int) -> bytes:
    """Return a number as 7 bits a byte, the lowest bits first."""
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def added_tokens(source: HuggingFaceFolder, first: int) -> dict[str, int]:
    """Return the language tokens, <mask> and added words with their numbers, in their order.

    first: the number of the first language if no file has one.
    """
    settings = source.read_json("tokenizer_config.json", needed=False)
    added = source.read_json("tokenizer.json", needed=False).get("added_tokens") or []
    numbers = {each["content"]: each["id"] for each in added}
    numbers |= {
        each["content"]: int(number)
        for number, each in (settings.get("added_tokens_decoder") or {}).items()
    }
    numbers |= source.read_json("added_tokens.json", needed=False)
    found = {name: number for name, number in numbers.items() if name not in SPECIAL}
    given = [source.read_json("special_tokens_map.json", needed=False), settings]
    listed = [
        each.get("additional_special_tokens") or each.get("extra_special_tokens") or []
        for each in given
    ]
    # M2M-100's tokenizer names its whole list of languages by one word
    listed.append(
        f"__{code}__" for code in CODES.get(str(settings.get("language_codes")), "").split()
    )
    for each in listed:
        names = [name["content"] if isinstance(name, dict) else name for name in each]
        if not any(map(LANGUAGE_TOKEN.fullmatch, found)):
            names = [name for name in names if name not in SPECIAL and name not in found]
            found |= {name: first + i for i, name in enumerate(names)}
    return dict(sorted(found.items(), key=lambda each: each[1]))


# ---- MarianMTModel, the class of OPUS-MT's 1,400 models
#
# J. Tiedemann and S. Thottingal, OPUS-MT: Building open translation services for the World, EAMT
# 2020, https://aclanthology.org/2020.eamt-1.61


MARIAN = ModelFamily(positions="marian", activation="gelu")
SIDES = ("source", "target")


def convert_marian(source: HuggingFaceFolder) -> Folder:
    """Return the folder of one model (raises UsageError)."""
    joined = source.config.get("share_encoder_decoder_embeddings", True)
    tokenizer = source.read_json("tokenizer_config.json", needed=False)
    first = source.number("vocab_size")
    sizes = (first, first if joined else source.number("decoder_vocab_size", first))
    files = ("vocab.json", "vocab.json" if joined else "target_vocab.json")
    words = [
        Vocabulary.from_numbers(source.read_json(name), size, name)
        for name, size in zip(files, sizes, strict=True)
    ]
    for name in SIDES:
        source.pieces(f"{name}.spm")
    made = transformer(
        source, MARIAN, (words[0], words[1]), joined, source.number("decoder_start_token_id")
    )
    languages = [language(tokenizer.get(f"{name}_lang"), name) for name in SIDES]
    languages = list(SIDES) if languages[0] == languages[1] else languages
    pair = dict(zip(("source_lang", "target_lang"), languages, strict=True))
    segmentation = {
        "bpe": "sentencepiece_pair",
        "sentencepiece_model": "source.spm",
        "target_sentencepiece_model": "target.spm",
    }
    return Folder(
        made,
        "translation",
        pair,
        segmentation,
        {f"dict.{code}.txt": own for code, own in zip(languages, words, strict=True)},
        pair,
        texts={f"{name}.spm": source.file(f"{name}.spm").read_bytes() for name in SIDES},
        targets=[word[2:-2] for word in filter(LANGUAGE.fullmatch, words[0].words)],
    )


def language(given: object, otherwise: str) -> str:
    """Return a language in a form that can be part of a file's name."""
    return re.sub(r"\W+", "_", given) if isinstance(given, str) and given else otherwise


# ---- FSMTForConditionalGeneration: FAIR's systems of WMT19, converted back to fairseq's format
#
# N. Ng et al., Facebook FAIR's WMT19 News Translation Task Submission, 2019,
# https://arxiv.org/abs/1907.06616


FSMT = ModelFamily(scales=True)
WORD_END = "</w>"  # marks the last piece of a word; fairseq marks all other pieces with @@


def convert_fsmt(source: HuggingFaceFolder) -> Folder:
    """Return the model as a folder of fairseq's (raises UsageError)."""
    langs = source.config.get("langs")
    if not (
        isinstance(langs, list)
        and len(langs) == 2
        and langs[0] != langs[1]
        and all(isinstance(each, str) for each in langs)
    ):
        raise source.field_error("langs", "two languages are needed")
    if source.read_json("tokenizer_config.json", needed=False).get("do_lower_case"):
        raise UsageError(
            f"{source.folder / 'tokenizer_config.json'} has do_lower_case, which no tokenizer of "
            "fairseq has: name a model without it"
        )
    words = [
        Vocabulary.from_numbers(
            {
                to_fairseq_symbol(word): number
                for word, number in source.read_json(f"vocab-{side}.json").items()
            },
            source.number(f"{side}_vocab_size"),
            f"vocab-{side}.json",
        )
        for side in ("src", "tgt")
    ]
    made = transformer(source, FSMT, (words[0], words[1]), joined=False)
    merges = source.file("merges.txt").read_text(encoding="utf-8").removeprefix("#version: 0.2\n")
    pair = dict(zip(("source_lang", "target_lang"), langs, strict=True))
    segmentation = {"tokenizer": "moses_normalized", "bpe": "subword_nmt", "bpe_codes": "bpecodes"}
    dictionaries = {f"dict.{code}.txt": own for code, own in zip(langs, words, strict=True)}
    return Folder(
        made,
        "translation",
        pair,
        segmentation,
        dictionaries,
        pair,
        texts={"bpecodes": f"#version: 0.2\n{merges}"},
    )


def to_fairseq_symbol(word: str) -> str:
    """Return a word of the vocabulary in the form of fairseq's dictionary."""
    return (
        word
        if word in SPECIAL
        else word.removesuffix(WORD_END)
        if word.endswith(WORD_END)
        else f"{word}@@"
    )
