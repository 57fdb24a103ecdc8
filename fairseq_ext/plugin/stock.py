"""Tasks, segmentations, tokenizers and an architecture that stock fairseq 0.12.2 lacks.

The tasks add to stock's what their models need; tasks.py registers their *_ext twins.
"""

import ast
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from fairseq.data import AppendTokenDataset, PrependTokenDataset
from fairseq.data.encoders import register_bpe, register_tokenizer
from fairseq.data.encoders.moses_tokenizer import MosesTokenizer, MosesTokenizerConfig
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE, SentencepieceConfig
from fairseq.data.multilingual.multilingual_data_manager import MultilingualDatasetManager
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoderBase, TransformerModel, base_architecture
from fairseq.tasks import TASK_REGISTRY, register_task
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.multilingual_language_modeling import MultilingualLanguageModelingTask
from fairseq.tasks.speech_to_text import SpeechToTextTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq.tasks.translation_from_pretrained_bart import TranslationFromPretrainedBARTTask
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from fairseq.utils import split_paths
from torch import nn

from fairseq_ext.core.command_line import is_loaded
from fairseq_ext.core.errors import UsageError, counted, cut
from fairseq_ext.core.files import table_lines
from fairseq_ext.core.words import LANGUAGE
from fairseq_ext.plugin.loading.settings import StockSettings, of_some_tasks, setting

LARGEST = 2**31 - 1
PROCESSES = max(64, 4 * (os.cpu_count() or 1))
# minimum, maximum and meaning; a minimum of -1 is a value that fairseq takes for "no limit", as 0
RANGES: dict[tuple[str, str], tuple[int, int, str]] = {
    ("dataset", "num_workers"): (0, PROCESSES, "number of processes"),
    ("dataset", "batch_size"): (-1, LARGEST, "number of sentences"),
    ("dataset", "max_tokens"): (-1, LARGEST, "number of tokens"),
    ("dataset", "required_batch_size_multiple"): (1, LARGEST, "number of sentences"),
    ("checkpoint", "checkpoint_shard_count"): (1, 10_000, "number of files"),
    ("dataset", "required_seq_len_multiple"): (1, LARGEST, "number of tokens"),
    ("dataset", "data_buffer_size"): (-1, LARGEST, "number of batches"),
    ("interactive", "buffer_size"): (0, LARGEST, "number of lines"),
    ("common", "log_interval"): (1, LARGEST, "number of batches"),
    ("distributed_training", "distributed_world_size"): (1, LARGEST, "number of processes"),
}
# after the languages, in the order of NLLB's training
NLLB_TAGS = ("<MINED_DATA>", "<MMT_BT_DATA>", "<SMT_BT_DATA>")


def refuse_unknown(name: str) -> None:
    """Refuse an unknown *_ext task, with a list of the known ones (raises UsageError)."""
    if name in TASK_REGISTRY:
        return
    stock = name.removesuffix("_ext")
    own = TASK_REGISTRY.get(stock)
    if own is not None and not own.__module__.startswith("fairseq."):
        raise UsageError(
            f"there is no --task {name} yet: add fairseq_ext.extend({own.__name__}) where "
            f"{stock} is registered"
        )
    ours = sorted(task for task in TASK_REGISTRY if task.endswith("_ext"))
    raise UsageError(f"--task {name} is unknown to fairseq_ext: use {', '.join(ours)}")


class MultiSimpleEpoch(TranslationMultiSimpleEpochTask):
    """M2M-100's task, with the flag of NLLB's branch, which adds three words to the dictionary.

    NLLB Team, No Language Left Behind, 2022, https://arxiv.org/abs/2207.04672
    """

    @staticmethod
    def add_args(parser) -> None:
        TranslationMultiSimpleEpochTask.add_args(parser)
        parser.add_argument(
            "--add-data-source-prefix-tags",
            action="store_true",
            help="the dictionary ends in the tags of NLLB's training data, which its checkpoints "
            "have embeddings of",
        )
        parser.add_argument(
            "--lang-tok-behind-eos",
            action="store_true",
            help="as mBART-25: the source ends in </s> and its language's token, and the decoder "
            "begins with the target's, not with </s>",
        )

    @classmethod
    def setup_task(cls, args, **kwargs):
        languages, dictionaries, training = MultilingualDatasetManager.prepare(
            cls.load_dictionary, args, **kwargs
        )
        if of_some_tasks(args, "add_data_source_prefix_tags"):
            # several languages may share a dictionary, which gets a word once
            for dictionary in dictionaries.values():
                for tag in NLLB_TAGS:
                    dictionary.add_symbol(tag)
        made = cls(args, languages, dictionaries, training)
        if of_some_tasks(args, "lang_tok_behind_eos"):
            made.data_manager.src_dataset_tranform_func = made.with_language_behind
        return made

    def with_language_behind(self, source, target, dataset, spec=None):
        """Return a data set of source sentences with the language's token after </s>."""
        token = self.data_manager.get_encoder_langtok(source, target, spec)
        return AppendTokenDataset(dataset, token)

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        if not of_some_tasks(self.args, "lang_tok_behind_eos"):
            return super().inference_step(generator, models, sample, prefix_tokens, constraints)
        first = self.data_manager.get_decoder_langtok(
            self.args.target_lang, self.args.langtoks["main"][1]
        )
        with torch.no_grad():
            return generator.generate(
                models,
                sample,
                prefix_tokens=prefix_tokens,
                constraints=constraints,
                bos_token=first,
            )


class PretrainedBART(TranslationFromPretrainedBARTTask):
    """mBART's task: sentences end in the target language's token, also in the generator, which
    the stock task builds itself."""

    def build_generator(
        self,
        models,
        args,
        seq_gen_cls=None,
        extra_gen_cls_kwargs=None,
        prefix_allowed_tokens_fn=None,
    ):
        if of_some_tasks(args, "score_reference"):
            return super().build_generator(models, args)
        extra = {
            "eos": self.tgt_dict.index(f"[{self.args.target_lang}]"),
            **(extra_gen_cls_kwargs or {}),
        }
        past_stock = super(TranslationFromPretrainedBARTTask, self)
        return past_stock.build_generator(
            models, args, seq_gen_cls, extra, prefix_allowed_tokens_fn
        )


class LanguageModeling(LanguageModelingTask):
    """A task that continues prompts, which are not source sentences."""

    lacks = frozenset({"source sentence"})


class MultilingualLanguageModeling(MultilingualLanguageModelingTask):
    """`LanguageModeling` for several languages, each in a folder of its own."""

    lacks = frozenset({"source sentence"})

    def load_dataset(self, split, *args, **kwargs):
        folder = split_paths(self.args.data)[0]
        for language in (self.args.langs or "").split(","):
            if not os.path.isdir(os.path.join(folder, language)):
                raise UsageError(
                    f"{folder} has no folder {language}, which --langs names: correct --langs, "
                    "or name another folder"
                )
        super().load_dataset(split, *args, **kwargs)


class SpeechToText(SpeechToTextTask):
    """Speech translation and recognition: an interactive session's lines are names of audio or
    feature files."""

    # the encoder's convolutions read padding, so a sentence's results depend on the others of its
    # batch
    lacks = frozenset({"source sentence", "source tokens", "divisible batches"})

    @classmethod
    def setup_task(cls, args, **kwargs):
        if not os.path.isfile(path := os.path.join(args.data, args.config_yaml)):
            raise UsageError(
                f"{path} does not exist: name the configuration in the data folder by --config-yaml"
            )
        return super().setup_task(args, **kwargs)

    def get_interactive_tokens_and_lengths(
        self, lines: list[str], encode_fn: object
    ) -> tuple[list[str], list[int]]:
        for line in lines:
            # after a colon: place and size in an archive
            if not os.path.isfile(line.partition(":")[0]):
                raise UsageError(
                    f"'{line}' of the input is not a file: each line names an audio file, "
                    "or features as .npy"
                )
        return super().get_interactive_tokens_and_lengths(lines, encode_fn)


# ---- `--task translation_bart`
#
# A source begins with <s> and ends with </s>, as in BART's training; a translation begins with <s>.


@dataclass
class TranslationBartConfig(TranslationConfig):
    free_start: bool = field(
        default=False, metadata={"help": "translations may begin with any word, not with <s> alone"}
    )


@register_task("translation_bart", dataclass=TranslationBartConfig)
class TranslationBart(TranslationTask):
    """fairseq's translation task, with <s> before each source and translation."""

    def build_dataset_for_inference(self, src_tokens, src_lengths, constraints=None):
        start = torch.tensor([self.source_dictionary.bos()])
        tokens = [torch.cat([start, line]) for line in src_tokens]
        return super().build_dataset_for_inference(
            tokens, [len(line) for line in tokens], constraints
        )

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


# ---- `--bpe sentencepiece_pair`
#
# One SentencePiece model for the source and another for the target, as OPUS-MT's models have them.
# A source line may begin with `>>xx<<`, the language to translate to, which is one token.


@dataclass
class PairConfig(SentencepieceConfig):
    target_sentencepiece_model: str = field(
        default="???", metadata={"help": "path to the target's sentencepiece model"}
    )


@register_bpe("sentencepiece_pair", dataclass=PairConfig)
class SentencepiecePair(SentencepieceBPE):
    """Encodes the source; `target` encodes the target.

    word: returns the first word of lines that name no language.
    """

    word: Callable[[], str] = str

    def __init__(self, cfg):
        super().__init__(cfg)
        self.target = SentencepieceBPE(
            SentencepieceConfig(sentencepiece_model=cfg.target_sentencepiece_model)
        )

    def encode(self, x: str) -> str:
        word = found[0] if (found := LANGUAGE.match(x)) else ""
        pieces = super().encode(x[len(word) :])
        return f"{word or (pieces and self.word())} {pieces}".strip()


# ---- `--tokenizer moses_normalized`
#
# The tokenizer of Moses after its normalisation of punctuation, as for the data of WMT19.


@register_tokenizer("moses_normalized", dataclass=MosesTokenizerConfig)
class MosesNormalized(MosesTokenizer):
    """fairseq's `moses` on normalised text."""

    def __init__(self, cfg):
        super().__init__(cfg)
        from sacremoses import MosesPunctNormalizer

        settings = dict(pre_replace_unicode_punct=True, post_remove_control_chars=True)
        self.normalizer = MosesPunctNormalizer(cfg.source_lang, **settings)

    def encode(self, x: str) -> str:
        return super().encode(self.normalizer.normalize(x))


# ---- `--arch marian_transformer`
#
# Marian's Transformer, the architecture of OPUS-MT's models: fairseq's, with an output bias and
# swish.
#
# M. Junczys-Dowmunt et al., Marian: Fast Neural Machine Translation in C++, ACL 2018,
# https://arxiv.org/abs/1804.00344
#
# The weights (convert/families.py) contain the other differences: positions count from 0 and are a
# table, and Marian's decoder begins with a word of its own, whose embedding the first position's
# embedding makes of that of </s>.


@register_model("marian_transformer")
class MarianTransformer(TransformerModel):
    """fairseq's Transformer with Marian's output bias and activation."""

    def __init__(self, args, encoder, decoder):
        super().__init__(args, encoder, decoder)
        for layer in (*encoder.layers, *decoder.layers):
            if layer.activation_fn is nn.SiLU:  # fairseq uses the class as the function
                layer.activation_fn = F.silu

    @classmethod
    def build_decoder(cls, cfg, tgt_dict, embed_tokens):
        output = nn.Linear(embed_tokens.embedding_dim, len(tgt_dict))
        if cfg.share_decoder_input_output_embed:
            output.weight = embed_tokens.weight
        return TransformerDecoderBase(cfg, tgt_dict, embed_tokens, output_projection=output)


register_model_architecture("marian_transformer", "marian_transformer")(base_architecture)


def check_stock_settings(settings: StockSettings) -> None:
    """Raise UsageError for a number outside its range, too few open files, overrides other than a
    dictionary, a damaged dictionary of alignments.

    settings: a task's.
    """
    for (group, name), (least, most, meaning) in RANGES.items():
        value = setting(settings, group, name)
        if value is not None and not least <= value <= most:
            raise UsageError(
                f"--{name.replace('_', '-')} ({meaning}) must be {least} to {most}, not {value}"
            )
    workers = setting(settings, "dataset", "num_workers") or 0
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if (
        workers
        and is_loaded("fairseq_cli.generate")
        and files != resource.RLIM_INFINITY
        and files < 48 + 8 * workers
    ):
        raise UsageError(  # torch would wait for ever for data that its process cannot send
            f"the limit of {files} open files is too low to read batches in "
            f"{counted(workers, 'process', 'processes')}: allow {48 + 8 * workers} (ulimit -n), "
            "or use --num-workers 0"
        )
    given = setting(settings, "common_eval", "model_overrides")
    if isinstance(given, str):
        try:
            is_right = isinstance(ast.literal_eval(given), dict)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            is_right = False
        if not is_right:
            raise UsageError(
                f"--model-overrides must be a dictionary of values, not {cut(given)}: write one, "
                "such as {'data': 'x'}"
            )
    aligned = setting(settings, "generation", "replace_unk")
    if isinstance(aligned, str) and aligned.strip("@ "):  # the flag alone gives "@@ "
        list(table_lines(aligned, "--replace-unk", 2))
