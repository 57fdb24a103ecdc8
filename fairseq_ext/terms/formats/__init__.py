"""Readers of term test sets, one file a format: from `Files` to the sentences and the source language, where it is known."""
