// Words that would complete an n-gram a second time become impossible.

#include <algorithm>
#include <cmath>
#include <cstdint>

extern "C" {

// tokens: each row's history, T tokens at row_stride from one another, NOT_YET (negative) before its first. value (rows, C): scores of the
// next word. ids: words of the columns, ascending, id_stride apart from row to row (0: the same for all); null: column w is word w.
void block_ngrams(const int64_t* tokens, int64_t rows, int64_t T, int64_t row_stride, int64_t n, float* value, int64_t C,
                  const int64_t* ids, int64_t id_stride) {
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t *row = tokens + r * row_stride, *tail = row + T - (n - 1), *words = ids ? ids + r * id_stride : nullptr;
        for (int64_t i = 0; i + n <= T; ++i) {
            if (row[i] < 0 || !std::equal(tail, row + T, row + i)) continue;
            int64_t word = row[i + n - 1], column = word;
            if (words) {
                column = std::lower_bound(words, words + C, word) - words;
                if (column == C || words[column] != word) continue;
            }
            value[r * C + column] = -INFINITY;
        }
    }
}

}  // extern "C"
