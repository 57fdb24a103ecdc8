// The continuations of a sentence, and the stop rule `early`.
// Definition: search/strategies/stop/early.py.
//
// Shapes: k beam, c candidates, G constraints.

#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "sentence.hpp"

namespace {

// The best continuations of a sentence's rows, best first
struct Candidates {
    const float* score;    // (c,) sums of log-probabilities
    const int64_t* where;  // (c,) row x V + word
    const int64_t* bank;   // (c,) BANKS: bank of each; else null
    int64_t c, V, eos, most;  // most: largest number of rows of the next beam
    bool at_limit;            // all of them end

    bool ends(int64_t i) const { return where[i] % V == eos; }
    int64_t row(int64_t i) const { return where[i] / V; }
    int64_t word(int64_t i) const { return where[i] % V; }
    // Return whether the i-th is better than the j-th
    bool better(int64_t i, int64_t j) const { return score[i] > score[j] || (score[i] == score[j] && i < j); }
};

using Places = std::vector<int64_t>;  // of candidates

// Append an answer to the sentence's answers
void answer(Sentence& s, const Candidates& all, int64_t i) {
    s.order[s.finished] = s.finished;
    finish(s, s.finished++, all.row(i), all.score[i], s.length);
}

// Return the score that hypotheses are compared by. The part of the total below -max_nats_per_token per token is not divided by the length
float ranking_score(const Rules& rules, float total, int64_t length, float divisor) {
    const float least = -static_cast<float>(rules.max_nats_per_token) * static_cast<float>(length);
    return std::max(total, least) / divisor + std::min(total - least, 0.0f);
}

// Return the best final score that is expected of a candidate
float best_expected_score(const Sentence& s, const Candidates& all, int64_t i) {
    const Rules& rules = *s.rules;
    const int64_t lacks = s.goal - all.bank[i], length = s.length + 1 + lacks;
    const float total = all.score[i] - rules.missing_cost[lacks];
    float highest = -INFINITY;
    for (int64_t more = 1; more <= rules.max_extra_tokens + 1; ++more)
        highest = std::max(highest, ranking_score(rules, total - rules.extra_cost[more - 1], length + more,
                                                  rules.estimate_divisor[length + more]));
    return highest;
}

// Keep at most `room` of the staying candidates: the best ones that compete, then one per bank in turn, from the highest bank down
void keep_by_bank_turns(const Candidates& all, Places& stays, int64_t competing, int64_t room) {
    static thread_local std::vector<std::pair<int64_t, int64_t>> turn;
    if (static_cast<int64_t>(stays.size()) <= room) return;
    turn.clear();
    for (int64_t i : stays) {
        int64_t rank = 0, first = -competing;  // in its bank, and of all
        for (int64_t j : stays) rank += all.bank[j] == all.bank[i] && all.better(j, i), first += all.better(j, i);
        turn.push_back(first < 0 ? std::pair{int64_t{-1}, first} : std::pair{rank, -all.bank[i]});
    }
    size_t kept = 0;
    for (size_t i = 0; i < stays.size(); ++i) {
        int64_t before = 0;
        for (const auto& other : turn) before += other < turn[i];
        if (before < room) stays[kept++] = stays[i];
    }
    stays.resize(kept);
}

// (8) Finish hypotheses, fill `stays`, best first, and return whether the sentence is final
bool early(Sentence& s, const Candidates& all, Places& stays) {
    const float divisor = s.rules->divisor[s.length + 1];
    double* last = s.best + s.m - 1;
    const double bound = *last;  // before this step
    const int64_t first_length = s.finished ? s.found_length[0] : INT32_MAX;
    for (int64_t i = 0; i < all.c; ++i) {
        if (!all.ends(i)) {
            stays.push_back(i);
            continue;
        }
        double value = ranking_score(*s.rules, all.score[i], s.length + 1, divisor);
        if ((s.goal > 0 && value <= bound) || i >= all.most || s.finished == s.enough) continue;
        answer(s, all, i);
        for (double* at = s.best; at <= last; ++at)
            if (value > *at) std::swap(value, *at);
    }
    if (s.goal == 0 || *last == -INFINITY) return s.finished == s.enough;
    s.full = 1;
    size_t kept = 0;
    int64_t going = 0;
    for (int64_t i : stays)
        if (++going <= all.most && best_expected_score(s, all, i) > *last) stays[kept++] = i;
    stays.resize(kept);
    keep_by_bank_turns(all, stays, s.rules->competing, s.rows);
    s.dropped += std::min(going, all.most) - static_cast<int64_t>(stays.size());
    return s.finished == s.enough || s.length + 1 > 2 * first_length + 16;
}

}  // namespace
