// The search of one sentence: what it is asked for, its rows and what it has found. beam.cpp steps it, stops.hpp ends it.
//
// Shapes: k beam, T places for the tokens of a row, m the length of the n-best list.

#pragma once

#include "reader.hpp"
#include "step.hpp"
#include "sampling.hpp"

namespace {

constexpr int64_t ROOM_STEPS = 8;  // more room is asked for where a sentence's positions in use leave none for so many steps

enum Stop : int64_t { COUNT, RANKED, FIRST, SHRINK, OPTIMAL };  // of strategies/stop

// What holds for every sentence; beam.py reads its fields from here
struct Rules {
    int64_t k, min_len, eos, pad, ngram;  // ngram: size of those that do not repeat, 0: off
    int64_t stop, variable, children;     // variable: a sentence may have fewer than k rows; most continuations of a row
    int64_t paper, prune_bound;           // of OPTIMAL: a candidate that ends takes a place; rows that cannot win are dropped
    int64_t samples;                      // rows are continued by words drawn at random
    Cut cut;                              // from these
    int64_t normalize;                    // scores are totals / length^lenpen, else totals + reward x min(length, rewarded)
    float temperature;
    double threshold, behind_finished;  // nats that a candidate may lie behind the best, and behind the best finished hypothesis
    double lenpen, reward;
};

// Mirrored in beam.py. The arrays are the caller's
struct Sentence {
    const Rules* rules;
    int64_t limit, T, m;           // limit: most tokens before EOS
    double rewarded, limit_divisor;  // length that the reward counts up to; (limit + 1)^lenpen
    int64_t slot, seed, number;    // in the KV cache; the last two are what it samples by
    // state
    int64_t result;                            // GOES_ON while it is live
    int64_t length, rows, used;                // tokens chosen so far, live rows, positions of the slot in use
    int64_t finished, waiting;                 // hypotheses that are answers, and those that wait to become one (RANKED)
    int64_t dropped, missed;                   // candidates dropped that would have been rows; rows that k a step would have had beside these
    double best_total, gap;                    // highest sum of log-probabilities of a hypothesis; what the answer may lack (OPTIMAL)
    int64_t* row;                              // (k,) of each sample, -1 when it has ended
    int64_t *order, *waits;                    // (k,) places in found of the answers, and of those that wait, best first
    double* best;                              // (k,) scores of the answers, best first (OPTIMAL)
    int64_t *tokens, *next_tokens;             // (k, T) the first token, then those chosen
    float *score, *next_score;                 // (k, T) sum of log-probabilities up to each token; 0 of the first
    int32_t *history, *next_history;           // (k, T) where in the slot each token lies
    // found (k, T): each hypothesis' length with EOS, tokens and sums of log-probabilities, as in `tokens` and `score`
    int64_t *found_length, *found_tokens;
    float* found_score;

    // Writes row's tokens and EOS to the f-th place of found
    void finish(int64_t f, int64_t row, float total) {
        std::memcpy(found_tokens + f * T, tokens + row * T, (length + 1) * sizeof(*tokens));
        std::memcpy(found_score + f * T, score + row * T, (length + 1) * sizeof(*score));
        found_length[f] = length + 1;
        found_tokens[f * T + length + 1] = rules->eos;
        found_score[f * T + length + 1] = total;
        best_total = std::max<double>(best_total, total);
    }

    // The j-th row of the next beam: row's tokens and one more
    void go_on(int64_t j, int64_t row, int64_t token, float total) {
        std::memcpy(next_tokens + j * T, tokens + row * T, (length + 1) * sizeof(*tokens));
        std::memcpy(next_score + j * T, score + row * T, (length + 1) * sizeof(*score));
        std::memcpy(next_history + j * T, history + row * T, (length + 1) * sizeof(*history));
        next_tokens[j * T + length + 1] = token;
        next_score[j * T + length + 1] = total;
    }

    // The n rows of the next beam are the present one's
    void next(int64_t n) {
        std::swap(tokens, next_tokens), std::swap(score, next_score), std::swap(history, next_history);
        rows = n, length += 1;
    }

    // Gives up the positions that are in no row's history
    void compact(const Reader& reader, const Step& step) {
        static thread_local std::vector<int32_t> memory_kept, memory_place;
        int32_t *kept = scratch(memory_kept, used), *place = scratch(memory_place, used);
        std::fill_n(place, used, 0);
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t i = 0; i < length; ++i) place[history[r * T + i]] = 1;
        int64_t count = 0;
        for (int64_t p = 0; p < used; ++p)
            if (place[p]) kept[count] = static_cast<int32_t>(p), place[p] = static_cast<int32_t>(count++);
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t i = 0; i < length; ++i) history[r * T + i] = place[history[r * T + i]];
        keep_positions(reader.layers, &step, slot, kept, count);
        used = count;
    }

    // Whether there is room for a step
    bool has_room(const Reader& reader, const Step& step) {
        if (length >= reader.room || length + 2 > T) return false;
        if (used + rows <= step.target.positions) return true;
        compact(reader, step);
        return used + ROOM_STEPS * rows <= step.target.positions;
    }
};

}  // namespace
