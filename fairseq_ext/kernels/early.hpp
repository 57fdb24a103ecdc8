// The stop decision of search/strategies/stop/early.py for one sentence, and the state of the search (constrained.cpp).
//
// Shapes: as in constrained.cpp.

#pragma once

#include "banks.hpp"

namespace {

// A search; mirrored in constrained.py. The arrays are the caller's
struct ConstrainedSearch {
    int64_t k, m, min_len, eos, pad, ngram, T, even, per_row, max_extra_tokens;
    float temperature;
    double missing_token_cost, token_cost, max_nats_per_token;  // constants of the estimate, with max_extra_tokens
    const float *divisor, *estimate_divisor;  // by length: what totals of finished hypotheses, and of estimates, are divided by
    const Phrases* phrases;
    // of each sentence (N,)
    const int64_t *number, *limit;  // number in the tables of phrases; largest number of tokens before EOS
    const bool* infeasible;
    // state
    // chosen tokens, live sentences, largest rows of a sentence, positions in use, ended sentences, pruned hypotheses, full lists
    int64_t length, live, W, used, ended, dropped, full;
    int64_t *slot, *first;                                // (N,) each live sentence's slot; (N + 1,) its first row
    int64_t *tokens, *next_tokens;                        // (n, T) the first token, then those chosen
    float *score, *next_score;                            // (n, T) sum of log-probabilities up to each token; 0 of the first
    int32_t *history, *next_history;                      // (n, T) position of each token in the KV cache
    int64_t *state, *next_state, *met, *next_met;         // (n, G) state and met counts of each row's phrases
    double* best;                                         // (N, m) best scores, best first
    // number of hypotheses of each sentence, their lengths with EOS, tokens and sums; sentences in the order in which they ended
    int64_t *finished, *found_length, *found_tokens, *order;
    float* found_score;
    int64_t calls, decoder_rows;  // decoder calls; their rows, summed

    int64_t rows() const { return first[live]; }
};

// Result of one step for one sentence: the candidates that finish and those that continue (indices into `choice`)
struct Outcome {
    Scratch choice;
    std::vector<int64_t> done, stays;
    int64_t dropped;
    bool full, final, broken;
};

// Return the score that hypotheses are compared by. The part of the total below -max_nats_per_token per token is not divided by the length
float ranking_score(const ConstrainedSearch& s, float total, int64_t length, float divisor) {
    const float least = -static_cast<float>(s.max_nats_per_token) * static_cast<float>(length);
    return std::max(total, least) / divisor + std::min(total - least, 0.0f);
}

// Return the best final score that is expected of a candidate
float best_expected_score(const ConstrainedSearch& s, const Candidate& c, int64_t goal) {
    const int64_t lacks = goal - c.bank, length = s.length + 1 + lacks;
    const float total = c.score - static_cast<float>(s.missing_token_cost) * static_cast<float>(lacks);
    float highest = -INFINITY;
    for (int64_t more = 1; more <= s.max_extra_tokens + 1; ++more)
        highest = std::max(highest, ranking_score(s, total - static_cast<float>(s.token_cost * more), length + more,
                                                  s.estimate_divisor[length + more]));
    return highest;
}

// Keep at most `room` of the staying candidates: one per bank in turn, from the highest bank down
void keep_by_bank_turns(const Scratch& m, std::vector<int64_t>& stays, int64_t room) {
    static thread_local std::vector<std::pair<int64_t, int64_t>> turn;
    if (static_cast<int64_t>(stays.size()) <= room) return;
    turn.clear();
    auto of = [&](int64_t i) -> const Candidate& { return m.candidate[m.order[i]]; };
    for (int64_t i : stays) {
        int64_t rank = 0;
        for (int64_t j : stays) rank += of(j).bank == of(i).bank && (of(j).score > of(i).score || (of(j).score == of(i).score && j < i));
        turn.push_back({rank, -of(i).bank});
    }
    size_t kept = 0;
    for (size_t i = 0; i < stays.size(); ++i) {
        int64_t before = 0;
        for (const auto& other : turn) before += other < turn[i];
        if (before < room) stays[kept++] = stays[i];
    }
    stays.resize(kept);
}

// (8) Decide which candidates of the i-th live sentence finish and which continue
void decide(ConstrainedSearch& s, int64_t i, const Rows& rows, Outcome& o) {
    const Scratch& m = o.choice;
    const int64_t slot = s.slot[i], goal = s.phrases->total[rows.sentence[i]], c = std::min<int64_t>(rows.num_candidates, m.order.size());
    const int64_t enough = goal > 0 ? 2 * s.k : s.k;
    const float divisor = s.divisor[s.length + 1];
    double *best = s.best + slot * s.m, *last = best + s.m - 1;
    const double bound = *last;  // before this step
    int64_t ends = 0, going = 0;
    o.done.clear(), o.stays.clear(), o.dropped = 0;
    for (int64_t j = 0; j < c; ++j) {
        const Candidate& candidate = m.candidate[m.order[j]];
        if (candidate.token != s.eos) {
            o.stays.push_back(j);
            continue;
        }
        const float score = ranking_score(s, candidate.score, s.length + 1, divisor);
        if ((goal > 0 && score <= bound) || j >= s.k) continue;
        if (s.finished[slot] + ++ends > enough) continue;
        o.done.push_back(j);
        double value = score;
        for (double* at = best; at <= last; ++at)
            if (value > *at) std::swap(value, *at);
    }
    o.full = goal > 0 && *last > -INFINITY;
    if (o.full) {
        size_t kept = 0;
        for (int64_t j : o.stays)
            if (++going <= s.k && best_expected_score(s, m.candidate[m.order[j]], goal) > *last) o.stays[kept++] = j;
        o.stays.resize(kept);
        going = std::min(going, s.k);
        int64_t room = 0;
        for (int64_t r = rows.first[i]; r < rows.first[i + 1]; ++r) room += rows.score[r] > -INFINITY;
        keep_by_bank_turns(m, o.stays, room);
        o.dropped = going - static_cast<int64_t>(o.stays.size());
    }
    const int64_t first_length = s.finished[slot] ? s.found_length[slot * 2 * s.k] : INT32_MAX;
    const bool late = o.full && s.length + 1 > 2 * first_length + 16;
    o.final = s.finished[slot] + static_cast<int64_t>(o.done.size()) >= enough || o.stays.empty() || s.length >= s.limit[slot] || late;
    if (static_cast<int64_t>(o.stays.size()) > s.k) o.stays.resize(s.k);
}

}  // namespace
