// Draft tokens of one row from a table of word sequences; parallel/drafts/ngram.py is the definition.

#include "vectors.hpp"

namespace {

// mirrored by a ctypes structure in draft.py
struct Table {
    const int64_t* key;    // (m,) ascending
    const int32_t* token;  // (m + 1, K), last what follows an unknown history
    const float* prob;     // (m + 1, K)
    const float *floor, *unigram;  // (V,)
    const int64_t* lexical_start;  // (source vocabulary + 1,), or null
    const int32_t* lexical_token;
    const float* lexical_prob;
    int64_t m, K, V, source_vocabulary, source_pad;
    float covered, eps, lambda;
};

// The table's entry of a history: of both tokens, else of the last, else of none
int64_t entry(const Table& t, int64_t before, int64_t last) {
    for (int64_t key : {before * t.V + last, t.V * t.V + last}) {
        int64_t at = std::lower_bound(t.key, t.key + t.m, key) - t.key;
        if (at < t.m && t.key[at] == key) return at;
    }
    return t.m;
}

}  // namespace

extern "C" {

// A sentence's factors (V,): how much more than by chance it speaks of each word. sum (V,): zeros, and zeros again afterwards
void speak(const Table* table, const int64_t* source, int64_t columns, int64_t length, float* factor, double* sum) {
    const Table& t = *table;
    std::memcpy(factor, t.floor, t.V * sizeof(float));
    auto all = [&](auto of) {
        for (int64_t i = 0; i < columns; ++i) {
            int64_t f = source[i];
            if (f == t.source_pad || f < 0 || f >= t.source_vocabulary) continue;
            for (int64_t e = t.lexical_start[f]; e < t.lexical_start[f + 1]; ++e) of(t.lexical_token[e], t.lexical_prob[e]);
        }
    };
    all([&](int32_t word, float prob) { sum[word] += prob; });
    all([&](int32_t word, float) {
        if (sum[word] > 0) factor[word] = std::pow((sum[word] / length + t.eps) / (t.unigram[word] + t.eps), double(t.lambda));
        sum[word] = 0;
    });
}

// The draft behind text (n,), n >= 2, of which the last `fresh` tokens are new since the last draft: at most `most` tokens, up to where
// all of it is right with probability `least`. factor (V,) or null; returns the number of tokens
int64_t propose(const Table* table, float* factor, const int64_t* text, int64_t n, int64_t fresh, int64_t most, double least,
                int64_t* token, double* sure) {
    const Table& t = *table;
    static thread_local std::vector<float> weights, kept;
    float *weight = scratch(weights, t.K), *uncovered = scratch(kept, most);
    if (factor)
        for (int64_t i = n - fresh; i < n; ++i)
            if (0 <= text[i] && text[i] < t.V) factor[text[i]] = std::max(factor[text[i]] * t.covered, t.floor[text[i]]);
    int64_t before = text[n - 2], last = text[n - 1], m = 0;
    double likely = 1.0;
    for (; m < most; ++m) {
        int64_t at = entry(t, before, last) * t.K, best = 0;
        float total = 0.0f;
        for (int64_t k = 0; k < t.K; ++k) {
            weight[k] = factor ? t.prob[at + k] * factor[t.token[at + k]] : t.prob[at + k];
            total += weight[k];
            if (weight[k] > weight[best]) best = k;
        }
        double chance = double(weight[best]) / total;
        likely *= chance;
        if (likely < least) break;
        before = last, last = token[m] = t.token[at + best], sure[m] = chance;
        if (factor) uncovered[m] = factor[last], factor[last] *= t.covered;  // the next draft token speaks of something else
    }
    if (factor)
        for (int64_t j = m - 1; j >= 0; --j) factor[token[j]] = uncovered[j];
    return m;
}

}  // extern "C"
