"""Compiled twins of what is defined in torch: `step.cpp`, a Transformer's step on the CPU (definition: decoders/); the functions of
LSH softmax (definition: `lsh_torch.py`), for the CPU `hash.cpp` behind `lsh_compiled.py`, for a GPU `lsh.cu` behind `lsh_cuda.py`;
`gathered.cpp`, the scores of a shortlist's words on the CPU (definition: list_softmax.py)."""
