// Where the draft of a row that is alone comes from; parallel/drafts/ holds the definitions, for arrays of rows.

#include "parallel.hpp"
#include "vectors.hpp"

namespace {

// draft.py reads the fields of the structures from here

struct Trajectory {
    int64_t pad;  // behind the last call's outputs; NONE: the last verified token
};

struct Previous {
    Drafter other;
    const int64_t* old;  // (columns,) the earlier output
    const double* found;  // (tail + 1,) how sure a place is by the length of the match
    int64_t columns, tail, next, told;
    double regained, weak, sure;
};

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

struct Ngram {
    const Table* table;
    float* factor;  // (V,) of the sentence, or null
    int64_t pad, told;
};

// The table's entry of a history: of both tokens, else of the last, else of none
int64_t entry(const Table& t, int64_t before, int64_t last) {
    for (int64_t key : {before * t.V + last, t.V * t.V + last}) {
        int64_t at = std::lower_bound(t.key, t.key + t.m, key) - t.key;
        if (at < t.m && t.key[at] == key) return at;
    }
    return t.m;
}

// Where the earlier output goes on behind the longest end of the row that it holds, the place nearest to the expected one if there are
// several
void find(Previous& self, const Row* row) {
    const int64_t expected = self.next, tail = std::min(self.tail, *row->length + 1);
    int64_t longest = 0, distance = 0;
    for (int64_t end = 1; end <= self.columns; ++end) {
        int64_t length = 0;
        while (length < std::min(end, tail) && self.old[end - 1 - length] == row->tokens[*row->length - length]) ++length;
        const int64_t away = std::abs(end - expected);
        if (length > longest || (length && length == longest && away < distance)) self.next = end, longest = length, distance = away;
    }
    self.sure = self.found[longest];
}

}  // namespace

extern "C" {

int64_t propose_nothing(void*, const Row*, int64_t, double, int64_t*, double*) { return 0; }

int64_t propose_trajectory(void* state, const Row* row, int64_t most, double, int64_t* token, double* sure) {
    const int64_t pad = static_cast<Trajectory*>(state)->pad, filler = pad == NONE ? row->last() : pad;
    for (int64_t i = 0; i < most; ++i) token[i] = row->guess(i) == NONE ? filler : row->guess(i), sure[i] = 0.5;
    return most;
}

int64_t propose_previous(void* state, const Row* row, int64_t most, double least, int64_t* token, double* sure) {
    Previous& self = *static_cast<Previous*>(state);
    const int64_t fresh = *row->length - self.told;
    if (fresh) {
        bool parted = false;
        for (int64_t i = 0; i < fresh; ++i)
            parted = parted || self.next + i >= self.columns || self.old[self.next + i] != row->tokens[self.told + 1 + i];
        self.next += fresh, self.told = *row->length;
        if (parted)
            find(self, row);
        else
            self.sure = 1 - (1 - self.sure) * std::pow(self.regained, fresh);
    }
    const int64_t left = std::max<int64_t>(0, std::min(most, self.columns - self.next));
    if (!left || self.sure < self.weak)
        if (int64_t others = self.other(row, most, least, token, sure)) return others;
    for (int64_t i = 0; i < left; ++i) token[i] = self.old[self.next + i], sure[i] = self.sure;
    return left;
}

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

int64_t propose_ngram(void* state, const Row* row, int64_t most, double least, int64_t* token, double* sure) {
    Ngram& self = *static_cast<Ngram*>(state);
    const Table& t = *self.table;
    float* const factor = self.factor;
    static thread_local std::vector<float> weights, before_draft;
    float *weight = scratch(weights, t.K), *uncovered = scratch(before_draft, most);
    for (; self.told < *row->length; ++self.told) {
        const int64_t word = row->tokens[self.told + 1];
        if (factor && 0 <= word && word < t.V) factor[word] = std::max(factor[word] * t.covered, t.floor[word]);
    }
    int64_t last = row->last(), before = *row->length ? row->tokens[*row->length - 1] : self.pad, m = 0;
    double likely = 1.0;
    for (; m < most; ++m) {
        const int64_t at = entry(t, before, last) * t.K;
        int64_t best = 0;
        float total = 0.0f;
        for (int64_t k = 0; k < t.K; ++k) {
            weight[k] = factor ? t.prob[at + k] * factor[t.token[at + k]] : t.prob[at + k];
            total += weight[k];
            if (weight[k] > weight[best]) best = k;
        }
        const double chance = double(weight[best]) / total;
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
