// Linear maps x W' + b with weights of 32, 16 or 8 bits. Weights are packed into panels of PANEL columns, all inputs of a panel together
// (transformer.py, PackedLinear), so that a step reads every weight once, in order. With int8 weights each line of x is rounded to 8 bits
// by its largest magnitude; whole numbers of 16 bits become floats as they are read.
#pragma once

#include <type_traits>

#include "tiles.hpp"
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

// Panels that R lines are multiplied by at once: with fewer than 64 sums or 8 vectors in flight, a multiply-add waits for the one before it
template <int R>
constexpr int AT_ONCE = std::max({64 / (R * PANEL), 8 / (R * VECTORS), 1});

// Multiply R lines of x by P panels, each in x PANEL weights -> sums[P][R][VECTORS]. FIRST: these are the first lines for the panels, so
// their weights are not in a cache yet. They are prefetched, since with several lines the processor's own prefetching is not early enough;
// with one line it is
template <int R, int P, bool FIRST, class Weight>
inline void panel_float(const float* x, int64_t stride, const Weight* weight, int64_t in, floats sums[P][R][VECTORS]) {
    floats total[P][R][VECTORS];  // registers: the caller's array is in memory
    for (int p = 0; p < P; ++p)
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < VECTORS; ++v) total[p][r][v] = floats{};
    for (int64_t k = 0; k < in; ++k, weight += PANEL)
        for (int p = 0; p < P; ++p) {
            const Weight* from = weight + p * in * PANEL;
            if constexpr (FIRST && R > 1)
                for (int64_t b = 0; b < PANEL * static_cast<int64_t>(sizeof(Weight)); b += 64)
                    __builtin_prefetch(reinterpret_cast<const char*>(from) + PREFETCH_BYTES + b);
            floats w[VECTORS];
            for (int v = 0; v < VECTORS; ++v) w[v] = load(from + v * LANES);
            for (int r = 0; r < R; ++r)
                for (int v = 0; v < VECTORS; ++v) total[p][r][v] += x[r * stride + k] * w[v];
        }
    std::memcpy(sums, total, sizeof total);
}

#if (defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)) || \
    (defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__))
constexpr bool LESS_128 = true;  // bytes of x are made signed, so no offset is subtracted
#else
constexpr bool LESS_128 = false;
#endif

// Return sum + the products of four unsigned bytes of x (1 to 255) with four signed bytes of each lane's weight (-127 to 127). Without an
// instruction for that, the weights take the signs of x - 128 and are multiplied by its magnitudes: two products of at most 127 x 127 fit in
// 16 bits. All results are exact
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
#elif defined(__AVX512BW__)
    const __m512i less = _mm512_xor_si512(_mm512_set1_epi32(x), _mm512_set1_epi8(-128)), w = (__m512i)weight;
    const __m512i with_sign = _mm512_mask_sub_epi8(w, _mm512_movepi8_mask(less), _mm512_setzero_si512(), w);
    return sum + (ints)_mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_abs_epi8(less), with_sign), _mm512_set1_epi16(1));
#elif defined(__AVX2__)
    const __m256i less = _mm256_xor_si256(_mm256_set1_epi32(x), _mm256_set1_epi8(-128));
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(less), _mm256_sign_epi8((__m256i)weight, less));
    return sum + (ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
    for (int byte = 0; byte < 32; byte += 8) sum += (weight << (24 - byte) >> 24) * (x >> byte & 255);
    return sum;
#endif
}

// The same with four inputs at a time: x unsigned, weights signed
template <int R, int P>
inline void panel_int8(const int32_t* x, int64_t stride, const int32_t* weight, int64_t fours, ints sums[P][R][VECTORS]) {
    ints total[P][R][VECTORS];
    for (int p = 0; p < P; ++p)
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < VECTORS; ++v) total[p][r][v] = ints{};
    for (int64_t k = 0; k < fours; ++k, weight += PANEL)
        for (int p = 0; p < P; ++p) {
            ints w[VECTORS];
            for (int v = 0; v < VECTORS; ++v) w[v] = *reinterpret_cast<const loose_ints*>(weight + p * fours * PANEL + v * LANES);
            for (int r = 0; r < R; ++r)
                for (int v = 0; v < VECTORS; ++v) total[p][r][v] = dot4(total[p][r][v], x[r * stride + k], w[v]);
        }
    std::memcpy(sums, total, sizeof total);
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

// Write R lines of results, from `line` on, of P panels, from `panel` on
template <int R, int P, bool FIRST>
void block_of_rows(const Linear& map, int64_t panel, const void* x, int64_t line, const float* row_scale, float* y, Epilogue epilogue) {
    floats sums[P][R][VECTORS];
    if (map.kind != INT8) {
        const float* from = static_cast<const float*>(x) + line * map.in;
        const int64_t start = panel * map.in * PANEL;
        if (map.kind == FLOAT32) {
            panel_float<R, P, FIRST>(from, map.in, static_cast<const float*>(map.weight) + start, map.in, sums);
        } else {
            panel_float<R, P, FIRST>(from, map.in, static_cast<const int16_t*>(map.weight) + start, map.in, sums);
            for (int p = 0; p < P; ++p)
                for (int v = 0; v < VECTORS; ++v)
                    for (int r = 0; r < R; ++r) sums[p][r][v] *= load(map.scale + (panel + p) * PANEL + v * LANES);
        }
    } else {
        ints whole[P][R][VECTORS];
        const int64_t fours = map.in / 4;
        const int32_t* weight = static_cast<const int32_t*>(map.weight) + panel * fours * PANEL;
        panel_int8<R, P>(static_cast<const int32_t*>(x) + line * fours, fours, weight, fours, whole);
        for (int p = 0; p < P; ++p)
            for (int v = 0; v < VECTORS; ++v) {
                const floats scale = load(map.scale + (panel + p) * PANEL + v * LANES);
                const ints offset = LESS_128 ? ints{} : *reinterpret_cast<const loose_ints*>(map.offset + (panel + p) * PANEL + v * LANES);
                for (int r = 0; r < R; ++r)
                    sums[p][r][v] = __builtin_convertvector(whole[p][r][v] - offset, floats) * (row_scale[line + r] * scale);
            }
    }
    for (int p = 0; p < P; ++p) {
        const int64_t first = (panel + p) * PANEL, columns = std::min<int64_t>(PANEL, map.out - first);
        for (int r = 0; r < R; ++r) finish(sums[p][r], map.bias ? map.bias + first : nullptr, y + (line + r) * map.out + first, columns, epilogue);
    }
}

// Write R lines of results, from `line` on, of all panels from `panel` to `end`
template <int R, bool FIRST>
void lines_of_panels(const Linear& map, int64_t panel, int64_t end, const void* x, int64_t line, const float* row_scale, float* y,
                     Epilogue epilogue) {
    for (; panel + AT_ONCE<R> <= end; panel += AT_ONCE<R>) block_of_rows<R, AT_ONCE<R>, FIRST>(map, panel, x, line, row_scale, y, epilogue);
    for (; panel < end; ++panel) block_of_rows<R, 1, FIRST>(map, panel, x, line, row_scale, y, epilogue);
}

inline int32_t magnitude_bits(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits & INT32_MAX;
}

constexpr float LEAST = 1e-35f;  // 127 / this is still finite; lines of smaller numbers become zeros

// Convert a line to unsigned 8 bits: round(x / scale) + 128, scale = largest magnitude / 127, which is returned. A line with NaN or infinity
// has the scale NaN, so that all its products are NaN
float quantise(const float* x, int64_t in, uint8_t* out) {
    int32_t bits = 0;  // magnitudes have the order of their bits: numbers, then infinity, then NaN
#pragma omp simd reduction(max : bits)
    for (int64_t k = 0; k < in; ++k) bits = std::max(bits, magnitude_bits(x[k]));
    float largest;
    std::memcpy(&largest, &bits, sizeof largest);
    if (!(largest >= LEAST && std::isfinite(largest))) {
        std::memset(out, 128, in);
        return std::isfinite(largest) ? largest / 127.0f : NAN;
    }
    const float factor = 127.0f / largest;
    for (int64_t k = 0; k < in; ++k) out[k] = static_cast<uint8_t>(static_cast<int32_t>(std::nearbyint(x[k] * factor)) + 128);
    return largest / 127.0f;
}

// Return whether a product is worth several threads: in 8 bits it is done sooner, and starting them takes as long
inline bool worth_threads(const Linear& map, int64_t lines) {
    return lines * map.in * map.out > (map.kind == INT8 ? 16 : 1) * WORTH_THREADS;
}

// The same as `multiply` by tiles T, to the bit: sums of whole numbers are exact. x: (lines, in) unsigned bytes
template <class T>
void multiply_by_tiles(const Linear& map, const uint8_t* x, const float* row_scale, int64_t lines, float* y, Epilogue epilogue) {
    const int64_t panels = (map.out + PANEL - 1) / PANEL, blocks = (lines + TILE_LINES - 1) / TILE_LINES;
    const int64_t height = (lines + blocks - 1) / blocks, inputs = tile_inputs(map.in);  // all blocks have the same shapes: the last
    const TileShapes shapes = tile_shapes(height, inputs);                               // one begins with lines of the one before
    const bool with_threads = worth_threads(map, lines);
    const int64_t shares = with_threads ? std::min<int64_t>(omp_get_max_threads(), panels) : 1;
    for_each(shares, with_threads, [&](int64_t share) {
        alignas(64) ints whole[TILE_LINES * VECTORS];
        // for each product, since a thread's tiles may have been another library's in the meantime
        T::configure(shapes);
        for (int64_t panel = share * panels / shares; panel < (share + 1) * panels / shares; ++panel) {
            const int64_t first = panel * PANEL, columns = std::min<int64_t>(PANEL, map.out - first);
            const int8_t* weight = static_cast<const int8_t*>(map.weight) + first * map.in;
            for (int64_t done = 0; done < lines; done = std::min(done + height, lines)) {
                const int64_t line = std::min(done, lines - height);
                tile_products<T>(x + line * map.in, map.in, inputs, weight, reinterpret_cast<int32_t*>(whole),
                                 std::make_integer_sequence<int, PANEL / 16>());
                for (int64_t r = done - line; r < height; ++r) {
                    floats sums[VECTORS];
                    for (int v = 0; v < VECTORS; ++v) {
                        const ints offset = *reinterpret_cast<const loose_ints*>(map.offset + first + v * LANES);
                        sums[v] = __builtin_convertvector(whole[r * VECTORS + v] - offset, floats) *
                                  (row_scale[line + r] * load(map.scale + first + v * LANES));
                    }
                    finish(sums, map.bias ? map.bias + first : nullptr, y + (line + r) * map.out + first, columns, epilogue);
                }
            }
        }
        T::release();
    });
}

// Copy these outputs (to.out,) of a map of 32 or 8 bits, without their biases, to another one: zeros fill the last panel up
void copy_outputs(const Linear& from, const int64_t* outputs, Linear& to) {
    const int64_t units = from.kind == INT8 ? from.in / 4 : from.in, panels = (to.out + PANEL - 1) / PANEL;
    const int32_t* weight = static_cast<const int32_t*>(from.weight);
    for_each(panels, to.out * units > WORTH_THREADS / 64, [&](int64_t panel) {
        int32_t* copy = static_cast<int32_t*>(const_cast<void*>(to.weight)) + panel * units * PANEL;
        for (int64_t c = 0, output = panel * PANEL; c < PANEL; ++c, ++output) {
            const bool is_one = output < to.out;
            const int64_t at = is_one ? outputs[output] : 0;
            const int32_t* source = weight + at / PANEL * units * PANEL + at % PANEL;
            for (int64_t k = 0; k < units; ++k) copy[k * PANEL + c] = is_one ? source[k * PANEL] : 0;
            if (from.kind != INT8) continue;
            const_cast<float*>(to.scale)[output] = is_one ? from.scale[at] : 0.0f;
            const_cast<int32_t*>(to.offset)[output] = is_one ? from.offset[at] : 0;
        }
    });
}

// y (lines, out) = x (lines, in) W' + bias
void multiply(const Linear& map, const float* x, int64_t lines, float* y, Epilogue epilogue) {
    static thread_local std::vector<uint8_t> bytes;
    static thread_local std::vector<float> scales;
    const void* input = x;
    const float* row_scale = nullptr;
    if (map.kind == INT8) {
        uint8_t* quantised = scratch(bytes, lines * map.in);
        float* scale = scratch(scales, lines);
        for_each(lines, lines * map.in > WORTH_THREADS / 16, [&](int64_t i) { scale[i] = quantise(x + i * map.in, map.in, quantised + i * map.in); });
        input = quantised;
        row_scale = scale;
#if defined(TILES)
        // as many lines as fill a tile, and inputs that fill half of one: a guess, not measured
        if (lines >= TILE_LINES && tile_inputs(map.in) >= TILE_BYTES / 2 && TILES::permitted())
            return multiply_by_tiles<TILES>(map, quantised, scale, lines, y, epilogue);
#endif
    }
    const int64_t panels = (map.out + PANEL - 1) / PANEL, blocks = (lines + ROWS - 1) / ROWS;
    const int64_t together = lines < ROWS ? AT_ONCE<1> : 1, groups = (panels + together - 1) / together;
    for_each(groups, worth_threads(map, lines), [&](int64_t group) {
        const int64_t panel = group * together, end = std::min(panel + together, panels);
        // blocks of nearly the same number of lines: few lines reach a lower rate
        for (int64_t b = 0, line = 0; b < blocks; ++b) {
            auto block = [&](auto rows) {
                constexpr int R = decltype(rows)::value;
                if (b == 0) lines_of_panels<R, true>(map, panel, end, input, line, row_scale, y, epilogue);
                else lines_of_panels<R, false>(map, panel, end, input, line, row_scale, y, epilogue);
                line += R;
            };
            switch (lines / blocks + (b < lines % blocks)) {
                case 6: block(std::integral_constant<int, 6>()); break;
                case 5: block(std::integral_constant<int, 5>()); break;
                case 4: block(std::integral_constant<int, 4>()); break;
                case 3: block(std::integral_constant<int, 3>()); break;
                case 2: block(std::integral_constant<int, 2>()); break;
                case 1: block(std::integral_constant<int, 1>()); break;
            }
        }
    });
}

}  // namespace
