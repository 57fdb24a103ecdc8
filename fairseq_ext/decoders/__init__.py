"""Views of a fairseq model for the search loop: `fairseq.py` drives any encoder-decoder through its own incremental state."""
