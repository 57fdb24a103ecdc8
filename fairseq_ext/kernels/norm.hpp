// Layer normalisation; transformer.py reads the fields of Norm from here.
#pragma once

#include <cmath>
#include <cstdint>

#include "vectors.hpp"

namespace {

// Write the layer normalisation of lines x (lines, d) to y, which may be x
void normalise(const Norm& norm, const float* x, int64_t lines, int64_t d, float* y) {
    for_each(lines, lines * d > WORTH_THREADS / 8, [&](int64_t i) {
        const float* from = x + i * d;
        float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < d; ++k) sum += from[k];
        float mean = sum / d;
#pragma omp simd reduction(+ : squares)
        for (int64_t k = 0; k < d; ++k) squares += (from[k] - mean) * (from[k] - mean);
        float factor = 1.0f / std::sqrt(squares / d + static_cast<float>(norm.eps));
        for (int64_t k = 0; k < d; ++k) y[i * d + k] = (from[k] - mean) * factor * norm.weight[k] + norm.bias[k];
    });
}

}  // namespace
