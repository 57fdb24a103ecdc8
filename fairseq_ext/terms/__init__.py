"""Terms in text: `python -m fairseq_ext.terms score` says how well translations use the terms they were asked for.

No module of this folder needs fairseq or torch: a score is computed from text alone.
"""
