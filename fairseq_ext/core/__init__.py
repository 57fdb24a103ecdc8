"""The version of this package: `fairseq_ext.__version__`, read by setup.py as text, and by the signature of every run."""

__version__ = "0.1.0"
