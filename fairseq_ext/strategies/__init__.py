"""One file per paper. Each registers itself (fairseq_ext/registry.py); the loop does not know them."""
