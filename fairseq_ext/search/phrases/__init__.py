"""Phrases of the target text as tokens: which pieces spell them, where words begin, and the text that tokens read as."""
