"""Beam search: how log-probabilities become hypotheses. It knows torch, and not fairseq.

| file | what it holds |
| --- | --- |
| loop.py | the definition of beam search: numbered steps over a group of rows, and its state |
| interpreted.py | the loop as a searcher that requests join and leave |
| compiled.py, constrained.py | its compiled twins, without and with required phrases |
| scheduler.py, pool.py | requests, their queue, the protocol of searchers; the |
| | sentences of a call |
| beam.py | the live rows, and their attention to the source |
| log_probs.py, processors.py | scores of the next token, and what changes them in every search |
| candidates.py | continuations, banks, and the rows of the next beam |
| finished.py | finished hypotheses, and the score by which they compete |
| protocols.py, registry.py | the extension points; the strategies by name |
| checks.py, outside.py | flags that cannot work are refused; strategies from outside are checked |
| mbr.py | minimum Bayes risk over the candidates |

Order of imports: phrases/ (phrases as tokens); then the files of this folder; then parallel/ and
constraints/; then strategies/, a file for each value of a flag. Each imports only from those before
it, and from core, kernels and model. Only checks.py reads the flags of constraints/ as well.
"""
