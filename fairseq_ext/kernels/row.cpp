// Greedy decoding's one row: a block of tokens in, each position's best word and its log-probability out, in one call.
//
// decoders/transformer/decoder.py and parallel/one_sentence.py define what is computed. Log-probabilities, which need an exponential for every word,
// are those of positions that count.

#include "topk.hpp"

// of transformer.cpp; what they are given is made in transformer.py
extern "C" void decode(const void* coder, const void* step);
extern "C" void linear(const void* product, const float* x, int64_t lines, float* y, int64_t after);

namespace {

// mirrored by a ctypes structure in row.py
struct Row {
    const void *coder, *step, *output;   // step's x is this one's
    const float *embedding, *positions;  // (V, d), (positions, d)
    int64_t d, vocabulary, pad, eos;
    float scale;           // of the embedding
    float *x, *logits;     // (w, d), (w, V)
    int64_t* token;        // (w,) the last verified one and the draft
    int64_t* word;         // (w,) results
    float* score;          // (w,)
};

// The best of columns (V,) other than two, of equals the first
int64_t best_word(const float* line, int64_t V, int64_t pad, int64_t eos) {
    float best = -INFINITY;
    int64_t found = 0;
    auto look = [&](int64_t first, int64_t end) {
        for (int64_t c = first; c < end; ++c)
            if (line[c] > best && c != pad && c != eos) best = line[c], found = c;
    };
    int64_t c = 0;
    for (; c + BLOCK <= V; c += BLOCK)
        if (block_max(line + c) > best) look(c, c + BLOCK);  // most blocks are not
    look(c, V);
    return found;
}

// log P of word as log_softmax computes it: (x - max) - log sum
float log_probability(const float* line, int64_t V, int64_t word, float highest) {
    return (line[word] - highest) - std::log(sum_of_powers(line, V, highest));
}

}  // namespace

extern "C" {

// Logits of what follows each of the row's w tokens, which stand behind `kept` others
void read_row(const Row* row_, int64_t w, int64_t kept) {
    const Row& row = *row_;
    for (int64_t i = 0; i < w; ++i) {
        const float *from = row.embedding + row.token[i] * row.d, *where = row.positions + (kept + i) * row.d;
        for (int64_t k = 0; k < row.d; ++k) row.x[i * row.d + k] = row.scale * from[k] + where[k];
    }
    decode(row.coder, row.step);
    linear(row.output, row.x, w, row.logits, 0);
}

// Each position's best word other than pad; EOS only from position `shortest` on, and nothing else from position `longest` on. Scores up
// to the first word that the next token contradicts or that is EOS, or with `all` of every position
void verify_row(const Row* row_, int64_t w, int64_t shortest, int64_t longest, int64_t all) {
    const Row& row = *row_;
    int64_t V = row.vocabulary;
    bool right = true;
    for (int64_t i = 0; i < w; ++i) {
        const float* line = row.logits + i * V;
        int64_t best = best_word(line, V, row.pad, i < shortest ? row.eos : row.pad);
        float highest = std::max({line[best], line[row.pad], line[row.eos]});
        row.word[i] = i >= longest ? row.eos : best;
        row.score[i] = right || all ? log_probability(line, V, row.word[i], highest) : 0.0f;
        right = right && row.word[i] != row.eos && i + 1 < w && row.word[i] == row.token[i + 1];
    }
}

}  // extern "C"
