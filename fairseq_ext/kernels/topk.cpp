// From logits to the best next words: log-softmax, and the best of every line or of every sentence's lines.

#include "topk.hpp"

extern "C" {

// x (lines, V) -> log-probabilities of x / temperature, in place
void log_softmax(float* x, int64_t lines, int64_t V, float temperature) {
#pragma omp parallel for schedule(static) if (lines * V > WORTH_THREADS / 8)
    for (int64_t i = 0; i < lines; ++i) log_softmax_line(x + i * V, V, temperature);
}

// The k best of each line of x (lines, V), best first, of equals the first: scores and columns (lines, k)
void topk(const float* x, int64_t lines, int64_t V, int64_t k, float* score, int64_t* column) {
#pragma omp parallel for schedule(static) if (lines * V > WORTH_THREADS / 8)
    for (int64_t i = 0; i < lines; ++i) Best{score + i * k, column + i * k, k, 0}.add_line(x + i * V, V, 0.0f, 0);
}

// The c best continuations of each sentence: x (n, V) of each row's next word, before (n,) of the row itself; sentence s has the rows
// first[s] to first[s + 1]. row, column and score (sentences, c), best first, of equals the first; -inf and the sentence's first row
// where there are fewer.
void best_of_sentences(const float* x, int64_t V, const float* before, const int64_t* first, int64_t sentences, int64_t c, int64_t* row,
                       int64_t* column, float* score) {
#pragma omp parallel for schedule(static) if (first[sentences] * V > WORTH_THREADS / 8)
    for (int64_t s = 0; s < sentences; ++s) {
        Best best{score + s * c, column + s * c, c, 0};
        for (int64_t r = first[s]; r < first[s + 1]; ++r)
            if (before[r] > -INFINITY) best.add_line(x + r * V, V, before[r], r * V);
        for (int64_t i = 0; i < c; ++i) {
            bool possible = i < best.found && best.score[i] > -INFINITY;
            row[s * c + i] = possible ? best.where[i] / V : first[s];
            column[s * c + i] = possible ? best.where[i] % V : 0;
            if (!possible) score[s * c + i] = -INFINITY;
        }
    }
}

}  // extern "C"
