// The compiled decoder, used by parallel.cpp and beam.cpp.
#pragma once

#include "norm.hpp"

// functions of transformer.cpp; transformer.py makes their arguments
void run_decoder(const void* layers, const void* step);
void keep_positions(const void* layers, const void* step, int64_t slot, const int32_t* kept, int64_t count);
void run_linear(const void* packed, const float* x, int64_t lines, float* y);
void run_norm(const void* norm, const float* x, int64_t lines, int64_t d, float* y);

namespace {

// A fully compiled decoder; transformer.py reads its fields from here
struct Reader {
    const void *layers, *step, *output;  // step's x is this one's
    int64_t *block, *positions_before;   // two fields of step: the block's width, and the number of tokens before it
    const float *embedding, *positions;  // (V, d), (positions, d)
    float *x, *logits;                   // (width, d), (width, V)
    int64_t d, vocabulary, width, room;  // width: largest block that fits into x and logits; room: number of positions
    float scale;                         // factor of the embedding
    Norm embedding_norm;                 // of the sum of both

    // Compute the embedding of a token; before: number of tokens before it
    void embed(int64_t token, int64_t before, float* to) const {
        const float *from = embedding + token * d, *where = positions + before * d;
        for (int64_t k = 0; k < d; ++k) to[k] = scale * from[k] + where[k];
        if (embedding_norm.weight) run_norm(&embedding_norm, to, 1, d, to);
    }
};

}  // namespace
