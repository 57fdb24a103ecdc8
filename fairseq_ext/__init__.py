"""Published search methods for stock fairseq 0.12.2: `--task translation_ext`.

The path is the flag: `--softmax lsh` is strategies/softmax/lsh.py, `--prune-threshold` is strategies/prune/threshold.py.
Options that are no strategies: `--results-file` and `--cpu-workers` in session/, `--int8` and `--cuda-graphs` in decoders/, constraint
files in constraints/. Without a flag fairseq's own beam search runs, in one loop with plug points
(search/loop.py, search/protocols.py). `python -m fairseq_ext` prints every strategy with its paper and file, and every flag.
"""

import sys

from fairseq_ext import compat as compat  # first: lets fairseq itself be imported
from fairseq_ext.errors import SentenceError as SentenceError
from fairseq_ext.errors import UsageError as UsageError
from fairseq_ext.leaving import install_hook, interrupts_raise, watch_output
from fairseq_ext.version import __version__ as __version__

install_hook()
if any(arg.startswith("fairseq_ext") or arg.endswith("_ext") for arg in sys.orig_argv):  # a command of ours, or one with our task
    watch_output()
# python -m fairseq_ext.terms works on text alone and starts without fairseq and torch; python -m fairseq_ext.doctor says what is missing
if not {"fairseq_ext.terms", "fairseq_ext.doctor"} & set(sys.orig_argv):
    from fairseq_ext.engine.engine import Engine as Engine
    from fairseq_ext.tasks import extend as extend
    from fairseq_ext.translation import Translation as Translation
    from fairseq_ext.translator import Translator as Translator

interrupts_raise()
if {"-h", "--help"} & set(sys.argv[1:]) and any(arg.endswith("_ext") for arg in sys.argv):
    from fairseq_ext.__main__ import print_flags

    print_flags()
