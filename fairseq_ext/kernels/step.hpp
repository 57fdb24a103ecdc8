// Input of one decoder step. transformer.py reads the fields of these structures from here.
#pragma once

#include <cstdint>

namespace {

// Keys and values of a KV cache, strides in elements: layer, key or value, sentence, head, position; features are neighbours
struct Cache {
    float* data;
    int64_t layer, value, sentence, head, positions;
};

// A line of a step whose sentences have read different numbers of tokens
struct Line {
    int64_t slot, position, count;  // its sentence's slot in the KV cache; position of its keys and values; number of positions it sees
    const int32_t* history;         // (count,) positions that it sees, ascending; its own position is the last
};

struct Step {
    float* x;  // (N, d) embedded tokens; the features when done
    int64_t rows, block, sentences, width, positions_before;  // positions in use before this step, which adds width x block
    const int64_t* place;  // (n,) place of each row among sentences x width; null: in order
    const int64_t* slot;   // (sentences,) slot of each sentence in the KV cache and the source mask; null: in order
    const float* mask;     // (sentences or 1, width x block, positions) 0 where a token sees a position; null: it sees all up to its own
    int64_t mask_sentence;  // elements from one sentence's mask to the next; 0: they share one
    const float* source_mask;  // (sentences, source positions); null: none is padded
    Cache target, source;  // the KV cache: of self-attention, of cross-attention
    const Line* lines;  // (N,) replaces positions_before, place, slot and mask; null: those are used
    float* attention;   // (N, source positions) to which the attention of all layers and heads is added, in the place of features; null: no
};

}  // namespace
