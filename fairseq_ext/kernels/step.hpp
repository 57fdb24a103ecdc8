// What a step of the decoder is told of its rows; transformer.py reads their fields from here.
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
    int64_t slot, position, count;  // its sentence's in the KV cache; where its keys and values go; how many positions it sees
    const int32_t* history;         // these, ascending, its own the last
};

struct Step {
    float* x;  // (N, d) embedded tokens; the features when done
    int64_t rows, block, sentences, width, before;  // before: positions in use before this step, which adds width x block
    const int64_t* place;  // (n,) place of each row among sentences x width; null: in order
    const int64_t* slot;   // (sentences,) where each lies in the KV cache and the source mask; null: in order
    const float* mask;     // (sentences or 1, width x block, positions) 0 where a token sees a position; null: it sees all up to its own
    int64_t mask_sentence;  // elements from one sentence's mask to the next; 0: they share one
    const float* source_mask;  // (sentences, source positions); null: none is padded
    Cache target, source;  // the KV cache: of self-attention, of cross-attention
    const Line* lines;  // (N,) instead of before, place, slot and mask; null: these say it
};

}  // namespace
