"""Makes the compiled library of this pytest another one, before a test has used it: `pytest -p
built_otherwise`, with BUILT=sanitized (by the address and undefined behaviour sanitizers; the
sanitizers' library must have been loaded first) or BUILT=starved (each allocation may be made to
fail: starved.cpp)."""

import os
from pathlib import Path

from fairseq_ext.kernels import library as building
from fairseq_ext.kernels.compiling import FLAGS, SOURCES

SANITIZED = "-O1 -g -std=c++17 -fPIC -fopenmp -fsanitize=address,undefined,float-cast-overflow"
SANITIZED += " -fno-sanitize-recover=undefined,float-cast-overflow"
os.environ[building.VARIABLE] = "native"
if os.environ["BUILT"] == "sanitized":
    building.FLAGS, building.SOURCES = tuple(SANITIZED.split()), SOURCES
    building.TRY_CODE = "pass"  # a process of its own would lack the sanitizer's library
    assert building.library() is not None, "the sanitized library could not be built"
else:
    building.FLAGS = ("-O1", *FLAGS[1:])
    building.SOURCES = [*SOURCES, Path(__file__).with_name("starved.cpp")]
