"""Published search methods for stock fairseq 0.12.2: `--task translation_ext`.

Five layers, each of which imports only from those before it: core/ (Python only), kernels/ (C++
and CUDA), model/ (how tokens become log-probabilities), search/ (how log-probabilities become
hypotheses), plugin/ (what fairseq's commands enter). The commands and the Python API are the
other entries of this folder.

The path is the flag: `--softmax lsh` is search/strategies/softmax/lsh.py, `--prune-threshold` is
search/strategies/prune.py, `--schedule stream` is search/strategies/schedule.py.
Options that are not strategies: constraint files in search/constraints/, `--results-file`
and `--cpu-workers` in plugin/, `--int8` and `--cuda-graphs` in model/transformer/. Without
a flag fairseq's own beam search runs, in one loop with extension points (search/loop.py,
search/protocols.py). `python -m fairseq_ext` prints every strategy with its paper and
file, and every flag.
"""

from fairseq_ext.core import command_line  # it imports nothing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fairseq_ext.core import __version__ as __version__
    from fairseq_ext.core.errors import SentenceError as SentenceError
    from fairseq_ext.core.errors import UsageError as UsageError
    from fairseq_ext.engine.engine import Engine as Engine
    from fairseq_ext.plugin.tasks import extend as extend
    from fairseq_ext.search.report import Translation as Translation
    from fairseq_ext.translator import Translator as Translator

LAZY_EXPORTS = {  # name -> its module, which is imported when the name is first used
    "Engine": "engine.engine",
    "SentenceError": "core.errors",
    "Translation": "search.report",
    "Translator": "translator",
    "UsageError": "core.errors",
    "__version__": "core",
    "extend": "plugin.tasks",
}
__all__ = [*LAZY_EXPORTS]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name not in LAZY_EXPORTS:
        raise AttributeError(f"module 'fairseq_ext' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"fairseq_ext.{LAZY_EXPORTS[name]}"), name)


if command_line.command():
    from fairseq_ext.plugin.compat import startup

    startup.own_this_process()
if command_line.registers_tasks():
    from fairseq_ext.plugin.compat import startup as startup  # before fairseq, which it prepares

    try:
        import fairseq as fairseq
    except ModuleNotFoundError as error:
        if error.name != "fairseq":
            raise
        raise ImportError(
            "fairseq_ext is a plug-in for fairseq, which is not installed: python -m "
            "fairseq_ext.doctor --install-fairseq"
        ) from None
    from fairseq_ext.plugin.tasks import extend as extend
if command_line.own_command and not command_line.is_fairseq_command():
    from fairseq_ext.core.exit import restore_keyboard_interrupt

    restore_keyboard_interrupt()
