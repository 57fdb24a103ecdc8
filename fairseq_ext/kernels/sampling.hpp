// Words drawn from log-probabilities, with noise that a sentence's number and a seed determine. The definition is in log_probs.py.
//
// Chances are whole multiples of 2^-50, so that their sums are exact in double precision, in whatever order.

#pragma once

#include <numeric>

#include "topk.hpp"

namespace {

constexpr float UNIT = 1125899906842624.0f, EXACT = 16777216.0f;  // 2^50; 2^24, from which on a float has no fraction
constexpr int64_t SPAN = 8 * BLOCK;
typedef double doubles __attribute__((vector_size(LANES * 8)));

// What is left to draw from: the `top` most likely words (0: all), those that make up `mass`, those of a log-probability of `floor` or more
struct Cut {
    int64_t top;
    double mass, floor;
};

// Philox4x32-10 of Salmon et al. 2011, as a number in [0, 1)
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

// What a line's draws are made from
struct Left {
    std::vector<int64_t> words;        // in ascending order; none where the whole line is left
    std::vector<double> parts;         // the chance of each of those, or of each span of the whole line
    std::vector<float> value, amount;  // to whole vectors: each word's log-probability, and what it adds to what is asked for
};

// Draws from one line of log-probabilities (V,), as often as it is asked
struct Draw {
    const float* line;
    int64_t V, best = 0;
    bool whole;                      // no word is left out
    double total = 0;
    Left& left;

    Draw(const float* line, int64_t V, const Cut& cut, Left& left)
        : line(line), V(V), whole(!cut.top && cut.mass >= 1 && cut.floor == -INFINITY), left(left) {
        float out[SPAN];
        const float highest = largest(line, V);
        for (; best < V - 1 && line[best] != highest;) ++best;
        left.parts.clear();
        if (whole) {
            for (int64_t w = 0; w < V; w += SPAN) left.parts.push_back(chances(line + w, std::min(SPAN, V - w), out));
        } else {
            if (cut.top || cut.mass < 1) rank(cut.top ? cut.top : cut.mass * UNIT, cut.top, highest);
            else keep(static_cast<float>(cut.floor));
            weigh();
            left.parts.assign(left.amount.begin(), left.amount.begin() + left.words.size());
        }
        total = std::accumulate(left.parts.begin(), left.parts.end(), 0.0);
    }

    // The words that are ranked first, of equals the first ones, that are `enough`: by number (of a count), or by their chances together
    void rank(double enough, bool counts, float highest) {
        auto above = [&](float from) {  // how much the words are from here on
            doubles sums = {};
            for (size_t i = 0; i < left.value.size(); i += LANES)
                sums += __builtin_convertvector(load(&left.value[i]) >= from ? load(&left.amount[i]) : floats{}, doubles);
            return sum(sums);
        };
        float low = highest, high = std::nextafter(highest, INFINITY);  // `enough` is reached between them
        for (float depth = 2; depth < 100; depth *= 1.25f) {  // less likely words have no chance; as a rule the likely ones are enough
            low = highest - depth;
            keep(low), weigh();
            if (counts) std::fill_n(left.amount.begin(), left.words.size(), 1.0f);
            if (above(low) >= enough) break;
            high = low;
        }
        if (low == high) return;
        for (float middle; middle = low + (high - low) / 2, low < middle && middle < high;) (above(middle) >= enough ? low : high) = middle;
        double before = above(high);
        size_t n = 0;
        for (size_t i = 0; i < left.words.size(); ++i) {
            const bool is_last = left.value[i] == low && before < enough;
            if (is_last) before += left.amount[i];
            if (is_last || left.value[i] > low) left.words[n++] = left.words[i];
        }
        left.words.resize(n);
    }

    // The chances of the words
    void weigh() {
        const size_t n = left.words.size(), whole = (n + LANES - 1) / LANES * LANES;
        left.value.assign(whole, -INFINITY), left.amount.resize(whole);
        for (size_t i = 0; i < n; ++i) left.value[i] = line[left.words[i]];
        for (size_t i = 0; i < whole; i += LANES) store(&left.amount[i], chances(load(&left.value[i])));
    }

    // The words of this log-probability or more
    void keep(float from) {
        left.words.clear();
        for (int64_t w = 0; w < V; w += BLOCK) {
            const int64_t end = std::min(V, w + BLOCK);
            if (w + BLOCK <= V && block_max(line + w) < from) continue;
            for (int64_t i = w; i < end; ++i)
                if (line[i] >= from && line[i] > -INFINITY) left.words.push_back(i);
        }
    }

    // The word that a number in [0, 1) falls on; the best where none has a chance, -1 where none is possible
    int64_t operator()(double u) const {
        if (!(total > 0)) return line[best] > -INFINITY ? best : -1;
        double rest = std::min(std::floor(u * total), total - 1);
        size_t i = 0;
        for (; rest >= left.parts[i]; ++i) rest -= left.parts[i];
        if (!whole) return left.words[i];
        float out[SPAN];
        const int64_t first = i * SPAN;
        chances(line + first, std::min(SPAN, V - first), out);
        int64_t w = 0;
        for (; rest >= out[w]; ++w) rest -= out[w];
        return first + w;
    }
};

}  // namespace
