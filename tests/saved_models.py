"""Tiny random checkpoints of every architecture that fairseq translates with, written by its
Trainer and read by its commands' steps.

    saved = Saved(tmp_path)  # dictionaries; a checkpoint is saved when it is first needed
    models = saved.models(["lstm"], beam=5)  # what fairseq-interactive does before it reads lines
    stock = saved.ready(models, saved.data("lstm"), "translation", beam=5)
    stock.translate(["de1 de7", "de3"])  # n-best lists, in the order of the lines

A checkpoint is a random model whose output layer is sharpened, so that distributions are far from
uniform and hypotheses end.
"""

from __future__ import annotations

import copy
import functools
import random
import zlib
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq import checkpoint_utils, options, tasks, utils
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf, omegaconf_no_object_check
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.trainer import Trainer
from fairseq_cli.interactive import make_batches

import fairseq_ext  # noqa: F401  registers translation_ext

WORDS = {"de": 29, "en": 23}  # without fairseq's four special symbols
LONGEST = 7  # length limit of the searches
TRANSFORMER = dict(
    encoder_embed_dim=16,
    encoder_ffn_embed_dim=24,
    encoder_layers=2,
    encoder_attention_heads=2,
    decoder_embed_dim=16,
    decoder_ffn_embed_dim=24,
    decoder_layers=2,
    decoder_attention_heads=2,
    max_source_positions=40,
    max_target_positions=38,
)
RECURRENT = dict(
    encoder_embed_dim=12,
    encoder_hidden_size=14,
    encoder_layers=2,
    decoder_embed_dim=12,
    decoder_hidden_size=14,
    decoder_layers=2,
    decoder_out_embed_dim=18,
    criterion="cross_entropy",
    max_source_positions=40,
    max_target_positions=38,
)
CONVOLUTIONAL = dict(
    encoder_embed_dim=12,
    encoder_layers="[(12, 3)] * 2",
    decoder_embed_dim=12,
    decoder_layers="[(12, 3)] * 3",
    decoder_out_embed_dim=12,
    max_source_positions=40,
    max_target_positions=38,
)
KERNELS = dict(encoder_kernel_size_list=[3, 5], decoder_kernel_size_list=[3, 5])
PRE_NORM = dict(encoder_normalize_before=True, decoder_normalize_before=True)
LEARNED = dict(encoder_learned_pos=True, decoder_learned_pos=True)
ADAPTIVE = dict(adaptive_softmax_cutoff=[8, 16], criterion="adaptive_loss")


@dataclass(frozen=True)
class Recipe:
    """How one checkpoint is made."""

    arch: str  # fairseq's --arch
    args: dict[str, Any]  # its arguments, where they differ from the architecture's own
    joined: bool = False  # source and target side share a dictionary
    # weights times this, where initial ones are so small that the source would hardly matter
    spread: float = 1.0


def transformer(
    arch: str = "transformer", joined: bool = False, spread: float = 1.0, **args: Any
) -> Recipe:
    return Recipe(arch, TRANSFORMER | args, joined, spread)


RECIPES: dict[str, Recipe] = {
    "transformer": transformer(),
    "transformer, pre-norm": transformer(**PRE_NORM),
    "transformer, pre-norm, no final norm": transformer(**PRE_NORM, no_decoder_final_norm=True),
    "transformer, pre-norm encoder": transformer(encoder_normalize_before=True),
    "transformer, layernorm_embedding": transformer(layernorm_embedding=True),
    "transformer, pre-norm, layernorm_embedding": transformer(layernorm_embedding=True, **PRE_NORM),
    "transformer, no_scale_embedding": transformer(no_scale_embedding=True, spread=4.0),
    "transformer, learned positions": transformer(**LEARNED),
    "transformer, learned positions in the decoder": transformer(decoder_learned_pos=True),
    "transformer, no positions": transformer(no_token_positional_embeddings=True),
    "transformer, tied output": transformer(share_decoder_input_output_embed=True),
    "transformer, all tied": transformer(share_all_embeddings=True, joined=True),
    "transformer, 12 + 1 layers": transformer(encoder_layers=12, decoder_layers=1),
    "transformer, wider decoder": transformer(decoder_embed_dim=24, decoder_output_dim=16),
    "transformer, gelu": transformer(activation_fn="gelu"),
    "transformer, tanh": transformer(activation_fn="tanh"),
    "transformer, layer drop": transformer(encoder_layerdrop=0.2, decoder_layerdrop=0.2),
    "transformer, quantisation noise": transformer(quant_noise_pq=0.1, quant_noise_pq_block_size=4),
    "transformer, checkpointed activations": transformer(checkpoint_activations=True),
    "transformer, adaptive softmax": transformer(**ADAPTIVE),
    "transformer, cross-self-attention": transformer(
        cross_self_attention=True, no_cross_attention=True
    ),
    "transformer, cross-self-attention and cross-attention": transformer(cross_self_attention=True),
    "transformer, NormFormer": transformer(
        scale_attn=True, scale_fc=True, scale_heads=True, scale_resids=True, **PRE_NORM
    ),
    "marian_transformer": transformer(
        "marian_transformer",
        activation_fn="swish",
        share_all_embeddings=True,
        joined=True,
        **LEARNED,
    ),
    "transformer_align": transformer(
        "transformer_align", alignment_layer=1, alignment_heads=1, full_context_alignment=True
    ),
    "bart": transformer("bart_base", joined=True, spread=8.0),
    "mbart": transformer("mbart_base", joined=True, spread=8.0),
    "roberta_enc_dec": Recipe(
        "roberta_enc_dec",
        TRANSFORMER
        | dict(
            tokens_per_sample=38, hack_layernorm_embedding=False, pretrained_mlm_checkpoint=None
        ),
        joined=True,
        spread=8.0,
    ),
    "lightconv": transformer(
        "lightconv",
        encoder_conv_type="lightweight",
        decoder_conv_type="lightweight",
        weight_softmax=True,
        **KERNELS,
    ),
    "lightconv, pre-norm, no gates": transformer(
        "lightconv",
        encoder_conv_type="lightweight",
        decoder_conv_type="lightweight",
        weight_softmax=True,
        encoder_glu=False,
        decoder_glu=False,
        **KERNELS,
        **PRE_NORM,
    ),
    "dynamicconv": transformer(
        "lightconv",
        encoder_conv_type="dynamic",
        decoder_conv_type="dynamic",
        weight_softmax=True,
        encoder_glu=True,
        decoder_glu=True,
        **KERNELS,
    ),
    "lstm": Recipe("lstm", RECURRENT, spread=8.0),
    "lstm, bidirectional": Recipe("lstm", RECURRENT | dict(encoder_bidirectional=True), spread=8.0),
    "lstm, no attention": Recipe(
        "lstm", RECURRENT | dict(decoder_attention="0", decoder_hidden_size=18), spread=8.0
    ),
    "lstm, tied output": Recipe(
        "lstm",
        RECURRENT | dict(decoder_embed_dim=18, share_decoder_input_output_embed=True),
        spread=8.0,
    ),
    "lstm, adaptive softmax": Recipe(
        "lstm",
        RECURRENT | dict(criterion="adaptive_loss", adaptive_softmax_cutoff="10"),
        spread=8.0,
    ),
    "fconv": Recipe("fconv", CONVOLUTIONAL, spread=1.4),
    "fconv, attention in one layer": Recipe(
        "fconv",
        CONVOLUTIONAL
        | dict(decoder_attention="[False, True, False]", share_input_output_embed=True),
        spread=1.4,
    ),
    "fconv_self_att": Recipe(
        "fconv_self_att", CONVOLUTIONAL | dict(multihead_attention_nheads=2), spread=1.4
    ),
    "fconv_self_att, gated": Recipe(
        "fconv_self_att",
        CONVOLUTIONAL
        | dict(
            self_attention="True",
            encoder_attention="True",
            multihead_attention_nheads=2,
            multihead_self_attention_nheads=2,
            encoder_attention_nheads=2,
            project_input="True",
            gated_attention="True",
            downsample="True",
        ),
        spread=1.4,
    ),
}
ENSEMBLES = [
    ("transformer", "lstm"),
    ("fconv", "transformer, tied output"),
    ("transformer, pre-norm", "transformer"),
    ("lightconv", "fconv_self_att"),
    ("dynamicconv", "transformer, adaptive softmax"),
    ("transformer, cross-self-attention", "lstm, no attention"),
    ("bart", "roberta_enc_dec"),
]
# how every name that fairseq registers for a class of models is made small
SMALL: dict[str, dict[str, Any]] = {
    "TransformerModel": TRANSFORMER,
    "TransformerAlignModel": TRANSFORMER,
    "BARTModel": TRANSFORMER,
    "RobertaEncDecModel": TRANSFORMER
    | dict(tokens_per_sample=38, hack_layernorm_embedding=False, pretrained_mlm_checkpoint=None),
    "LightConvModel": TRANSFORMER
    | dict(
        encoder_conv_type="lightweight",
        decoder_conv_type="dynamic",
        weight_softmax=True,
        encoder_kernel_size_list=[3, 5],
        decoder_kernel_size_list=[3, 5],
    ),
    "LSTMModel": RECURRENT,
    "FConvModel": CONVOLUTIONAL,
    "FConvModelSelfAtt": CONVOLUTIONAL
    | dict(
        multihead_attention_nheads=2,
        multihead_self_attention_nheads=2,
        encoder_attention_nheads=2,
        downsample="False",
    ),
}
OUTPUT_LAYERS = ("output_projection", "fc_out", "fc3", "embed_out", "adaptive_softmax.head")


def recipe(name: str) -> Recipe:
    """A recipe by its name above, or one for a name that fairseq registers."""
    if name in RECIPES:
        return RECIPES[name]
    kind = ARCH_MODEL_REGISTRY[name].__name__
    loud = {"BARTModel": 8.0, "LSTMModel": 8.0, "RobertaEncDecModel": 8.0}.get(kind, 1.4)
    return Recipe(
        name,
        SMALL[kind],
        joined=kind in ("BARTModel", "RobertaEncDecModel") or "big_t2t" in name,
        spread=loud,
    )


def lines(count: int, equal: bool, seed: int = 0) -> list[str]:
    """Made-up source lines, of one length or of lengths from 1 to 12."""
    chance = random.Random(f"{count} {equal} {seed}")
    same = chance.randint(2, 7)
    return [
        " ".join(
            f"de{chance.randrange(WORDS['de'])}"
            for _ in range(same if equal else chance.randint(1, 12))
        )
        for _ in range(count)
    ]


@functools.cache
def parsed(kind: str, *arguments: str) -> Any:
    """fairseq's configuration from a command line; composing one takes half a second."""
    parser = {
        "train": options.get_training_parser,
        "interactive": options.get_interactive_generation_parser,
    }[kind]()
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, list(arguments)))


@dataclass
class Loaded:
    """A checkpoint, or an ensemble, as fairseq-interactive holds it when it
    starts to read lines."""

    cfg: Any
    task: Any
    models: list
    generator: Any
    max_positions: Any

    def translate(self, text: list[str]) -> list[list[dict]]:
        """n-best lists, in the order of the lines, which are one batch."""
        out: list[list[dict]] = [[] for _ in text]
        for batch in make_batches(list(text), self.cfg, self.task, self.max_positions, lambda x: x):
            device = next(self.models[0].parameters()).device
            sample = {
                "net_input": {
                    "src_tokens": batch.src_tokens.to(device),
                    "src_lengths": batch.src_lengths.to(device),
                }
            }
            for i, found in zip(
                batch.ids.tolist(),
                self.task.inference_step(self.generator, self.models, sample),
                strict=True,
            ):
                out[i] = found
        return out


class Saved:
    """A folder of dictionaries and checkpoints.

    What takes long (reading a configuration) is done once.
    """

    def __init__(self, root: Path):
        self.root = root
        self.states: dict[Path, dict] = {}
        self.tasks: dict[tuple, Any] = {}
        for name, words in (("data", WORDS), ("joined", dict.fromkeys(WORDS, WORDS["de"]))):
            (root / name).mkdir()
            for language, count in words.items():
                dictionary = Dictionary()
                for i in range(count):
                    dictionary.add_symbol(f"{'de' if name == 'joined' else language}{i}", n=100 - i)
                dictionary.save(str(root / name / f"dict.{language}.txt"))

    def data(self, name: str) -> str:
        """The dictionaries of a recipe."""
        return str(self.root / ("joined" if recipe(name).joined else "data"))

    def checkpoint(self, name: str) -> Path:
        """The checkpoint of a recipe, saved when it is requested first."""
        path = self.root / (name.replace(",", "").replace(" ", "-") + ".pt")
        if not path.exists():
            self.save(recipe(name), self.data(name), path, seed=zlib.crc32(name.encode()))
        return path

    def save(self, recipe: Recipe, data: str, path: Path, seed: int) -> None:
        """Build the model and have fairseq's trainer save it."""
        flags = [
            "-s",
            "de",
            "-t",
            "en",
            "--cpu",
            "--optimizer",
            "adam",
            "--max-tokens",
            "100",
            "--no-save-optimizer-state",
        ]
        cfg = parsed("train", data, *flags, "--arch", "transformer", "--lr", "0.001")
        args = Namespace(
            arch=recipe.arch, _name=recipe.arch, task="translation", dropout=0.1, **recipe.args
        )
        with omegaconf_no_object_check():
            cfg.model = args
        torch.manual_seed(seed)
        task = self.task("translation", data)
        model = task.build_model(args)
        with torch.no_grad():
            for weight in model.parameters():
                weight *= recipe.spread if weight.dim() > 1 else 1.0
            for place, weight in model.decoder.named_parameters(remove_duplicate=False):
                if place.startswith(OUTPUT_LAYERS) and weight.dim() > 1:
                    weight *= 3.0
                    weight[task.target_dictionary.eos()] *= 2.0
        Trainer(cfg, task, model, task.build_criterion(cfg.criterion)).save_checkpoint(
            str(path), {}
        )

    def renamed(self, name: str, architecture: str) -> Path:
        """A recipe's checkpoint that says that it is of another architecture; only
        its name is ever read."""
        path = self.root / f"called-{architecture}.pt"
        state = torch.load(self.checkpoint(name), weights_only=False)
        state["cfg"]["model"].arch = state["cfg"]["model"]._name = architecture
        checkpoint_utils.torch_persistent_save(state, str(path))
        return path

    def old_style(self, name: str) -> Path:
        """A recipe's checkpoint as fairseq saved it before it had configurations: one
        namespace of arguments."""
        path = self.root / "old.pt"
        state = torch.load(self.checkpoint(name), weights_only=False)
        args = Namespace(
            **vars(state.pop("cfg")["model"]),
            data=self.data(name),
            source_lang="de",
            target_lang="en",
            optimizer="nag",
        )
        del args._name
        checkpoint_utils.torch_persistent_save({**state, "args": args}, str(path))
        return path

    def file(self, value: Any) -> Any:
        """A flag's value, its placeholder for a lexical table replaced by one."""
        if value != "{lexical table}":
            return value
        table = self.root / "lexical.txt"
        table.write_text(
            "".join(f"de{i} {word} 0.5\n" for i in range(9) for word in (f"en{i}", f"de{i}"))
        )
        return str(table)

    # ---- the steps of fairseq_cli.interactive.main, up to the generator

    def task(self, name: str, data: str, **flags: Any) -> Any:
        """The task, with flags of ours."""
        key = (name, data, *flags.items())
        if key not in self.tasks:
            cfg = copy.deepcopy(self.configuration(name, data).task)
            for flag, value in flags.items():
                cfg[flag] = value
            self.tasks[key] = tasks.setup_task(cfg)
        return self.tasks[key]

    def configuration(self, task: str, data: str) -> Any:
        """The command's configuration."""
        return parsed(
            "interactive",
            data,
            "-s",
            "de",
            "-t",
            "en",
            "--path",
            "named later",
            "--cpu",
            "--task",
            task,
            "--batch-size",
            "64",
        )

    def models(
        self,
        names: list[str],
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        **generation: Any,
    ) -> list:
        """Models as a command makes them ready; generation: its flags, with underscores."""
        cfg = self.settings("translation", self.data(names[0]), generation)
        out = []
        for name in names:
            path = self.checkpoint(name)
            if path not in self.states:
                self.states[path] = checkpoint_utils.load_checkpoint_to_cpu(str(path))
            state = {**self.states[path], "model": dict(self.states[path]["model"])}
            out += checkpoint_utils.load_model_ensemble(
                [str(path)], task=self.task("translation", self.data(name)), state=state
            )[0]
        for model in out:
            model.to(device, dtype)  # where the commands have --fp16 and a GPU
            model.prepare_for_inference_(cfg)
        return out

    def ensemble(self, task: str, name: str, *paths: Path) -> list:
        """Models of checkpoint files, before they are made ready."""
        return checkpoint_utils.load_model_ensemble(
            [str(path) for path in paths], task=self.task(task, self.data(name))
        )[0]

    def settings(self, task: str, data: str, generation: dict[str, Any]) -> SimpleNamespace:
        """The parts of the command's configuration that are read from here on."""
        cfg = self.configuration(task, data)
        flags = copy.deepcopy(cfg.generation)
        for name, value in {"beam": 5, "max_len_b": LONGEST, **generation}.items():
            flags[name] = value
        return SimpleNamespace(generation=flags, dataset=cfg.dataset)

    def ready(
        self,
        models: list,
        data: str,
        name: str,
        strategy: dict[str, Any] | None = None,
        **generation: Any,
    ) -> Loaded:
        """The generator of a task over models that a command has made ready, with flags of ours
        (strategy) and stock's (generation)."""
        cfg = self.settings(name, data, generation)
        task = self.task(name, data, **(strategy or {}))
        limits = utils.resolve_max_positions(
            task.max_positions(), *[model.max_positions() for model in models]
        )
        return Loaded(cfg, task, models, task.build_generator(models, cfg.generation), limits)
