"""`python -m fairseq_ext.kernels`: compile the library now, and print its path."""

import sys

from fairseq_ext.kernels.library import OFF_HINT, build, is_off

try:
    print(build())
    if is_off():
        print(f"not used, torch operations run instead: {OFF_HINT}", file=sys.stderr)
except RuntimeError as error:
    sys.exit(f"not built, torch operations will run instead: {error}")
