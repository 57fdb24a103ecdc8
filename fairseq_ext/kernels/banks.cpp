// Dynamic beam allocation on the CPU, one sentence after another (banks.hpp). It replaces some hundred small tensor operations a step.

#include "banks.hpp"

namespace {

void select_all(const Phrases& phrases, const Rows& rows, const BankChoice& found) {
    const int64_t G = phrases.G;
    const std::vector<float> zeros(rows.first[rows.S]);  // log-probabilities are logits less 0
    Parallel sentences;
#pragma omp parallel for schedule(dynamic) if (rows.first[rows.S] * rows.V > WORTH_THREADS / 8)
    for (int64_t s = 0; s < rows.S; ++s) sentences.run([&] {
        static thread_local Scratch m;
        const int64_t from = rows.first[s], n = rows.first[s + 1] - from;
        const int64_t k = rows.slots[s], most = 2 * (k + (phrases.total[rows.sentence[s]] ? rows.competing : 0));
        choose(phrases,
               {rows.log_probs + from * rows.V, zeros.data(), zeros.data(), rows.score + from, rows.state + from * G,
                rows.count + from * G, n, rows.V, rows.eos, k, rows.competing, std::min(most, rows.per_sentence), rows.per_row, rows.even, rows.sentence[s],
                rows.steps_left[s], rows.no_deadline[s], rows.infeasible[s]},
               m);
        found.most[s] = m.most;
        for (int64_t i = 0; i < rows.num_candidates; ++i) {
            int64_t to = s * rows.num_candidates + i;
            if (i < static_cast<int64_t>(m.order.size())) {
                const Candidate& c = m.candidate[m.order[i]];
                found.row[to] = from + c.row, found.token[to] = c.token, found.group[to] = c.bank, found.score[to] = c.score;
                std::copy_n(m.state.data() + m.order[i] * G, G, found.state + to * G);
                std::copy_n(m.count.data() + m.order[i] * G, G, found.count + to * G);
            } else {
                found.row[to] = from, found.token[to] = 0, found.group[to] = 0, found.score[to] = -INFINITY;
                std::fill_n(found.state + to * G, G, 0);
                std::fill_n(found.count + to * G, G, 0);
            }
        }
    });
    sentences.check();
}

}  // namespace

ENTRY int64_t select_by_banks(const Phrases* phrases, const Rows* rows, const BankChoice* found) {
    return guarded([&] { select_all(*phrases, *rows, *found); });
}
