"""What lets stock fairseq 0.12.2 run on current Python and torch: see startup.py. Importing this package is enough."""

from fairseq_ext.compat import startup as startup
