// State of one sentence's search: its limits, its rows and its finished hypotheses. beam.cpp steps it, stops.hpp ends it.
//
// Shapes: k beam (BANKS: largest number of rows), T token capacity of a row, m the length of the n-best list, G constraints.

#pragma once

#include "allowed.hpp"
#include "phrases.hpp"
#include "reader.hpp"
#include "step.hpp"
#include "sampling.hpp"

namespace {

constexpr int64_t ROOM_STEPS = 8;  // more KV cache positions are requested unless this many steps fit after compaction

enum Selection : int64_t { TOP, SAMPLES, BANKS };  // of strategies/select
enum Stop : int64_t { COUNT, RANKED, FIRST, SHRINK, OPTIMAL, EARLY };  // of strategies/stop

// Settings of every sentence; beam.py reads the fields from here
struct Rules {
    int64_t k, min_len, eos, pad, ngram;  // ngram: size of n-grams that may not repeat, 0: off
    // variable: a sentence may have fewer than k rows; children: largest number of continuations of a row
    int64_t selection, stop, variable, children;
    int64_t paper_expansion, prune_bound;           // OPTIMAL: a candidate that ends takes a place; rows that cannot win are dropped
    SamplingCut sampling_cut;                       // SAMPLES: the words that are drawn from
    int64_t even, per_row, competing;               // BANKS: as in banks.hpp
    int64_t max_extra_tokens;                       // EARLY: of an estimate, in addition to the missing ones
    int64_t normalize;                    // scores are totals / length^lenpen, else totals + reward x min(length, rewarded)
    float temperature;
    double threshold, finished_threshold;  // nats that a candidate may lie behind the best, and behind the best finished hypothesis
    double max_nats_per_token;  // EARLY: the part of a total below it is not divided by the length
    // EARLY, of an estimate: the cost of n missing tokens, and of 1 + max_extra_tokens others
    const float *missing_cost, *extra_cost;
    const float *divisor, *estimate_divisor;  // by length: what totals of finished hypotheses, and of estimates, are divided by
};

// beam.py reads the fields from here. The caller owns the arrays
struct Sentence {
    const Rules* rules;
    int64_t limit, T, m;           // limit: largest number of tokens before EOS
    int64_t enough;                // hypotheses that there is room for, and that are enough
    double limit_divisor, lenpen;  // (limit + 1)^lenpen
    const double* reward;          // (limit + 2,) of each length; null: none
    int64_t slot, seed, number;    // slot in the KV cache; seed and number of its random numbers
    // required phrases: those of its pool, null for none; its number there; number of tokens; they cannot be met; rows that the banks share
    const Phrases* phrases;
    int64_t in_phrases, goal, infeasible, slots;
    // words that are scored, ascending (--softmax top, lexical), null for all; (listed,) column of each in the step's logits
    const int64_t *words, *columns;
    int64_t listed;
    // state
    int64_t result;                            // GOES_ON while it is live
    int64_t length, rows, used;                // tokens chosen so far, live rows, positions of the slot in use
    int64_t finished, waiting;                 // hypotheses that are answers, and those that wait to become one (RANKED)
    // pruned candidates that would have become rows; rows that a full beam of k would have had in addition
    int64_t dropped, unused_rows;
    int64_t full;                              // the n-best list has been full (EARLY)
    // highest sum of log-probabilities of a hypothesis; largest possible loss of the answer (OPTIMAL)
    double best_total, gap;
    int64_t* row;                              // (k,) of each sample, -1 when it has ended
    // places in found of the answers, and of hypotheses that may still become answers, best first
    int64_t *order, *unconfirmed;
    double* best;                              // (m,) scores of the answers, best first (OPTIMAL, EARLY)
    int64_t *tokens, *next_tokens;             // (k, T) the first token, then those chosen
    float *score, *next_score;                 // (k, T) sum of log-probabilities up to each token; 0 of the first
    int32_t *history, *next_history;           // (k, T) position of each token in the slot
    int64_t *state, *next_state, *met, *next_met;  // (k, G) state and met counts of each row's phrases
    // found (enough, T): each hypothesis' length with EOS, tokens and sums of log-probabilities, as in `tokens` and `score`
    int64_t *found_length, *found_tokens;
    float* found_score;
    // allowed outputs: the automata, null where every output is allowed; the first state of its own there; (k,) state of each row
    const Automata* allowed;
    int64_t allowed_base;
    int64_t *allowed_state, *next_allowed_state;
    // number of outputs that are left, once they are so few that all of them are answers (remaining.hpp); 0 before. Each is a row of
    // `tokens`; the one of which the next step reads `rows` tokens
    int64_t remaining, reading;
    int64_t *ends, *read;                      // (k,) number of tokens of each before EOS; how many of them the decoder has read

    Outputs outputs() const { return {*allowed, allowed_base}; }

    // Return the place of a word in its scores, or -1 if it is not scored
    int64_t column_of(int64_t word) const {
        if (!words) return word;
        const int64_t column = std::lower_bound(words, words + listed, word) - words;
        return column < listed && words[column] == word ? column : -1;
    }

    // Write the row's tokens and EOS to the f-th place of found
    void finish(int64_t f, int64_t row, float total) { finish(f, row, total, length); }
    void finish(int64_t f, int64_t row, float total, int64_t length) {
        std::memcpy(found_tokens + f * T, tokens + row * T, (length + 1) * sizeof(*tokens));
        std::memcpy(found_score + f * T, score + row * T, (length + 1) * sizeof(*score));
        found_length[f] = length + 1;
        found_tokens[f * T + length + 1] = rules->eos;
        found_score[f * T + length + 1] = total;
        best_total = std::max<double>(best_total, total);
    }

    // Write the j-th row of the next beam: the row's tokens and one more
    void continue_row(int64_t j, int64_t row, int64_t token, float total) {
        std::memcpy(next_tokens + j * T, tokens + row * T, (length + 1) * sizeof(*tokens));
        std::memcpy(next_score + j * T, score + row * T, (length + 1) * sizeof(*score));
        std::memcpy(next_history + j * T, history + row * T, (length + 1) * sizeof(*history));
        next_tokens[j * T + length + 1] = token;
        next_score[j * T + length + 1] = total;
        if (allowed) next_allowed_state[j] = outputs().next_state(allowed_state[row], token);
    }

    // Replace the beam by the next one, which has n rows
    void next(int64_t n) {
        std::swap(tokens, next_tokens), std::swap(score, next_score), std::swap(history, next_history);
        std::swap(state, next_state), std::swap(met, next_met);
        std::swap(allowed_state, next_allowed_state);
        rows = n, length += 1;
    }

    // Free the KV cache positions that are in no row's history
    void compact(const Reader& reader, const Step& step) {
        static thread_local std::vector<int32_t> memory_kept, memory_place;
        int32_t *kept = scratch(memory_kept, used), *place = scratch(memory_place, used);
        std::fill_n(place, used, 0);
        const int64_t all = remaining ? remaining : rows;
        auto count_of = [&](int64_t r) { return remaining ? read[r] : length; };
        for (int64_t r = 0; r < all; ++r)
            for (int64_t i = 0; i < count_of(r); ++i) place[history[r * T + i]] = 1;
        int64_t count = 0;
        for (int64_t p = 0; p < used; ++p)
            if (place[p]) kept[count] = static_cast<int32_t>(p), place[p] = static_cast<int32_t>(count++);
        for (int64_t r = 0; r < all; ++r)
            for (int64_t i = 0; i < count_of(r); ++i) history[r * T + i] = place[history[r * T + i]];
        keep_positions(reader.layers, &step, slot, kept, count);
        used = count;
    }

    bool cache_is_full(const Step& step) const { return used + rows > step.target.positions; }

    // Return whether the next step has enough memory; compact the KV cache if it is full
    bool has_room(const Reader& reader, const Step& step) {
        if (length >= reader.room || length + 2 > T) return false;
        if (!cache_is_full(step)) return true;
        compact(reader, step);
        return used + ROOM_STEPS * rows <= step.target.positions;
    }
};

}  // namespace
