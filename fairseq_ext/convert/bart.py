"""BartForConditionalGeneration: BART, for summaries and whatever it was trained further for.

M. Lewis et al., BART: Denoising Sequence-to-Sequence Pre-training, ACL 2020, https://aclanthology.org/2020.acl-main.703

A word is the number that it has in vocab.json, as fairseq writes GPT-2's byte pairs. `--task translation_bart_ext` puts <s> in front of the
source, and has translations begin with it where the model's settings force that.
"""

from __future__ import annotations

import json

from fairseq_ext.convert.folder import Folder
from fairseq_ext.convert.source import Source
from fairseq_ext.convert.transformer import Kind, transformer
from fairseq_ext.convert.vocabulary import SPECIAL, Vocabulary

KIND = Kind(norm_of_embedding=True, positions="learned", activation="gelu")
FILES = {"gpt2_encoder_json": "encoder.json", "gpt2_vocab_bpe": "vocab.bpe"}


def convert(source: Source) -> Folder:
    """The folder of one model (raises UsageError)."""
    given, size = source.read_json("vocab.json"), source.number("vocab_size")
    if given.get("<mask>") == size:  # the last word, which BART for summaries has no row for
        del given["<mask>"]
    words = Vocabulary.of({word if word in SPECIAL else str(number): number for word, number in given.items()}, size, "vocab.json")
    made = transformer(source, KIND, (words, words), joined=True)
    pair = {"source_lang": "source", "target_lang": "target"}
    first = source.read_json("generation_config.json", needed=False).get("forced_bos_token_id", source.config.get("forced_bos_token_id"))
    flags = {} if first is not None else {"free_start": True}
    merges = source.file("merges.txt").read_text(encoding="utf-8")
    texts = {"encoder.json": json.dumps(given), "vocab.bpe": merges if merges.startswith("#version") else f"#version: 0.2\n{merges}"}
    dictionaries = {f"dict.{name}.txt": words for name in pair.values()}
    return Folder(made, "translation_bart", pair | flags, {"bpe": "gpt2"} | FILES, dictionaries, [], pair, flags, texts)
