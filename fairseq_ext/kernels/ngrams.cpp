// Words that would complete an n-gram a second time become impossible.

#include "ngrams.hpp"

#include <cmath>

extern "C" {

// tokens: each row's history, T tokens at row_stride from one another, NOT_YET (negative) before its first. value (rows, C): scores of the
// next word. ids: words of the columns, ascending, id_stride apart from row to row (0: the same for all); null: column w is word w.
void block_ngrams(const int64_t* tokens, int64_t rows, int64_t T, int64_t row_stride, int64_t n, float* value, int64_t C,
                  const int64_t* ids, int64_t id_stride) {
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t* words = ids ? ids + r * id_stride : nullptr;
        repeated_ngrams(tokens + r * row_stride, T, n, [&](int64_t word) {
            const int64_t column = words ? std::lower_bound(words, words + C, word) - words : word;
            if (column < C && (!words || words[column] == word)) value[r * C + column] = -INFINITY;
        });
    }
}

}  // extern "C"
