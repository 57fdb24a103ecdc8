// LSH softmax (--softmax lsh) on the CPU, from states to the words that hashing finds. It equals its definition, integer for integer.
// Definition: kernels/lsh_torch.py.
//
// Shapes: n rows, D dimensions, P = u x W hash functions of K dimensions, W bands, V words.

#include "stages.hpp"
#include "vectors.hpp"

namespace {

constexpr int64_t CHECKED = 64;  // marks that are checked at once
constexpr int64_t FEW = 16;      // at most V / FEW counters are cleared one by one, more by one memset

// Set the marks (V,) of words that reach t hits in any of n rows. The counters are small enough for the first cache and are 0 between calls
template <class Count>
void mark(const int32_t* start, const int32_t* length, int64_t n, int64_t W, const int32_t* words, int64_t V, int64_t t, uint8_t* marks) {
    static thread_local std::vector<Count> counters;
    Count* hits = scratch(counters, V);
    for (int64_t i = 0; i < n; ++i) {
        const int32_t *from = start + i * W, *many = length + i * W;
        for (int64_t w = 0; w < W; ++w) __builtin_prefetch(words + from[w]);
        int64_t total = 0;
        for (int64_t w = 0; w < W; ++w) {
            total += many[w];
            for (const int32_t *word = words + from[w], *end = word + many[w]; word < end; ++word) marks[*word] |= ++hits[*word] == t;
        }
        if (total * FEW > V) {
            std::memset(hits, 0, V * sizeof(Count));
            continue;
        }
        for (int64_t w = 0; w < W; ++w)
            for (const int32_t *word = words + from[w], *end = word + many[w]; word < end; ++word) hits[*word] = 0;
    }
}

// Write the ascending ids of words that are marked or in always (V,) (or null), without those in never (V,), and clear the marks; return
// their number
int64_t compact(uint8_t* marks, int64_t V, const uint8_t* always, const uint8_t* never, int64_t* ids) {
    if (always)
        for (int64_t word = 0; word < V; ++word) marks[word] |= always[word];
    int64_t found = 0;
    const auto take = [&](int64_t word) {
        ids[found] = word;
        found += marks[word] & !never[word];
    };
    const int64_t whole = V - V % CHECKED;
    for (int64_t first = 0; first < whole; first += CHECKED) {
        uint64_t eights[CHECKED / 8], any = 0;
        std::memcpy(eights, marks + first, CHECKED);
        for (uint64_t eight : eights) any |= eight;
        if (!any) continue;
        for (int64_t j = 0; j < CHECKED / 8; ++j)
            if (eights[j])
                for (int64_t word = first + j * 8; word < first + j * 8 + 8; ++word) take(word);
    }
    for (int64_t word = whole; word < V; ++word) take(word);
    std::memset(marks, 0, V);
    return found;
}

// Compute the band codes (n, W) of x (n, D): the index of the largest of K dimensions, of equals the first; u indices a band, the first in
// the highest bits. dimensions (K, P)
void hash_states(const float* x, int64_t n, int64_t D, const int64_t* dimensions, int64_t K, int64_t P, int64_t u, int64_t bits, int32_t* codes) {
    Parallel states;
#pragma omp parallel for schedule(static) if (n * P * K > WORTH_THREADS)
    for (int64_t i = 0; i < n; ++i) states.run([&] {
        static thread_local std::vector<float> values;
        static thread_local std::vector<int32_t> places;
        const float* line = x + i * D;
        float* best = scratch(values, P);
        int32_t* winner = scratch(places, P);
        for (int64_t p = 0; p < P; ++p) best[p] = line[dimensions[p]], winner[p] = 0;
        for (int64_t k = 1; k < K; ++k) {
            const int64_t* dimension = dimensions + k * P;
            const int32_t place = static_cast<int32_t>(k);
#pragma omp simd
            for (int64_t p = 0; p < P; ++p) {
                float value = line[dimension[p]];
                winner[p] = value > best[p] ? place : winner[p];
                best[p] = value > best[p] ? value : best[p];
            }
        }
        for (int64_t w = 0; w < P / u; ++w) {
            int32_t code = 0;
            for (int64_t j = 0; j < u; ++j) code = (code << bits) | winner[w * u + j];
            codes[i * (P / u) + w] = code;
        }
    });
    states.check();
}

}  // namespace

ENTRY int64_t wta_hash(const float* x, int64_t n, int64_t D, const int64_t* dimensions, int64_t K, int64_t P, int64_t u, int64_t bits,
                       int32_t* codes) {
    return guarded([&] { hash_states(x, n, D, dimensions, K, P, u, bits, codes); });
}

namespace {

int64_t find(const Index* index, const float* x, int64_t n, int64_t d, int64_t t, const uint8_t* always, const uint8_t* never, int64_t* ids,
             int64_t clock, double* seconds) {
    static thread_local std::vector<float> with_ones;
    static thread_local std::vector<int32_t> spans;
    static thread_local std::vector<uint8_t> marked;
    const int64_t W = index->P / index->u, D = d + index->ones;
    Stages stages(clock);
    if (index->ones) {
        float* wide = scratch(with_ones, n * D);
        for (int64_t i = 0; i < n; ++i) {
            std::memcpy(wide + i * D, x + i * d, d * sizeof(float));
            std::fill(wide + i * D + d, wide + (i + 1) * D, 1.0f);
        }
        x = wide;
    }
    int32_t *codes = scratch(spans, 3 * n * W), *start = codes + n * W, *length = start + n * W;
    hash_states(x, n, D, index->dimensions, index->K, index->P, index->u, index->bits, codes);
    seconds[0] = stages.next();
    for (int64_t i = 0, j = 0; i < n; ++i)
        for (int64_t w = 0; w < W; ++w, ++j) {
            const int32_t* place = index->offsets + w * index->B + codes[j];
            start[j] = place[0];
            length[j] = place[1] - place[0];
        }
    uint8_t* marks = scratch(marked, index->V);
    if (W <= 255)
        mark<uint8_t>(start, length, n, W, index->words, index->V, t, marks);
    else
        mark<uint16_t>(start, length, n, W, index->words, index->V, t, marks);
    seconds[1] = stages.next();
    const int64_t found = compact(marks, index->V, always, never, ids);
    seconds[2] = stages.next();
    return found;
}

}  // namespace

// Find the words that share t or more bands with any row of x (n, d), t > 0: ascending ids, as in `compact`. Return their number; seconds
// (3,) of hashing, counting and listing, by the given clock
ENTRY int64_t find_words(const Index* index, const float* x, int64_t n, int64_t d, int64_t t, const uint8_t* always, const uint8_t* never,
                         int64_t* ids, int64_t clock, double* seconds) {
    return guarded([&] { return find(index, x, n, d, t, always, never, ids, clock, seconds); });
}
