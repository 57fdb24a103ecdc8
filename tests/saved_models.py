"""Tiny random checkpoints of every architecture that fairseq translates with (the recipes of
models.py), written by its Trainer and read by its commands' steps.

    saved = Saved(tmp_path)  # dictionaries; a checkpoint is saved when it is first needed
    models = saved.models(["lstm"], beam=5)  # what fairseq-interactive does before it reads lines
    stock = saved.ready(models, saved.data("lstm"), "translation", beam=5)
    stock.translate(["de1 de7", "de3"])  # n-best lists, in the order of the lines
"""

from __future__ import annotations

import copy
import functools
import random
import zlib
from argparse import Namespace
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from fairseq import checkpoint_utils, options, tasks, utils
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf, omegaconf_no_object_check
from fairseq.trainer import Trainer
from fairseq_cli.interactive import make_batches
from models import on_device, recipe, sharpen

import fairseq_ext  # noqa: F401  registers translation_ext

WORDS = {"de": 29, "en": 23}  # without fairseq's four special symbols
LIMITS = dict(max_source_positions=40, max_target_positions=38)
LONGEST = 7  # length limit of the searches


def lines(count, equal, seed=0):
    """Made-up source lines, of one length or of lengths from 1 to 12."""
    chance = random.Random(f"{count} {equal} {seed}")
    same = chance.randint(2, 7)
    lengths = (same if equal else chance.randint(1, 12) for _ in range(count))
    return [" ".join(f"de{chance.randrange(WORDS['de'])}" for _ in range(n)) for n in lengths]


@functools.cache
def parsed(kind, *arguments):
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

    def translate(self, text):
        """n-best lists, in the order of the lines, which are one batch."""
        out = [[] for _ in text]
        device = next(self.models[0].parameters()).device
        for batch in make_batches(list(text), self.cfg, self.task, self.max_positions, lambda x: x):
            inputs = {"src_tokens": batch.src_tokens, "src_lengths": batch.src_lengths}
            sample = on_device({"net_input": inputs}, device)
            found = self.task.inference_step(self.generator, self.models, sample)
            for i, nbest in zip(batch.ids.tolist(), found, strict=True):
                out[i] = nbest
        return out


class Saved:
    """A folder of dictionaries and checkpoints.

    What takes long (reading a configuration) is done once.
    """

    def __init__(self, root):
        self.root = root
        self.states = {}
        self.tasks = {}
        for name, words in (("data", WORDS), ("joined", dict.fromkeys(WORDS, WORDS["de"]))):
            (root / name).mkdir()
            for language, count in words.items():
                dictionary = Dictionary()
                for i in range(count):
                    dictionary.add_symbol(f"{'de' if name == 'joined' else language}{i}", n=100 - i)
                dictionary.save(str(root / name / f"dict.{language}.txt"))

    def data(self, name):
        """The dictionaries of a recipe."""
        return str(self.root / ("joined" if recipe(name).joined else "data"))

    def checkpoint(self, name):
        """The checkpoint of a recipe, saved when it is requested first."""
        path = self.root / (name.replace(",", "").replace(" ", "-") + ".pt")
        if not path.exists():
            self.save(recipe(name), self.data(name), path, seed=zlib.crc32(name.encode()))
        return path

    def save(self, recipe, data, path, seed):
        """Build the model and have fairseq's trainer save it."""
        flags = "-s de -t en --cpu --optimizer adam --max-tokens 100 --no-save-optimizer-state"
        cfg = parsed("train", data, *flags.split(), *"--arch transformer --lr 0.001".split())
        named = dict(arch=recipe.arch, _name=recipe.arch, task="translation", dropout=0.1)
        args = Namespace(**named, **recipe.args | LIMITS)
        with omegaconf_no_object_check():
            cfg.model = args
        torch.manual_seed(seed)
        task = self.task("translation", data)
        model = task.build_model(args)
        sharpen(model, task.target_dictionary.eos(), recipe.spread)
        Trainer(cfg, task, model, task.build_criterion(cfg.criterion)).save_checkpoint(
            str(path), {}
        )

    def renamed(self, name, architecture):
        """A recipe's checkpoint that says that it is of another architecture; only
        its name is ever read."""
        path = self.root / f"called-{architecture}.pt"
        state = torch.load(self.checkpoint(name), weights_only=False)
        state["cfg"]["model"].arch = state["cfg"]["model"]._name = architecture
        checkpoint_utils.torch_persistent_save(state, str(path))
        return path

    def old_style(self, name):
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

    def file(self, value):
        """A flag's value, its placeholder for a lexical table replaced by one."""
        if value != "{lexical table}":
            return value
        table = self.root / "lexical.txt"
        table.write_text(
            "".join(f"de{i} {word} 0.5\n" for i in range(9) for word in (f"en{i}", f"de{i}"))
        )
        return str(table)

    # ---- the steps of fairseq_cli.interactive.main, up to the generator

    def task(self, name, data, **flags):
        """The task, with flags of ours."""
        key = (name, data, *flags.items())
        if key not in self.tasks:
            cfg = copy.deepcopy(self.configuration(name, data).task)
            for flag, value in flags.items():
                cfg[flag] = value
            self.tasks[key] = tasks.setup_task(cfg)
        return self.tasks[key]

    def configuration(self, task, data):
        """The command's configuration."""
        flags = f"-s de -t en --path later --cpu --task {task} --batch-size 64"
        return parsed("interactive", data, *flags.split())

    def models(self, names, dtype=torch.float64, device="cpu", **generation):
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

    def ensemble(self, task, name, *paths):
        """Models of checkpoint files, before they are made ready."""
        return checkpoint_utils.load_model_ensemble(
            [str(path) for path in paths], task=self.task(task, self.data(name))
        )[0]

    def settings(self, task, data, generation):
        """The parts of the command's configuration that are read from here on."""
        cfg = self.configuration(task, data)
        flags = copy.deepcopy(cfg.generation)
        for name, value in {"beam": 5, "max_len_b": LONGEST, **generation}.items():
            flags[name] = value
        return SimpleNamespace(generation=flags, dataset=cfg.dataset)

    def ready(self, models, data, name, strategy=None, **generation):
        """The generator of a task over models that a command has made ready, with flags of ours
        (strategy) and stock's (generation)."""
        cfg = self.settings(name, data, generation)
        task = self.task(name, data, **(strategy or {}))
        limits = utils.resolve_max_positions(
            task.max_positions(), *[model.max_positions() for model in models]
        )
        return Loaded(cfg, task, models, task.build_generator(models, cfg.generation), limits)
