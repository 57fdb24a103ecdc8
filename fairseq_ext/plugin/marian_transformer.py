"""`--arch marian_transformer`: Marian's Transformer, of which OPUS-MT's models are. fairseq's, with a bias of the output and swish.

M. Junczys-Dowmunt et al., Marian: Fast Neural Machine Translation in C++, ACL 2018, https://arxiv.org/abs/1804.00344

What else differs lies in the weights (convert/marian.py): positions count from 0 and are a table, and Marian's decoder begins with a word
of its own, which the first position's embedding makes of </s>.
"""

from __future__ import annotations

import torch.nn.functional as F
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoderBase, TransformerModel, base_architecture
from torch import nn


@register_model("marian_transformer")
class MarianTransformer(TransformerModel):
    """fairseq's modules, all of them."""

    def __init__(self, args, encoder, decoder):
        super().__init__(args, encoder, decoder)
        for layer in (*encoder.layers, *decoder.layers):
            if layer.activation_fn is nn.SiLU:  # fairseq takes the class for the function
                layer.activation_fn = F.silu

    @classmethod
    def build_decoder(cls, cfg, tgt_dict, embed_tokens):
        output = nn.Linear(embed_tokens.embedding_dim, len(tgt_dict))
        if cfg.share_decoder_input_output_embed:
            output.weight = embed_tokens.weight
        return TransformerDecoderBase(cfg, tgt_dict, embed_tokens, output_projection=output)


register_model_architecture("marian_transformer", "marian_transformer")(base_architecture)
