// Words drawn from log-probabilities, with noise that a sentence's number and a seed determine. The definition is sampling.py.
//
// Chances are whole multiples of 2^-50, so that their sums are exact in double precision, in whatever order.

#pragma once

#include <numeric>

#include "search/topk.hpp"

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
    double total = 0;
    for (int i = 0; i < LANES; ++i) total += sums[i];
    return total;
}

// Draws from one line of log-probabilities (V,), as often as it is asked
struct Draw {
    const float* line;
    int64_t V, best = 0;
    bool whole;                      // no word is left out
    double total = 0;
    std::vector<int64_t>& words;     // that are left, in the order in which their chances are added up
    std::vector<double>& parts;      // of each of those, or of each span of the whole line, its chance

    Draw(const float* line, int64_t V, const Cut& cut, std::vector<int64_t>& words, std::vector<double>& parts)
        : line(line), V(V), whole(!cut.top && cut.mass >= 1 && cut.floor == -INFINITY), words(words), parts(parts) {
        words.clear(), parts.clear();
        float out[SPAN];
        const float highest = largest(line, V);
        for (; best < V - 1 && line[best] != highest;) ++best;
        if (whole) {
            for (int64_t w = 0; w < V; w += SPAN) parts.push_back(chances(line + w, std::min(SPAN, V - w), out));
        } else if (cut.top || cut.mass < 1) {
            for (float depth = 2;; depth *= 2) {  // sorting the likely words is enough, as a rule
                const float from = depth < 100 ? highest - depth : -INFINITY;
                keep(from), weigh();
                const bool enough = cut.top ? int64_t(words.size()) >= cut.top : std::accumulate(parts.begin(), parts.end(), 0.0) >= cut.mass * UNIT;
                if (!enough && depth < 100) continue;
                const auto better = [&](int64_t a, int64_t b) { return line[a] > line[b] || (line[a] == line[b] && a < b); };
                const auto end = cut.top ? words.begin() + std::min<size_t>(cut.top, words.size()) : words.end();
                cut.top ? std::partial_sort(words.begin(), end, words.end(), better) : std::sort(words.begin(), end, better);
                words.erase(end, words.end()), weigh();
                size_t n = 0;
                double before = 0;
                for (; n < words.size() && (cut.top || before < cut.mass * UNIT); ++n) before += parts[n];
                words.resize(n), parts.resize(n);
                break;
            }
        } else {
            keep(static_cast<float>(cut.floor)), weigh();
        }
        total = std::accumulate(parts.begin(), parts.end(), 0.0);
    }

    // The chances of the words that are left
    void weigh() {
        float from[SPAN], out[SPAN];
        parts.resize(words.size());
        for (size_t first = 0; first < words.size(); first += SPAN) {
            const size_t n = std::min<size_t>(SPAN, words.size() - first);
            for (size_t i = 0; i < n; ++i) from[i] = line[words[first + i]];
            chances(from, n, out), std::copy_n(out, n, parts.begin() + first);
        }
    }

    // The words of this log-probability or more
    void keep(float from) {
        words.clear();
        for (int64_t w = 0; w < V; w += BLOCK) {
            const int64_t end = std::min(V, w + BLOCK);
            if (w + BLOCK <= V && block_max(line + w) < from) continue;
            for (int64_t i = w; i < end; ++i)
                if (line[i] >= from && line[i] > -INFINITY) words.push_back(i);
        }
    }

    // The word that a number in [0, 1) falls on; the best where none has a chance, -1 where none is possible
    int64_t operator()(double u) const {
        if (!(total > 0)) return line[best] > -INFINITY ? best : -1;
        double left = std::min(std::floor(u * total), total - 1);
        size_t i = 0;
        for (; left >= parts[i]; ++i) left -= parts[i];
        if (!whole) return words[i];
        float out[SPAN];
        const int64_t first = i * SPAN;
        chances(line + first, std::min(SPAN, V - first), out);
        int64_t w = 0;
        for (; left >= out[w]; ++w) left -= out[w];
        return first + w;
    }
};

}  // namespace
