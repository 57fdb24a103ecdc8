"""fairseq's configuration without hydra's parser, and reads of it without omegaconf's.

fairseq turns its command line into settings `group.name=value`, one for each of some 400 fields,
and hydra parses each by a grammar, which takes 0.8 s. Nearly all values are numbers, words in
quotes, true, false or null, which `value_of` reads as the grammar does. The other steps are hydra's
(1.3, _internal/config_loader_impl.py): the structured configuration of fairseq, the chosen entry of
each group, the settings.

patches.py loads this file by its path, while fairseq is being imported, and lists its two changes.
"""

import ast
import contextlib
import copy
import functools
import os
import re
import sys
import warnings
from types import ModuleType

NUMBER = r"[+-]?(?:0|[1-9][0-9]*|[0-9]+\.[0-9]+(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+)"
LITERAL = re.compile(rf"True|False|{NUMBER}|\[(?:{NUMBER}(?:, {NUMBER})*)?\]")
WORD = re.compile(
    r"'([^'\\]*)'|((?!(?:null|true|false|inf|nan)$)[A-Za-z]\w*)", re.ASCII | re.IGNORECASE
)


def value_of(text: str, override: str) -> object:
    """Return the value that hydra's grammar reads from `text`, the value of the setting
    `override`."""
    if text == "null":
        return None
    if LITERAL.fullmatch(text):
        return ast.literal_eval(text)
    if word := WORD.fullmatch(text):
        return word[1] if word[2] is None else word[2]
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
    """Compose fairseq's configuration here: hydra 1.3 warns five times of the way fairseq calls it,
    and takes 0.8 s for what takes 0.05 s.

    If a setting is invalid, hydra itself composes, and reports its own error.
    """
    stock = utils.compose
    folder = os.path.join(os.path.dirname(os.path.dirname(utils.__file__ or "")), "config")

    def composed(config_name: str, overrides: list[str], strict: bool = False):
        try:
            return compose(overrides)
        except Exception:
            from hydra import initialize_config_dir

            sys.modules["fairseq_ext.plugin.compat.startup"].run_all()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with initialize_config_dir(config_dir=folder):
                    return stock(config_name, overrides=overrides, strict=strict)

    utils.compose = composed  # type: ignore[attr-defined]
    utils.initialize = lambda config_path: contextlib.nullcontext()  # type: ignore[attr-defined]


PLAIN = {bool, int, float, type(None)}


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
