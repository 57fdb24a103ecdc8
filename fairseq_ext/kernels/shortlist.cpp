// Scores of a shortlist, and screened scores of all words, on the CPU in float32.
//
// For a shortlist: a linear layer with the rows of its words, read in place, and the merge of two lists.
// Definition: search/strategies/softmax/_shortlist.py, search/strategies/softmax/screened.py.
//
// Shapes: n rows, d features, m found words, T words of the fixed part.

#include "shortlist.hpp"
#include "stages.hpp"
#include "topk.hpp"

#include <tuple>
#include <utility>

void run_linear(const void* packed, const float* x, int64_t lines, float* y);         // transformer.cpp
void run_log_softmax(float* x, int64_t lines, int64_t V, float temperature);  // log_probs.cpp

namespace {

struct Run {  // columns that are neighbours in a list and in its part (the found words, or the base)
    bool is_found;
    int64_t first, many;
};

// Merge two lists in order of ids: base (T,) and found (m,), each ascending and without common words -> ids (T + m,); and their scores, (n,
// T) and (n, m) -> y (n, T + m)
void merge(const int64_t* base, const float* of_base, int64_t T, const int64_t* found, const float* of_found, int64_t m, int64_t n,
           int64_t* ids, float* y) {
    std::vector<Run> runs;
    for (int64_t b = 0, f = 0; b < T || f < m;) {
        const int64_t before_b = b, before_f = f;
        // the fixed part is mostly one range of the vocabulary, so its end is found by binary search
        b = f < m ? std::lower_bound(base + b, base + T, found[f]) - base : T;
        if (b > before_b) runs.push_back({false, before_b, b - before_b});
        while (f < m && (b == T || found[f] < base[b])) ++f;
        if (f > before_f) runs.push_back({true, before_f, f - before_f});
    }
    for (int64_t i = -1; i < n; ++i) {  // the ids first
        int64_t column = 0;
        for (const Run& run : runs) {
            if (i < 0)
                std::memcpy(ids + column, (run.is_found ? found : base) + run.first, run.many * sizeof(int64_t));
            else
                std::memcpy(y + i * (T + m) + column, (run.is_found ? of_found + i * m : of_base + i * T) + run.first, run.many * sizeof(float));
            column += run.many;
        }
    }
}

}  // namespace

// Compute the log-probabilities of x (n, d) over the words of base and found (m,): ids and y as in `merge`; seconds (3,): times of the
// found words' scores, of the base's scores, and of the rest, by the given clock
ENTRY int64_t shortlist_log_probs(const Shortlist* list, const float* x, int64_t n, const int64_t* found, int64_t m, int64_t* ids, float* y,
                                  int64_t clock, double* seconds) {
    return guarded([&] {
        static thread_local std::vector<float> scores;
        float *of_base = scratch(scores, n * (list->T + m)), *of_found = of_base + n * list->T;
        Stages stages(clock);
        gathered_linear(x, n, list->d, list->weight, list->bias, found, m, of_found);
        seconds[0] = stages.next();
        run_linear(list->packed, x, n, of_base);
        seconds[1] = stages.next();
        merge(list->base, of_base, list->T, found, of_found, m, n, ids, y);
        run_log_softmax(y, n, list->T + m, static_cast<float>(list->temperature));
        seconds[2] = stages.next();
    });
}

// ---- Screened log-probabilities of all words
//
// They are computed with weights of 16 bits, and those of the best words with the original weights,
// with bounds of the error by rounding. search/strategies/softmax/screened.py has the reasons and the
// definition.
//
// Shapes: n rows, V words, d features.

namespace {

constexpr float SAFETY = 1.001f;    // factor for the rounding of the bounds
constexpr float ROUNDING = 1e-6f;   // of float32, in sums of probabilities
constexpr float STEP = 1.0f;        // nats by which the range of rescored words grows, if needed
constexpr int STEPS = 4;            // largest number of such steps

struct Sums {
    float first, second;
};

// Return the sums of e^(x - highest) over a line, and of their squares
Sums sums_of_powers(const float* line, int64_t V, float highest) {
    floats first[4] = {}, second[4] = {};
    int64_t k = 0;
    for (; k + BLOCK <= V; k += BLOCK)
        for (int v = 0; v < 4; ++v) {
            floats power = exponential(load(line + k + v * LANES) - highest);
            first[v] += power;
            second[v] += power * power;
        }
    Sums total{sum((first[0] + first[1]) + (first[2] + first[3])), sum((second[0] + second[1]) + (second[2] + second[3]))};
    for (; k < V; ++k) {
        float power = exponential(line[k] - highest);
        total.first += power;
        total.second += power * power;
    }
    return total;
}

// Return a bound of the error of log Z. rest: probability of the words that were not rescored; square: sum of their squared probabilities
float error_of_log_z(const Screen& s, float norm, float rest, float square) {
    rest += ROUNDING;
    const float b = norm * static_cast<float>(s.largest);
    const float each = rest * std::expm1(b);
    const float together = norm * static_cast<float>(s.spread) * std::sqrt(square) + 0.5f * std::exp(b) * b * b * rest;
    const float share = std::min(each, together);  // |Z / Z' - 1|
    return share < 0.5f ? -std::log1p(-share) * SAFETY : INFINITY;
}

// One row. Rescored words are removed from the line while the others are summed, and are put back at the end.
struct ScreenedRow {
    const Screen& s;
    const float* x;  // (d,)
    float* line;     // (V,) logits
    std::vector<int64_t>& ids;
    std::vector<float>& exact;

    // Rescore ids[first..]
    void score(size_t first) {
        exact.resize(ids.size());
        gathered_linear(x, 1, s.d, s.weight, s.bias, ids.data() + first, static_cast<int64_t>(ids.size() - first), exact.data() + first);
        const float temperature = static_cast<float>(s.temperature);
        for (size_t i = first; i < ids.size(); ++i) {
            if (temperature != 1.0f) exact[i] /= temperature;
            line[ids[i]] = -INFINITY;
        }
    }

    // Add the words above a logit that are not rescored yet; return false if they are too many
    bool add_above(float logit) {
        const size_t before = ids.size();
        for (int64_t k = 0; k < s.V; k += BLOCK) {
            const int64_t end = std::min(k + BLOCK, s.V);
            if (end - k == BLOCK && !(block_max(line + k) > logit)) continue;
            for (int64_t i = k; i < end; ++i)
                if (line[i] > logit) ids.push_back(i);
            if (ids.size() > static_cast<size_t>(s.more)) {
                ids.resize(before);
                return false;
            }
        }
        return true;
    }

    // Write log-probabilities to the line and 1 to known (V,) where they are exact; return an upper bound of all other log-probabilities,
    // and the bound of log Z's error
    std::pair<float, float> finish(uint8_t* known) {
        const float temperature = static_cast<float>(s.temperature);
        if (temperature != 1.0f)
            for (int64_t k = 0; k < s.V; ++k) line[k] /= temperature;
        thread_local std::vector<float> score_of;
        ids.resize(s.m);
        Best best{scratch(score_of, s.m), ids.data(), s.m, 0};
        best.add_line(line, s.V, 0);
        float reach = best.score[s.m - 1];
        score(0);
        for (int64_t i = 0; i < s.num_always; ++i)
            if (line[s.always[i]] != -INFINITY) ids.push_back(s.always[i]);
        score(s.m);

        float norm = 0.0f;
        for (int64_t k = 0; k < s.d; ++k) norm += x[k] * x[k];
        norm = std::sqrt(norm) / temperature * SAFETY;
        float highest, Z, error;
        auto normalise = [&] {
            highest = reach;
            for (float logit : exact) highest = std::max(highest, logit);
            const Sums rest = sums_of_powers(line, s.V, highest);
            double total = rest.first;  // a sum of up to thousands of numbers, in order
            for (float logit : exact) total += std::exp(logit - highest);
            Z = static_cast<float>(total);
            error = error_of_log_z(s, norm, rest.first / Z, rest.second / (Z * Z));
        };
        normalise();
        for (int step = 0; step < STEPS && !(error <= s.tolerance); ++step) {
            const size_t before = ids.size();
            if (!add_above(reach - STEP)) break;
            reach -= STEP;
            if (ids.size() == before) continue;
            score(before);
            normalise();
        }
        for (size_t i = 0; i < ids.size(); ++i) {
            line[ids[i]] = exact[i];
            known[ids[i]] = 1;
        }
        const float log_total = std::log(Z);
        for (int64_t k = 0; k < s.V; ++k) line[k] = (line[k] - highest) - log_total;
        return {(reach - highest) - log_total + norm * static_cast<float>(s.largest), error};
    }
};

}  // namespace

// Compute y (n, V), the log-probabilities of x (n, d). known (n, V), zero before: which of them come from the full weights; ceiling (n,):
// upper bound of all other log-probabilities; error (n,): bound of the error of log Z
ENTRY int64_t screen(const Screen* s, const float* x, int64_t n, float* y, uint8_t* known, float* ceiling, float* error) {
    return guarded([&] {
        run_linear(s->packed, x, n, y);
        Parallel rows;
#pragma omp parallel for schedule(static) if (n * s->V > WORTH_THREADS / 8)
        for (int64_t i = 0; i < n; ++i) rows.run([&] {
            thread_local std::vector<int64_t> ids;
            thread_local std::vector<float> exact;
            ids.clear(), exact.clear();
            std::tie(ceiling[i], error[i]) = ScreenedRow{*s, x + i * s->d, y + i * s->V, ids, exact}.finish(known + i * s->V);
        });
        rows.check();
    });
}
