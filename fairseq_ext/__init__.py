"""Published search methods for stock fairseq 0.12.2: `--user-dir fairseq_ext --task translation_ext`.

| flag | paper | file |
| --- | --- | --- |
| (none) | fairseq's own beam search, faster | search/loop.py, search/plugs.py |
"""

from fairseq_ext import compat as compat  # first: lets fairseq itself be imported
from fairseq_ext import tasks as tasks
from fairseq_ext.errors import UsageError as UsageError
from fairseq_ext.errors import install_hook

install_hook()
