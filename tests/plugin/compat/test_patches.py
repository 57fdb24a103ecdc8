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
    "checkpoints.replace_eval": "eval",
    "repairs.dataclass_defaults": r"fairseq\..*Config\.__hash__",
    "fast_start.replace_compose": r"fairseq\.dataclass\.utils\.(compose|initialize)",
    "checkpoints.explain_refused_checkpoints": r"fairseq\.checkpoint_utils\.load_checkpoint_to_cpu",
    "checkpoints.build_plain_transformers": r"fairseq\.checkpoint_utils\.(_upgrade_state_dict|"
    r"load_model_ensemble_and_task)",
    "patches.register_named_tasks": r"fairseq\.utils\.import_user_module",
    "repairs.avoid_fused_encoder_layer": r"fairseq\.modules\.transformer_layer\."
    r"TransformerEncoderLayerBase\.__init__",
    "repairs.pin_no_memory": r"fairseq\.data\.iterators\.CountingIterator\.__init__",
    "repairs.give_arguments": r".*\.TranslationFromPretrainedBARTTask\.args",
    "repairs.give_numpy_long": r"fairseq\.data\.(token_block_dataset|language_pair_dataset)\.np",
    "uncompiled.stand_in": r"fairseq\.data\.(data_utils_fast|token_block_utils_fast)\..*",
    "uncompiled.count_ngrams": r"fairseq\.scoring\.bleu\.Scorer\.__init__",
    "repairs.silence_notices": r"warnings\.filters",
    "fairseq_ext.core.exit.install_hook": r"sys\.excepthook",
    "fairseq_ext.core.exit.watch_output": r"logging\.Handler\.handleError",
    "fairseq_ext.plugin.compat.fast_start.spare_collections": r"gc\.set_threshold",
    "fairseq_ext.plugin.compat.fast_start.import_metas_late": r"torch\._meta_registrations",
    "fairseq_ext.plugin.compat.fast_start.convert_settings_late": r"hydra\.core\.config_store\."
    r"ConfigStore\.store",
    "fairseq_ext.plugin.compat.fast_start.read_plain_values": r"omegaconf\.dictconfig\."
    r"DictConfig\.__getattr__",
    "fairseq_ext.plugin.compat.fast_start.leave_out_default_model": r"fairseq\.options\."
    r"parse_args_and_arch",
    "fairseq_ext.plugin.compat.lazy.replace_registries": r"fairseq\.([\w.]+_REGISTRY|"
    r"registry\.setup_registry)",
}
FOR_A_WHILE = {
    "fairseq_ext.core.command_line.leave_out_working_folder",
    "checkpoints.allow_plain_classes",
    "repairs.set_up_no_log",
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
    of_commands = {patch.change for patch in patches.COMMANDS + patches.QUICK}
    assert bool(of_commands & set(in_force)) == (given == COMMAND)
