// State of one sentence's search: its limits, its rows and its finished hypotheses. beam.cpp steps it, stops.hpp ends it.
//
// Shapes: k beam (BANKS: largest number of rows), T token capacity of a row, m the length of the n-best list, G constraints.

#pragma once

#include "phrases.hpp"
#include "reader.hpp"
#include "sampling.hpp"

namespace {

constexpr int64_t ROOM_STEPS = 8;  // more KV cache positions are requested unless this many steps fit after compaction

enum Selection : int64_t { TOP, SAMPLES, BANKS };  // of strategies/select
enum Stop : int64_t { COUNT, RANKED, FIRST, SHRINK, OPTIMAL, EARLY };  // of strategies/stop

Outputs outputs_of(const Sentence& s) { return {*s.allowed}; }

// Return the place of a word in the sentence's scores, or -1 if it is not scored
int64_t column_of(const Sentence& s, int64_t word) {
    if (!s.words) return word;
    const int64_t column = std::lower_bound(s.words, s.words + s.listed, word) - s.words;
    return column < s.listed && s.words[column] == word ? column : -1;
}

// Write the row's first `length` tokens and EOS to the f-th place of found
void finish(Sentence& s, int64_t f, int64_t row, float total, int64_t length) {
    const int64_t T = s.T;
    std::memcpy(s.found_tokens + f * T, s.tokens + row * T, (length + 1) * sizeof(*s.tokens));
    std::memcpy(s.found_score + f * T, s.score + row * T, (length + 1) * sizeof(*s.score));
    s.found_length[f] = length + 1;
    s.found_tokens[f * T + length + 1] = s.rules->eos;
    s.found_score[f * T + length + 1] = total;
    s.best_total = std::max<double>(s.best_total, total);
}

// Write the j-th row of the next beam: the row's tokens and one more
void continue_row(Sentence& s, int64_t j, int64_t row, int64_t token, float total) {
    const int64_t T = s.T, length = s.length;
    std::memcpy(s.next_tokens + j * T, s.tokens + row * T, (length + 1) * sizeof(*s.tokens));
    std::memcpy(s.next_score + j * T, s.score + row * T, (length + 1) * sizeof(*s.score));
    std::memcpy(s.next_history + j * T, s.history + row * T, (length + 1) * sizeof(*s.history));
    s.next_tokens[j * T + length + 1] = token;
    s.next_score[j * T + length + 1] = total;
    if (s.allowed) s.next_allowed_state[j] = outputs_of(s).next_state(s.allowed_state[row], token);
}

// Replace the beam by the next one, which has n rows
void next_beam(Sentence& s, int64_t n) {
    std::swap(s.tokens, s.next_tokens), std::swap(s.score, s.next_score), std::swap(s.history, s.next_history);
    std::swap(s.state, s.next_state), std::swap(s.met, s.next_met);
    std::swap(s.allowed_state, s.next_allowed_state);
    s.rows = n, s.length += 1;
}

// Free the KV cache positions that are in no row's history
void compact(Sentence& s, const Reader& reader, const Step& step) {
    static thread_local std::vector<int32_t> memory_kept, memory_place;
    int32_t *kept = scratch(memory_kept, s.used), *place = scratch(memory_place, s.used);
    std::fill_n(place, s.used, 0);
    const int64_t all = s.remaining ? s.remaining : s.rows;
    auto count_of = [&](int64_t r) { return s.remaining ? s.read[r] : s.length; };
    for (int64_t r = 0; r < all; ++r)
        for (int64_t i = 0; i < count_of(r); ++i) place[s.history[r * s.T + i]] = 1;
    int64_t count = 0;
    for (int64_t p = 0; p < s.used; ++p)
        if (place[p]) kept[count] = static_cast<int32_t>(p), place[p] = static_cast<int32_t>(count++);
    for (int64_t r = 0; r < all; ++r)
        for (int64_t i = 0; i < count_of(r); ++i) s.history[r * s.T + i] = place[s.history[r * s.T + i]];
    keep_positions(reader.layers, &step, s.slot, kept, count);
    s.used = count;
}

bool cache_is_full(const Sentence& s, const Step& step) { return s.used + s.rows > step.target.positions; }

// Return whether the next step has enough memory; compact the KV cache if it is full
bool has_room(Sentence& s, const Reader& reader, const Step& step) {
    if (s.length >= reader.room || s.length + 2 > s.T) return false;
    if (!cache_is_full(s, step)) return true;
    compact(s, reader, step);
    return s.used + ROOM_STEPS * s.rows <= step.target.positions;
}

}  // namespace
