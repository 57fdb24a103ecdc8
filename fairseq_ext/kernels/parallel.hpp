// What the functions of parallel.cpp share: a row that is alone, the method that decides on its blocks, and where its drafts come from.
// parallel.py reads the fields of the structures from here.
#pragma once

#include <cstdint>

constexpr int64_t NONE = -1;  // no draft at this position

// A live row. Buffers have room for the widest block, limit + 1 positions; w is the width of the block at hand
struct Row {
    int64_t* tokens;     // (T,) the first token, then the verified ones
    int64_t* length;     // verified tokens
    double* score;       // (T,) log-probability of each verified token
    int64_t* draft;      // (w - 1,) the draft, and behind it what else was proposed
    double* sure;        // probability that each proposed token is right if those before it are
    int64_t* word;       // (w,) each position's best word
    double* word_score;  // (w,) its log-probability
    double* margin;      // (w,) how far it is before the second best, where there is a margin to keep
    // of the method: draft tokens, none where nothing pays; what came of them; how many verified tokens are kept
    int64_t (*draft_block)(void* method, Row* row, int64_t most);
    void (*learn)(void* method, const Row* row, int64_t verified);  // or null
    int64_t (*commit)(void* method, const Row* row, int64_t verified, int64_t finished);
    void* method;
    int64_t limit, min_len, eos, pad;  // limit: most tokens before EOS
    int64_t ngram;                     // size of n-grams that do not repeat; 0: off
    int64_t every;                     // log-probabilities of every position are asked for
    double least_margin;               // closer positions are read again alone; 0: none
    // state
    int64_t w, redo;               // w: 0 where nothing has been drafted yet; redo: the next position is read alone
    int64_t first_guess, guesses;  // word[first_guess, first_guess + guesses) is what the last call gave behind the kept tokens
    int64_t verified, broken;      // of the last call: verified tokens; the position that holds NaN
    // counts
    int64_t checked, redone;  // positions verified in blocks; of those, read again
    int64_t calls, positions, kept, offered, taken;

    int64_t last() const { return tokens[*length]; }
    int64_t guess(int64_t i) const { return i < guesses ? word[first_guess + i] : NONE; }
};

// At most `most` tokens behind the row's verified ones, up to where all of them are right with probability `least`, and how sure each
// is; returns how many
struct Drafter {
    int64_t (*propose)(void* state, const Row* row, int64_t most, double least, int64_t* token, double* sure);
    void* state;

    int64_t operator()(const Row* row, int64_t most, double least, int64_t* token, double* sure) const {
        return propose(state, row, most, least, token, sure);
    }
};
