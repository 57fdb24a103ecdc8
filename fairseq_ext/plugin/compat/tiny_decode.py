"""Two sentences through a small random Transformer, for doctor.py."""

from __future__ import annotations

from argparse import Namespace

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models.transformer import TransformerModel, tiny_architecture
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY

import fairseq_ext.plugin.tasks  # noqa: F401


def decode_with_both_generators() -> tuple[list[list[int]], ...]:
    """Return each sentence's best tokens, by our generator and by fairseq's."""
    words = Dictionary()
    ids = [words.add_symbol(f"w{i}") for i in range(20)]
    task = TASK_REGISTRY["translation_ext"](
        TASK_DATACLASS_REGISTRY["translation_ext"](), words, words
    )

    sizes = Namespace(share_all_embeddings=True, max_source_positions=64, max_target_positions=64)
    tiny_architecture(sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(16)  # one sentence ends early
        models = [TransformerModel.build_model(sizes, task).eval()]

    # (2, 6), left-padded
    source = torch.tensor(
        [[*ids[:5], words.eos()], [words.pad(), words.pad(), *ids[7:10], words.eos()]]
    )
    sample = {
        "id": torch.arange(2),
        "net_input": {"src_tokens": source, "src_lengths": torch.tensor([6, 4])},
    }
    generation = GenerationConfig(beam=3, max_len_b=12)
    stock = SequenceGenerator(models, words, beam_size=3, max_len_b=12)
    return tuple(
        [
            sentence[0]["tokens"].tolist()
            for sentence in task.inference_step(generator, models, sample)
        ]
        for generator in (task.build_generator(models, generation), stock)
    )
