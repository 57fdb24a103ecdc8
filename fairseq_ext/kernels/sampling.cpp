// Words drawn from lines of log-probabilities.

#include "sampling.hpp"

extern "C" {

// For each of n draws, of ascending lines, the word of line row[i] of x (., V) that u[i] in [0, 1) falls on, -1 where none is possible
void draw_words(const float* x, int64_t V, const int64_t* row, const double* u, int64_t n, const Cut* cut, int64_t* word) {
    Left left;
    for (int64_t i = 0; i < n;) {
        const int64_t line = row[i];
        const Draw draw(x + line * V, V, *cut, left);
        for (; i < n && row[i] == line; ++i) word[i] = draw(u[i]);
    }
}

}  // extern "C"
