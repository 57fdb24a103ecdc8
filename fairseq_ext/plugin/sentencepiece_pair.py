"""`--bpe sentencepiece_pair`: one SentencePiece model for the source and another for the target, as OPUS-MT's models have them.

A source line may begin with `>>xx<<`, the language to translate to, which is one token.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from fairseq.data.encoders import register_bpe
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE, SentencepieceConfig

from fairseq_ext.core.words import LANGUAGE


@dataclass
class PairConfig(SentencepieceConfig):
    target_sentencepiece_model: str = field(default="???", metadata={"help": "path to the target's sentencepiece model"})


@register_bpe("sentencepiece_pair", dataclass=PairConfig)
class SentencepiecePair(SentencepieceBPE):
    """Encodes the source; `target` encodes the target. word: says what lines begin with that name no language."""

    word: Callable[[], str] = str

    def __init__(self, cfg):
        super().__init__(cfg)
        self.target = SentencepieceBPE(SentencepieceConfig(sentencepiece_model=cfg.target_sentencepiece_model))

    def encode(self, x: str) -> str:
        word = found[0] if (found := LANGUAGE.match(x)) else ""
        pieces = super().encode(x[len(word) :])
        return f"{word or (pieces and self.word())} {pieces}".strip()
