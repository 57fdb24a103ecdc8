"""The list of patches is what holds: what of others' modules is ours belongs to a patch in force,
and each of those has what it says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sizes

from fairseq_ext.plugin.compat import patches

COMMAND = ["fairseq-generate", "--task", "translation_ext"]
# what each patch leaves in others' modules, as a pattern; without any, it is in
# force for a while alone
HELD = {
    "replace_eval": "eval",
    "dataclass_defaults": r"fairseq\..*Config\.__hash__",
    "read_optional_types": r"fairseq\.dataclass\.utils\.interpret_dc_type",
    "replace_compose": r"fairseq\.dataclass\.utils\.(compose|initialize)",
    "explain_refused_checkpoints": r"fairseq\.checkpoint_utils\.load_checkpoint_to_cpu",
    "build_plain_transformers": r"fairseq\.checkpoint_utils\.(_upgrade_state_dict|"
    r"load_model_ensemble_and_task)",
    "register_named_tasks": r"fairseq\.utils\.import_user_module",
    "avoid_fused_encoder_layer": r"fairseq\.modules\.transformer_layer\."
    r"TransformerEncoderLayerBase\.__init__",
    "give_arguments": r".*\.TranslationFromPretrainedBARTTask\.args",
    "give_numpy_long": r"fairseq\.data\.(token_block_dataset|language_pair_dataset)\.np",
    "replace_compiled": r"fairseq\.data\.(data_utils_fast|token_block_utils_fast)\..*|"
    r"fairseq\.scoring\.bleu\.Scorer\.(__init__|reset|add)",
    "pin_no_memory": r"fairseq\.data\.iterators\.CountingIterator\.__init__",
    "silence_notices": r"warnings\.filters",
    "report_errors": r"sys\.excepthook|logging\.Handler\.handleError",
    "spare_collections": r"gc\.set_threshold",
    "read_plain_values": r"omegaconf\.dictconfig\."
    r"DictConfig\.__getattr__",
    "replace_registries": r"fairseq\.[\w.]+_REGISTRY",
}
FOR_A_WHILE = {
    "leave_out_working_folder",
    "allow_plain_classes",
    "set_up_no_log",
    "log_as_stock",
}


@pytest.mark.parametrize(
    "given",
    [
        COMMAND,
        pytest.param(
            ["program"],
            marks=pytest.mark.skipif(not os.environ.get(sizes.ALL), reason="with --all"),
        ),
    ],
)
def test_the_list_of_patches_is_what_hangs_in_the_modules_of_others(given):
    words = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("patched.py")), *given]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found, in_force = json.loads(done.stdout)
    held = {
        change: [name for name in found if re.fullmatch(HELD[change], name)]
        for change in in_force
        if change not in FOR_A_WHILE
    }
    assert all(held.values()) and sorted(sum(held.values(), [])) == found
    of_commands = {each.change.__name__ for each in patches.PATCHES if each.is_of_command}
    assert bool(of_commands & set(in_force)) == (given == COMMAND)
