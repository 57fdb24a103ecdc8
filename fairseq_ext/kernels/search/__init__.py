"""Beam search, the best continuations, repeated n-grams."""
