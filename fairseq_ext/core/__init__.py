"""Modules that all other layers share: errors, files, words, statistics, processes; the version.

It imports no other folder of the package, and neither torch nor fairseq.
"""

__version__ = "0.1.0"
