"""A quick start changes no name and no setting: fairseq's registries are whole, and its
configuration is the one that hydra composes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fairseq import options
from fairseq.dataclass import utils
from fairseq.tasks import TASK_REGISTRY
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf
from sizes import drawn

import fairseq_ext.plugin.tasks  # noqa: F401
from fairseq_ext.plugin.compat.configuration import compose, value_of

ALL = """
import fairseq, json, sys
from fairseq import models, tasks
from fairseq.registry import REGISTRIES
found = {name: getattr(models, name) for name in vars(models) if name.endswith("_REGISTRY")}
found |= {name: getattr(tasks, name) for name in ("TASK_REGISTRY", "TASK_DATACLASS_REGISTRY")}
parts = "registry", "dataclass_registry"
found |= {f"{kind}/{part}": entry[part] for kind, entry in REGISTRIES.items() for part in parts}
def told(value):
    if callable(value):
        return f"{value.__module__}.{value.__qualname__}"
    return str(sorted(value) if isinstance(value, list) else value)
"""  # noqa: E501
NAMES = (
    "json.dump({name: {k: told(v) for k, v in entries.items()} for name, entries in "
    "found.items()}, sys.stdout)"
)
LOOK_UPS = """
pending = sys.modules["fairseq_ext.plugin.compat.startup"].pending
at_start = len(pending)
names = json.load(sys.stdin)
assert found["ARCH_MODEL_REGISTRY"]["lstm_wiseman_iwslt_de_en"].__name__ == "LSTMModel"
assert "fairseq.models.lstm" not in pending
assert "no_such_task" not in found["TASK_REGISTRY"]
assert found["TASK_REGISTRY"].get("no_such_task") is None
assert len(pending) > at_start - 10, "look-ups run what they need"
lacking = [(name, key) for name, given in names.items() for key in given if key not in found[name]]
assert not lacking, lacking
values = {name: {key: told(found[name][key]) for key in entries} for name, entries in names.items()}
assert values == names
try:
    found["ARCH_MODEL_REGISTRY"]["no_such_architecture"]
except KeyError:
    assert not pending, "a name that nobody registers is looked for everywhere"
print(at_start)
"""  # noqa: E501


def python(code: str, given: str = "") -> str:
    # without Python's clean-ups, which take a second where fairseq is imported
    code = f"import gc\ngc.disable()\n{code}\nimport os\nsys.stdout.flush()\nos._exit(0)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_registries_hold_what_stock_fairseq_registers():
    """Every name of stock's, with the same class, in a process where hardly any of
    its models' and tasks' files have run."""
    stock = python(ALL + NAMES)
    assert len(json.loads(stock)["ARCH_MODEL_REGISTRY"]) > 100
    quick = (
        "import sys; sys.argv = sys.orig_argv = ['fairseq-generate', '--task', 'translation_ext']\n"
        + ALL
        + LOOK_UPS
    )
    assert int(python(quick, stock)) > 50  # files and packages that had not run


def test_stock_tasks_start_as_they_always_do():
    said = python(
        "import sys; sys.argv = sys.orig_argv = ['fairseq-generate', '--task', 'translation']; "
        "import fairseq_cli.generate, gc\n"
        "startup = sys.modules['fairseq_ext.plugin.compat.startup']\n"
        "print('fairseq_ext' in sys.modules, bool(startup.pending), gc.get_threshold()[0])"
    )
    plain = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "import gc; print(gc.get_threshold()[0])"],
        capture_output=True,
        text=True,
    )
    # 700, or 2000 since Python 3.13
    assert said.splitlines()[-1] == f"False False {plain.stdout.strip()}"


LOAD = """
import os, fairseq_cli.interactive, torch
from fairseq import checkpoint_utils
stock = checkpoint_utils.load_model_ensemble
def load(paths, *arguments, **more):
    before = torch.get_rng_state()
    (model,), _ = stock(paths, *arguments, **more)
    saved = torch.load(paths[0], weights_only=False)["model"]
    own = dict(model.named_parameters())
    same = [torch.equal(own[name].float(), saved[name].float()) for name in own if name in saved]
    print(torch.equal(before, torch.get_rng_state()), len(same) > 50 and all(same), flush=True)
    os._exit(0)
checkpoint_utils.load_model_ensemble = load
fairseq_cli.interactive.cli_main()
"""


@pytest.mark.parametrize("sampling", [[], ["--sampling", "--beam", "1"]], ids=["beam", "sampling"])
def test_a_model_draws_first_weights_only_where_outputs_depend_on_the_numbers_drawn(sampling):
    demo = Path(__file__).resolve().parents[3] / "checkpoints" / "demo"
    flags = [str(demo), "--path", str(demo / "checkpoint.pt"), "-s", "de", "-t", "en", "--cpu"]
    command = ["fairseq-interactive", *flags, "--task", "translation_ext", *sampling]
    said = python(f"import sys; sys.argv = sys.orig_argv = {command}\n{LOAD}")
    assert said.splitlines()[-1].split() == [str(not sampling), "True"]


FLAGS = [
    ["--task", "translation"],
    [
        "--task",
        "translation_ext",
        "--beam",
        "7",
        "--lenpen",
        "0.6",
        "--path",
        "it's a \\ path:b.pt",
        "--remove-bpe",
        "--fp16",
    ],
    [
        "--task",
        "translation_ext",
        "--bpe",
        "sentencepiece",
        "--sentencepiece-model",
        "a b/spm.model",
        "--stop",
        "optimal",
    ],
    [
        "--task",
        "translation_ext",
        "--tokenizer",
        "moses",
        "--source-lang",
        "de",
        "--target-lang",
        "en",
        "--moses-no-escape",
    ],
    ["--task", "translation_multi_simple_epoch_ext", "--langs", "de,en", "--lang-pairs", "de-en"],
    [
        "--task",
        "language_modeling",
        "--sampling",
        "--sampling-topp",
        "0.9",
        "--nbest",
        "2",
        "--temperature",
        "1e-1",
    ],
    [
        "--task",
        "translation_ext",
        "--criterion",
        "label_smoothed_cross_entropy",
        "--lr-scheduler",
        "inverse_sqrt",
    ],
    [
        "--task",
        "translation_ext",
        "--model-overrides",
        "{'data': 'x', 'dropout': 0.0}",
        "--constraints",
        "--diverse-beam-groups",
        "2",
    ],
]


@drawn(4)
@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
def test_the_configuration_is_hydras(flags):
    args = options.parse_args_and_arch(
        options.get_interactive_generation_parser(), ["data-bin", *flags]
    )
    overrides, deletes = utils.override_module_args(args)
    folder = utils.__file__.replace("dataclass/utils.py", "config")
    with initialize_config_dir(config_dir=folder):
        expected = hydra_compose("config", overrides=overrides, strict=False)
    ours = compose(overrides)
    assert list(ours) == list(expected)
    for config in (ours, expected):
        for name in deletes:
            config[name] = None
    plain = [
        OmegaConf.to_container(config, resolve=True, enum_to_str=True)
        for config in (ours, expected)
    ]
    assert repr(plain[0]) == repr(plain[1])  # order and types too
    assert "translation_ext" in TASK_REGISTRY


VALUES = [
    "null",
    "True",
    "False",
    "0",
    "-3",
    "+4",
    "1.5",
    "1e-08",
    "-2.5e+20",
    "'a b'",
    "''",
    "'${a.b}'",
    "[]",
    "[1, 2]",
    "[0.5, 1e-3]",
    "word",
    "null_1",
    "Infinity",
]
# which hydra's own parser reads
OTHERS = [
    "['a', 'b']",
    "inf",
    "nan",
    "1_000",
    "007",
    "'it\\'s'",
    "'a\\\\b'",
    "{}",
    "NaN",
    "true",
    "TRUE",
    "Null",
]


@pytest.mark.parametrize("text", VALUES + OTHERS)
def test_a_value_is_read_as_hydras_grammar_reads_it(text):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    expected = OverridesParser.create().parse_override(f"a.b={text}").value()
    found = value_of(text, f"a.b={text}")
    assert type(found) is type(expected) and repr(found) == repr(expected)


@drawn(0)  # long
@pytest.mark.parametrize("task", [[], ["--task", "translation_ext"]], ids=["stock", "ours"])
def test_the_log_goes_to_standard_error_so_that_the_output_holds_results_alone(task):
    demo = Path(__file__).resolve().parents[3] / "checkpoints" / "demo"
    model = [
        str(demo),
        "--path",
        str(demo / "checkpoint.pt"),
        "-s",
        "de",
        "-t",
        "en",
        "--cpu",
        "--beam",
        "1",
    ]
    command = [str(Path(sys.executable).with_name("fairseq-interactive")), *model, *task]
    done = subprocess.run(
        command, input="▁Die ▁Akte .\n", capture_output=True, text=True, timeout=120, check=True
    )
    assert [line[:2] for line in done.stdout.splitlines()] == ["S-", "W-", "H-", "D-", "P-"]
    assert "| INFO | fairseq_cli.interactive | " in done.stderr
