"""The decoder backends: what runs the model for a search. protocol.py says what a search asks, factory.py chooses a backend.

| folder | --decoder-backend | what runs |
| --- | --- | --- |
| fairseq/ | fairseq | fairseq's own modules, for any encoder-decoder; uncached.py reads blocks with them |
| transformer/ | transformer | our layers, for plain Transformers, after self_check.py has compared them with fairseq's |
"""
