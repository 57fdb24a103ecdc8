// The beam search of a sentence that is alone, all steps in one call: --select topk, --stop count, --softmax full. The definition works on
// any number of sentences: search/loop.py with strategies/select/topk.py and strategies/stop/count.py. The results are the same bits.
//
// Shapes: k beam, n live rows (one before the first token, then k), c = 2k candidates, V vocabulary, T places for the tokens of a row.

#include "ngrams.hpp"
#include "reader.hpp"
#include "step.hpp"
#include "topk.hpp"

namespace {

enum Result : int64_t { FOUND, NO_ROOM, NOT_A_NUMBER, UNSUITABLE };

// A search; mirrored in beam.py. The arrays are the caller's
struct Sentence {
    int64_t k, limit, min_len, eos, pad, ngram, T;  // limit: most tokens before EOS; ngram: size of those that do not repeat, 0: off
    float temperature;
    // state
    int64_t length, rows, used, finished;  // tokens chosen so far, n, positions of the KV cache in use, hypotheses
    int64_t *tokens, *next_tokens;         // (k, T) the first token, then those chosen
    float *score, *next_score;             // (k, T) sum of log-probabilities up to each token; 0 of the first
    int32_t *history, *next_history;       // (k, T) where in the KV cache each token lies
    int64_t* count;                        // (k,) tokens that each row has read
    // found: each hypothesis' length with EOS, tokens and sums of log-probabilities, as in `tokens` and `score`
    int64_t *found_length, *found_tokens;
    float* found_score;
    int64_t calls, read;  // of the decoder; rows summed over them

    // The i-th candidate is a hypothesis: row's tokens and EOS
    void finish(int64_t row, float total) {
        const int64_t f = finished++;
        std::memcpy(found_tokens + f * T, tokens + row * T, (length + 1) * sizeof(*tokens));
        std::memcpy(found_score + f * T, score + row * T, (length + 1) * sizeof(*score));
        found_length[f] = length + 1;
        found_tokens[f * T + length + 1] = eos;
        found_score[f * T + length + 1] = total;
    }

    // The j-th row of the next beam: row's tokens and one more
    void go_on(int64_t j, int64_t row, int64_t token, float total) {
        std::memcpy(next_tokens + j * T, tokens + row * T, (length + 1) * sizeof(*tokens));
        std::memcpy(next_score + j * T, score + row * T, (length + 1) * sizeof(*score));
        std::memcpy(next_history + j * T, history + row * T, (length + 1) * sizeof(*history));
        next_tokens[j * T + length + 1] = token;
        next_score[j * T + length + 1] = total;
    }
};

// (3) the decoder reads each row's last token
void read(Sentence& s, const Reader& reader, Step& step) {
    for (int64_t i = 0; i < s.rows; ++i) {
        reader.embed(s.tokens[i * s.T + s.length], s.length, reader.x + i * reader.d);
        s.history[i * s.T + s.length] = static_cast<int32_t>(s.used + i);
        s.count[i] = s.length + 1;
    }
    step.x = reader.x, step.rows = step.width = s.rows, step.block = 1, step.before = s.used;
    step.history = s.history, step.history_count = s.count, step.history_width = s.T;
    decode(reader.layers, &step);
    linear(reader.output, reader.x, s.rows, reader.logits, 0);
    s.used += s.rows, s.calls += 1, s.read += s.rows;
}

// (4) to (6) the best continuations of all rows, their places row x V + word; false where a score is not a number
bool choose(const Sentence& s, const Reader& reader, Best& best) {
    const int64_t V = reader.vocabulary;
    for (int64_t i = 0; i < s.rows; ++i) {
        float* line = reader.logits + i * V;
        if (s.temperature != 1.0f)
            for (int64_t w = 0; w < V; ++w) line[w] /= s.temperature;
        const float highest = largest(line, V), log_total = std::log(sum_of_powers(line, V, highest)), before = s.score[i * s.T + s.length];
        if (std::isnan((line[0] - highest) - log_total)) return false;
        auto total = [&](float logit) { return ((logit - highest) - log_total) + before; };  // rounded as log_softmax and Best round it
        line[s.pad] = -INFINITY;
        if (s.length < s.min_len) line[s.eos] = -INFINITY;
        if (s.ngram) repeated_ngrams(s.tokens + i * s.T + 1, s.length, s.ngram, [&](int64_t word) { line[word] = -INFINITY; });
        auto look = [&](int64_t first, int64_t end) {
            for (int64_t w = first; w < end; ++w)
                if (const float value = total(line[w]); best.takes(value)) best.add(value, i * V + w);
        };
        if (s.length >= s.limit) {
            look(s.eos, s.eos + 1);
            continue;
        }
        int64_t w = 0;
        for (; w + BLOCK <= V; w += BLOCK)
            if (best.takes(total(block_max(line + w)))) look(w, w + BLOCK);  // rounding keeps the order
        look(w, V);
    }
    return true;
}

}  // namespace

extern "C" {

// Searches to the end. NO_ROOM: the KV cache or the position embeddings need more room; then the call is to be made again.
// UNSUITABLE: some continuations are impossible, which the definition knows how to go on from
int64_t search_sentence(Sentence* sentence, const Reader* reader, Step* step) {
    Sentence& s = *sentence;
    static thread_local std::vector<float> memory_score;
    static thread_local std::vector<int64_t> memory_where;
    const int64_t c = 2 * s.k, V = reader->vocabulary;
    float* score = scratch(memory_score, c);
    int64_t* where = scratch(memory_where, c);
    for (;; ++s.length) {
        if (s.used + s.rows > step->target.positions || s.length >= reader->room) return NO_ROOM;
        read(s, *reader, *step);
        Best best{score, where, c, 0};
        if (!choose(s, *reader, best)) return NOT_A_NUMBER;
        const bool at_limit = s.length >= s.limit;
        const int64_t all = at_limit ? s.rows : c;
        if (best.found < all || score[all - 1] == -INFINITY) return UNSUITABLE;
        // (8) EOS among the k best ends a hypothesis
        for (int64_t i = 0; i < std::min(all, s.k); ++i)
            if (where[i] % V == s.eos && s.finished < s.k) s.finish(where[i] / V, score[i]);
        if (s.finished == s.k || at_limit) return FOUND;
        // (9) the k best others are the next beam
        int64_t j = 0;
        for (int64_t i = 0; j < s.k; ++i)
            if (where[i] % V != s.eos) s.go_on(j++, where[i] / V, where[i] % V, score[i]);
        std::swap(s.tokens, s.next_tokens), std::swap(s.score, s.next_score), std::swap(s.history, s.next_history);
        s.rows = s.k;
    }
}

}  // extern "C"
