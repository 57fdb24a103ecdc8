"""`--tokenizer moses_normalized`: Moses' tokenizer behind its normalisation of punctuation, as WMT19's data were prepared."""

from dataclasses import dataclass

from fairseq.data.encoders import register_tokenizer
from fairseq.data.encoders.moses_tokenizer import MosesTokenizer, MosesTokenizerConfig


@dataclass
class MosesNormalizedConfig(MosesTokenizerConfig):
    pass


@register_tokenizer("moses_normalized", dataclass=MosesNormalizedConfig)
class MosesNormalized(MosesTokenizer):
    """fairseq's `moses`, given normalised text."""

    def __init__(self, cfg):
        super().__init__(cfg)
        from sacremoses import MosesPunctNormalizer

        settings = dict(pre_replace_unicode_punct=True, post_remove_control_chars=True)
        self.normalizer = MosesPunctNormalizer(cfg.source_lang, **settings)

    def encode(self, x: str) -> str:
        return super().encode(self.normalizer.normalize(x))
