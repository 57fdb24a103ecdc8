"""Compiled twins of what is defined in torch or Python: `x.cpp` behind `x.py`, and the library that holds them all.

| file | computes | definition |
| --- | --- | --- |
| library | builds, verifies and loads the compiled library; the signature of each function | |
| transformer | a Transformer's step on the CPU | decoders/transformer/ |
| topk | log-softmax and the best continuations | search/log_probs.py |
| banks | the selection of dynamic beam allocation | strategies/select/dba.py |
| beam | beam search of sentences without constraints, all steps | search/loop.py |
| row | parallel decoding of a sentence alone | parallel/driver.py, strategies/decoding/ |
| draft | its drafts | parallel/drafts/ |
| lsh | the functions of LSH softmax on the CPU; lsh_cuda and lsh.cu on a GPU | lsh_torch.py |
| shortlist | the scores of a shortlist's words | softmax/shortlist.py |
| screen | screened log-probabilities | softmax/error_bounds.py |

Shared by the C++ files: vectors.hpp (SIMD), linear.hpp (linear layers), attention.hpp, topk.hpp, shortlist.hpp (linear layers of single
words), row.hpp (a row and its drafts), stages.hpp (timing).
"""
