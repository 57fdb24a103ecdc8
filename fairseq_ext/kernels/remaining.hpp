// Allowed outputs: the end of a search when few outputs are left.
//
// A beam of k rows keeps all continuations of k outputs, so nothing is left to choose: each of them is an answer. They are scored best bound
// first, as many tokens of one of them in a step as the beam has rows. An output that cannot be one of the m best is not scored to its end.
// The m best are those of the search that goes on token by token, to the last bit.
//
// Shapes: k beam, V vocabulary, T token capacity of a row, m the length of the n-best list.

#pragma once

#include "result.hpp"
#include "stops.hpp"

namespace {

// The outputs that rows can become: the row of each, and the tokens that follow the row's own
struct Rests {
    std::vector<int64_t> row, path;
    std::vector<std::vector<int64_t>> tokens;

    // Add those of a row from a state on; return false if there are more than `most` in all. left: tokens that may follow before EOS
    bool add(const Outputs& outputs, int64_t of_row, int64_t state, int64_t left, size_t most) {
        const Automata& a = outputs.a;
        if (a.shortest[state] == 0) {
            if (row.size() == most) return false;
            row.push_back(of_row), tokens.push_back(path);
        }
        for (int64_t e = a.arcs.first[state]; e < a.arcs.first[state + 1]; ++e) {
            if (a.shortest[a.arcs.target[e]] >= left) continue;
            path.push_back(a.arcs.token[e]);
            if (!add(outputs, of_row, a.arcs.target[e], left - 1, most)) return false;
            path.pop_back();
        }
        return true;
    }
};

// Choose the output with the highest bound, whose next tokens the next step reads; return false if the m best are known
bool choose_output(Sentence& s) {
    double highest = -INFINITY;
    int64_t better = 0;
    s.reading = -1;
    for (int64_t j = 0; j < s.remaining; ++j) {
        if (s.read[j] > s.ends[j]) continue;
        // log-probabilities are at most 0
        const double bound = final_score(s, s.score[j * s.T + s.read[j]], s.ends[j] + 1);
        if (bound > highest) highest = bound, s.reading = j;
    }
    if (s.reading < 0) return false;
    for (int64_t f = 0; f < s.finished; ++f) {
        const int64_t n = s.found_length[f];
        better += final_score(s, s.found_score[f * s.T + n], n) > highest;
    }
    s.rows = std::min(s.rules->k, s.ends[s.reading] + 1 - s.read[s.reading]);
    return better < s.m;
}

// Find the outputs that are left, if a beam keeps them all
void find_remaining(Sentence& s, const Reader& reader) {
    static thread_local Rests rests;
    const Rules& rules = *s.rules;
    const int64_t most = rules.k - s.finished;
    if (!s.allowed || s.remaining || s.rows > most) return;
    if (rules.selection != TOP || rules.stop != COUNT || rules.variable || rules.children < 2 * rules.k || rules.ngram) return;
    const Outputs outputs = outputs_of(s);
    rests.row.clear(), rests.path.clear(), rests.tokens.clear();
    int64_t arcs = 0;
    for (int64_t r = 0; r < s.rows; ++r) arcs += outputs.count(s.allowed_state[r]);
    if (arcs > most) return;
    for (int64_t r = 0; r < s.rows; ++r)  // each later row has at least one
        if (!rests.add(outputs, r, s.allowed_state[r], s.limit - s.length, most - (s.rows - 1 - r))) return;
    for (const auto& tokens : rests.tokens) {
        const int64_t end = s.length + tokens.size();
        if (end < rules.min_len || end + 2 > s.T || end >= reader.room) return;
    }
    const int64_t n = rests.row.size(), T = s.T, length = s.length;
    for (int64_t j = 0; j < n; ++j) {
        const int64_t row = rests.row[j];
        std::memcpy(s.next_tokens + j * T, s.tokens + row * T, (length + 1) * sizeof(*s.tokens));
        std::memcpy(s.next_score + j * T, s.score + row * T, (length + 1) * sizeof(*s.score));
        std::memcpy(s.next_history + j * T, s.history + row * T, length * sizeof(*s.history));
        std::copy(rests.tokens[j].begin(), rests.tokens[j].end(), s.next_tokens + j * T + length + 1);
        s.ends[j] = length + rests.tokens[j].size(), s.read[j] = length;
    }
    std::swap(s.tokens, s.next_tokens), std::swap(s.score, s.next_score), std::swap(s.history, s.next_history);
    s.remaining = n;
    choose_output(s);
}

// Score the tokens that a step has read of an output. normalise(line, highest, log_total): as in beam.cpp, false for NaN
template <typename Normalise>
Result score_output(Sentence& s, float* logits, int64_t V, Normalise normalise) {
    const int64_t j = s.reading, end = s.ends[j];
    for (int64_t i = 0; i < s.rows; ++i) {
        float *line = logits + i * V, highest, log_total;
        if (!normalise(line, highest, log_total)) return NOT_A_NUMBER;
        const int64_t at = s.read[j]++;
        const int64_t word = at == end ? s.rules->eos : s.tokens[j * s.T + at + 1];
        const float total = ((line[word] - highest) - log_total) + s.score[j * s.T + at];
        if (total == -INFINITY) s.read[j] = end + 1;  // impossible
        if (s.read[j] <= end) s.score[j * s.T + at + 1] = total;
        else if (total > -INFINITY) s.order[s.finished] = s.finished, finish(s, s.finished, j, total, end), ++s.finished;
        if (s.read[j] > end) break;
    }
    if (choose_output(s)) return GOES_ON;
    // in the order in which a search token by token finishes them
    std::stable_sort(s.order, s.order + s.finished, [&](int64_t a, int64_t b) {
        const int64_t n = s.found_length[a], o = s.found_length[b];
        return n != o ? n < o : s.found_score[a * s.T + n] > s.found_score[b * s.T + o];
    });
    return FINISHED;
}

}  // namespace
