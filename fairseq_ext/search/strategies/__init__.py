"""The strategies, a file for each value of a flag: `--softmax lsh` is softmax/lsh.py.

| file or folder | flags |
| --- | --- |
| select/, stop/, softmax/, decoding/ | `--select`, `--stop`, `--softmax`, `--decoding` |
| schedule.py | `--schedule batch` and `stream` |
| prune.py | `--prune-threshold`, `--prune-children`, `--prune-finished` |

Each file registers itself (search/registry.py); the loop does not name them. Files whose names
begin with an underscore are shared by the others of their folder. Strategies import only core,
kernels, model, and the other folders of search.
"""
