// One step of a Transformer decoder on the CPU, float32, in one call; and the pieces of it that an encoder and a softmax use.
//
// decoders/transformer.py is the definition: the same computation as torch operations. What is saved here is not arithmetic but what
// surrounds it: operator dispatch, temporaries, transposed copies, and attention to cells that are no history of a row.
//
// Products x W' + b read weights packed into panels of PANEL columns, all inputs of a panel together (pack_* in step.py), so that a
// step reads every weight once, in order. With int8 weights each row of x is quantised to 8 bits by its largest magnitude.
//
// Plain C++17 behind a C interface: no torch headers, so it builds in seconds and does not depend on torch's version.
// Shapes: N = n x b lines (n rows, b new tokens each), d features, H heads, h = d / H, f feed-forward features, V vocabulary.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#include <immintrin.h>
#define HAS_INT8 1
#else
#define HAS_INT8 0
#endif

namespace {

#ifdef __AVX512F__
constexpr int LANES = 16, VECTORS = 4;  // a panel is 4 vectors wide: with 6 rows, 24 of 32 registers are sums
#else
constexpr int LANES = 8, VECTORS = 2;
#endif
constexpr int PANEL = LANES * VECTORS, ROWS = 6;
constexpr int64_t BLOCK = 64;                   // columns that a top-k looks at together
constexpr int64_t WORTH_THREADS = 1 << 20;  // multiplications below which starting threads costs more than it gains

typedef float floats __attribute__((vector_size(LANES * 4)));
typedef float loose_floats __attribute__((vector_size(LANES * 4), aligned(4)));
typedef int32_t ints __attribute__((vector_size(LANES * 4)));
typedef int32_t loose_ints __attribute__((vector_size(LANES * 4), aligned(4)));

floats load(const float* from) { return *reinterpret_cast<const loose_floats*>(from); }
void store(float* to, floats value) { *reinterpret_cast<loose_floats*>(to) = value; }

// ---- interface, mirrored by ctypes structures in step.py

enum Kind : int64_t { FLOAT32, INT8 };
enum After : int64_t { PLAIN, RELU, GELU, ADD };  // ADD: the result is added to what y holds

struct Product {
    const void* weight;     // (panels, in, PANEL) float32, or (panels, in / 4, PANEL, 4) int8
    const float* bias;      // (out,) or null
    const float* scale;     // int8: (panels x PANEL,) of each column
    const int32_t* offset;  // int8: (panels x PANEL,) 128 x the column's sum, which x's shift to unsigned adds
    int64_t in, out, kind;
};

struct Norm {
    const float *weight, *bias;  // (d,); null: no such norm
    double eps;
};

struct Layer {
    Norm self_norm;
    Product self_in, self_out;  // self_in: query (scaled), key, value
    Norm cross_norm;
    Product cross_query, cross_out;  // unused in an encoder
    Norm ffn_norm;
    Product ffn_in, ffn_out;
    int64_t activation;  // RELU or GELU
};

struct Coder {
    const Layer* layers;
    int64_t count, d, heads, pre_norm;
    Norm final_norm;
};

// A store of keys and values, in elements: layer, key or value, sentence, head, cell; features are neighbours
struct Store {
    float* data;
    int64_t layer, value, sentence, head, cells;
};

struct Step {
    float* x;  // (N, d) embedded tokens; the features when done
    int64_t rows, block, sentences, width, before;  // before: cells in use before this step, which adds width x block
    const int64_t* place;  // (n,) place of each row among sentences x width; null: in order
    const int64_t* slot;   // (sentences,) where each lies in the stores and the source mask; null: in order
    const float* mask;     // (sentences or 1, width x block, cells) 0 where a token sees a cell; null: it sees all
    int64_t mask_sentence;  // elements from one sentence's mask to the next; 0: they share one
    const float* source_mask;  // (sentences, source cells); null: none is padded
    Store own, source;
};

// ---- arithmetic

// e^x to about 1e-7, for x <= 88; 0 below -87. Written so that compilers vectorise loops over it.
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
    n = n < -126.0f ? -126.0f : n;
    union {
        int32_t bits;
        float value;
    } power = {(static_cast<int32_t>(n) + 127) << 23};
    return x < -87.0f ? 0.0f : p * power.value;
}

// x times the normal distribution function, by Abramowitz and Stegun 7.1.26 (error below 2e-7)
inline float gelu(float x) {
    float z = std::fabs(x) * 0.70710678f;
    float t = 1.0f / (1.0f + 0.3275911f * z);
    float p = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    float tail = 0.5f * p * exponential(-z * z);  // of the distribution, beyond |x|
    return x * (x < 0 ? tail : 1.0f - tail);
}

template <class T>
T* scratch(std::vector<T>& memory, int64_t size) {
    if (static_cast<int64_t>(memory.size()) < size) memory.resize(size);
    return memory.data();
}

// R lines of x times one panel: in x PANEL weights -> sums[R][VECTORS]
template <int R>
inline void panel_float(const float* x, int64_t stride, const float* weight, int64_t in, floats sums[R][VECTORS]) {
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < VECTORS; ++v) sums[r][v] = floats{};
    for (int64_t k = 0; k < in; ++k, weight += PANEL) {
        floats w[VECTORS];
        for (int v = 0; v < VECTORS; ++v) w[v] = load(weight + v * LANES);
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < VECTORS; ++v) sums[r][v] += x[r * stride + k] * w[v];
    }
}

#if HAS_INT8
inline ints dot4(ints sum, int32_t x, ints weight) {
#ifdef __AVX512VNNI__
    return (ints)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(x), (__m512i)weight);
#else
    return (ints)_mm256_dpbusd_avx_epi32((__m256i)sum, _mm256_set1_epi32(x), (__m256i)weight);
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
#endif

// Write one line's panel of results, `columns` of them
inline void finish(const float* line, const float* bias, float* y, int64_t columns, After after) {
    static const float zeros[PANEL] = {};
    bias = bias ? bias : zeros;
    switch (after) {
        case PLAIN: for (int64_t c = 0; c < columns; ++c) y[c] = line[c] + bias[c]; break;
        case RELU: for (int64_t c = 0; c < columns; ++c) y[c] = std::max(line[c] + bias[c], 0.0f); break;
        case GELU: for (int64_t c = 0; c < columns; ++c) y[c] = gelu(line[c] + bias[c]); break;
        case ADD: for (int64_t c = 0; c < columns; ++c) y[c] += line[c] + bias[c]; break;
    }
}

template <int R>
void block_of_rows(const Product& p, int64_t panel, const void* x, int64_t line, const float* row_scale, float* y, After after) {
    alignas(64) float results[R][PANEL];
    int64_t first = panel * PANEL, columns = std::min<int64_t>(PANEL, p.out - first);
    if (p.kind == FLOAT32) {
        floats sums[R][VECTORS];
        const float* weight = static_cast<const float*>(p.weight) + panel * p.in * PANEL;
        panel_float<R>(static_cast<const float*>(x) + line * p.in, p.in, weight, p.in, sums);
        std::memcpy(results, sums, sizeof(results));
    } else {
#if HAS_INT8
        ints sums[R][VECTORS];
        int64_t fours = p.in / 4;
        const int32_t* weight = static_cast<const int32_t*>(p.weight) + panel * fours * PANEL;
        panel_int8<R>(static_cast<const int32_t*>(x) + line * fours, fours, weight, fours, sums);
        for (int r = 0; r < R; ++r) {
            int32_t whole[PANEL];
            std::memcpy(whole, sums[r], sizeof(whole));
            for (int c = 0; c < PANEL; ++c)
                results[r][c] = static_cast<float>(whole[c] - p.offset[first + c]) * (row_scale[line + r] * p.scale[first + c]);
        }
#endif
    }
    for (int r = 0; r < R; ++r)
        finish(results[r], p.bias ? p.bias + first : nullptr, y + (line + r) * p.out + first, columns, after);
}

// Each line of x (lines, in) to unsigned 8 bits: round(x / scale) + 128, scale = largest magnitude / 127
void quantise(const float* x, int64_t lines, int64_t in, uint8_t* out, float* scale) {
#pragma omp parallel for schedule(static) if (lines * in > WORTH_THREADS / 16)
    for (int64_t i = 0; i < lines; ++i) {
        const float* from = x + i * in;
        float largest = 0.0f;
#pragma omp simd reduction(max : largest)
        for (int64_t k = 0; k < in; ++k) largest = std::max(largest, std::fabs(from[k]));
        float factor = largest > 0.0f ? 127.0f / largest : 0.0f;
        scale[i] = largest / 127.0f;
        for (int64_t k = 0; k < in; ++k) out[i * in + k] = static_cast<uint8_t>(static_cast<int32_t>(std::nearbyint(from[k] * factor)) + 128);
    }
}

// y (lines, out) = x (lines, in) W' + bias
void multiply(const Product& p, const float* x, int64_t lines, float* y, After after) {
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
        for (; line + ROWS <= lines; line += ROWS) block_of_rows<ROWS>(p, panel, input, line, row_scale, y, after);
        switch (lines - line) {
            case 5: block_of_rows<5>(p, panel, input, line, row_scale, y, after); break;
            case 4: block_of_rows<4>(p, panel, input, line, row_scale, y, after); break;
            case 3: block_of_rows<3>(p, panel, input, line, row_scale, y, after); break;
            case 2: block_of_rows<2>(p, panel, input, line, row_scale, y, after); break;
            case 1: block_of_rows<1>(p, panel, input, line, row_scale, y, after); break;
        }
    }
}

// Layer normalisation of lines x (lines, d) into y, which may be x
void normalise(const Norm& norm, const float* x, int64_t lines, int64_t d, float* y) {
#pragma omp parallel for schedule(static) if (lines * d > WORTH_THREADS / 8)
    for (int64_t i = 0; i < lines; ++i) {
        const float* from = x + i * d;
        float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < d; ++k) sum += from[k];
        float mean = sum / d;
#pragma omp simd reduction(+ : squares)
        for (int64_t k = 0; k < d; ++k) squares += (from[k] - mean) * (from[k] - mean);
        float factor = 1.0f / std::sqrt(squares / d + static_cast<float>(norm.eps));
        for (int64_t k = 0; k < d; ++k) y[i * d + k] = (from[k] - mean) * factor * norm.weight[k] + norm.bias[k];
    }
}

// ---- attention

// Keys and values that one line attends to: all `count` cells, or those that `cell` lists
struct Seen {
    const float *key, *value;
    int64_t head, stride, count;  // elements from head to head and from cell to cell
    const int32_t* cell;
};

inline float sum(floats v) {
    typedef float eight __attribute__((vector_size(32)));
    typedef float four __attribute__((vector_size(16)));
    eight half;
    if constexpr (LANES == 16)
        half = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
    else
        half = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
    four quarter = __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
    return (quarter[0] + quarter[1]) + (quarter[2] + quarter[3]);
}

// One line's attention in one head of h features, h = V x LANES (V = 0: any h); score has room for seen.count numbers
template <int V>
void attend_head(const float* query, const float* key, const float* value, const Seen& seen, int64_t h, float* score, float* out) {
    auto cell = [&](int64_t i) { return (seen.cell ? seen.cell[i] : i) * seen.stride; };
    float highest = -INFINITY, total = 0.0f;
    for (int64_t i = 0; i < seen.count; ++i) {
        const float* k = key + cell(i);
        float dot = 0.0f;
        if constexpr (V > 0) {
            floats parts = load(query) * load(k);
            for (int j = 1; j < V; ++j) parts += load(query + j * LANES) * load(k + j * LANES);
            dot = sum(parts);
        } else {
            for (int64_t j = 0; j < h; ++j) dot += query[j] * k[j];
        }
        score[i] = dot;
        highest = std::max(highest, dot);
    }
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < seen.count; ++i) {
        score[i] = exponential(score[i] - highest);
        total += score[i];
    }
    if constexpr (V > 0) {
        floats sums[V] = {};
        for (int64_t i = 0; i < seen.count; ++i)
            for (int j = 0; j < V; ++j) sums[j] += score[i] * load(value + cell(i) + j * LANES);
        for (int j = 0; j < V; ++j) store(out + j * LANES, sums[j] / total);
    } else {
        for (int64_t j = 0; j < h; ++j) out[j] = 0.0f;
        for (int64_t i = 0; i < seen.count; ++i)
            for (int64_t j = 0; j < h; ++j) out[j] += score[i] / total * value[cell(i) + j];
    }
}

void attend(const float* query, const Seen& seen, int64_t heads, int64_t h, float* score, float* out) {
    auto one = h == 8 * LANES ? attend_head<8> : h == 4 * LANES ? attend_head<4> : h == 2 * LANES ? attend_head<2>
             : h == LANES ? attend_head<1> : attend_head<0>;
    for (int64_t head = 0; head < heads; ++head)
        one(query + head * h, seen.key + head * seen.head, seen.value + head * seen.head, seen, h, score, out + head * h);
}

// For each of the lines: the cells that it sees, from masks of 0 or -inf; where[i] is line i's mask
struct Lists {
    std::vector<int32_t> cells;
    std::vector<int64_t> count;
    int64_t width;
    void read(int64_t lines, int64_t width_, const std::vector<const float*>& where) {
        width = width_;
        scratch(cells, lines * width);
        scratch(count, lines);
        for (int64_t i = 0; i < lines; ++i) {
            int32_t* to = cells.data() + i * width;
            int64_t found = 0;
            for (int64_t c = 0; c < width; ++c) {
                to[found] = static_cast<int32_t>(c);
                found += where[i][c] == 0.0f;
            }
            count[i] = found;
        }
    }
};

// Norm first (pre_norm) or last: the input of a block
const float* entering(const Coder& coder, const Norm& norm, const float* x, int64_t lines, float* y) {
    if (!coder.pre_norm) return x;
    normalise(norm, x, lines, coder.d, y);
    return y;
}

void leaving(const Coder& coder, const Norm& norm, float* x, int64_t lines) {
    if (!coder.pre_norm) normalise(norm, x, lines, coder.d, x);
}

void feed_forward(const Coder& coder, const Layer& layer, float* x, int64_t lines, float* y, float* wide) {
    multiply(layer.ffn_in, entering(coder, layer.ffn_norm, x, lines, y), lines, wide, static_cast<After>(layer.activation));
    multiply(layer.ffn_out, wide, lines, x, ADD);
    leaving(coder, layer.ffn_norm, x, lines);
}

int64_t widest(const Coder& coder) {
    int64_t wide = 3 * coder.d;
    for (int64_t i = 0; i < coder.count; ++i) wide = std::max(wide, coder.layers[i].ffn_in.out);
    return wide;
}

thread_local std::vector<float> memory_y, memory_wide, memory_score;

}  // namespace

extern "C" {

int64_t panel_columns() { return PANEL; }
int64_t has_int8() { return HAS_INT8; }

// Whether products give what they must: 4 x 1 x 1 is 4. Tried in a process of its own after compiling, since a wrong idea of the
// processor ends the process
int64_t works() {
    std::vector<float> weight(4 * PANEL, 1.0f), x(ROWS * 4, 1.0f), y(ROWS * PANEL);
    std::vector<int8_t> rounded(4 * PANEL, 1);
    std::vector<float> scale(PANEL, 1.0f);
    std::vector<int32_t> offset(PANEL, 4 * 128);
    bool good = true;
    for (int64_t kind = FLOAT32; kind <= (HAS_INT8 ? INT8 : FLOAT32); ++kind) {
        const void* data = kind == INT8 ? static_cast<const void*>(rounded.data()) : weight.data();
        multiply({data, nullptr, scale.data(), offset.data(), 4, PANEL, kind}, x.data(), ROWS, y.data(), PLAIN);
        for (float value : y) good = good && std::fabs(value - 4.0f) < 1e-5f;
    }
    return good;
}

void linear(const Product* product, const float* x, int64_t lines, float* y, int64_t after) {
    multiply(*product, x, lines, y, static_cast<After>(after));
}

// x (lines, V) -> log-probabilities of x / temperature, in place
void log_softmax(float* x, int64_t lines, int64_t V, float temperature) {
#pragma omp parallel for schedule(static) if (lines * V > WORTH_THREADS / 8)
    for (int64_t i = 0; i < lines; ++i) {
        float *line = x + i * V, highest = -INFINITY, total = 0.0f;
        if (temperature != 1.0f)
            for (int64_t k = 0; k < V; ++k) line[k] /= temperature;
#pragma omp simd reduction(max : highest)
        for (int64_t k = 0; k < V; ++k) highest = std::max(highest, line[k]);
#pragma omp simd reduction(+ : total)
        for (int64_t k = 0; k < V; ++k) total += exponential(line[k] - highest);
        float log_total = std::log(total);
        for (int64_t k = 0; k < V; ++k) line[k] = (line[k] - highest) - log_total;
    }
}

// The k best of each line of x (lines, V), best first, of equals the first: scores and columns (lines, k)
void topk(const float* x, int64_t lines, int64_t V, int64_t k, float* score, int64_t* column) {
#pragma omp parallel for schedule(static) if (lines * V > WORTH_THREADS / 8)
    for (int64_t i = 0; i < lines; ++i) {
        const float* line = x + i * V;
        float* best = score + i * k;
        int64_t *where = column + i * k, found = 0;
        for (int64_t first = 0; first < V; first += BLOCK) {
            int64_t end = std::min(first + BLOCK, V);
            float highest = -INFINITY;
#pragma omp simd reduction(max : highest)
            for (int64_t c = first; c < end; ++c) highest = std::max(highest, line[c]);
            if (found == k && !(highest > best[k - 1])) continue;  // most blocks end here
            for (int64_t c = first; c < end; ++c) {
                if (found == k && !(line[c] > best[k - 1])) continue;
                int64_t place = found < k ? found++ : k - 1;
                for (; place > 0 && line[c] > best[place - 1]; --place) best[place] = best[place - 1], where[place] = where[place - 1];
                best[place] = line[c], where[place] = c;
            }
        }
    }
}

// All layers of an encoder over sentences without padding: x (N, d), sentence s has lines start[s] to start[s + 1]
void encode(const Coder* coder_, float* x, const int64_t* start, int64_t sentences) {
    const Coder& coder = *coder_;
    int64_t d = coder.d, h = d / coder.heads, lines = start[sentences], longest = 0;
    for (int64_t s = 0; s < sentences; ++s) longest = std::max(longest, start[s + 1] - start[s]);
    float *y = scratch(memory_y, lines * d), *wide = scratch(memory_wide, lines * widest(coder));
    for (const Layer* layer = coder.layers; layer < coder.layers + coder.count; ++layer) {
        multiply(layer->self_in, entering(coder, layer->self_norm, x, lines, y), lines, wide, PLAIN);
#pragma omp parallel for schedule(dynamic) if (lines * longest * d > WORTH_THREADS)
        for (int64_t s = 0; s < sentences; ++s) {
            float* score = scratch(memory_score, longest);
            const float* first = wide + start[s] * 3 * d;
            Seen seen{first + d, first + 2 * d, h, 3 * d, start[s + 1] - start[s], nullptr};
            for (int64_t i = start[s]; i < start[s + 1]; ++i) attend(wide + i * 3 * d, seen, coder.heads, h, score, y + i * d);
        }
        multiply(layer->self_out, y, lines, x, ADD);
        leaving(coder, layer->self_norm, x, lines);
        feed_forward(coder, *layer, x, lines, y, wide);
    }
    if (coder.final_norm.weight) normalise(coder.final_norm, x, lines, d, x);
}

// All layers of a decoder over every row's new tokens
void decode(const Coder* coder_, const Step* step_) {
    const Coder& coder = *coder_;
    const Step& step = *step_;
    int64_t d = coder.d, heads = coder.heads, h = d / heads, b = step.block, lines = step.rows * b;
    int64_t added = step.width * b, cells = step.before + added;
    float *x = step.x, *y = scratch(memory_y, lines * d), *wide = scratch(memory_wide, lines * widest(coder));
    // where each line's sentence, mask and new cell are
    static thread_local std::vector<int64_t> sentence, cell;
    static thread_local std::vector<const float*> where, source_where;
    static thread_local Lists history, source;
    int64_t slots = step.slot ? step.slot[step.sentences - 1] + 1 : step.sentences;
    scratch(sentence, lines), scratch(cell, lines), scratch(where, lines), scratch(source_where, slots);
    for (int64_t i = 0; i < lines; ++i) {
        int64_t place = step.place ? step.place[i / b] : i / b, inside = place % step.width * b + i % b;
        int64_t s = place / step.width;
        sentence[i] = step.slot ? step.slot[s] : s;
        cell[i] = step.before + inside;
        if (step.mask) where[i] = step.mask + s * step.mask_sentence + inside * cells;
    }
    if (step.mask) history.read(lines, cells, where);
    if (step.source_mask) {
        for (int64_t s = 0; s < slots; ++s) source_where[s] = step.source_mask + s * step.source.cells;
        source.read(slots, step.source.cells, source_where);
    }
    int64_t longest = std::max(cells, step.source.cells);
    auto all_lines = [&](auto line) {
#pragma omp parallel for schedule(static) if (lines * longest * d > WORTH_THREADS)
        for (int64_t i = 0; i < lines; ++i) line(i, scratch(memory_score, longest));
    };
    const int64_t* sentence_of = sentence.data();
    const int64_t* cell_of = cell.data();
    Lists *histories = &history, *sources = &source;

    for (int64_t l = 0; l < coder.count; ++l) {
        const Layer& layer = coder.layers[l];
        multiply(layer.self_in, entering(coder, layer.self_norm, x, lines, y), lines, wide, PLAIN);
        float* own = step.own.data + l * step.own.layer;
        for (int64_t i = 0; i < lines; ++i)
            for (int64_t head = 0; head < heads; ++head) {
                float* to = own + sentence_of[i] * step.own.sentence + head * step.own.head + cell_of[i] * h;
                std::memcpy(to, wide + i * 3 * d + d + head * h, h * sizeof(float));
                std::memcpy(to + step.own.value, wide + i * 3 * d + 2 * d + head * h, h * sizeof(float));
            }
        all_lines([&](int64_t i, float* score) {
            const float* key = own + sentence_of[i] * step.own.sentence;
            Seen seen{key, key + step.own.value, step.own.head, h, cells, nullptr};
            if (step.mask) seen.count = histories->count[i], seen.cell = histories->cells.data() + i * cells;
            attend(wide + i * 3 * d, seen, heads, h, score, y + i * d);
        });
        multiply(layer.self_out, y, lines, x, ADD);
        leaving(coder, layer.self_norm, x, lines);

        multiply(layer.cross_query, entering(coder, layer.cross_norm, x, lines, y), lines, wide, PLAIN);
        const float* keys = step.source.data + l * step.source.layer;
        all_lines([&](int64_t i, float* score) {
            int64_t s = sentence_of[i];
            const float* key = keys + s * step.source.sentence;
            Seen seen{key, key + step.source.value, step.source.head, h, step.source.cells, nullptr};
            if (step.source_mask) seen.count = sources->count[s], seen.cell = sources->cells.data() + s * step.source.cells;
            attend(wide + i * d, seen, heads, h, score, y + i * d);
        });
        multiply(layer.cross_out, y, lines, x, ADD);
        leaving(coder, layer.cross_norm, x, lines);

        feed_forward(coder, layer, x, lines, y, wide);
    }
    if (coder.final_norm.weight) normalise(coder.final_norm, x, lines, d, x);
}

}  // extern "C"
