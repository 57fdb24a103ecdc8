"""Softmaxes over a part of the vocabulary."""
