"""Sources of constraints, and the reports on them.

| file | what is in it |
| --- | --- |
| required.py | the flags that constrained searches share; the default of |
| | `--glossary-placement` |
| banned.py | banned phrases as automata |
| glossary.py, documents.py | `--glossary`; `--glossary-documents` |
| sentence_end.py | `--constraint-end` |
| allowed.py, allowed_strings.py | `--allowed-file` and its like; their automata |
| allowed_product.py | allowed outputs with required, banned and given words |
| source_text.py | source tokens as text, in which terms are searched |
| sources.py | which flags give constraints, and the constraints of every sentence from files |
| from_python.py, lines.py | constraints from Python, and from the lines of a command |
| report.py | which constraints are met; `--glossary-report` |
| placement.py, drafts.py | `--glossary-placement align`: the driver; its hypotheses, and which |
| | of them are answers |
| term_writer.py, renderings.py | the same: drafts with terms; the model's own words |
| insertion.py | the same: terms without a word in the draft |
| inflection.py | the same: forms of terms, words that agree with them, terms that are left |
| word_alignment.py, forced_decoding.py | the same: words of terms; scores of given tokens |

This folder imports core, kernels, model, search/phrases and the files of search.
"""
