"""Compiled twins of functions defined in torch or Python, a pair of files each: beam.cpp, beam.py.

| pair | computes | definition |
| --- | --- | --- |
| transformer | a Transformer's layers on a CPU, and the | model/transformer/layers.py |
| | reader of rows | |
| beam | beam search, all steps | search/loop.py |
| banks | the selection of dynamic beam allocation | search/strategies/select/dba.py |
| log_probs | log-softmax, top-k | search/log_probs.py |
| log_probs | repeated n-grams, sampling | log_probs.py |
| shortlist | scores of a shortlist's words | search/strategies/softmax/_shortlist.py |
| shortlist | screened log-probabilities | search/strategies/softmax/screened.py |
| lsh; lsh_cuda on a GPU | the functions of LSH softmax | lsh_torch.py |
| parallel | parallel decoding of one sentence, and its drafts | search/parallel/ |

library.py builds and loads the compiled library, whose structures and functions abi.h declares for
cffi and for the compiler. compiling.py has the compilers' flags and the levels of processors.
image.py maps a file as memory, transformer.py has large pages for weights. The C++ headers are in
the same folder: vectors.hpp (SIMD), stages.hpp (timing), entry.hpp (entry points, scratch memory).
This folder imports only core.
"""
