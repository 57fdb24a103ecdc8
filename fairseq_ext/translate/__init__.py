"""`python -m fairseq_ext.translate`: lines in, translations out, and a start without torch from the second time on.

`__main__.py` is the command, `state.py` says what is kept of a model and its flags, `image.py` how, `search.py` decodes with it.
"""
