"""`python -m fairseq_ext.kernels`: compile the decoder step now, and say where it is."""

import sys

from fairseq_ext.kernels.build import build

try:
    print(build())
except RuntimeError as error:
    sys.exit(f"not built, torch operations will run instead: {error}")
