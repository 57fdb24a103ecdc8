"""Makes the compiled library of this pytest another one, before a test has used it: `pytest -p
built_otherwise`, with BUILT=sanitized (by the address and undefined behaviour sanitizers; the
sanitizers' library must have been loaded first) or BUILT=starved (each allocation may be made to
fail: starved.cpp)."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE))

from sanitizers import load_sanitized  # noqa: E402

from fairseq_ext.kernels import library as building  # noqa: E402
from fairseq_ext.kernels.compiling import FLAGS, SOURCES  # noqa: E402

if os.environ["BUILT"] == "sanitized":
    load_sanitized(SOURCES)
else:
    os.environ[building.VARIABLE] = "native"
    building.FLAGS = ("-O1", *FLAGS[1:])
    building.SOURCES = [*SOURCES, HERE / "starved.cpp"]
