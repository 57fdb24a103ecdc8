// Scores of single words: a linear layer with some rows of the weights, read in place.
//
// Shapes: n rows, d features, m words.
#pragma once

#include "vectors.hpp"

namespace {

constexpr int WORDS_AT_ONCE = 4;  // words scored at once: with 6 rows, 24 sums

float sum_of(floats value) {
    float parts[LANES];
    std::memcpy(parts, &value, sizeof(parts));
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) parts[j] += parts[j + half];
    return parts[0];
}

// R lines of x (R, d) times WORDS_AT_ONCE words' weights
template <int R>
void dots(const float* x, int64_t d, const float* const* word, float out[][WORDS_AT_ONCE]) {
    floats sums[R][WORDS_AT_ONCE];
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < WORDS_AT_ONCE; ++j) sums[r][j] = floats{};
    const int64_t whole = d - d % LANES;
    for (int64_t k = 0; k < whole; k += LANES) {
        floats weight[WORDS_AT_ONCE];
        for (int j = 0; j < WORDS_AT_ONCE; ++j) weight[j] = load(word[j] + k);
        for (int r = 0; r < R; ++r) {
            const floats line = load(x + r * d + k);
            for (int j = 0; j < WORDS_AT_ONCE; ++j) sums[r][j] += line * weight[j];
        }
    }
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < WORDS_AT_ONCE; ++j) {
            float rest = 0.0f;
            for (int64_t k = whole; k < d; ++k) rest += x[r * d + k] * word[j][k];
            out[r][j] = sum_of(sums[r][j]) + rest;
        }
}

void dots_of(int64_t lines, const float* x, int64_t d, const float* const* word, float out[][WORDS_AT_ONCE]) {
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
    for (int64_t first = 0; first < m; first += WORDS_AT_ONCE) {
        const int64_t many = std::min<int64_t>(WORDS_AT_ONCE, m - first);
        const float* word[WORDS_AT_ONCE];
        for (int64_t j = 0; j < WORDS_AT_ONCE; ++j) word[j] = weight + ids[std::min(first + j, m - 1)] * d;
        // prefetch the next words, whose rows may lie anywhere
        for (int64_t j = WORDS_AT_ONCE; j < 2 * WORDS_AT_ONCE && first + j < m; ++j)
            for (int64_t k = 0; k < d; k += 16) __builtin_prefetch(weight + ids[first + j] * d + k);
        for (int64_t line = 0; line < n; line += ROWS) {
            const int64_t lines = std::min<int64_t>(ROWS, n - line);
            float out[ROWS][WORDS_AT_ONCE];
            dots_of(lines, x + line * d, d, word, out);
            for (int64_t r = 0; r < lines; ++r)
                for (int64_t j = 0; j < many; ++j) y[(line + r) * m + first + j] = out[r][j] + (bias ? bias[ids[first + j]] : 0.0f);
        }
    }
}

}  // namespace
