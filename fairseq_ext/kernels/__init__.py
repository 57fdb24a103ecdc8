"""Compiled twins of what is defined in torch: `step.cpp`, a Transformer's step on the CPU (definition: decoders/); `row.cpp`
and `draft.cpp`, greedy decoding of a sentence alone and its drafts (definitions: search/single.py, drafts/ngram.py); `lsh.cu` and its
launcher `lsh_cuda.py`, the functions of LSH softmax (definition, and the CPU path: `lsh_torch.py`)."""
