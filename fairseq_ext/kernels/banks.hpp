// Dynamic beam allocation for one sentence: choose the continuations of its rows.
//
// Definition: search/strategies/select/dba.py.
//
// Shapes: N sentences in the tables, n rows, V vocabulary, G constraints.

#pragma once

#include "phrases.hpp"
#include "topk.hpp"

namespace {

// The n rows of one sentence, and the settings of the selection. Log-probabilities of the next word are (logit - highest) - log_total
struct BankRows {
    float* logits;                               // (n, V); EOS becomes impossible where constraints are unmet
    const float *highest, *log_total, *row_score;  // (n,); scores of the rows
    const int64_t *state, *count;                // (n, G)
    int64_t n, V, eos;
    int64_t k, competing;      // rows that the banks share; rows for the best in addition, whatever their bank, if there are phrases
    int64_t most, per_row;     // continuations considered of all rows, and of each row
    int64_t even;              // division of slots: one a bank in turn, else by `allocate`
    int64_t sentence, steps_left;  // number in the tables; tokens that may still come before EOS
    bool no_deadline, infeasible;  // the deadline for constraints does not apply: they cannot be met, or a prefix is being forced

    float log_prob(int64_t row, float logit) const { return (logit - highest[row]) - log_total[row]; }  // rounded as in log_softmax
    float total(int64_t row, float logit) const { return log_prob(row, logit) + row_score[row]; }
    float logit(int64_t row, int64_t word) const { return logits[row * V + word]; }
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
    int64_t most;  // largest number of rows
};

// Collect the candidates: the best of all rows, the best of each row, and the next tokens of unmet phrases
void collect(const Table& table, const BankRows& rows, Scratch& m) {
    const Phrases& p = table.p;
    static thread_local std::vector<int64_t> proposed;
    static thread_local std::vector<float> ending;  // for a row with a pending phrase: logits of words that do not continue the last word
    m.candidate.clear(), m.state.clear(), m.count.clear();
    m.candidate_keys.clear(rows.most + rows.n * (rows.per_row + p.G * p.W));
    auto add = [&](int64_t row, int64_t token, float score) {
        if (!(score > -INFINITY)) return;
        if (!m.candidate_keys.add(row * rows.V + token)) return;
        int64_t at = static_cast<int64_t>(m.candidate.size());
        m.state.resize((at + 1) * p.G), m.count.resize((at + 1) * p.G);
        int64_t *state = m.state.data() + at * p.G, *count = m.count.data() + at * p.G;
        table.advance(rows.state + row * p.G, rows.count + row * p.G, token, state, count);
        int64_t bank = table.bank(state, count);
        bool in_time = p.total[table.s] - bank <= rows.steps_left - 1 || token == rows.eos || rows.no_deadline;
        m.candidate.push_back({row, token, bank, in_time ? score : -INFINITY});
    };
    scratch(m.best, std::max(rows.most, rows.per_row)), scratch(m.where, std::max(rows.most, rows.per_row));
    // the paper's candidates are the k best of all rows; without phrases it is plain beam search, which needs twice as many
    const int64_t most = rows.even || !p.total[table.s] ? rows.most : std::min(rows.k, rows.most);
    Best best{m.best.data(), m.where.data(), most, 0};
    for (int64_t r = 0; r < rows.n; ++r)
        if (rows.row_score[r] > -INFINITY)
            best.add_line(rows.logits + r * rows.V, rows.V, r * rows.V, [&](float logit) { return rows.total(r, logit); });
    for (int64_t i = 0; i < best.count; ++i) add(best.where[i] / rows.V, best.where[i] % rows.V, best.score[i]);
    for (int64_t r = 0; r < rows.n; ++r) {
        if (!(rows.row_score[r] > -INFINITY)) continue;
        best = {m.best.data(), m.where.data(), rows.per_row, 0};
        const float* line = rows.logits + r * rows.V;
        if (table.is_pending(rows.state + r * p.G, rows.count + r * p.G)) {
            scratch(ending, rows.V);
            for (int64_t i = 0; i < rows.V; ++i) ending[i] = p.continues_word[i] ? -INFINITY : line[i];
            line = ending.data();
        }
        best.add_line(line, rows.V, 0, [&](float logit) { return rows.log_prob(r, logit); });
        for (int64_t i = 0; i < best.count; ++i) add(r, best.where[i], best.score[i] + rows.row_score[r]);
        proposed.clear();
        int64_t *state, *count;
        table.read(rows.state + r * p.G, rows.count + r * p.G, state, count);
        for (int64_t g = 0; g < p.G; ++g)
            for (int64_t i = 0; table.active(count, g) && i < p.W && p.proposed[state[g] * p.W + i] >= 0; ++i)
                proposed.push_back(p.proposed[state[g] * p.W + i]);
        for (int64_t word : proposed) add(r, word, rows.total(r, rows.logit(r, word)));
    }
}

// Order the candidates: first those that fill the banks' slots and those that compete, best first; then each bank's next best ones in turn,
// from the highest bank down
void order_by_banks(int64_t top, const BankRows& rows, Scratch& m) {
    m.order.clear(), m.turn.clear();
    m.sizes.assign(top + 1, 0), m.rank.assign(top + 1, 0), m.slots.assign(top + 1, 0);
    for (int64_t i = 0; i < static_cast<int64_t>(m.candidate.size()); ++i)
        if (m.candidate[i].score > -INFINITY) m.order.push_back(i), ++m.sizes[m.candidate[i].bank];
    if (rows.even) deal(rows.k, top, m.sizes, m.slots);
    else allocate(rows.k, top, m.sizes, m.slots);
    std::stable_sort(m.order.begin(), m.order.end(), [&](int64_t a, int64_t b) { return m.candidate[a].score > m.candidate[b].score; });
    size_t admitted = 0;
    int64_t compete = top ? rows.competing : 0;
    m.most = rows.k + (top < rows.k ? 0 : compete);
    for (int64_t i : m.order) {
        int64_t bank = m.candidate[i].bank, rank = m.rank[bank]++;
        const bool in_slot = rank < m.slots[bank], competes = compete && m.candidate[i].token != rows.eos;
        compete -= competes, m.most += competes && !in_slot && top < rows.k;
        if (in_slot || competes) m.order[admitted++] = i;
        else m.turn.push_back({rank * (top + 1) + top - bank, i});
    }
    m.order.resize(admitted);
    std::sort(m.turn.begin(), m.turn.end());
    for (auto& [_, i] : m.turn) m.order.push_back(i);
}

// Write the candidates to m, and their order to m.order; logits are changed where EOS is impossible
void choose(const Phrases& phrases, const BankRows& rows, Scratch& m) {
    Table table{phrases, rows.sentence};
    const int64_t G = phrases.G, top = phrases.total[table.s];
    int64_t ending = 0;
    float end_score = -INFINITY;
    for (int64_t r = 0; r < rows.n; ++r) {
        float& eos = rows.logits[r * rows.V + rows.eos];
        if (const float score = rows.total(r, eos); score > end_score) end_score = score, ending = r;
        bool open = table.bank(rows.state + r * G, rows.count + r * G) < top;
        if (open && !(rows.infeasible && rows.steps_left <= 0)) eos = -INFINITY;
    }
    collect(table, rows, m);
    order_by_banks(top, rows, m);
    if (m.order.empty() && end_score > -INFINITY) {  // no word is possible: the best row ends
        int64_t at = static_cast<int64_t>(m.candidate.size());
        m.state.resize((at + 1) * G), m.count.resize((at + 1) * G);
        m.candidate.push_back({ending, rows.eos, 0, end_score});
        m.order.push_back(at);
    }
}

}  // namespace
