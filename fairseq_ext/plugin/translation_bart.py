"""`--task translation_bart`: a source stands between <s> and </s>, as BART was trained, and what is made of it begins with <s>."""

from dataclasses import dataclass, field

import torch
from fairseq.data import PrependTokenDataset
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask


@dataclass
class TranslationBartConfig(TranslationConfig):
    free_start: bool = field(default=False, metadata={"help": "translations may begin with any word, not with <s> alone"})


@register_task("translation_bart", dataclass=TranslationBartConfig)
class TranslationBart(TranslationTask):
    """fairseq's translation with <s>."""

    def build_dataset_for_inference(self, src_tokens, src_lengths, constraints=None):
        start = torch.tensor([self.source_dictionary.bos()])
        tokens = [torch.cat([start, line]) for line in src_tokens]
        return super().build_dataset_for_inference(tokens, [len(line) for line in tokens], constraints)

    def load_dataset(self, split, epoch=1, combine=False, **kwargs):
        super().load_dataset(split, epoch, combine, **kwargs)
        dataset = self.datasets[split]
        dataset.src = PrependTokenDataset(dataset.src, self.source_dictionary.bos())
        dataset.src_sizes = dataset.src.sizes

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        if prefix_tokens is None and not self.cfg.free_start:
            source = sample["net_input"]["src_tokens"]
            prefix_tokens = source.new_full((len(source), 1), self.target_dictionary.bos())
        return super().inference_step(generator, models, sample, prefix_tokens, constraints)
