// Attention of one token to the positions that it sees.
#pragma once

#include "vectors.hpp"

namespace {

// Keys and values that one line attends to: all `count` positions, or those in `position`
struct VisiblePositions {
    const float *key, *value;
    int64_t head, stride, count;  // elements from head to head and from position to position
    const int32_t* position;
};

// Compute one line's attention in one head of h features, h = V x LANES (V = 0: any h); score: memory for visible.count numbers and a
// vector
template <int V>
void attend_head(const float* query, const float* key, const float* value, const VisiblePositions& visible, int64_t h, float* score, float* out) {
    auto offset = [&](int64_t i) { return (visible.position ? visible.position[i] : i) * visible.stride; };
    float highest = -INFINITY;
    for (int64_t i = 0; i < visible.count; ++i) {
        const float* k = key + offset(i);
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
    int64_t whole = (visible.count + LANES - 1) / LANES * LANES;
    for (int64_t i = visible.count; i < whole; ++i) score[i] = -INFINITY;
    floats parts = {};
    for (int64_t i = 0; i < whole; i += LANES) {
        floats power = exponential(load(score + i) - highest);
        store(score + i, power);
        parts += power;
    }
    float total = sum(parts);
    if constexpr (V > 0) {
        floats sums[V] = {};
        for (int64_t i = 0; i < visible.count; ++i)
            for (int j = 0; j < V; ++j) sums[j] += score[i] * load(value + offset(i) + j * LANES);
        for (int j = 0; j < V; ++j) store(out + j * LANES, sums[j] / total);
    } else {
        for (int64_t j = 0; j < h; ++j) out[j] = 0.0f;
        for (int64_t i = 0; i < visible.count; ++i)
            for (int64_t j = 0; j < h; ++j) out[j] += score[i] / total * value[offset(i) + j];
    }
}

void attend(const float* query, const VisiblePositions& visible, int64_t heads, int64_t h, float* score, float* out) {
    auto one = h == 8 * LANES ? attend_head<8> : h == 4 * LANES ? attend_head<4> : h == 2 * LANES ? attend_head<2>
             : h == LANES ? attend_head<1> : attend_head<0>;
    for (int64_t head = 0; head < heads; ++head)
        one(query + head * h, visible.key + head * visible.head, visible.value + head * visible.head, visible, h, score, out + head * h);
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
