// From logits to the best next words: log-softmax, and the best of every line or of every sentence's lines.

#include "best.hpp"

namespace {

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

// Sum of e^(x - highest) over a line; NaN if any is
inline float sum_of_powers(const float* line, int64_t V, float highest) {
    floats sums[4] = {};
    int64_t k = 0;
    for (; k + BLOCK <= V; k += BLOCK)
        for (int v = 0; v < 4; ++v) sums[v] += exponential(load(line + k + v * LANES) - highest);
    float total = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; k < V; ++k) total += exponential(line[k] - highest);
    return total;
}

}  // namespace

extern "C" {

// x (lines, V) -> log-probabilities of x / temperature, in place
void log_softmax(float* x, int64_t lines, int64_t V, float temperature) {
#pragma omp parallel for schedule(static) if (lines * V > WORTH_THREADS / 8)
    for (int64_t i = 0; i < lines; ++i) {
        float* line = x + i * V;
        if (temperature != 1.0f)
            for (int64_t k = 0; k < V; ++k) line[k] /= temperature;
        float highest = largest(line, V), log_total = std::log(sum_of_powers(line, V, highest));
        for (int64_t k = 0; k < V; ++k) line[k] = (line[k] - highest) - log_total;
    }
}

// The k best of each line of x (lines, V), best first, of equals the first: scores and columns (lines, k)
void topk(const float* x, int64_t lines, int64_t V, int64_t k, float* score, int64_t* column) {
#pragma omp parallel for schedule(static) if (lines * V > WORTH_THREADS / 8)
    for (int64_t i = 0; i < lines; ++i) Best{score + i * k, column + i * k, k, 0}.add_line(x + i * V, V, 0.0f, 0);
}

// The c best continuations of each sentence: x (n, V) of each row's next word, before (n,) of the row itself; sentence s has the rows
// first[s] to first[s + 1]. row, column and score (sentences, c), best first, of equals the first; -inf and the sentence's first row
// where there are fewer. top_column and top_score (n,): each row's best word, x's score plus before's; null: not wanted.
void best_of_sentences(const float* x, int64_t V, const float* before, const int64_t* first, int64_t sentences, int64_t c, int64_t* row,
                       int64_t* column, float* score, int64_t* top_column, float* top_score) {
#pragma omp parallel for schedule(static) if (first[sentences] * V > WORTH_THREADS / 8)
    for (int64_t s = 0; s < sentences; ++s) {
        Best best{score + s * c, column + s * c, c, 0};
        for (int64_t r = first[s]; r < first[s + 1]; ++r) {
            if (before[r] > -INFINITY) best.add_line(x + r * V, V, before[r], r * V);
            if (!top_score) continue;
            Best top{top_score + r, top_column + r, 1, 0};
            top.add_line(x + r * V, V, before[r], 0);
        }
        for (int64_t i = 0; i < c; ++i) {
            bool possible = i < best.found && best.score[i] > -INFINITY;
            row[s * c + i] = possible ? best.where[i] / V : first[s];
            column[s * c + i] = possible ? best.where[i] % V : 0;
            if (!possible) score[s * c + i] = -INFINITY;
        }
    }
}

}  // extern "C"
