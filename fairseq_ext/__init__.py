"""Published search methods for stock fairseq 0.12.2: `--user-dir fairseq_ext --task translation_ext`.

| flag | paper | file |
| --- | --- | --- |
| (none) | fairseq's own beam search, in one loop with plug points | search/loop.py, search/protocols.py |
| --select dba | Post and Vilar 2018, dynamic beam allocation | strategies/select/dba.py |
| --select gbs, cbs | Hokamp and Liu 2017; Anderson et al. 2017 | strategies/select/gbs.py |
| --prune-finished | Post and Vilar 2018, Table 3 | strategies/prune/finished.py |
| --stop optimal, first, shrink | Huang, Zhao and Ma 2017, optimal ending | strategies/stop/optimal.py |
| --decoding jacobi, gs-jacobi, hybrid-jacobi, window | Santilli et al. 2023, parallel decoding | strategies/decoding/, parallel/  |
| --draft, --draft-file | drafts of parallel decoding | parallel/drafts/ |
| --ddg-dir | Santilli et al. 2023, DDGviz | viz/ddg.py |
| --schedule stream, --prune-threshold, --prune-children, --stop ranked | Yang et al. 2020 | strategies/schedule/stream.py |
| --softmax lsh | Shi, Xu and Knight 2019, locality sensitive hashing | strategies/softmax/lsh.py, lsh_index.py, kernels/ |
| --softmax top, lexical | its baselines; Shi and Knight 2017 | strategies/softmax/top.py |
| --softmax screened | the full softmax from half the bytes, checked | strategies/softmax/screened.py |
| --patience | Kasai et al. 2022 | strategies/stop/count.py |
"""

import sys

from fairseq_ext import compat as compat  # first: lets fairseq itself be imported
from fairseq_ext.errors import UsageError as UsageError
from fairseq_ext.errors import install_hook

if "fairseq_ext.terms" not in sys.orig_argv:  # python -m fairseq_ext.terms works on text alone and starts without fairseq and torch
    try:
        from fairseq_ext import tasks as tasks
        from fairseq_ext.translator import Translation as Translation
        from fairseq_ext.translator import Translator as Translator
    except ImportError:
        # python -m fairseq_ext.doctor must still be able to say what is missing
        if "fairseq_ext.doctor" not in sys.orig_argv:
            raise

install_hook()
if {"-h", "--help"} & set(sys.argv[1:]) and any(arg.endswith("_ext") for arg in sys.argv) and "--user-dir" in sys.argv:
    from fairseq_ext.__main__ import print_flags

    print_flags()
