// Structures of parallel.cpp: a single row with the method of its blocks, and the source of its drafts. parallel.py reads the fields from
// here.
#pragma once

#include <cstdint>

constexpr int64_t NONE = -1;  // no draft at this position

// A live row. Buffers have the size of the widest block, limit + 1 positions; w is the width of the current block
struct Row {
    int64_t* tokens;     // (T,) the first token, then the verified ones
    int64_t* length;     // verified tokens
    double* score;       // (T,) log-probability of each verified token
    int64_t* draft;      // (w - 1,) the draft, followed by further proposed tokens
    double* confidence;        // probability that each proposed token is right if those before it are
    int64_t* word;       // (w,) each position's best word
    double* word_score;  // (w,) its log-probability
    double* margin;      // (w,) its distance to the second best, if least_margin is set
    // functions of the method: draft tokens (none if a draft does not pay), learn from the result, return how many verified tokens to
    // commit
    int64_t (*draft_block)(void* method, Row* row, int64_t most);
    void (*learn)(void* method, const Row* row, int64_t verified);  // or null
    int64_t (*commit)(void* method, const Row* row, int64_t verified, int64_t finished);
    void* method;
    int64_t limit, min_len, eos, pad;  // limit: largest number of tokens before EOS
    int64_t ngram;                     // size of n-grams that may not repeat; 0: off
    int64_t every;                     // log-probabilities of every position are required
    double least_margin;               // closer positions are read again alone; 0: none
    // state
    int64_t w, redo;               // w: 0 before the first draft; redo: the next position is read alone
    int64_t first_guess, guesses;  // word[first_guess, first_guess + guesses): words of the last call after the committed ones
    int64_t verified, broken;      // of the last call: number of verified tokens; the position with NaN
    // counts
    int64_t checked, redone;  // positions verified in blocks; positions of these that were read again
    int64_t calls, positions, committed, offered, accepted;

    int64_t last() const { return tokens[*length]; }
    int64_t guess(int64_t i) const { return i < guesses ? word[first_guess + i] : NONE; }
};

// Proposes at most `most` tokens after the row's verified ones, with the confidence of each; returns their number
struct Drafter {
    int64_t (*propose)(void* state, const Row* row, int64_t most, int64_t* token, double* sure);
    void* state;

    int64_t operator()(const Row* row, int64_t most, int64_t* token, double* sure) const {
        return propose(state, row, most, token, sure);
    }
};
