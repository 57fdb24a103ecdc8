// Linear maps x W' + b with weights of 32, 16 or 8 bits. Weights are packed into panels of PANEL columns, all inputs of a panel together
// (transformer.py, PackedLinear), so that a step reads every weight once, in order. With int8 weights each line of x is rounded to 8 bits
// by its largest magnitude; whole numbers of 16 bits become floats as they are read.
#pragma once

#include <type_traits>

#include "vectors.hpp"
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

constexpr int64_t PREFETCH_BYTES = 12 << 10;  // bytes of a panel: 48 inputs in float32

// mirrored in transformer.py (KIND_OF_BITS, EPILOGUES)
enum Kind : int64_t { FLOAT32, INT8, INT16 };
enum Epilogue : int64_t { PLAIN, RELU, GELU, SILU, ADD };  // last operation on a result before it is stored; ADD: the result is added to y

struct Linear {
    const void* weight;     // (panels, in, PANEL) float32 or int16, or (panels, in / 4, PANEL, 4) int8
    const float* bias;      // (out,) or null
    const float* scale;     // int8 and int16: (panels x PANEL,) of each column
    const int32_t* offset;  // int8: (panels x PANEL,) 128 x the column's sum, which x's shift to unsigned adds
    int64_t in, out, kind;
};

// Multiply R lines of x by one panel: in x PANEL weights -> sums[R][VECTORS]. FIRST: these are the first lines for the panel, so its
// weights are not in a cache yet. They are prefetched, since with several lines the processor's own prefetching is not early enough
template <int R, bool FIRST, class Weight>
inline void panel_float(const float* x, int64_t stride, const Weight* weight, int64_t in, floats sums[R][VECTORS]) {
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < VECTORS; ++v) sums[r][v] = floats{};
    for (int64_t k = 0; k < in; ++k, weight += PANEL) {
        if constexpr (FIRST)
            for (int64_t b = 0; b < PANEL * static_cast<int64_t>(sizeof(Weight)); b += 64)
                __builtin_prefetch(reinterpret_cast<const char*>(weight) + PREFETCH_BYTES + b);
        floats w[VECTORS];
        for (int v = 0; v < VECTORS; ++v) w[v] = load(weight + v * LANES);
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < VECTORS; ++v) sums[r][v] += x[r * stride + k] * w[v];
    }
}

#if defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool LESS_128 = true;  // bytes of x are signed in this instruction, so no offset is subtracted
#else
constexpr bool LESS_128 = false;
#endif

// Return sum + the products of four unsigned bytes of x with four signed bytes of each lane's weight. Without an instruction for that,
// pairs of 16 bits are multiplied. All results are exact
inline ints dot4(ints sum, int32_t x, ints weight) {
#if defined(__AVX512VNNI__)
    return (ints)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(x), (__m512i)weight);
#elif defined(__AVXVNNI__)
    return (ints)_mm256_dpbusd_avx_epi32((__m256i)sum, _mm256_set1_epi32(x), (__m256i)weight);
#elif defined(__ARM_FEATURE_MATMUL_INT8)
    return (ints)vusdotq_s32((int32x4_t)sum, vreinterpretq_u8_s32(vdupq_n_s32(x)), vreinterpretq_s8_s32((int32x4_t)weight));
#elif defined(__ARM_FEATURE_DOTPROD)
    const int8x16_t less = vreinterpretq_s8_s32(vdupq_n_s32(x ^ static_cast<int32_t>(0x80808080)));
    return (ints)vdotq_s32((int32x4_t)sum, less, vreinterpretq_s8_s32((int32x4_t)weight));
#elif defined(__AVX2__)
    typedef int16_t shorts __attribute__((vector_size(LANES * 4)));
    const shorts even = (shorts)weight << 8 >> 8, odd = (shorts)weight >> 8;
    const int32_t x_even = x & 0xff00ff, x_odd = x >> 8 & 0xff00ff;
#if defined(__AVX512BW__)
    sum += (ints)_mm512_madd_epi16((__m512i)even, _mm512_set1_epi32(x_even));
    return sum + (ints)_mm512_madd_epi16((__m512i)odd, _mm512_set1_epi32(x_odd));
#else
    sum += (ints)_mm256_madd_epi16((__m256i)even, _mm256_set1_epi32(x_even));
    return sum + (ints)_mm256_madd_epi16((__m256i)odd, _mm256_set1_epi32(x_odd));
#endif
#else
    for (int byte = 0; byte < 32; byte += 8) sum += (weight << (24 - byte) >> 24) * (x >> byte & 255);
    return sum;
#endif
}

// The same with four inputs at a time: x unsigned, weights signed
template <int R>
inline void panel_int8(const int32_t* x, int64_t stride, const int32_t* weight, int64_t fours, ints sums[R][VECTORS]) {
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < VECTORS; ++v) sums[r][v] = ints{};
    for (int64_t k = 0; k < fours; ++k, weight += PANEL) {
        ints w[VECTORS];
        for (int v = 0; v < VECTORS; ++v) w[v] = *reinterpret_cast<const loose_ints*>(weight + v * LANES);
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < VECTORS; ++v) sums[r][v] = dot4(sums[r][v], x[r * stride + k], w[v]);
    }
}

// Write one line's panel of results, `columns` of them. A whole panel is written vector by vector, except with epilogues that call
// functions
inline void finish(const floats* sums, const float* bias, float* y, int64_t columns, Epilogue epilogue) {
    static const float zeros[PANEL] = {};
    bias = bias ? bias : zeros;
    if (columns == PANEL && (epilogue == PLAIN || epilogue == RELU || epilogue == ADD)) {
        for (int v = 0; v < VECTORS; ++v) {
            floats value = sums[v] + load(bias + v * LANES);
            if (epilogue == RELU) value = value < 0.0f ? floats{} : value;
            if (epilogue == ADD) value += load(y + v * LANES);
            store(y + v * LANES, value);
        }
        return;
    }
    alignas(64) float line[PANEL];
    for (int v = 0; v < VECTORS; ++v) store(line + v * LANES, sums[v]);
    switch (epilogue) {
        case PLAIN: for (int64_t c = 0; c < columns; ++c) y[c] = line[c] + bias[c]; break;
        case RELU: for (int64_t c = 0; c < columns; ++c) y[c] = std::max(line[c] + bias[c], 0.0f); break;
        case GELU: for (int64_t c = 0; c < columns; ++c) y[c] = gelu(line[c] + bias[c]); break;
        case SILU: for (int64_t c = 0; c < columns; ++c) y[c] = silu(line[c] + bias[c]); break;
        case ADD: for (int64_t c = 0; c < columns; ++c) y[c] += line[c] + bias[c]; break;
    }
}

template <int R, bool FIRST>
void block_of_rows(const Linear& p, int64_t panel, const void* x, int64_t line, const float* row_scale, float* y, Epilogue epilogue) {
    const int64_t first = panel * PANEL, columns = std::min<int64_t>(PANEL, p.out - first);
    floats sums[R][VECTORS];
    if (p.kind != INT8) {
        const float* from = static_cast<const float*>(x) + line * p.in;
        const int64_t start = panel * p.in * PANEL;
        if (p.kind == FLOAT32) {
            panel_float<R, FIRST>(from, p.in, static_cast<const float*>(p.weight) + start, p.in, sums);
        } else {
            panel_float<R, FIRST>(from, p.in, static_cast<const int16_t*>(p.weight) + start, p.in, sums);
            for (int v = 0; v < VECTORS; ++v)
                for (int r = 0; r < R; ++r) sums[r][v] *= load(p.scale + first + v * LANES);
        }
    } else {
        ints whole[R][VECTORS];
        const int64_t fours = p.in / 4;
        const int32_t* weight = static_cast<const int32_t*>(p.weight) + panel * fours * PANEL;
        panel_int8<R>(static_cast<const int32_t*>(x) + line * fours, fours, weight, fours, whole);
        for (int v = 0; v < VECTORS; ++v) {
            const floats scale = load(p.scale + first + v * LANES);
            const ints offset = LESS_128 ? ints{} : *reinterpret_cast<const loose_ints*>(p.offset + first + v * LANES);
            for (int r = 0; r < R; ++r) sums[r][v] = __builtin_convertvector(whole[r][v] - offset, floats) * (row_scale[line + r] * scale);
        }
    }
    for (int r = 0; r < R; ++r) finish(sums[r], p.bias ? p.bias + first : nullptr, y + (line + r) * p.out + first, columns, epilogue);
}

inline int32_t magnitude_bits(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits & INT32_MAX;
}

constexpr float LEAST = 1e-35f;  // 127 / this is still finite; lines of smaller numbers become zeros

// Convert each line of x (lines, in) to unsigned 8 bits: round(x / scale) + 128, scale = largest magnitude / 127. A line with NaN or
// infinity has the scale NaN, so that all its products are NaN
void quantise(const float* x, int64_t lines, int64_t in, uint8_t* out, float* scale) {
#pragma omp parallel for schedule(static) if (lines * in > WORTH_THREADS / 16)
    for (int64_t i = 0; i < lines; ++i) {
        const float* from = x + i * in;
        int32_t bits = 0;  // magnitudes have the order of their bits: numbers, then infinity, then NaN
#pragma omp simd reduction(max : bits)
        for (int64_t k = 0; k < in; ++k) bits = std::max(bits, magnitude_bits(from[k]));
        float largest;
        std::memcpy(&largest, &bits, sizeof largest);
        scale[i] = largest / 127.0f;
        if (!(largest >= LEAST && std::isfinite(largest))) {
            if (!std::isfinite(largest)) scale[i] = NAN;
            std::memset(out + i * in, 128, in);
            continue;
        }
        const float factor = 127.0f / largest;
        for (int64_t k = 0; k < in; ++k) out[i * in + k] = static_cast<uint8_t>(static_cast<int32_t>(std::nearbyint(from[k] * factor)) + 128);
    }
}

// y (lines, out) = x (lines, in) W' + bias
void multiply(const Linear& p, const float* x, int64_t lines, float* y, Epilogue epilogue) {
    static thread_local std::vector<uint8_t> bytes;
    static thread_local std::vector<float> scales;
    const void* input = x;
    const float* row_scale = nullptr;
    if (p.kind == INT8) {
        uint8_t* quantised = scratch(bytes, lines * p.in);
        float* scale = scratch(scales, lines);
        quantise(x, lines, p.in, quantised, scale);
        input = quantised;
        row_scale = scale;
    }
    int64_t panels = (p.out + PANEL - 1) / PANEL;
#pragma omp parallel for schedule(static) if (lines * p.in * p.out > WORTH_THREADS)
    for (int64_t panel = 0; panel < panels; ++panel) {
        int64_t line = 0;
        auto block = [&](auto rows, auto first) {
            block_of_rows<decltype(rows)::value, decltype(first)::value>(p, panel, input, line, row_scale, y, epilogue);
            line += decltype(rows)::value;
        };
        auto rest = [&](auto first) {
            switch (lines - line) {
                case 5: return block(std::integral_constant<int, 5>(), first);
                case 4: return block(std::integral_constant<int, 4>(), first);
                case 3: return block(std::integral_constant<int, 3>(), first);
                case 2: return block(std::integral_constant<int, 2>(), first);
                case 1: return block(std::integral_constant<int, 1>(), first);
            }
        };
        if (lines < ROWS) {
            rest(std::true_type());
            continue;
        }
        block(std::integral_constant<int, ROWS>(), std::true_type());
        while (line + ROWS <= lines) block(std::integral_constant<int, ROWS>(), std::false_type());
        rest(std::false_type());
    }
}

}  // namespace
