// From logits to the next words: log-softmax, the best words of every line or of every sentence's lines,
// ban of repeated n-grams, and random draws.
// Definition: search/log_probs.py.

#include "ngrams.hpp"
#include "sampling.hpp"
#include "topk.hpp"

#include <cmath>

// x (lines, V) -> log-probabilities of x / temperature, in place
void run_log_softmax(float* x, int64_t lines, int64_t V, float temperature) {
#pragma omp parallel for schedule(static) if (lines * V > WORTH_THREADS / 8)
    for (int64_t i = 0; i < lines; ++i) log_softmax_line(x + i * V, V, temperature);
}

ENTRY void log_softmax(float* x, int64_t lines, int64_t V, float temperature) { run_log_softmax(x, lines, V, temperature); }

// Find the k best of each line of x (lines, V), best first, of equals the first: scores and columns (lines, k)
ENTRY void topk(const float* x, int64_t lines, int64_t V, int64_t k, float* score, int64_t* column) {
#pragma omp parallel for schedule(static) if (lines * V > WORTH_THREADS / 8)
    for (int64_t i = 0; i < lines; ++i) Best{score + i * k, column + i * k, k, 0}.add_line(x + i * V, V, 0);
}

// Find the c best continuations of each sentence. x (n, V): scores of each row's next word; before (n,): the rows' own scores; sentence s
// has the rows first[s] to first[s + 1]. row, column and score (sentences, c): best first, of equals the first; -inf and the sentence's
// first row if there are fewer.
ENTRY void best_of_sentences(const float* x, int64_t V, const float* before, const int64_t* first, int64_t sentences, int64_t c, int64_t* row,
                             int64_t* column, float* score) {
#pragma omp parallel for schedule(static) if (first[sentences] * V > WORTH_THREADS / 8)
    for (int64_t s = 0; s < sentences; ++s) {
        Best best{score + s * c, column + s * c, c, 0};
        for (int64_t r = first[s]; r < first[s + 1]; ++r)
            if (before[r] > -INFINITY) best.add_line(x + r * V, V, r * V, [&](float log_prob) { return log_prob + before[r]; });
        for (int64_t i = 0; i < c; ++i) {
            bool possible = i < best.count && best.score[i] > -INFINITY;
            row[s * c + i] = possible ? best.where[i] / V : first[s];
            column[s * c + i] = possible ? best.where[i] % V : 0;
            if (!possible) score[s * c + i] = -INFINITY;
        }
    }
}

// ---- Words that would complete an n-gram a second time become impossible

// tokens: each row's history of T tokens, with row_stride between rows, NOT_YET (negative) before the first token. value (rows, C): scores
// of the next word. ids: words of the columns, ascending, with id_stride between rows (0: the same for all rows); null: column w is word w.
ENTRY void block_ngrams(const int64_t* tokens, int64_t rows, int64_t T, int64_t row_stride, int64_t n, float* value, int64_t C,
                        const int64_t* ids, int64_t id_stride) {
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t* words = ids ? ids + r * id_stride : nullptr;
        repeated_ngrams(tokens + r * row_stride, T, n, [&](int64_t word) {
            const int64_t column = words ? std::lower_bound(words, words + C, word) - words : word;
            if (column < C && (!words || words[column] == word)) value[r * C + column] = -INFINITY;
        });
    }
}

// ---- Words drawn from lines of log-probabilities

// For each of n draws, with ascending rows, find the word of line row[i] of x (., V) that u[i] in [0, 1) falls on; -1 if none is possible
ENTRY int64_t draw_words(const float* x, int64_t V, const int64_t* row, const double* u, int64_t n, const SamplingCut* cut, int64_t* word) {
    return guarded([&] {
        DrawTable left;
        for (int64_t i = 0; i < n;) {
            const int64_t line = row[i];
            const Draw draw(x + line * V, V, *cut, left);
            for (; i < n && row[i] == line; ++i) word[i] = draw(u[i]);
        }
    });
}
