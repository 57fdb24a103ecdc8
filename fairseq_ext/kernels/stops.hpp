// Pruning and the stop rule of a sentence: each candidate is dropped, becomes a finished hypothesis, or becomes a row of the next beam.
// Definition: search/strategies/prune.py, search/strategies/stop/count.py, search/strategies/stop/first.py,
// search/strategies/stop/optimal.py, search/strategies/stop/ranked.py, search/strategies/stop/shrink.py.
//
// Shapes: k beam, c candidates, m the length of the n-best list.

#pragma once

#include "early.hpp"

namespace {

// (7) Return how many candidates pruning keeps. Dropped candidates are at the end
int64_t prune(Sentence& s, const Candidates& all) {
    const Rules& rules = *s.rules;
    int64_t c = all.c;
    if (!c) return 0;
    while (c && all.score[c - 1] < s.best_total - rules.finished_threshold) --c;
    const float best = std::max(all.score[0], static_cast<float>(s.best_total)) - static_cast<float>(rules.threshold);
    while (c && all.score[c - 1] < best) --c;
    s.dropped += std::min(all.c, rules.k) - std::min(c, rules.k);
    return c;
}

void all_that_go_on(const Candidates& all, Places& stays) {
    for (int64_t i = 0; i < all.c; ++i)
        if (!all.ends(i)) stays.push_back(i);
}

// (8) Each of the following functions finishes hypotheses, fills `stays`, best first, and returns whether the sentence is final

bool count(Sentence& s, const Candidates& all, Places& stays) {
    const int64_t k = s.rules->k;
    for (int64_t i = 0; i < std::min(all.c, k); ++i)
        if (all.ends(i) && s.finished < k) answer(s, all, i);
    all_that_go_on(all, stays);
    return s.finished == k;
}

bool first(Sentence& s, const Candidates& all, Places& stays) {
    if (all.c && all.ends(0)) answer(s, all, 0);
    all_that_go_on(all, stays);
    return s.finished;
}

bool shrink(Sentence& s, const Candidates& all, Places& stays) {
    const int64_t slots = s.rules->k - s.finished;
    for (int64_t i = 0; i < std::min(all.c, slots); ++i)
        if (all.ends(i)) answer(s, all, i);
    all_that_go_on(all, stays);
    stays.resize(std::min<size_t>(stays.size(), s.rules->k - s.finished));
    return false;
}

// Fill the k places of the beam, minus one for each answer, with the best of the waiting hypotheses and the candidates
bool ranked(Sentence& s, const Candidates& all, Places& stays) {
    static thread_local Places waits;
    const int64_t places = s.rules->k - s.finished;
    int64_t before = 0, from = 0;  // index of the next waiting hypothesis, and of the next candidate
    auto waiting = [&](int64_t j) { return s.found_score[s.unconfirmed[j] * s.T + s.found_length[s.unconfirmed[j]]]; };
    static thread_local std::vector<std::pair<bool, int64_t>> beam;  // whether it waits, and where
    beam.clear();
    while (static_cast<int64_t>(beam.size()) < places && (before < s.waiting || from < all.c)) {
        const bool waits_now = before < s.waiting && (from == all.c || waiting(before) >= all.score[from]);
        beam.push_back({waits_now, waits_now ? s.unconfirmed[before++] : from++});
    }
    // a hypothesis that leaves the beam frees its place in found
    static thread_local std::vector<char> taken;
    taken.assign(s.rules->k, 0), waits.clear();
    for (int64_t f = 0; f < s.finished; ++f) taken[s.order[f]] = 1;
    for (auto [waits_now, at] : beam)
        if (waits_now) taken[at] = 1;
    for (auto [waits_now, at] : beam) {
        int64_t f = at;
        if (!waits_now) {
            if (!all.ends(at)) {
                stays.push_back(at);
                continue;
            }
            f = std::find(taken.begin(), taken.end(), 0) - taken.begin(), taken[f] = 1;
            finish(s, f, all.row(at), all.score[at], s.length);
        }
        if (stays.empty()) s.order[s.finished++] = f;  // all better ones are finished
        else waits.push_back(f);
    }
    s.waiting = waits.size();
    std::copy(waits.begin(), waits.end(), s.unconfirmed);
    return s.finished == s.rules->k;
}

// Return the score of a hypothesis of `length` tokens
double final_score(const Sentence& s, float total, int64_t length) {
    if (s.rules->normalize) return total / s.rules->divisor[length];
    return s.reward ? total + s.reward[length] : total;
}

// Return the best score that a live hypothesis of at most `most` tokens can still get
double reach(const Sentence& s, float total, int64_t most) {
    if (s.rules->normalize) return total / (most > s.limit ? s.limit_divisor : std::pow(static_cast<double>(most), s.lenpen));
    return s.reward ? total + s.reward[most] : total;
}

// Return the most tokens, EOS included, of a hypothesis that continues a candidate
int64_t most_tokens(const Sentence& s, const Candidates& all, int64_t i) {
    if (!s.allowed || !s.allowed->longest) return s.limit + 1;
    const int64_t left = s.allowed->longest[outputs_of(s).next_state(s.allowed_state[all.row(i)], all.word(i))];
    return std::min(s.limit, s.length + 1 + left) + 1;
}

// Store a hypothesis if it is one of the m best
void answer_if_best(Sentence& s, const Candidates& all, int64_t i) {
    const double value = final_score(s, all.score[i], s.length + 1);
    if (s.finished == s.m && !(value > s.best[s.m - 1])) {
        s.best_total = std::max<double>(s.best_total, all.score[i]);
        return;
    }
    int64_t at = s.m - 1, f = s.finished;
    if (f < s.m) at = s.finished++;
    else f = s.order[at];  // of the worst
    for (; at > 0 && value > s.best[at - 1]; --at) s.best[at] = s.best[at - 1], s.order[at] = s.order[at - 1];
    s.best[at] = value, s.order[at] = f;
    finish(s, f, all.row(i), all.score[i], s.length);
}

bool optimal(Sentence& s, const Candidates& all, Places& stays) {
    const Rules& rules = *s.rules;
    for (int64_t i = 0; i < std::min(all.c, rules.k); ++i)
        if (all.ends(i)) answer_if_best(s, all, i);
    const double worst = s.best[s.m - 1];
    double highest = -INFINITY;
    for (int64_t i = 0, going = 0; i < all.c && going < rules.k && !(rules.paper_expansion && i >= rules.k); ++i) {
        if (all.ends(i)) continue;
        ++going;
        const double possible = reach(s, all.score[i], most_tokens(s, all, i));
        highest = std::max(highest, possible);
        if (!rules.prune_bound || possible > worst) stays.push_back(i);
        else ++s.dropped;
    }
    s.unused_rows += s.length ? rules.k - s.rows : 0;
    if (all.at_limit) {  // not proved, unless no row of the last step could have won
        float top = -INFINITY;
        for (int64_t r = 0; r < s.rows; ++r) top = std::max(top, s.score[r * s.T + s.length]);
        s.gap = std::max(0.0, reach(s, top, s.limit + 1) - worst);
    }
    return highest <= worst;
}

bool decide(Sentence& s, const Candidates& all, Places& stays) {
    static bool (*const stops[])(Sentence&, const Candidates&, Places&) = {count, ranked, first, shrink, optimal, early};
    return stops[s.rules->stop](s, all, stays) || stays.empty() || all.at_limit;
}

}  // namespace
