// Dynamic beam allocation on the CPU, one sentence after another (banks.hpp). It replaces some hundred small tensor operations a step.

#include "banks.hpp"

namespace {

// banks.py reads its fields from here
struct Selection {
    int64_t *row, *token, *group;  // (S, out)
    float* score;
    int64_t *state, *count;  // (S, out, G)
};

void select_all(const Phrases& phrases, const Rows& rows, const Selection& found) {
    const int64_t G = phrases.G;
    Parallel sentences;
#pragma omp parallel for schedule(dynamic) if (rows.first[rows.S] * rows.V > WORTH_THREADS / 8)
    for (int64_t s = 0; s < rows.S; ++s) sentences.run([&] {
        static thread_local Scratch m;
        choose(phrases, rows, s, m);
        for (int64_t i = 0; i < rows.num_candidates; ++i) {
            int64_t to = s * rows.num_candidates + i;
            if (i < static_cast<int64_t>(m.order.size())) {
                const Candidate& c = m.candidate[m.order[i]];
                found.row[to] = c.row, found.token[to] = c.token, found.group[to] = c.bank, found.score[to] = c.score;
                std::copy_n(m.state.data() + m.order[i] * G, G, found.state + to * G);
                std::copy_n(m.count.data() + m.order[i] * G, G, found.count + to * G);
            } else {
                found.row[to] = rows.first[s], found.token[to] = 0, found.group[to] = 0, found.score[to] = -INFINITY;
                std::fill_n(found.state + to * G, G, 0);
                std::fill_n(found.count + to * G, G, 0);
            }
        }
    });
    sentences.check();
}

}  // namespace

ENTRY int64_t select_by_banks(const Phrases* phrases, const Rows* rows, const Selection* found) {
    return guarded([&] { select_all(*phrases, *rows, *found); });
}
