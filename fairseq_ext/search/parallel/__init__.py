"""Parallel decoding: greedy decoding whose decoder reads a block of tokens a call.

| file | what is in it |
| --- | --- |
| driver.py | the searcher, and its compiled twin for a single sentence |
| blocks.py | one decoder call, the live rows, near ties, the protocol of methods |
| drafts.py | `--draft pad`, `repeat`, `none`; `--draft-file` |
| graph.py | `--ddg-dir`: dependency graphs as JSON |

The methods of `--decoding` are in search/strategies/decoding/. This folder imports core, kernels,
model, search/phrases and the files of search.
"""
