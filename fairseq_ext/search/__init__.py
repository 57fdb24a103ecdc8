"""Beam search: the loop (loop.py), its state (state.py), the rows that flow through it and its extension points (protocols.py).

No paper lives here, and nothing here imports a strategy.
"""
