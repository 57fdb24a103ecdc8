// Scores of single words: a linear layer of these rows of the weights, where they lie.
//
// Shapes: n rows, d features, m words.
#pragma once

#include "vectors.hpp"

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

// y (n, m) = x (n, d) times rows ids (m,) of weight (V, d), plus their bias (V,) or null
void gathered_linear(const float* x, int64_t n, int64_t d, const float* weight, const float* bias, const int64_t* ids, int64_t m, float* y) {
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

}  // namespace
