// Words that would complete an n-gram of a history a second time.
// Definition: kernels/log_probs.py.
#pragma once

#include <algorithm>
#include <cstdint>

namespace {

// Call ban(word) for each such word. history: T tokens; negative numbers stand for no token, before the first one or in a draft
template <typename Ban>
void repeated_ngrams(const int64_t* history, int64_t T, int64_t n, Ban ban) {
    if (T < n) return;
    const int64_t *end = history + T, *tail = end - (n - 1);
    for (const int64_t* gram = history; gram + n <= end; ++gram)
        if (*gram >= 0 && gram[n - 1] >= 0 && std::equal(tail, end, gram)) ban(gram[n - 1]);
}

}  // namespace
