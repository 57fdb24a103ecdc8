"""A quick start changes no name and no setting: fairseq's registries are whole, its configuration
is the one that hydra composes, and the batch of a line alone is its iterator's."""

import json
import shlex
import sys

import pytest
import torch
from conftest import command, ran
from demo_model import MODEL as DEMO
from fairseq import options
from fairseq.dataclass import utils
from fairseq.dataclass.configs import GenerationConfig
from fairseq.tasks import TASK_REGISTRY
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from models import build, task
from omegaconf import OmegaConf
from plugin.compat.test_compat import python
from sizes import drawn

import fairseq_ext.plugin.tasks  # noqa: F401
from fairseq_ext.plugin.compat.configuration import compose, value_of
from fairseq_ext.plugin.input import SingleBatchIterator

MODEL = [str(DEMO), "--path", str(DEMO / "checkpoint.pt"), *"-s de -t en --cpu".split()]
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


OF_COMMAND = "import sys; sys.argv = sys.orig_argv = ['fairseq-generate',"


def test_registries_hold_what_stock_fairseq_registers():
    """Every name of stock's, with the same class, in a process where hardly any of
    its models' and tasks' files have run."""
    stock = python(ALL + NAMES).stdout
    assert len(json.loads(stock)["ARCH_MODEL_REGISTRY"]) > 100
    quick = f"{OF_COMMAND} '--task', 'translation_ext']\n{ALL}{LOOK_UPS}"
    # files and packages that had not run
    assert int(python(quick, stdin=stock).stdout) > 50


def test_stock_tasks_start_as_they_always_do():
    said = python(
        f"{OF_COMMAND} '--task', 'translation']; import fairseq_cli.generate, gc\n"
        "startup = sys.modules['fairseq_ext.plugin.compat.startup']\n"
        "print('fairseq_ext' in sys.modules, bool(startup.pending), gc.get_threshold()[0])"
    )
    alone = ["-I", "-S", "-c", "import gc; print(gc.get_threshold()[0])"]
    plain = ran(sys.executable, *alone).stdout.strip()  # 700, or 2000 since Python 3.13
    assert said.stdout.splitlines()[-1] == f"False False {plain}"


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


@pytest.mark.parametrize("sampling", [[], "--sampling --beam 1".split()], ids=["beam", "sampling"])
def test_a_model_draws_first_weights_only_where_outputs_depend_on_the_numbers_drawn(sampling):
    words = ["fairseq-interactive", *MODEL, "--task", "translation_ext", *sampling]
    said = python(f"import sys; sys.argv = sys.orig_argv = {words}\n{LOAD}")
    assert said.stdout.splitlines()[-1].split() == [str(not sampling), "True"]


FLAGS = r"""
--task translation
--task translation_ext --beam 7 --lenpen 0.6 --path "it's a \\ path:b.pt" --remove-bpe --fp16
--task translation_ext --bpe sentencepiece --sentencepiece-model "a b/spm.model" --stop optimal
--task translation_ext --tokenizer moses --source-lang de --target-lang en --moses-no-escape
--task translation_multi_simple_epoch_ext --langs de,en --lang-pairs de-en --diverse-beam-groups 2
--task language_modeling --sampling --sampling-topp 0.9 --nbest 2 --temperature 1e-1
--task translation_ext --criterion label_smoothed_cross_entropy --lr-scheduler inverse_sqrt
--task translation_ext --model-overrides "{'data': 'x', 'dropout': 0.0}" --constraints
""".split("\n")[1:-1]


@drawn(4)
@pytest.mark.parametrize("flags", FLAGS)
def test_the_configuration_is_hydras(flags):
    parser = options.get_interactive_generation_parser()
    args = options.parse_args_and_arch(parser, ["data-bin", *shlex.split(flags)])
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


VALUES = r"""
null
True
False
0
-3
+4
1.5
1e-08
-2.5e+20
'a b'
''
'${a.b}'
[]
[1, 2]
[0.5, 1e-3]
word
null_1
Infinity
['a', 'b']
inf
nan
1_000
007
'it\'s'
'a\\b'
{}
NaN
true
TRUE
Null
""".split("\n")[1:-1]


@pytest.mark.parametrize("text", VALUES)  # hydra's own parser reads the last twelve
def test_a_value_is_read_as_hydras_grammar_reads_it(text):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    expected = OverridesParser.create().parse_override(f"a.b={text}").value()
    found = value_of(text, f"a.b={text}")
    assert type(found) is type(expected) and repr(found) == repr(expected)


@drawn(0)  # long
@pytest.mark.parametrize("given", [[], ["--task", "translation_ext"]], ids=["stock", "ours"])
def test_the_log_goes_to_standard_error_so_that_the_output_holds_results_alone(given):
    flags = [*MODEL, "--beam", 1, *given]
    done = command("fairseq-interactive", *flags, stdin="▁Die ▁Akte .\n", cold=True)
    assert [line[:2] for line in done.stdout.splitlines()] == ["S-", "W-", "H-", "D-", "P-"]
    assert "| INFO | fairseq_cli.interactive | " in done.stderr


# ---- A line alone is batched without fairseq's iterator


def batches(*lines: torch.Tensor, longest: int = 64, match_source_len: bool = False):
    """An *_ext task's batches of these lines, as fairseq-interactive requests them; and stock's."""
    both, how = [], {"max_sentences": 1, "ignore_invalid_inputs": False, "max_tokens": None}
    for name in ("translation_ext", "translation"):
        found = task(name)
        if name.endswith("_ext"):
            cfg = GenerationConfig(beam=2, nbest=2, match_source_len=match_source_len)
            found.build_generator([build("transformer")], cfg)
        dataset = found.build_dataset_for_inference([*lines], [*map(len, lines)])
        both.append(
            found.get_batch_iterator(dataset=dataset, max_positions=(longest, longest), **how)
        )
    return both


def line(n: int) -> torch.Tensor:
    return torch.cat([torch.arange(5, 5 + n), torch.tensor([2])])


def flat(value):
    if isinstance(value, dict):
        return {name: flat(part) for name, part in value.items()}
    return value.tolist() if torch.is_tensor(value) else value


@pytest.mark.parametrize("tokens", [line(0), line(1), line(9), torch.tensor([5, 1, 6, 2])])
def test_the_batch_is_fairseqs(tokens):
    both = batches(tokens)
    assert isinstance(both[0], SingleBatchIterator)
    ours, stock = ([*map(flat, each.next_epoch_itr(shuffle=False))] for each in both)
    assert ours == stock


def test_what_the_iterator_refuses_it_still_refuses():
    with pytest.raises(Exception, match="Size of sample #0 is invalid"):
        batches(line(9), longest=5)


def test_several_lines_and_stocks_own_search_take_the_iterator():
    """fairseq's iterator draws a random number, on which what stock's searches draw
    behind it may depend."""
    for ours, _ in (batches(line(3), line(4)), batches(line(3), match_source_len=True)):
        assert not isinstance(ours, SingleBatchIterator)
