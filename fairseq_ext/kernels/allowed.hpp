// Allowed outputs: automata over tokens as one table.
// Definition: search/phrases/token_automaton.py.
//
// Shapes: M states of all automata, E arcs.

#pragma once

#include <algorithm>
#include <cstdint>

#include "entry.hpp"

namespace {

// The outputs of one sentence: `base`, its first state in the table; states are numbers from there
struct Outputs {
    const Automata& a;
    int64_t base;

    // Return the state after an allowed token
    int64_t next_state(int64_t state, int64_t token) const {
        const int32_t *from = a.token + a.first[base + state], *end = a.token + a.first[base + state + 1];
        return a.target[std::lower_bound(from, end, static_cast<int32_t>(token)) - a.token];
    }

    // Return how many ways lead on from a state: tokens, and EOS
    int64_t count(int64_t state) const { return a.first[base + state + 1] - a.first[base + state] + (a.shortest[base + state] == 0); }

    // Call act(token) for each allowed token, ascending, EOS included. left: tokens that may follow before EOS
    template <typename Act>
    void for_each_allowed(int64_t state, int64_t left, int64_t eos, Act act) const {
        bool ends = a.shortest[base + state] == 0;
        for (int64_t e = a.first[base + state]; e < a.first[base + state + 1]; ++e) {
            if (ends && a.token[e] > eos) act(eos), ends = false;
            if (a.shortest[base + a.target[e]] < left) act(static_cast<int64_t>(a.token[e]));
        }
        if (ends) act(eos);
    }
};

}  // namespace
