"""Whose process this is (own_process.py), what is changed of other packages in it (patches.py), and when (startup.py)."""
