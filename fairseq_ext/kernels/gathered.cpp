// Scores of listed words on the CPU, float32: products with rows of the weights where they lie, and two lists made into one.
//
// Shapes: n rows, d features, m words that were found, T words of the fixed part.

#include "stages.hpp"
#include "vectors.hpp"

extern "C" {
void linear(const void* product, const float* x, int64_t lines, float* y, int64_t after);  // step.cpp
void log_softmax(float* x, int64_t lines, int64_t V, float temperature);                    // scores.cpp
}

namespace {

constexpr int TOGETHER = 4;  // words scored at once: with 6 rows, 24 sums

float sum_of(floats value) {
    float parts[LANES];
    std::memcpy(parts, &value, sizeof(parts));
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) parts[j] += parts[j + half];
    return parts[0];
}

// R lines of x (R, d) times TOGETHER words' weights
template <int R>
void dots(const float* x, int64_t d, const float* const* word, float out[][TOGETHER]) {
    floats sums[R][TOGETHER];
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < TOGETHER; ++j) sums[r][j] = floats{};
    const int64_t whole = d - d % LANES;
    for (int64_t k = 0; k < whole; k += LANES) {
        floats weight[TOGETHER];
        for (int j = 0; j < TOGETHER; ++j) weight[j] = load(word[j] + k);
        for (int r = 0; r < R; ++r) {
            const floats line = load(x + r * d + k);
            for (int j = 0; j < TOGETHER; ++j) sums[r][j] += line * weight[j];
        }
    }
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < TOGETHER; ++j) {
            float rest = 0.0f;
            for (int64_t k = whole; k < d; ++k) rest += x[r * d + k] * word[j][k];
            out[r][j] = sum_of(sums[r][j]) + rest;
        }
}

void dots_of(int64_t lines, const float* x, int64_t d, const float* const* word, float out[][TOGETHER]) {
    switch (lines) {
        case 1: return dots<1>(x, d, word, out);
        case 2: return dots<2>(x, d, word, out);
        case 3: return dots<3>(x, d, word, out);
        case 4: return dots<4>(x, d, word, out);
        case 5: return dots<5>(x, d, word, out);
        default: return dots<ROWS>(x, d, word, out);
    }
}

struct Run {  // columns that follow one another in a list and in the part they come from
    bool found;
    int64_t first, many;
};

// y (n, m) = x (n, d) times rows ids (m,) of weight (V, d), plus their bias (V,) or null
void gathered_product(const float* x, int64_t n, int64_t d, const float* weight, const float* bias, const int64_t* ids, int64_t m, float* y) {
#pragma omp parallel for schedule(static) if (n * m * d > WORTH_THREADS)
    for (int64_t first = 0; first < m; first += TOGETHER) {
        const int64_t many = std::min<int64_t>(TOGETHER, m - first);
        const float* word[TOGETHER];
        for (int64_t j = 0; j < TOGETHER; ++j) word[j] = weight + ids[std::min(first + j, m - 1)] * d;
        for (int64_t j = TOGETHER; j < 2 * TOGETHER && first + j < m; ++j)  // the next ones: rows lie anywhere in memory
            for (int64_t k = 0; k < d; k += 16) __builtin_prefetch(weight + ids[first + j] * d + k);
        for (int64_t line = 0; line < n; line += ROWS) {
            const int64_t lines = std::min<int64_t>(ROWS, n - line);
            float out[ROWS][TOGETHER];
            dots_of(lines, x + line * d, d, word, out);
            for (int64_t r = 0; r < lines; ++r)
                for (int64_t j = 0; j < many; ++j) y[(line + r) * m + first + j] = out[r][j] + (bias ? bias[ids[first + j]] : 0.0f);
        }
    }
}

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

// mirrored by a ctypes structure in gathered.py
struct List {
    const void* product;  // of the base, packed
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
void list_log_probs(const List* list, const float* x, int64_t n, const int64_t* found, int64_t m, int64_t* ids, float* y, int64_t clock,
                    double* seconds) {
    static thread_local std::vector<float> scores;
    float *of_base = scratch(scores, n * (list->T + m)), *of_found = of_base + n * list->T;
    Stages stages(clock);
    gathered_product(x, n, list->d, list->weight, list->bias, found, m, of_found);
    seconds[0] = stages.next();
    linear(list->product, x, n, of_base, 0);
    seconds[1] = stages.next();
    merge(list->base, of_base, list->T, found, of_found, m, n, ids, y);
    log_softmax(y, n, list->T + m, static_cast<float>(list->temperature));
    seconds[2] = stages.next();
}

}  // extern "C"
