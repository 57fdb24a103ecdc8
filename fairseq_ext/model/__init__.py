"""The decoder backends: how rows of tokens become features and log-probabilities.

| file | `--decoder-backend` | what is in it |
| --- | --- | --- |
| protocol.py | | the interface between a search and a decoder |
| choose.py | auto | chooses the backend of a model, after a comparison with fairseq's modules |
| stock.py, stock_model.py | fairseq | fairseq's modules, for any encoder-decoder |
| transformer/ | transformer | our layers, for plain Transformers |

This folder imports only core and kernels, and uses fairseq's modules.
"""
