// Vectors of the processor's width, and functions that every kernel needs. Plain C++17 without torch headers, so it builds in seconds and
// does not depend on torch's version.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <omp.h>

#include "entry.hpp"

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16, VECTORS = 4;  // vectors of a panel: with 6 rows, 24 of 32 registers are sums
#elif defined(__aarch64__)
constexpr int LANES = 4, VECTORS = 4;
#else
constexpr int LANES = 8, VECTORS = 2;
#endif
constexpr int PANEL = LANES * VECTORS, ROWS = 6;
constexpr int64_t WORTH_THREADS = 1 << 20;  // multiplications; for fewer, starting threads costs more than it gains

// Call body(i) for i = 0 to count - 1, in several threads if that is worth it. A parallel region costs as much as a small product, even
// with one thread
template <class Body>
inline void for_each(int64_t count, bool worth_threads, Body body) {
    if (!worth_threads || omp_get_max_threads() == 1) {
        for (int64_t i = 0; i < count; ++i) body(i);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; ++i) body(i);
}

typedef float floats __attribute__((vector_size(LANES * 4)));
typedef float loose_floats __attribute__((vector_size(LANES * 4), aligned(4)));
typedef int32_t ints __attribute__((vector_size(LANES * 4)));
typedef int32_t loose_ints __attribute__((vector_size(LANES * 4), aligned(4)));
typedef int16_t loose_shorts __attribute__((vector_size(LANES * 2), aligned(2)));

floats load(const float* from) { return *reinterpret_cast<const loose_floats*>(from); }
floats load(const int16_t* from) {
    return __builtin_convertvector(__builtin_convertvector(*reinterpret_cast<const loose_shorts*>(from), ints), floats);
}
void store(float* to, floats value) { *reinterpret_cast<loose_floats*>(to) = value; }

// Horizontal reduction: reduce the lanes of a vector to one number by halves; reduce(a, b) reduces two vectors to one
template <class Vector, class Reduce>
inline float across(Vector v, Reduce reduce) {
    if constexpr (sizeof(Vector) == 16) {
        return reduce(reduce(v[0], v[1]), reduce(v[2], v[3]));
    } else {
        typedef float half __attribute__((vector_size(sizeof(Vector) / 2)));
        half low, high;  // parts of a register after optimisation
        std::memcpy(&low, &v, sizeof low);
        std::memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof low, sizeof high);
        return across(static_cast<half>(reduce(low, high)), reduce);
    }
}

inline float sum(floats v) {
    return across(v, [](auto a, auto b) { return a + b; });
}

// Lanes of two vectors, numbered one after the other
template <int... LANE>
inline floats pick(floats a, floats b, std::integer_sequence<int, LANE...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, LANE...);
#else
    return __builtin_shuffle(a, b, ints{LANE...});
#endif
}

// Reduce every block of B lanes of both vectors to B / 2 lanes, as `across` does
template <int B, int... LANE>
inline floats halves(floats a, floats b, std::integer_sequence<int, LANE...>) {
    constexpr int HALF = B / 2, NEXT = B > 4 ? 1 : 2, OTHER = B > 4 ? HALF : 1;
    return pick(a, b, std::integer_sequence<int, (LANE / HALF * B + LANE % HALF * NEXT)...>()) +
           pick(a, b, std::integer_sequence<int, (LANE / HALF * B + LANE % HALF * NEXT + OTHER)...>());
}

// Return sum(v[i]) in lane i, for LANES vectors at once
template <int B = LANES>
inline floats sums_of(const floats* v) {
    if constexpr (B == 1) {
        return v[0];
    } else {
        floats half[B / 2];
        for (int i = 0; i < B / 2; ++i) half[i] = halves<B>(v[2 * i], v[2 * i + 1], std::make_integer_sequence<int, LANES>());
        return sums_of<B / 2>(half);
    }
}

// Return e^x to about 1e-7, for x <= 88; 0 below -87. Compilers can vectorise loops over it.
inline float exponential(float x) {
    float n = std::nearbyint(x * 1.44269504f);
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    n = n > -126.0f ? n : -126.0f;  // also for NaN, which an integer cannot hold; p stays NaN
    union {
        int32_t bits;
        float value;
    } power = {(static_cast<int32_t>(n) + 127) << 23};
    return x < -87.0f ? 0.0f : p * power.value;
}

// Return e^x of a vector; below -87 it is e^-87. NaN stays NaN
inline floats exponential(floats x) {
    const float round = 12582912.0f;  // 1.5 x 2^23: a number added to it loses its fraction
    x = x < -87.0f ? floats{} - 87.0f : x;
    floats shifted = x * 1.44269504f + round, n = shifted - round;
    floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
    floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (floats)((ints)((ints)shifted - (ints)(floats{} + round) + 127) << 23);
}

// Return x times the normal distribution function, by Abramowitz and Stegun 7.1.26 (error below 2e-7)
inline float gelu(float x) {
    float z = std::fabs(x) * 0.70710678f;
    float t = 1.0f / (1.0f + 0.3275911f * z);
    float p = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    float tail = 0.5f * p * exponential(-z * z);  // probability of values beyond |x|
    return x * (x < 0 ? tail : 1.0f - tail);
}

// Return x / (1 + e^-x); NaN stays NaN
inline float silu(float x) { return x / (1.0f + exponential(x < -87.0f ? 87.0f : -x)); }

}  // namespace
