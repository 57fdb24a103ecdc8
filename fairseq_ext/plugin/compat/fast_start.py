"""A quick start of commands: configuration without hydra's parser, and fewer garbage collections.

patches.py loads this module by its path, while fairseq is being imported: it imports the
standard library only.
"""

import argparse
import atexit
import contextlib
import copy
import functools
import gc
import importlib.abc
import importlib.machinery
import logging
import os
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

# ---- fairseq's configuration without hydra's parser
#
# It is composed as in hydra, whose parser reads some 400 settings in 0.8 s; this takes 0.05 s.
#
# fairseq turns its command line into settings `group.name=value`, one for each field, and hydra
# parses each by a grammar. Nearly all values are numbers, words in quotes, true, false or null,
# which `value_of` reads as the grammar does; hydra's own parser reads the others. The other steps
# are hydra's: the structured configuration of fairseq, the chosen entry of each group, the settings
# (hydra 1.3, _internal/config_loader_impl.py). If that fails, hydra itself composes, and reports
# its own error.


WORDS = {"null": None, "True": True, "False": False}
INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
FLOAT = re.compile(r"[+-]?[0-9]+\.[0-9]+(e[+-]?[0-9]+)?|[+-]?[0-9]+e[+-]?[0-9]+")
QUOTED = re.compile(r"'[^'\\]*'")
NAME = re.compile(r"(?!(?:null|true|false|inf|nan)$)[A-Za-z]\w*", re.ASCII | re.IGNORECASE)
NUMBERS = re.compile(r"\[([0-9.e+-]+(, [0-9.e+-]+)*)?\]")


def value_of(text: str, override: str) -> object:
    """Return the value that hydra's grammar reads from `text`, the value of the setting
    `override`."""
    if text in WORDS:
        return WORDS[text]
    if INTEGER.fullmatch(text):
        return int(text)
    if FLOAT.fullmatch(text):
        return float(text)
    if NAME.fullmatch(text):
        return text
    if QUOTED.fullmatch(text):
        return text[1:-1]
    items = text[1:-1].split(", ") if NUMBERS.fullmatch(text) else [""]
    if items == [""] and text == "[]":
        return []
    if all(INTEGER.fullmatch(item) or FLOAT.fullmatch(item) for item in items):
        return [int(item) if INTEGER.fullmatch(item) else float(item) for item in items]
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(override).value()


@functools.cache
def defaults():
    """Return fairseq's own configuration (DictConfig), which the caller copies."""
    from fairseq.dataclass.configs import FairseqConfig
    from omegaconf import OmegaConf

    return OmegaConf.structured(FairseqConfig)


def compose(overrides: list[str]):
    """Return the configuration of these settings (DictConfig), as hydra's compose("config",
    overrides, strict=False) in fairseq/config does.

    Errors: those of omegaconf and hydra for invalid settings.
    """
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf, ValueNode

    cfg = copy.deepcopy(defaults())
    settings = [override.partition("=") for override in overrides]
    for group, _, name in settings:
        if "." not in group:
            cfg[group] = ConfigStore.instance().repo[group][f"{name}.yaml"].node
    OmegaConf.set_struct(cfg, True)
    for (key, _, text), override in zip(settings, overrides, strict=True):
        if "." in key:
            value, node = value_of(text, override), cfg
            for name in key.split("."):
                node = node._get_node(name) if OmegaConf.is_dict(node) else None
            # nearly all settings are the defaults
            if not isinstance(node, ValueNode) or (
                (type(node._value()), node._value()) != (type(value), value)
            ):
                OmegaConf.update(cfg, key, value, merge=True)
    OmegaConf.set_struct(cfg, False)
    return cfg


def replace_compose(utils: ModuleType) -> None:
    """Let fairseq.dataclass.utils use `compose`."""
    stock = utils.compose
    folder = os.path.join(os.path.dirname(os.path.dirname(utils.__file__ or "")), "config")

    def composed(config_name: str, overrides: list[str], strict: bool = False):
        try:
            return compose(overrides)
        except Exception:  # hydra reports what is wrong with a setting
            from hydra import initialize_config_dir

            if lazy := sys.modules.get("fairseq_ext.plugin.compat.lazy"):
                lazy.run_all()
            with initialize_config_dir(config_dir=folder):
                return stock(config_name, overrides=overrides, strict=strict)

    utils.compose = composed  # type: ignore[attr-defined]
    utils.initialize = lambda config_path: contextlib.nullcontext()  # type: ignore[attr-defined]


def convert_settings_late(initialize: ModuleType) -> None:
    """Let hydra's store convert a dataclass into omegaconf's form when it is first read: a command
    reads 3 of some 40."""
    from hydra.core.config_store import ConfigNode, ConfigStore
    from omegaconf import OmegaConf

    class LateNode(ConfigNode):
        """An entry whose `node` is made by the first look at it."""

        def __init__(self, given: object, **fields: str | None) -> None:
            vars(self).update(fields, given=given)

        def __getattr__(self, name: str) -> object:
            if name != "node":
                raise AttributeError(name)
            self.node = OmegaConf.structured(self.given)
            return self.node

    def store(self, name: str, node, group=None, package=None, provider=None) -> None:
        entries, name = self.repo, f"{name.removesuffix('.yaml')}.yaml"
        for part in [] if group is None else group.split("/"):
            entries = entries.setdefault(part, {})
        entries[name] = LateNode(node, name=name, group=group, package=package, provider=provider)

    ConfigStore.store = store  # type: ignore[method-assign]


# ---- Other parts of a quick start, together with lazy.py


METAS = "torch._meta_registrations"
WITH_METAS = (  # modules that torch imports for them alone
    "torch._decomp",
    "torch._prims",
    "torch._prims_common.wrappers",
    "torch._refs",
    "torch.testing._internal.common_dtype",
    "torch.utils._content_store",
)
TORCH_VERSIONS = ("2.13.",)  # whose list this is
# packages that make models of tensors without data; so may a folder of --user-dir (patches.py)
USES_METAS = ("accelerate", "transformers")


class MetasFinder(importlib.abc.MetaPathFinder):
    """Imports METAS before the first of these modules, in torch's own order."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname == "torch.utils.data":
            # METAS would set it: without it torch.Generator() raises
            metaclass = importlib.import_module("torch._opaque_base").OpaqueBaseMeta
            sys.modules["torch._C"]._set_generator_metaclass(metaclass)
        if fullname in (*WITH_METAS, *USES_METAS):
            import_metas()
        if fullname not in WITH_METAS:
            return None
        from fairseq_ext.plugin.compat.lazy import AlreadyImportedLoader

        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        spec.loader = AlreadyImportedLoader(sys.modules[fullname], spec.loader)
        sys.modules[fullname].__spec__ = spec
        return spec


def import_metas() -> None:
    """Import METAS now, if that was left for later."""
    for finder in [each for each in sys.meta_path if isinstance(each, MetasFinder)]:
        sys.meta_path.remove(finder)
        del sys.modules[METAS]
        importlib.import_module(METAS)


def import_metas_late() -> bool:
    """Let torch import its rules for tensors without data, and what they need, when something needs
    them: torch.compile, torch.export, fake tensors. They are a third of `import torch`."""
    try:
        is_known = version("torch").startswith(TORCH_VERSIONS)
    except PackageNotFoundError:
        return False
    if not is_known or "torch" in sys.modules:
        return False

    def missing(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        importlib.import_module("torch._decomp")
        return getattr(sys.modules[METAS], name)

    sys.modules[METAS] = stand_in = ModuleType(METAS)
    stand_in.__getattr__ = missing  # type: ignore[method-assign]
    sys.meta_path.insert(0, MetasFinder())
    return True


PLAIN = {bool, int, float, type(None)}
# for gc.set_threshold: in fairseq's commands until the task is set up, and from then on
NO_COLLECTIONS, FEW_COLLECTIONS = (2_000_000, 50, 100), (200_000, 50, 100)


def spare_collections() -> None:
    """Let the garbage collector rest during imports, run less often later, and not at all at the
    end: that saves a second in all.

    The imports of torch and fairseq make a million objects that stay to the end, where Python would
    look through them three times.
    """
    from fairseq_ext.core.command_line import is_fairseq_command

    gc.set_threshold(*(NO_COLLECTIONS if is_fairseq_command() else FEW_COLLECTIONS))
    atexit.register(gc.freeze)


def keep_imported() -> None:
    """Let no collection look at what a command of fairseq's has imported, once that is all."""
    gc.freeze()
    if gc.get_threshold() == NO_COLLECTIONS:
        gc.set_threshold(*FEW_COLLECTIONS)


def leave_out_default_model(options: ModuleType) -> None:
    """Let fairseq-generate have no --arch unless one is given, as fairseq-interactive: its default,
    a speech model, is for other tasks."""
    stock = options.parse_args_and_arch

    def parse_args_and_arch(parser, input_args=None, *more, **named):
        from fairseq_ext.core import command_line

        given = command_line.arguments() if input_args is None else input_args
        if not any(
            argument in ("-a", "--arch") or argument.startswith("--arch=") for argument in given
        ):
            for action in parser._actions:
                if action.dest == "arch" and action.default == "wav2vec2":
                    action.default = argparse.SUPPRESS
        return stock(parser, input_args, *more, **named)

    options.parse_args_and_arch = parse_args_and_arch  # type: ignore[attr-defined]


def read_plain_values(utils: ModuleType) -> None:
    """Return plain values of a configuration directly: omegaconf takes 40 us, and
    fairseq-interactive reads 23 for each line.

    Plain are numbers, truth values, None, existing groups, and strings without interpolation;
    omegaconf returns the others.
    """
    from omegaconf import DictConfig, ValueNode

    stock = DictConfig.__getattr__

    def plain_value(self, key: str):
        content = self.__dict__.get("_content")
        node = content.get(key) if type(content) is dict else None
        if isinstance(node, ValueNode):
            value = node.__dict__.get("_val", "???")
            if type(value) in PLAIN or (type(value) is str and "$" not in value and value != "???"):
                return value
        elif type(node) is DictConfig and type(node.__dict__.get("_content")) is dict:
            return node
        return stock(self, key)

    DictConfig.__getattr__ = plain_value  # type: ignore[method-assign]


def log_as_stock(tasks: ModuleType) -> bool:
    """Send the log of a fairseq command to standard error and return True; False in other programs.

    In stock fairseq the import of a rarely used task does so, before the command would choose
    standard output.
    """
    of_fairseq = "fairseq_cli" in sys.modules
    if of_fairseq:
        logging.basicConfig(
            format="%(asctime)s | %(levelname)s | %(name)s | %(message)s",
            datefmt="%Y-%m-%d %H:%M:%S",
            level=os.environ.get("LOGLEVEL", "INFO").upper(),
        )
    return of_fairseq
