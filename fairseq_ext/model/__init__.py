"""The decoder backends: how rows of tokens become features and log-probabilities.

| file | `--decoder-backend` | what is in it |
| --- | --- | --- |
| protocol.py | | what a search asks of a decoder |
| choose.py | auto | which backend serves a model, after a comparison with fairseq's own modules |
| stock.py, stock_model.py | fairseq | fairseq's modules, for any encoder-decoder |
| transformer/ | transformer | our layers, for plain Transformers |

This folder imports only core and kernels, and knows fairseq's modules.
"""
