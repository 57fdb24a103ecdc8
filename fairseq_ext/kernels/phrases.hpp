// The state of a hypothesis regarding the required phrases of its sentence, and its update by a token.
// Definition: search/phrases/automaton.py, search/phrases/phrase_table.py.
//
// Shapes: N sentences in the tables, V vocabulary, G constraints, M states of their automata with E arcs, W next tokens of a state.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "allowed.hpp"

namespace {

constexpr int64_t OUT = 3, IN = 4;  // roots of an automaton: after a sign, after a letter

// One sentence's constraints, with functions of a hypothesis' state and counts
struct Table {
    const Phrases& p;
    int64_t s;

    int64_t need(int64_t g) const { return p.need[s * p.G + g]; }
    int64_t size(int64_t g) const { return p.size[s * p.G + g]; }
    bool active(const int64_t* count, int64_t g) const {
        if (count[g] >= need(g)) return false;
        for (int64_t earlier = 0; p.ordered && earlier < g; ++earlier)
            if (count[earlier] < need(earlier)) return false;
        return true;
    }
    // Return whether the next token decides if a constraint is met
    bool is_pending(const int64_t* state, const int64_t* count) const {
        for (int64_t g = 0; p.continues_word && g < p.G; ++g)
            if (p.pending[state[g]] && active(count, g)) return true;
        return false;
    }
    // Count pending constraints as met if the text ends (word -1) or if the next token does not continue the word
    void meet_pending(int64_t word, int64_t* state, int64_t* count) const {
        if (!p.continues_word || (word >= 0 && p.continues_word[word])) return;
        for (int64_t g = 0; g < p.G; ++g) {
            if (!p.pending[state[g]] || !active(count, g)) continue;
            ++count[g], state[g] = p.base[state[g]] + IN;
            if (p.ordered) return;
        }
    }
    // Copy a row's state, with pending constraints counted as met
    void read(const int64_t* state, const int64_t* count, int64_t*& state_, int64_t*& count_) const {
        copy.assign(state, state + p.G);
        copy.insert(copy.end(), count, count + p.G);
        state_ = copy.data(), count_ = copy.data() + p.G;
        meet_pending(-1, state_, count_);
    }
    int64_t bank(const int64_t* before, const int64_t* met) const {
        int64_t sum = 0, partial = 0, *state, *count;
        read(before, met, state, count);
        for (int64_t g = 0; g < p.G; ++g) {
            sum += count[g] * size(g);
            if (active(count, g)) partial = std::max(partial, p.value[state[g]]);
        }
        return sum + partial;
    }
    // Compute state and count after a token
    void advance(const int64_t* state, const int64_t* count, int64_t word, int64_t* state_, int64_t* count_) const {
        std::copy(count, count + p.G, count_);
        std::copy(state, state + p.G, state_);
        meet_pending(word, state_, count_);
        int64_t root_after = p.root_after_token ? p.root_after_token[word] : OUT;
        active_.assign(p.G, 0);
        for (int64_t g = 0; g < p.G; ++g) active_[g] = active(count_, g);
        for (int64_t g = 0; g < p.G; ++g) {
            int64_t at = state_[g], found = -1;
            state_[g] = root_after < 0 ? p.root[at] : p.base[at] + root_after;
            if (!active_[g]) continue;
            found = arc_of(p.arcs, at, word);
            if (found < 0) found = arc_of(p.arcs, p.root[at], word);
            if (found < 0) continue;
            state_[g] = p.arcs.target[found];
            count_[g] = std::min(need(g), count_[g] + p.hits[found]);
        }
    }
    static thread_local std::vector<int64_t> copy;
    static thread_local std::vector<char> active_;
};
thread_local std::vector<int64_t> Table::copy;
thread_local std::vector<char> Table::active_;

}  // namespace
