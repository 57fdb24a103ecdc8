"""Sources of constraints, and what is reported of them.

| file | what is in it |
| --- | --- |
| required.py | the flags that constrained searches share |
| banned.py | banned phrases as automata |
| glossary.py | `--glossary`, `--glossary-documents` |
| sentence_end.py, prefix.py | `--constraint-end`; a beginning that is given |
| source_text.py | source tokens as text, for the terms that it holds |
| sources.py | which flags give constraints, and the constraints of every sentence from files |
| from_python.py, lines.py | the same from Python, and from the lines of a command |
| report.py | which constraints are met; `--glossary-report` |
| placement.py, word_alignment.py | `--glossary-placement align` |

This folder imports core, kernels, model, search/phrases and the files of search.
"""
