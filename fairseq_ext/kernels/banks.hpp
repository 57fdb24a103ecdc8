// Dynamic beam allocation for one sentence: choose the continuations of its rows.
//
// search/strategies/select/dba.py and search/phrases/phrase_table.py are the definition and explain the terms.
//
// Shapes: N sentences in the tables, S live ones, n rows, V vocabulary, G constraints, M states of their automata, c candidates.

#pragma once

#include "phrases.hpp"
#include "topk.hpp"

namespace {

// banks.py reads their fields from here
struct Rows {
    float* log_probs;     // (n, V) of the next word; EOS becomes impossible where constraints are unmet
    const float* score;   // (n,) of the rows
    const int64_t *state, *count;  // (n, G)
    const int64_t* first;          // (S + 1,) each sentence's first row
    const int64_t* sentence;       // (S,) its number in the tables
    const int64_t* steps_left;     // (S,) tokens that may still come before EOS
    const bool* no_deadline;       // (S,) the deadline for constraints does not apply: they cannot be met, or a prefix is being forced
    const bool* infeasible;        // (S,)
    int64_t S, V, eos, k;
    int64_t per_sentence, per_row, num_candidates;  // continuations considered of all rows, and of each row; candidates returned
    int64_t even;                     // division of slots: one a bank in turn, else by `allocate`
};

struct Candidate {
    int64_t row, token, bank;
    float score;
};

// Section 3.2 of the paper: compute the slots of the banks 0 to `top` from their numbers of candidates
void allocate(int64_t k, int64_t top, const std::vector<int64_t>& have, std::vector<int64_t>& slots) {
    static thread_local std::vector<int64_t> extra, lack;
    slots.assign(top + 1, k / (top + 1));
    slots[top] += k % (top + 1);
    extra.assign(top + 1, 0), lack.assign(top + 1, 0);
    for (int64_t b = 0; b <= top; ++b) {
        extra[b] = std::max<int64_t>(slots[b] - have[b], 0);
        slots[b] -= extra[b];
        lack[b] = have[b] - slots[b];
    }
    auto give = [&](int64_t from, int64_t to) {
        if (to < 0 || to > top) return;
        int64_t given = std::min(extra[from], lack[to]);
        extra[from] -= given, lack[to] -= given, slots[to] += given;
    };
    for (int64_t b = top; b >= 0; --b)
        for (int64_t away = 1; extra[b] && away <= top; ++away) give(b, b - away), give(b, b + away);
}

// Compute the slots of the banks 0 to `top` from their numbers of candidates: one slot a bank in turn, from the highest bank down
void deal(int64_t k, int64_t top, const std::vector<int64_t>& have, std::vector<int64_t>& slots) {
    slots.assign(top + 1, 0);
    for (int64_t left = k, before = -1; left && left != before;)
        for (int64_t b = (before = left, top); b >= 0 && left; --b)
            if (slots[b] < have[b]) ++slots[b], --left;
}

// Hash set of non-negative integers
struct IntegerSet {
    std::vector<int64_t> slot;  // -1: free; the size is a power of two, at least twice the number of integers

    void clear(int64_t most) {
        size_t size = 64;
        while (size < 2 * static_cast<size_t>(most)) size *= 2;
        slot.assign(size, -1);
    }
    // Add a number; return whether it is new
    bool add(int64_t number) {
        size_t at = static_cast<uint64_t>(number) * 0x9E3779B97F4A7C15u >> 20;  // Fibonacci hashing
        for (;; ++at) {
            int64_t& found = slot[at & (slot.size() - 1)];
            if (found == number) return false;
            if (found == -1) return found = number, true;
        }
    }
};

struct Scratch {
    IntegerSet candidate_keys;
    std::vector<Candidate> candidate;
    std::vector<int64_t> state, count;  // of each candidate
    std::vector<int64_t> order, sizes, slots, rank, where;
    std::vector<std::pair<int64_t, int64_t>> turn;
    std::vector<float> best;
};

// Collect the candidates of one sentence: the best of all rows, the best of each row, and the next tokens of unmet phrases
void collect(const Table& table, const Rows& rows, int64_t s, Scratch& m) {
    const Phrases& p = table.p;
    static thread_local std::vector<int64_t> proposed;
    static thread_local std::vector<float> ending;  // for a row with a pending phrase: scores of words that do not continue the last word
    m.candidate.clear(), m.state.clear(), m.count.clear();
    int64_t from = rows.first[s], to = rows.first[s + 1];
    m.candidate_keys.clear(rows.per_sentence + (to - from) * (rows.per_row + p.G * p.W));
    auto add = [&](int64_t row, int64_t token, float score) {
        if (!(score > -INFINITY)) return;
        if (!m.candidate_keys.add(row * rows.V + token)) return;
        int64_t at = static_cast<int64_t>(m.candidate.size());
        m.state.resize((at + 1) * p.G), m.count.resize((at + 1) * p.G);
        int64_t *state = m.state.data() + at * p.G, *count = m.count.data() + at * p.G;
        table.advance(rows.state + row * p.G, rows.count + row * p.G, token, state, count);
        int64_t bank = table.bank(state, count);
        bool in_time = p.total[table.s] - bank <= rows.steps_left[s] - 1 || token == rows.eos || rows.no_deadline[s];
        m.candidate.push_back({row, token, bank, in_time ? score : -INFINITY});
    };
    scratch(m.best, std::max(rows.per_sentence, rows.per_row)), scratch(m.where, std::max(rows.per_sentence, rows.per_row));
    // the paper's candidates are the k best of all rows; without phrases it is plain beam search, which needs twice as many
    const int64_t most = rows.even || !p.total[table.s] ? rows.per_sentence : std::min(rows.k, rows.per_sentence);
    Best best{m.best.data(), m.where.data(), most, 0};
    for (int64_t r = from; r < to; ++r)
        if (rows.score[r] > -INFINITY) best.add_line(rows.log_probs + r * rows.V, rows.V, rows.score[r], r * rows.V);
    for (int64_t i = 0; i < best.count; ++i) add(best.where[i] / rows.V, best.where[i] % rows.V, best.score[i]);
    for (int64_t r = from; r < to; ++r) {
        if (!(rows.score[r] > -INFINITY)) continue;
        best = {m.best.data(), m.where.data(), rows.per_row, 0};
        const float* line = rows.log_probs + r * rows.V;
        if (table.is_pending(rows.state + r * p.G, rows.count + r * p.G)) {
            scratch(ending, rows.V);
            for (int64_t i = 0; i < rows.V; ++i) ending[i] = p.continues_word[i] ? -INFINITY : line[i];
            line = ending.data();
        }
        best.add_line(line, rows.V, 0.0f, 0);
        for (int64_t i = 0; i < best.count; ++i) add(r, best.where[i], best.score[i] + rows.score[r]);
        proposed.clear();
        int64_t *state, *count;
        table.read(rows.state + r * p.G, rows.count + r * p.G, state, count);
        for (int64_t g = 0; g < p.G; ++g)
            for (int64_t i = 0; table.active(count, g) && i < p.W && p.proposed[state[g] * p.W + i] >= 0; ++i)
                proposed.push_back(p.proposed[state[g] * p.W + i]);
        for (int64_t word : proposed) add(r, word, rows.log_probs[r * rows.V + word] + rows.score[r]);
    }
}

// Order the candidates: first those that fill the banks' slots, best first; then each bank's next best ones in turn, from the highest bank
// down
void order_by_banks(int64_t top, int64_t k, bool even, Scratch& m) {
    m.order.clear(), m.turn.clear();
    m.sizes.assign(top + 1, 0), m.rank.assign(top + 1, 0), m.slots.assign(top + 1, 0);
    for (int64_t i = 0; i < static_cast<int64_t>(m.candidate.size()); ++i)
        if (m.candidate[i].score > -INFINITY) m.order.push_back(i), ++m.sizes[m.candidate[i].bank];
    if (even) deal(k, top, m.sizes, m.slots);
    else allocate(k, top, m.sizes, m.slots);
    std::stable_sort(m.order.begin(), m.order.end(), [&](int64_t a, int64_t b) { return m.candidate[a].score > m.candidate[b].score; });
    size_t admitted = 0;
    for (int64_t i : m.order) {
        int64_t bank = m.candidate[i].bank, rank = m.rank[bank]++;
        if (rank < m.slots[bank]) m.order[admitted++] = i;
        else m.turn.push_back({rank * (top + 1) + top - bank, i});
    }
    m.order.resize(admitted);
    std::sort(m.turn.begin(), m.turn.end());
    for (auto& [_, i] : m.turn) m.order.push_back(i);
}

// Write the candidates of sentence s to m, and their order to m.order; log_probs are changed where EOS is impossible
void choose(const Phrases& phrases, const Rows& rows, int64_t s, Scratch& m) {
    Table table{phrases, rows.sentence[s]};
    const int64_t G = phrases.G, top = phrases.total[table.s], from = rows.first[s];
    int64_t ending = from;
    float end_score = -INFINITY;
    for (int64_t r = from; r < rows.first[s + 1]; ++r) {
        float& eos = rows.log_probs[r * rows.V + rows.eos];
        if (eos + rows.score[r] > end_score) end_score = eos + rows.score[r], ending = r;
        bool open = table.bank(rows.state + r * G, rows.count + r * G) < top;
        if (open && !(rows.infeasible[s] && rows.steps_left[s] <= 0)) eos = -INFINITY;
    }
    collect(table, rows, s, m);
    order_by_banks(top, rows.k, rows.even, m);
    if (m.order.empty() && end_score > -INFINITY) {  // no word is possible: the best row ends
        int64_t at = static_cast<int64_t>(m.candidate.size());
        m.state.resize((at + 1) * G), m.count.resize((at + 1) * G);
        m.candidate.push_back({ending, rows.eos, 0, end_score});
        m.order.push_back(at);
    }
}

}  // namespace
