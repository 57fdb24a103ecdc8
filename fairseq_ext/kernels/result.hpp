// How a call of beam.cpp or constrained.cpp ended, or the search of a sentence; mirrored in beam.py.
#pragma once

#include <cstdint>

namespace {

enum Result : int64_t { GOES_ON, FOUND, NO_ROOM, NOT_A_NUMBER, UNSUITABLE };

}  // namespace
