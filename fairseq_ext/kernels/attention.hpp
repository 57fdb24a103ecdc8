// Attention of one token to the positions that it sees.
#pragma once

#include "vectors.hpp"

namespace {

// Keys and values that one line attends to: all `count` positions, or those in `position`
struct VisiblePositions {
    const float *key, *value;
    int64_t head, stride, count;  // elements from head to head and from position to position
    const int32_t* position;
    float* weights = nullptr;  // to which the attention to each position is added; null: it is not needed

    int64_t offset(int64_t i) const { return (position ? position[i] : i) * stride; }
    void add_weights(const float* power, float total) const {
        for (int64_t i = 0; weights && i < count; ++i) weights[position ? position[i] : i] += power[i] / total;
    }
};

// Return the lanes' sums of products of a query with a position's key; h = V x LANES (V = 0: any multiple of LANES)
template <int V>
inline floats product(const float* query, const float* key, int64_t h) {
    floats parts = load(query) * load(key);
    const int64_t vectors = V ? V : h / LANES;
    for (int64_t j = 1; j < vectors; ++j) parts += load(query + j * LANES) * load(key + j * LANES);
    return parts;
}

// Replace scores (count,), filled up to a whole vector, by e^(score - highest) and return their sum
inline float exponentials(float* score, int64_t count, float highest) {
    const int64_t whole = (count + LANES - 1) / LANES * LANES;
    for (int64_t i = count; i < whole; ++i) score[i] = -INFINITY;
    floats parts = {};
    for (int64_t i = 0; i < whole; i += LANES) {
        const floats power = exponential(load(score + i) - highest);
        store(score + i, power);
        parts += power;
    }
    return sum(parts);
}

// Write V vectors of the weighted mean of values
template <int V>
inline void mean_of_values(const float* power, float total, const float* value, const VisiblePositions& visible, float* out) {
    floats sums[V];
    for (int j = 0; j < V; ++j) sums[j] = floats{};
    for (int64_t i = 0; i < visible.count; ++i)
        for (int j = 0; j < V; ++j) sums[j] += power[i] * load(value + visible.offset(i) + j * LANES);
    for (int j = 0; j < V; ++j) store(out + j * LANES, sums[j] / total);
}

// Compute one line's attention in one head of h features, h = V x LANES (V = 0: any multiple of LANES)
template <int V>
void attend_head(const float* query, const float* key, const float* value, const VisiblePositions& visible, int64_t h, float* power, float* out) {
    floats high = floats{} - INFINITY;
    int64_t i = 0;
    for (; i + LANES <= visible.count; i += LANES) {  // their sums are reduced together
        floats parts[LANES];
        for (int p = 0; p < LANES; ++p) parts[p] = product<V>(query, key + visible.offset(i + p), h);
        const floats score = sums_of(parts);
        high = score > high ? score : high;
        store(power + i, score);
    }
    float highest = across(high, [](auto a, auto b) { return a > b ? a : b; });
    for (; i < visible.count; ++i) {
        power[i] = sum(product<V>(query, key + visible.offset(i), h));
        highest = std::max(highest, power[i]);
    }
    const float total = exponentials(power, visible.count, highest);
    visible.add_weights(power, total);
    if constexpr (V > 0) return mean_of_values<V>(power, total, value, visible, out);
    int64_t j = 0;
    for (; j + 4 * LANES <= h; j += 4 * LANES) mean_of_values<4>(power, total, value + j, visible, out + j);
    for (; j < h; j += LANES) mean_of_values<1>(power, total, value + j, visible, out + j);
}

// The same for any number h of features
void attend_any_head(const float* query, const float* key, const float* value, const VisiblePositions& visible, int64_t h, float* power, float* out) {
    float highest = -INFINITY;
    for (int64_t i = 0; i < visible.count; ++i) {
        const float* from = key + visible.offset(i);
        float dot = 0.0f;
        for (int64_t j = 0; j < h; ++j) dot += query[j] * from[j];
        power[i] = dot;
        highest = std::max(highest, dot);
    }
    const float total = exponentials(power, visible.count, highest);
    visible.add_weights(power, total);
    for (int64_t j = 0; j < h; ++j) out[j] = 0.0f;
    for (int64_t i = 0; i < visible.count; ++i) {
        const float* from = value + visible.offset(i);
        for (int64_t j = 0; j < h; ++j) out[j] += power[i] / total * from[j];
    }
}

// Compute one line's attention in all heads of h features; power: memory for visible.count numbers and a vector
void attend(const float* query, const VisiblePositions& visible, int64_t heads, int64_t h, float* power, float* out) {
    auto one = h % LANES ? attend_any_head : h == 8 * LANES ? attend_head<8> : h == 4 * LANES ? attend_head<4> : h == 2 * LANES ? attend_head<2>
             : h == LANES ? attend_head<1> : attend_head<0>;
    for (int64_t head = 0; head < heads; ++head)
        one(query + head * h, visible.key + head * visible.head, visible.value + head * visible.head, visible, h, power, out + head * h);
}

// The positions that each line sees, from masks of 0 or -inf; where[i] is line i's mask
struct PositionLists {
    std::vector<int32_t> positions;
    std::vector<int64_t> count;
    int64_t width;
    void read(int64_t lines, int64_t width_, const std::vector<const float*>& where) {
        width = width_;
        scratch(positions, lines * width);
        scratch(count, lines);
        for (int64_t i = 0; i < lines; ++i) {
            int32_t* to = positions.data() + i * width;
            int64_t found = 0;
            for (int64_t c = 0; c < width; ++c) {
                to[found] = static_cast<int32_t>(c);
                found += where[i][c] == 0.0f;
            }
            count[i] = found;
        }
    }
};

}  // namespace
