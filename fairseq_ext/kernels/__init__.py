"""Compiled twins of what is defined in torch or Python: `x.cpp` behind `x.py`, and the library that holds them all.

| file | computes | definition |
| --- | --- | --- |
| library | builds, verifies and loads the compiled library | |
| declarations | the layout of each structure and the signature of each function, read from the C++ files | |
| decoder/transformer | a Transformer's step on the CPU | decoders/transformer/ |
| search/topk | log-softmax and the best continuations | search/log_probs.py |
| search/beam | beam search of sentences without constraints, all steps | search/loop.py |
| search/ngrams | the words that would repeat an n-gram | search/processors.py |
| constraints/banks | the selection of dynamic beam allocation | search/strategies/select/dba.py |
| constraints/constrained | beam search with required phrases, all steps | search/loop.py |
| parallel/parallel_decode | parallel decoding of a sentence alone | search/parallel/driver.py, strategies/decoding/ |
| parallel/draft | its drafts | parallel/drafts/ |
| softmax/lsh | the functions of LSH softmax on the CPU; lsh_cuda and lsh.cu on a GPU | softmax/lsh_torch.py |
| softmax/shortlist | the scores of a shortlist's words | search/strategies/softmax/_shortlist.py |
| softmax/screen | screened log-probabilities | search/strategies/softmax/screened.py |

Shared by the C++ files: vectors.hpp (SIMD), stages.hpp (timing).
"""
