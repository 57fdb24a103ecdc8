// Scores of listed words on the CPU, float32: a linear layer of these rows of the weights where they lie, and two lists made into one.
//
// Shapes: n rows, d features, m words that were found, T words of the fixed part.

#include "shortlist.hpp"
#include "stages.hpp"

extern "C" {
void linear(const void* packed, const float* x, int64_t lines, float* y, int64_t epilogue);  // transformer.cpp
void log_softmax(float* x, int64_t lines, int64_t V, float temperature);                    // topk.cpp
}

namespace {

struct Run {  // columns that follow one another in a list and in the part they come from
    bool found;
    int64_t first, many;
};

// One list in order of ids: base (T,) and found (m,), each ascending and no word in both -> ids (T + m,); and their scores,
// (n, T) and (n, m) -> y (n, T + m)
void merge(const int64_t* base, const float* of_base, int64_t T, const int64_t* found, const float* of_found, int64_t m, int64_t n,
           int64_t* ids, float* y) {
    std::vector<Run> runs;
    for (int64_t b = 0, f = 0; b < T || f < m;) {
        const int64_t before_b = b, before_f = f;
        // a fixed part is mostly one stretch of the vocabulary, so look for its end by halving
        b = f < m ? std::lower_bound(base + b, base + T, found[f]) - base : T;
        if (b > before_b) runs.push_back({false, before_b, b - before_b});
        while (f < m && (b == T || found[f] < base[b])) ++f;
        if (f > before_f) runs.push_back({true, before_f, f - before_f});
    }
    for (int64_t i = -1; i < n; ++i) {  // the ids first
        int64_t column = 0;
        for (const Run& run : runs) {
            if (i < 0)
                std::memcpy(ids + column, (run.found ? found : base) + run.first, run.many * sizeof(int64_t));
            else
                std::memcpy(y + i * (T + m) + column, (run.found ? of_found + i * m : of_base + i * T) + run.first, run.many * sizeof(float));
            column += run.many;
        }
    }
}

// shortlist.py reads its fields from here
struct Shortlist {
    const void* packed;  // of the base, packed
    const int64_t* base;  // (T,)
    int64_t T;
    const float *weight, *bias;  // (V, d); (V,) or null
    int64_t d;
    double temperature;
};

}  // namespace

extern "C" {

// Log-probabilities of x (n, d) over the list that base and found (m,) make: ids and y as `merge` gives them, and the seconds (3,) that
// the found words' scores, the base's and what follows took by the given clock
void shortlist_log_probs(const Shortlist* list, const float* x, int64_t n, const int64_t* found, int64_t m, int64_t* ids, float* y, int64_t clock,
                    double* seconds) {
    static thread_local std::vector<float> scores;
    float *of_base = scratch(scores, n * (list->T + m)), *of_found = of_base + n * list->T;
    Stages stages(clock);
    gathered_linear(x, n, list->d, list->weight, list->bias, found, m, of_found);
    seconds[0] = stages.next();
    linear(list->packed, x, n, of_base, 0);
    seconds[1] = stages.next();
    merge(list->base, of_base, list->T, found, of_found, m, n, ids, y);
    log_softmax(y, n, list->T + m, static_cast<float>(list->temperature));
    seconds[2] = stages.next();
}

}  // extern "C"
