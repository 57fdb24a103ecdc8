"""A file for each value of a flag: `--softmax lsh` is softmax/lsh.py, with a paper's own part.

| file or folder | flags |
| --- | --- |
| select/, stop/, softmax/, decoding/ | `--select`, `--stop`, `--softmax`, `--decoding` |
| schedule.py | `--schedule batch` and `stream` |
| prune.py | `--prune-threshold`, `--prune-children`, `--prune-finished` |

Each file registers itself (search/registry.py); the loop does not know them. A name with a leading
underscore is code that the files of its folder share. A strategy imports what stands before it:
core, kernels, model, and all other folders of search.
"""
