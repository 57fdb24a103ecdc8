"""What lets stock fairseq run on current Python and torch: light at start-up, narrow in what
it changes, and safe."""

import dataclasses
import importlib
import json
import os
import pickle
import random
import re
import subprocess
import sys
import zipfile
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import fairseq.dataclass.utils
import numpy as np
import pytest
import sizes
import torch
from conftest import ran
from demo_model import MODEL as DEMO
from fairseq import checkpoint_utils, options
from fairseq.data import data_utils_fast, token_block_utils_fast
from fairseq.scoring import bleu

from fairseq_ext.plugin.compat import checkpoints, patches, startup, uncompiled

CURRENT = sys.version_info >= (3, 11)  # the Pythons that refuse fairseq's dataclasses


def python(code: str, *arguments: object, **how) -> subprocess.CompletedProcess:
    """Run code without Python's clean-ups, which take a second where fairseq is imported."""
    code = f"import gc\ngc.disable()\n{code}\nimport os, sys\nsys.stdout.flush()\nos._exit(0)"
    return ran(sys.executable, "-c", code, *arguments, **how)


# ---- start-up


def test_the_hook_imports_nothing_heavy_at_start_up():
    loaded = python("import sys; print(*sys.modules)").stdout.split()
    heavy = "torch numpy fairseq fairseq_ext dataclasses inspect importlib.abc"
    assert not {*loaded} & {*heavy.split()}


EXPORT = """
import sys, torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
folder, file = sys.argv[1:]
[model], _, task = load_model_ensemble_and_task([f"{folder}/checkpoint.pt"], {"data": folder})
torch.jit.script(model.eval()).save(file)
pad, eos = task.source_dictionary.pad(), task.source_dictionary.eos()
source = torch.tensor([[5, 6, 7, eos], [pad, pad, 8, eos]])
given = source, torch.tensor([4, 2]), torch.tensor([[eos, 9, 10], [eos, 11, pad]])
torch.testing.assert_close(torch.jit.load(file)(*given)[0], model(*given)[0])
print("fairseq_ext" in sys.modules)
"""  # noqa: E501


def test_stock_fairseq_exports_its_transformer_to_torchscript_without_our_package_being_imported(
    tmp_path,
):
    """What TorchScript cannot compile must not hang in its classes."""
    assert python(EXPORT, DEMO, tmp_path / "model.ts").stdout.split()[-1] == "False"


def test_an_option_of_an_optional_field_has_the_fields_type_as_python_3_14_writes_it():
    kinds = (int, str, float | None, bool)
    utils = SimpleNamespace(interpret_dc_type=fairseq.dataclass.utils.interpret_dc_type)
    patches.read_optional_types(utils)
    assert [utils.interpret_dc_type(kind) for kind in kinds] == [int, str, float, bool]


def test_a_file_that_the_hook_loads_by_its_path_is_the_module_that_others_import():
    assert checkpoints is startup.load("plugin.compat.checkpoints")
    assert checkpoint_utils.load_checkpoint_to_cpu.__globals__ is vars(checkpoints), (
        "one lock and one list of classes"
    )


def test_hydra_says_nothing_and_other_warnings_stay():
    done = python(
        "import warnings; from argparse import Namespace; from fairseq.dataclass import utils; "
        "utils.convert_namespace_to_omegaconf(Namespace()); warnings.warn('mine')"
    )
    assert "mine" in done.stderr
    assert "hydra" not in done.stderr and "version_base" not in done.stderr


# ---- dataclasses


@pytest.mark.skipif(not CURRENT, reason="nothing is changed on Python 3.10")
def test_only_fairseqs_dataclasses_are_let_through():
    theirs = dataclasses.make_dataclass("Theirs", [("number", int, 1)])
    for default in (theirs(), [], {}):
        field = ("value", object, dataclasses.field(default=default))
        with pytest.raises(ValueError, match="mutable default"):
            dataclasses.make_dataclass("Holder", [field])


def test_a_fairseq_dataclass_stays_the_default_itself(tmp_path):
    """fairseq reads `.default`; a default_factory would give hydra MISSING.

    So it is in fairseq and in a --user-dir, and nowhere else.
    """
    code = """
import dataclasses
from fairseq.dataclass import FairseqDataclass
@dataclasses.dataclass
class Inner(FairseqDataclass):
    number: int = 1
inner = Inner()
fields = [("inner", Inner, dataclasses.field(default=inner))]
Outer = dataclasses.make_dataclass("Outer", fields, bases=(FairseqDataclass,))
"""  # noqa: E501
    (tmp_path / "with_defaults").mkdir()
    (tmp_path / "with_defaults" / "__init__.py").write_text(code)
    stock = dataclasses._get_field
    options.utils.import_user_module(Namespace(user_dir=str(tmp_path / "with_defaults")))
    theirs = sys.modules["with_defaults"]
    assert theirs.Outer().inner is theirs.inner
    assert dataclasses.fields(theirs.Outer)[-1].default is theirs.inner
    assert dataclasses._get_field is stock and stock.__module__ == "dataclasses"
    if CURRENT:
        with pytest.raises(ValueError, match="mutable default"):
            exec(code, {"__name__": "elsewhere"})


# ---- checkpoints


class Foreign:
    """A class that a checkpoint has no business to hold; unpickling it would leave a mark."""

    def __reduce__(self):
        return (exec, (f"open({self.mark!r}, 'w').close()",))


# what fairseq wants of every checkpoint besides its settings and weights
HISTORY = {
    "optimizer_history": [{"num_updates": 1, "lr_scheduler_state": {}}],
    "extra_state": {"train_iterator": {"epoch": 1}},
}


def test_a_checkpoint_of_plain_containers_loads(tmp_path):
    path = str(tmp_path / "plain.pt")
    settings = Namespace(arch="transformer", task="translation", lr=[np.float64(0.1)])
    torch.save({"args": settings, "model": {"w": torch.ones(2)}, **HISTORY}, path)
    before = set(torch.serialization.get_safe_globals())
    loaded = checkpoint_utils.load_checkpoint_to_cpu(path)
    assert set(torch.serialization.get_safe_globals()) == before  # torch gives them in any order
    # torch is what it was for everybody else
    with pytest.raises(pickle.UnpicklingError, match="argparse.Namespace"):
        torch.load(path)
    assert loaded["args"].arch == "transformer" and loaded["model"]["w"].sum() == 2


@pytest.mark.parametrize("core", ["core", "_core"])
def test_a_number_that_numpy_1_or_2_has_saved_is_read(core, tmp_path):
    own = np.float64(0).__reduce__()[0].__module__.encode()
    state = {"args": None, "lr": np.float64(0.25), "model": {}, **HISTORY}
    torch.save(state, tmp_path / "own.pt")
    with (
        zipfile.ZipFile(tmp_path / "own.pt") as saved,
        zipfile.ZipFile(tmp_path / "theirs.pt", "w") as theirs,
    ):
        parts = {name: saved.read(name) for name in saved.namelist()}
        assert sum(own in part for part in parts.values()) == 1
        for name, part in parts.items():
            theirs.writestr(name, part.replace(own, f"numpy.{core}.multiarray".encode()))
    assert checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "theirs.pt"))["lr"] == 0.25


def test_pickled_code_is_refused_and_not_run(tmp_path):
    foreign = Foreign()
    foreign.mark = str(tmp_path / "code was run")
    torch.save({"args": foreign, "model": {}}, tmp_path / "foreign.pt")
    said = "foreign.pt holds builtins.exec, .* set FAIRSEQ_EXT_ALLOW_GLOBALS="
    with pytest.raises(OSError, match=said):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "foreign.pt"))
    assert not (tmp_path / "code was run").exists()


def test_a_foreign_class_is_named_and_loads_with_the_opt_in(tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text("class Settings:\n    lr = 0.1\n")
    path = str(tmp_path / "theirs.pt")
    monkeypatch.syspath_prepend(tmp_path)
    held = {"extra": importlib.import_module("theirs").Settings()}
    torch.save({"args": None, "cfg": None, "model": {}, **held, **HISTORY}, path)
    said = "theirs.pt holds theirs.Settings.*FAIRSEQ_EXT_ALLOW_GLOBALS=theirs.Settings"
    with pytest.raises(OSError, match=said):
        checkpoint_utils.load_checkpoint_to_cpu(path)
    load = (
        "from fairseq import checkpoint_utils; "
        f"print(checkpoint_utils.load_checkpoint_to_cpu({path!r})['extra'].lr)"
    )
    allowed = python(load, PYTHONPATH=str(tmp_path), FAIRSEQ_EXT_ALLOW_GLOBALS="theirs.Settings")
    assert allowed.stdout.endswith("0.1\n"), allowed.stderr


# ---- The list of patches is what holds:  what of others' modules is ours belongs to a patch in


COMMAND = "fairseq-generate --task translation_ext".split()


# what each patch leaves in others' modules, as a pattern; without any, it is in
# force for a while alone
HELD = dict(
    line.split()
    for line in r"""
replace_eval eval
dataclass_defaults fairseq\..*Config\.__hash__
read_optional_types fairseq\.dataclass\.utils\.interpret_dc_type
replace_compose fairseq\.dataclass\.utils\.(compose|initialize)
explain_refused_checkpoints fairseq\.checkpoint_utils\.load_checkpoint_to_cpu
check_models fairseq\.checkpoint_utils\.(_upgrade_state|load_model_ensemble_and_task).*
register_named_tasks fairseq\.utils\.import_user_module
avoid_fused_encoder_layer fairseq\.modules\.transformer_layer\..*EncoderLayerBase\.__init__
give_arguments .*\.TranslationFromPretrainedBARTTask\.args
give_numpy_long fairseq\.data\.(token_block_dataset|language_pair_dataset)\.np
replace_compiled fairseq\.(data\.(data|token_block)_utils_fast|scoring\.bleu\.Scorer)\..*
pin_no_memory fairseq\.data\.iterators\.CountingIterator\.__init__
silence_notices warnings\.filters
report_errors (sys\.except|logging\.Handler\.handleE|argparse\.ArgumentParser\._print_m).*
spare_collections gc\.set_threshold
read_plain_values omegaconf\.dictconfig\.DictConfig\.__getattr__
replace_registries fairseq\.[\w.]+_REGISTRY
""".strip().splitlines()
)


FOR_A_WHILE = {*"leave_out_working_folder allow_plain_classes set_up_no_log log_as_stock".split()}


NEEDS_ALL = pytest.mark.skipif(not os.environ.get(sizes.ALL), reason="with --all")


@pytest.mark.parametrize("given", [COMMAND, pytest.param(["program"], marks=NEEDS_ALL)])
def test_the_list_of_patches_is_what_hangs_in_the_modules_of_others(given):
    program = Path(__file__).with_name("patched.py")
    found, in_force = json.loads(ran(sys.executable, "-W", "ignore", program, *given).stdout)
    held = {
        change: [name for name in found if re.fullmatch(HELD[change], name)]
        for change in in_force
        if change not in FOR_A_WHILE
    }
    assert all(held.values()) and sorted(sum(held.values(), [])) == found
    of_commands = {each.change.__name__ for each in patches.PATCHES if each.is_of_command}
    assert bool(of_commands & set(in_force)) == (given == COMMAND)


# ---- What stands in for fairseq's compiled modules gives what these give


def test_batches_are_those_of_the_compiled_function():
    """Of the two that take sizes, or a function that returns them."""
    chance = random.Random(1)
    for _ in range(300):
        sizes = np.array([chance.randint(1, 30) for _ in range(chance.randrange(40))], np.int64)
        if chance.random() < 0.5:
            sizes.sort()
        indices = np.array(chance.sample(range(len(sizes)), len(sizes)), np.int64)
        limits = [*map(chance.choice, ([-1, 30, 31, 64, 200], [-1, 1, 2, 5, 8], [1, 2, 8]))]
        for given, function in (
            (sizes, "batch_by_size_vec"),
            (sizes.__getitem__, "batch_by_size_fn"),
        ):
            both = [getattr(module, function) for module in (data_utils_fast, uncompiled)]
            expected, got = ([*map(list, call(indices, given, *limits))] for call in both)
            assert got == expected, (sizes, limits)


def test_a_sentence_longer_than_a_batch_is_refused_in_the_same_words():
    for functions in (data_utils_fast, uncompiled):
        said = "Sentences lengths should not exceed max_tokens=8"
        with pytest.raises(AssertionError, match=said):
            functions.batch_by_size_vec(np.arange(2), np.array([3, 9]), 8, -1, 1)


@pytest.mark.parametrize("mode", ["none", "eos"])
def test_blocks_of_a_text_are_those_of_the_compiled_functions(mode):
    chance = random.Random(2)
    for _ in range(100):
        sizes = np.array([chance.randint(1, 12) for _ in range(chance.randint(1, 30))], np.int64)
        expected = token_block_utils_fast._get_slice_indices_fast(
            sizes, mode, chance.choice([1, 7, 50]) if mode == "none" else 0, 1
        )
        size = expected[0, 1] if mode == "none" else 0
        got = uncompiled.slices(sizes, mode, int(size), 1)
        assert got.tolist() == expected.tolist()
        theirs = token_block_utils_fast._get_block_to_dataset_index_fast(sizes, expected)
        assert uncompiled.sentences_of(sizes, got).tolist() == theirs.tolist()


def test_bleu_counts_are_libbleus(monkeypatch):
    chance, settings = random.Random(3), bleu.BleuConfig(pad=1, eos=2, unk=4)
    names = [name for name, _ in bleu.Scorer(settings).stat._fields_]
    pairs = [
        # the compiled function takes no empty text
        [torch.IntTensor([*chance.choices(range(1, 8), k=chance.randint(0, 14)), 5]) for _ in "ab"]
        for _ in range(200)
    ]

    def counts(one_init: bool) -> tuple:
        scorer = bleu.Scorer(settings)
        if one_init:
            scorer.reset(one_init=True)
        for pair in pairs:
            scorer.add(*pair)
        return [getattr(scorer.stat, name) for name in names], scorer.result_string()

    expected = [*map(counts, (False, True))]
    for name in ("__init__", "reset", "add"):
        monkeypatch.setattr(bleu.Scorer, name, getattr(bleu.Scorer, name))  # taken back afterwards
    uncompiled.replace_compiled(bleu)
    assert [*map(counts, (False, True))] == expected
