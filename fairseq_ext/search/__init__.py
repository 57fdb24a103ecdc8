"""Beam search: from log-probabilities to hypotheses. This layer uses torch and not fairseq.

| file | what is in it |
| --- | --- |
| loop.py | the definition of beam search: numbered steps over a group of rows, and its state |
| interpreted.py | the loop as a searcher that requests join and leave |
| compiled.py | its compiled twin |
| scheduler.py, pool.py | requests, their queue, the protocol of searchers; the |
| | sentences of a call |
| beam.py | the live rows |
| log_probs.py, processors.py | scores of the next token; logits processors of every search |
| candidates.py | continuations, banks, and the rows of the next beam |
| finished.py | finished hypotheses, and the scores that they are ranked by |
| report.py | what is reported of a sentence, and its JSON |
| settings.py | all settings of a run, frozen |
| protocols.py, registry.py | the extension points; the strategies by name |
| checks.py | refusals of flags |
| mbr.py | minimum Bayes risk over the candidates |

Order of imports: phrases/ (phrases as tokens); then the files of this folder; then parallel/ and
constraints/; then strategies/, a file for each value of a flag. Each imports only from those before
it, and from core, kernels and model.
"""
