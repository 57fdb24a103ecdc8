"""Terms in text: `python -m fairseq_ext.terms score` counts the required terms that
translations have.

| file | what is in it |
| --- | --- |
| __main__.py | the commands `score` and `expand`; inflected forms of a glossary's targets |
| score.py | the formulas, and all scores of a system |
| cases.py | a sentence with its translation, with the terms that count |
| formats.py | test sets and translations as files |

No module of this folder needs fairseq or torch: a score is computed from text alone.
"""
