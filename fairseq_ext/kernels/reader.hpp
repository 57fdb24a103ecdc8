// The compiled decoder, used by parallel.cpp and beam.cpp.
#pragma once

#include "norm.hpp"

// functions of transformer.cpp; transformer.py makes their arguments
void run_decoder(const void* layers, const void* step);
void keep_positions(const void* layers, const void* step, int64_t slot, const int32_t* kept, int64_t count);
void run_linear(const void* packed, const float* x, int64_t lines, float* y);
void run_norm(const void* norm, const float* x, int64_t lines, int64_t d, float* y);

namespace {

// Compute the embedding of a token; before: number of tokens before it
void embed(const Reader& reader, int64_t token, int64_t before, float* to) {
    const int64_t d = reader.d;
    const float *from = reader.embedding + token * d, *where = reader.positions + before * d;
    for (int64_t k = 0; k < d; ++k) to[k] = reader.scale * from[k] + where[k];
    if (reader.embedding_norm.weight) run_norm(&reader.embedding_norm, to, 1, d, to);
}

}  // namespace
