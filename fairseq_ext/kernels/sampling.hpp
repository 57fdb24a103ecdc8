// Words drawn from log-probabilities, with noise that depends on a sentence's number and a seed.
// Definition: kernels/log_probs.py, search/strategies/select/sampling.py.
//
// Chances are whole multiples of 2^-50, so that their sums are exact in double precision in any order.

#pragma once

#include <numeric>

#include "topk.hpp"

namespace {

constexpr float UNIT = 1125899906842624.0f, EXACT = 16777216.0f;  // 2^50; 2^24, from which on a float has no fraction
constexpr int64_t SPAN = 8 * BLOCK;
typedef double doubles __attribute__((vector_size(LANES * 8)));

// Return Philox4x32-10 of Salmon et al. 2011, as a number in [0, 1)
inline double uniform(int64_t seed, int64_t number, int64_t sample, int64_t step) {
    uint32_t c[4] = {uint32_t(step), uint32_t(sample), 0, uint32_t(number >> 32)}, k[2] = {uint32_t(seed), uint32_t(number)};
    for (int round = 0; round < 10; ++round) {
        const uint64_t p = 0xD2511F53ull * c[0], q = 0xCD9E8D57ull * c[2];
        c[0] = uint32_t(q >> 32) ^ c[1] ^ k[0], c[1] = uint32_t(q);
        c[2] = uint32_t(p >> 32) ^ c[3] ^ k[1], c[3] = uint32_t(p);
        k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u;
    }
    return ((c[0] >> 5) * 67108864.0 + (c[1] >> 6)) / 9007199254740992.0;
}

// The chances of a vector of log-probabilities
inline floats chances(floats x) {
    floats e = exponential(x) * UNIT, low = e < EXACT ? e : floats{} + EXACT;
    return e < EXACT ? __builtin_convertvector(__builtin_convertvector(low, ints), floats) : e;
}

inline double sum(doubles v) {
    double total = 0;
    for (int i = 0; i < LANES; ++i) total += v[i];
    return total;
}

// The chances of up to SPAN words, and their sum
inline double chances(const float* line, int64_t n, float* out) {
    doubles sums = {};
    for (int64_t i = 0; i < n; i += LANES) {
        floats x = floats{} - INFINITY;
        if (i + LANES <= n) x = load(line + i);
        else std::memcpy(&x, line + i, (n - i) * sizeof(float));
        const floats chance = chances(x);
        store(out + i, chance), sums += __builtin_convertvector(chance, doubles);
    }
    return sum(sums);
}

// Table that the draws of one line use
struct DrawTable {
    std::vector<int64_t> words;        // in ascending order; empty if no word is left out
    std::vector<double> parts;         // the chance of each of these words, or of each span of the whole line
    std::vector<float> value, amount;  // padded to whole vectors: each word's log-probability, and its chance (or 1, for top_k)
};

// Draws words from one line of log-probabilities (V,)
struct Draw {
    const float* line;
    int64_t V, best = 0;
    bool keeps_all;                  // no word is left out
    double total = 0;
    DrawTable& table;

    Draw(const float* line, int64_t V, const SamplingCut& cut, DrawTable& table)
        : line(line), V(V), keeps_all(!cut.top_k && cut.top_p >= 1 && cut.min_log_prob == -INFINITY), table(table) {
        float out[SPAN];
        const float highest = largest(line, V);
        for (; best < V - 1 && line[best] != highest;) ++best;
        table.parts.clear();
        if (keeps_all) {
            for (int64_t w = 0; w < V; w += SPAN) table.parts.push_back(chances(line + w, std::min(SPAN, V - w), out));
        } else {
            if (cut.top_k || cut.top_p < 1) rank(cut.top_k ? cut.top_k : cut.top_p * UNIT, cut.top_k, highest);
            else keep(static_cast<float>(cut.min_log_prob));
            weigh();
            table.parts.assign(table.amount.begin(), table.amount.begin() + table.words.size());
        }
        total = std::accumulate(table.parts.begin(), table.parts.end(), 0.0);
    }

    // Keep the most likely words, of equals the first ones, until their number (counts) or the sum of their chances is `enough`
    void rank(double enough, bool counts, float highest) {
        auto above = [&](float from) {  // number or sum of chances of the words with at least this log-probability
            doubles sums = {};
            for (size_t i = 0; i < table.value.size(); i += LANES)
                sums += __builtin_convertvector(load(&table.value[i]) >= from ? load(&table.amount[i]) : floats{}, doubles);
            return sum(sums);
        };
        float low = highest, high = std::nextafter(highest, INFINITY);  // `enough` is reached between them
        for (float depth = 2; depth < 100; depth *= 1.25f) {  // less likely words have chance 0; usually a small depth is enough
            low = highest - depth;
            keep(low), weigh();
            if (counts) std::fill_n(table.amount.begin(), table.words.size(), 1.0f);
            if (above(low) >= enough) break;
            high = low;
        }
        if (low == high) return;
        for (float middle; middle = low + (high - low) / 2, low < middle && middle < high;) (above(middle) >= enough ? low : high) = middle;
        double before = above(high);
        size_t n = 0;
        for (size_t i = 0; i < table.words.size(); ++i) {
            const bool is_last = table.value[i] == low && before < enough;
            if (is_last) before += table.amount[i];
            if (is_last || table.value[i] > low) table.words[n++] = table.words[i];
        }
        table.words.resize(n);
    }

    // Compute the chances of the words
    void weigh() {
        const size_t n = table.words.size(), whole = (n + LANES - 1) / LANES * LANES;
        table.value.assign(whole, -INFINITY), table.amount.resize(whole);
        for (size_t i = 0; i < n; ++i) table.value[i] = line[table.words[i]];
        for (size_t i = 0; i < whole; i += LANES) store(&table.amount[i], chances(load(&table.value[i])));
    }

    // Keep the words with this log-probability or more
    void keep(float from) {
        table.words.clear();
        for (int64_t w = 0; w < V; w += BLOCK) {
            const int64_t end = std::min(V, w + BLOCK);
            if (w + BLOCK <= V && block_max(line + w) < from) continue;
            for (int64_t i = w; i < end; ++i)
                if (line[i] >= from && line[i] > -INFINITY) table.words.push_back(i);
        }
    }

    // Return the word that a number in [0, 1) falls on; the best word if none has a chance, -1 if none is possible
    int64_t operator()(double u) const {
        if (!(total > 0)) return line[best] > -INFINITY ? best : -1;
        double rest = std::min(std::floor(u * total), total - 1);
        size_t i = 0;
        for (; rest >= table.parts[i]; ++i) rest -= table.parts[i];
        if (!keeps_all) return table.words[i];
        float out[SPAN];
        const int64_t first = i * SPAN;
        chances(line + first, std::min(SPAN, V - first), out);
        int64_t w = 0;
        for (; rest >= out[w]; ++w) rest -= out[w];
        return first + w;
    }
};

}  // namespace
