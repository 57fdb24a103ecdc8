// Result of a call of beam.cpp, or of the search of a sentence; mirrored in beam.py.
#pragma once

#include <cstdint>

namespace {

enum Result : int64_t { GOES_ON, FINISHED, NO_ROOM, NOT_A_NUMBER, TOO_FEW_CONTINUATIONS };

}  // namespace
