"""FSMTForConditionalGeneration: FAIR's systems of WMT19, converted back to fairseq's format.

N. Ng et al., Facebook FAIR's WMT19 News Translation Task Submission, 2019,
https://arxiv.org/abs/1907.06616
"""

from __future__ import annotations

from fairseq_ext.convert.folder import Folder
from fairseq_ext.convert.source import HuggingFaceFolder
from fairseq_ext.convert.transformer import SPECIAL, ModelFamily, Vocabulary, transformer
from fairseq_ext.core.errors import UsageError

KIND = ModelFamily(scales=True)
WORD_END = "</w>"  # marks the last piece of a word; fairseq marks all other pieces with @@


def convert(source: HuggingFaceFolder) -> Folder:
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
    made = transformer(source, KIND, (words[0], words[1]), joined=False)
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
