"""Parallel decoding: the second driver, which reads a block of tokens a call."""
