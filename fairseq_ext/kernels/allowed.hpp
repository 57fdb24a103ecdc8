// Automata over tokens as one table, and those of allowed outputs.
// Definition: search/phrases/token_automaton.py.
//
// Shapes: M states of all automata, E arcs.

#pragma once

#include <algorithm>
#include <cstdint>

#include "entry.hpp"

namespace {

// Return the first arc of a state whose token is not below this one
int64_t arc_from(const Arcs& arcs, int64_t state, int64_t token) {
    const int32_t *from = arcs.token + arcs.first[state], *to = arcs.token + arcs.first[state + 1];
    return std::lower_bound(from, to, token) - arcs.token;
}

// Return the arc of a state for a token, -1 for none
int64_t arc_of(const Arcs& arcs, int64_t state, int64_t token) {
    const int64_t place = arc_from(arcs, state, token);
    return place < arcs.first[state + 1] && arcs.token[place] == token ? place : -1;
}

// The outputs of one sentence
struct Outputs {
    const Automata& a;

    // Return the state after an allowed token
    int64_t next_state(int64_t state, int64_t token) const { return a.arcs.target[arc_from(a.arcs, state, token)]; }

    // Return how many ways lead on from a state: tokens, and EOS
    int64_t count(int64_t state) const { return a.arcs.first[state + 1] - a.arcs.first[state] + (a.shortest[state] == 0); }

    // Call act(token) for each allowed token, ascending, EOS included. left: tokens that may follow before EOS
    template <typename Act>
    void for_each_allowed(int64_t state, int64_t left, int64_t eos, Act act) const {
        bool ends = a.shortest[state] == 0;
        for (int64_t e = a.arcs.first[state]; e < a.arcs.first[state + 1]; ++e) {
            if (ends && a.arcs.token[e] > eos) act(eos), ends = false;
            if (a.shortest[a.arcs.target[e]] < left) act(static_cast<int64_t>(a.arcs.token[e]));
        }
        if (ends) act(eos);
    }
};

}  // namespace
