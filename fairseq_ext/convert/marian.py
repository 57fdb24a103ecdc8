"""MarianMTModel, the class of OPUS-MT's 1,400 models.

J. Tiedemann and S. Thottingal, OPUS-MT: Building open translation services for the World, EAMT
2020, https://aclanthology.org/2020.eamt-1.61
"""

from __future__ import annotations

import re

from fairseq_ext.convert.folder import Folder
from fairseq_ext.convert.source import HuggingFaceFolder
from fairseq_ext.convert.transformer import ModelFamily, Vocabulary, transformer
from fairseq_ext.core.words import LANGUAGE

KIND = ModelFamily(positions="marian", activation="gelu")
SIDES = ("source", "target")


def convert(source: HuggingFaceFolder) -> Folder:
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
        source, KIND, (words[0], words[1]), joined, source.number("decoder_start_token_id")
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
