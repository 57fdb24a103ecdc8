// The best of many scores, and their normaliser.
#pragma once

#include "vectors.hpp"

namespace {

constexpr int64_t BLOCK = 4 * LANES;  // columns that a search for the best compares at once

floats greater(floats a, floats b) { return a > b ? a : b; }

// Return the largest of a block without NaN
inline float block_max(const float* line) {
    floats high = greater(greater(load(line), load(line + LANES)), greater(load(line + 2 * LANES), load(line + 3 * LANES)));
    return across(high, [](auto a, auto b) { return a > b ? a : b; });
}

inline float largest(const float* line, int64_t V) {
    floats high[4];
    int64_t k = BLOCK;
    float highest = -INFINITY;
    if (V >= BLOCK) {
        for (int v = 0; v < 4; ++v) high[v] = load(line + v * LANES);
        for (; k + BLOCK <= V; k += BLOCK)
            for (int v = 0; v < 4; ++v) high[v] = greater(load(line + k + v * LANES), high[v]);
        highest = across(greater(greater(high[0], high[1]), greater(high[2], high[3])), [](auto a, auto b) { return a > b ? a : b; });
    } else {
        k = 0;
    }
    for (; k < V; ++k) highest = std::max(highest, line[k]);
    return highest;
}

// Return the sum of e^(x - highest) over a line; NaN if the line has NaN
inline float sum_of_powers(const float* line, int64_t V, float highest) {
    floats sums[4] = {};
    int64_t k = 0;
    for (; k + BLOCK <= V; k += BLOCK)
        for (int v = 0; v < 4; ++v) sums[v] += exponential(load(line + k + v * LANES) - highest);
    float total = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; k < V; ++k) total += exponential(line[k] - highest);
    return total;
}

// Turn a line of logits into log-probabilities of line / temperature, in place
inline void log_softmax_line(float* line, int64_t V, float temperature) {
    if (temperature != 1.0f)
        for (int64_t k = 0; k < V; ++k) line[k] /= temperature;
    const float highest = largest(line, V), log_total = std::log(sum_of_powers(line, V, highest));
    for (int64_t k = 0; k < V; ++k) line[k] = (line[k] - highest) - log_total;
}

// The c highest scores so far, best first, of equals the first ones, with their places
struct Best {
    float* score;
    int64_t *where, c, count;

    bool takes(float value) const { return count < c || value > score[c - 1]; }
    void add(float value, int64_t place) {
        int64_t i = count < c ? count++ : c - 1;
        for (; i > 0 && value > score[i - 1]; --i) score[i] = score[i - 1], where[i] = where[i - 1];
        score[i] = value, where[i] = place;
    }
    // Add every column of a line of V columns without NaN, scored by total(value), which must be monotonous even after rounding; its first
    // column is place `first`
    template <typename Total>
    void add_line(const float* line, int64_t V, int64_t first, Total total) {
        auto look = [&](int64_t from, int64_t end) {
            for (int64_t k = from; k < end; ++k)
                if (const float value = total(line[k]); takes(value)) add(value, first + k);
        };
        int64_t k = 0;
        for (; k + BLOCK <= V; k += BLOCK)
            if (takes(total(block_max(line + k)))) look(k, k + BLOCK);  // false for most blocks
        look(k, V);
    }
    // Add every column of a line of V scores
    void add_line(const float* line, int64_t V, int64_t first) {
        add_line(line, V, first, [](float score) { return score; });
    }
};

}  // namespace
