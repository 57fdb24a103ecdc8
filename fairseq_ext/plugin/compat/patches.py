"""Every change that this package makes to another: fairseq, hydra, omegaconf, torch, Python's own
library. `python -m fairseq_ext.doctor` lists those in force.

EVERYWHERE has the changes that stock fairseq 0.12.2 needs on current Python, torch, numpy and
hydra, and those that keep a checkpoint from running code; any program that imports fairseq gets
them. COMMANDS has those that are made in the process of a command alone (core/command_line.py).
While such a command builds its model, loading/checkpoint.py replaces functions of torch.nn.init.

startup.py loads this file by its path, while fairseq is being imported, and makes the changes.
"""

import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import NamedTuple

PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Patch(NamedTuple):
    what: str  # the changed function or module
    why: str
    # the function that makes the change, in a file of this folder or in a module of the package; it
    # returns False if no change is needed
    change: str
    # modules of fairseq that the function gets; without any it is called once
    modules: tuple[str, ...] = ()
    # called before the module runs, and returns a context for that; else called after it
    early: bool = False


ALL = ("fairseq.",)  # every module of fairseq
EVERYWHERE = (
    Patch(
        "eval in the modules of fairseq",
        "a checkpoint's settings are read as literals and run no code",
        "checkpoints.replace_eval",
        ALL,
        True,
    ),
    *[
        Patch(
            "dataclasses._get_field, while a module of fairseq or a --user-dir is imported, and "
            "__hash__ of the classes of its defaults",
            "Python 3.11 refuses dataclass instances as defaults, which fairseq's "
            "configuration has",
            "repairs.dataclass_defaults",
            ALL,
            True,
        )
    ][: sys.version_info >= (3, 11)],
    *[
        Patch(
            "interpret_dc_type in fairseq.dataclass.utils",
            "Python 3.14 writes Optional[X] as X | None, which fairseq does not know",
            "repairs.read_optional_types",
            ("fairseq.dataclass.utils",),
        )
    ][: sys.version_info >= (3, 14)],
    Patch(
        "initialize and compose in fairseq.dataclass.utils",
        "hydra 1.3 warns five times of the way fairseq calls it, and takes 0.8 s for what "
        "takes 0.05 s here",
        "fast_start.replace_compose",
        ("fairseq.dataclass.utils",),
    ),
    Patch(
        "torch's safe globals, while fairseq.checkpoint_utils and fairseq.distributed.utils read",
        "torch 2.6 refuses the plain classes that fairseq's checkpoints hold",
        "checkpoints.allow_plain_classes",
        ("fairseq.checkpoint_utils", "fairseq.distributed.utils"),
    ),
    Patch(
        "load_checkpoint_to_cpu in fairseq.checkpoint_utils",
        "a refused checkpoint is reported in one sentence, with the way out",
        "checkpoints.explain_refused_checkpoints",
        ("fairseq.checkpoint_utils",),
    ),
    Patch(
        "_upgrade_state_dict and load_model_ensemble_and_task in fairseq.checkpoint_utils",
        "our tasks build architectures that are a plain Transformer under a name of their own, and "
        "report why a model cannot be built",
        "checkpoints.build_plain_transformers",
        ("fairseq.checkpoint_utils",),
    ),
    Patch(
        "import_user_module in fairseq.utils",
        "a command that names an *_ext task finds it, with any --user-dir or none",
        "patches.register_named_tasks",
        ("fairseq.options",),
    ),
    Patch(
        "fairseq.modules.transformer_layer.TransformerEncoderLayerBase.__init__",
        "fairseq calls torch's fused encoder layer without the mask type that torch 2 needs, "
        "and fails on padded batches",
        "repairs.avoid_fused_encoder_layer",
        ("fairseq.modules.transformer_layer",),
    ),
    Patch(
        "fairseq.data.iterators.CountingIterator.__init__",
        "fairseq always requests pinned memory, and torch warns where there is no GPU",
        "repairs.pin_no_memory",
        ("fairseq.data.iterators",),
    ),
    Patch(
        "logging.basicConfig, while two tasks of fairseq run that call it",
        "import fairseq_ext sets up no log in another program",
        "repairs.set_up_no_log",
        ("fairseq.tasks.text_to_speech", "fairseq.tasks.frm_text_to_speech"),
        True,
    ),
    Patch(
        "TranslationFromPretrainedBARTTask.args",
        "mBART's task reads it, and fairseq 0.12.2 no longer sets it",
        "repairs.give_arguments",
        ("fairseq.tasks.translation_from_pretrained_bart",),
    ),
    Patch(
        "numpy's name in two data sets of fairseq",
        "they use numpy.compat, which numpy 2 lacks",
        "repairs.give_numpy_long",
        ("fairseq.data.token_block_dataset", "fairseq.data.language_pair_dataset"),
    ),
    Patch(
        "fairseq.data.data_utils_fast and token_block_utils_fast",
        "fairseq was installed without a compiler: they are ours, in Python",
        "uncompiled.stand_in",
        ("fairseq.data.data_utils",),
    ),
    Patch(
        "fairseq.scoring.bleu.Scorer.__init__",
        "fairseq was installed without a compiler: n-grams are counted in Python",
        "uncompiled.count_ngrams",
        ("fairseq.scoring.bleu",),
    ),
)
COMMANDS = (
    Patch(
        "sys.path",
        "a command does not run files of the working folder",
        "fairseq_ext.core.command_line.leave_out_working_folder",
    ),
    Patch(
        "sys.excepthook",
        "known mistakes end in one sentence, Ctrl-C quietly",
        "fairseq_ext.core.exit.install_hook",
    ),
    Patch(
        "logging.Handler.handleError, an exit handler, standard error where it is closed",
        "a closed output ends a command with its own status",
        "fairseq_ext.core.exit.watch_output",
    ),
    Patch(
        "warnings.filters, and a log filter of fairseq.tasks.text_to_speech",
        "warnings of hydra, torch, Ray and fairseq because of fairseq's age",
        "repairs.silence_notices",
    ),
)
QUICK = (  # not for --help, which lists names in the order in which fairseq's files register them
    Patch(
        "the garbage collector's thresholds, an exit handler",
        "a million permanent objects are not scanned repeatedly",
        "fairseq_ext.plugin.compat.fast_start.spare_collections",
    ),
    Patch(
        "sys.meta_path, torch._meta_registrations",
        "a third of torch's import is for tensors without data, which no command has: "
        "torch.compile and others import it when they start",
        "fairseq_ext.plugin.compat.fast_start.import_metas_late",
    ),
    Patch(
        "ConfigStore.store in hydra.core.config_store",
        "some 40 dataclasses are converted when they are read, and a command reads 3",
        "fairseq_ext.plugin.compat.fast_start.convert_settings_late",
        ("fairseq.dataclass.initialize",),
    ),
    Patch(
        "omegaconf.DictConfig.__getattr__",
        "plain values are read directly: omegaconf takes 40 us, and a line reads 23",
        "fairseq_ext.plugin.compat.fast_start.read_plain_values",
        ("fairseq.dataclass.utils",),
    ),
    Patch(
        "the registries of fairseq.models, fairseq.tasks and fairseq.registry; four packages",
        "fairseq's files, and packages that no translation needs, run when they are needed",
        "fairseq_ext.plugin.compat.lazy.replace_registries",
        ("fairseq.models", "fairseq.registry", "fairseq.tasks"),
    ),
    Patch(
        "parse_args_and_arch in fairseq.options",
        "the default model of fairseq-generate, which is for speech, is not imported",
        "fairseq_ext.plugin.compat.fast_start.leave_out_default_model",
        ("fairseq.options",),
    ),
    Patch(
        "logging.basicConfig",
        "a command's log goes to standard error, as in stock",
        "fairseq_ext.plugin.compat.fast_start.log_as_stock",
        ("fairseq.tasks",),
    ),
)
INVALID_BYTES = Patch(  # made by plugin/input.py; repairs.py says whether it is in force
    "sys.stdin, fileinput and a log filter in fairseq_cli.interactive",
    "invalid UTF-8 is an error of its line, not of the session",
    "fairseq_ext.plugin.compat.repairs.keep_invalid_bytes",
)
in_force: list[Patch] = []


def load_by_path(module: str) -> ModuleType:
    """Return a module of this package, loaded by its path if it is not loaded: an import of the
    package would import fairseq, which is being imported."""
    if module not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            module, os.path.join(PACKAGE, *module.split(".")[1:]) + ".py"
        )
        assert spec is not None and spec.loader is not None
        loaded = sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
    return sys.modules[module]


def make(patch: Patch, *arguments):
    """Make a change; return the result of its function."""
    place, _, function = patch.change.rpartition(".")
    module = (
        importlib.import_module(place)
        if "." in place
        else load_by_path(f"fairseq_ext.plugin.compat.{place}")
    )
    made = getattr(module, function)(*arguments)
    if made is not False and patch not in in_force:
        in_force.append(patch)
    return made


def register_named_tasks(options: ModuleType) -> None:
    """Import fairseq_ext, and with it its tasks, if the command names one; and let --user-dir
    fairseq_ext mean the installed package.

    Errors: UsageError for an unknown *_ext task, in one line that lists the known ones.
    """
    stock, own = options.utils.import_user_module, load_by_path("fairseq_ext.core.command_line")

    def import_user_module(args) -> None:
        given = getattr(args, "user_dir", None)
        folders = own.values_of("--user-dir")
        if given is not None and (
            len(folders) > 1 or (os.pathsep in given and not os.path.exists(given))
        ):
            refuse_two(folders if len(folders) > 1 else given.split(os.pathsep))
        if given is not None and os.path.basename(os.path.normpath(given)) == "fairseq_ext":
            importlib.import_module("fairseq_ext.plugin.tasks")
        else:
            if given is not None and own.names_our_task():
                refuse_wrong_folder(given)
            if given is not None:
                load_by_path("fairseq_ext.plugin.compat.fast_start").import_metas()
            with load_by_path("fairseq_ext.plugin.compat.repairs").dataclass_defaults():
                stock(args)
        if own.names_our_task() or "fairseq_ext.plugin.tasks" in sys.modules:
            importlib.import_module("fairseq_ext.plugin.tasks").extend_examples()
        if own.names_our_task():
            stock_tasks = importlib.import_module("fairseq_ext.plugin.stock")
            stock_tasks.refuse_unknown(own.named_task())
            stock_tasks.refuse_flags(own.named_task(), own.arguments())

    options.utils.import_user_module = import_user_module
    if own.names_our_task():
        importlib.import_module("fairseq_ext.plugin.tasks")
    if own.is_fairseq_command():
        importlib.import_module("fairseq_ext.core.exit").restore_keyboard_interrupt()
        if own.has_help_flag():
            importlib.import_module("fairseq_ext.plugin.flag_help").print_flags()


def refuse_two(folders: list[str]) -> None:
    """Refuse several user directories in a sentence that shows the right command
    (raises UsageError)."""
    others = [
        folder for folder in folders if os.path.basename(os.path.normpath(folder)) != "fairseq_ext"
    ]
    task = load_by_path("fairseq_ext.core.command_line").named_task() or "translation_ext"
    raise importlib.import_module("fairseq_ext.core.errors").UsageError(
        f"fairseq reads one --user-dir, and {' and '.join(folders)} are given: the *_ext tasks "
        f"need none, so use --user-dir {others[0] if others else folders[0]} --task {task}"
    )


def refuse_wrong_folder(folder: str) -> None:
    """Refuse a path that is not a user directory, and one with the name of another module, which
    Python would import instead (raises UsageError)."""
    path = os.path.abspath(folder)
    if os.path.exists(path) and not os.path.isdir(path):
        raise importlib.import_module("fairseq_ext.core.errors").UsageError(
            f"--user-dir {folder} is a file: name the folder that it lies in"
        )
    if "." in os.path.basename(path):
        raise importlib.import_module("fairseq_ext.core.errors").UsageError(
            f"--user-dir {folder} cannot be imported, for there is a dot in its name: "
            "rename the folder"
        )
    known = sys.modules.get(os.path.basename(path))
    if (
        known is not None
        and os.path.isdir(path)
        and path not in map(os.path.abspath, getattr(known, "__path__", ()))
    ):
        raise importlib.import_module("fairseq_ext.core.errors").UsageError(
            f"--user-dir {folder} has the name of another module of Python's, {known.__name__}: "
            "rename the folder"
        )
