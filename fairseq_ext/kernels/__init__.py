"""Compiled twins of what is defined in torch or Python, each behind a module of its name.

`transformer.cpp`: a Transformer's step on the CPU (definition: decoders/); `topk.cpp`: log-softmax and the best continuations
(search/log_probs.py); `banks.cpp`: the selection of dynamic beam allocation (strategies/select/dba.py); `row.cpp` and `draft.cpp`: greedy
decoding of a sentence alone and its drafts (parallel/one_sentence.py, parallel/drafts/ngram.py); the functions of LSH softmax
(`lsh_torch.py`), for the
CPU `lsh.cpp` behind `lsh_compiled.py`, for a GPU `lsh.cu` behind `lsh_cuda.py`; `shortlist.cpp`: the scores of a shortlist's words
(softmax/shortlist.py).
"""
