"""Compiled twins of what is defined in torch or Python, each behind a module of its name.

`step.cpp`: a Transformer's step on the CPU (definition: decoders/); `scores.cpp`: log-softmax and the best continuations
(search/log_probs.py); `banks.cpp`: the selection of dynamic beam allocation (strategies/dba.py); `row.cpp` and `draft.cpp`: greedy
decoding of a sentence alone and its drafts (search/single.py, drafts/ngram.py); the functions of LSH softmax (`lsh_torch.py`), for the
CPU `hash.cpp` behind `lsh_compiled.py`, for a GPU `lsh.cu` behind `lsh_cuda.py`; `gathered.cpp`: the scores of a shortlist's words
(list_softmax.py).
"""
