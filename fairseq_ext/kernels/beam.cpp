// The beam search of sentences that start and end at any step: --select topk, --stop count, --softmax full. The definition is
// search/loop.py with strategies/select/topk.py and strategies/stop/count.py. The results are the same bits.
//
// Shapes: k beam, n live rows of a sentence (one before the first token, then k), c = 2k candidates, V vocabulary, T places for the tokens
// of a row, N rows of all sentences.

#include "ngrams.hpp"
#include "reader.hpp"
#include "result.hpp"
#include "step.hpp"
#include "topk.hpp"

namespace {

constexpr int64_t ROOM_STEPS = 8;  // more room is asked for where a sentence's positions in use leave none for so many steps

// The search of one sentence; mirrored in beam.py. The arrays are the caller's
struct Sentence {
    int64_t k, limit, min_len, eos, pad, ngram, T;  // limit: most tokens before EOS; ngram: size of those that do not repeat, 0: off
    float temperature;
    int64_t slot;  // in the KV cache
    // state
    int64_t result;                        // GOES_ON while it is live
    int64_t length, rows, used, finished;  // tokens chosen so far, n, positions of the slot in use, hypotheses
    int64_t *tokens, *next_tokens;         // (k, T) the first token, then those chosen
    float *score, *next_score;             // (k, T) sum of log-probabilities up to each token; 0 of the first
    int32_t *history, *next_history;       // (k, T) where in the slot each token lies
    // found: each hypothesis' length with EOS, tokens and sums of log-probabilities, as in `tokens` and `score`
    int64_t *found_length, *found_tokens;
    float* found_score;

    // A hypothesis: row's tokens and EOS
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

    // Gives up the positions that are in no row's history
    void compact(const Reader& reader, const Step& step) {
        static thread_local std::vector<int32_t> memory_kept, memory_place;
        int32_t *kept = scratch(memory_kept, used), *place = scratch(memory_place, used);
        std::fill_n(place, used, 0);
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t i = 0; i < length; ++i) place[history[r * T + i]] = 1;
        int64_t count = 0;
        for (int64_t p = 0; p < used; ++p)
            if (place[p]) kept[count] = static_cast<int32_t>(p), place[p] = static_cast<int32_t>(count++);
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t i = 0; i < length; ++i) history[r * T + i] = place[history[r * T + i]];
        keep_positions(reader.layers, &step, slot, kept, count);
        used = count;
    }

    // Whether there is room for a step
    bool has_room(const Reader& reader, const Step& step) {
        if (length >= reader.room || length + 2 > T) return false;
        if (used + rows <= step.target.positions) return true;
        compact(reader, step);
        return used + ROOM_STEPS * rows <= step.target.positions;
    }
};

// The sentences that are searched together; mirrored in beam.py
struct Batch {
    Sentence* const* live;
    int64_t sentences;
    int64_t calls, read;  // of the decoder; rows summed over them
};

// (3) the decoder reads each row's last token
void read(Batch& batch, int64_t rows, const Reader& reader, Step& step) {
    static thread_local std::vector<Line> memory_lines;
    Line *lines = scratch(memory_lines, rows), *line = lines;
    float* x = reader.x;
    for (int64_t b = 0; b < batch.sentences; ++b) {
        Sentence& s = *batch.live[b];
        for (int64_t r = 0; r < s.rows; ++r, x += reader.d) {
            reader.embed(s.tokens[r * s.T + s.length], s.length, x);
            s.history[r * s.T + s.length] = static_cast<int32_t>(s.used);
            *line++ = {s.slot, s.used++, s.length + 1, s.history + r * s.T};
        }
    }
    step.x = reader.x, step.rows = rows, step.block = 1, step.lines = lines;
    decode(reader.layers, &step);
    linear(reader.output, reader.x, rows, reader.logits, 0);
    batch.calls += 1, batch.read += rows;
}

// (4) to (6) the best continuations of a sentence's rows, whose logits (n, V) are these: places row x V + word; false where a score is
// not a number
bool choose(const Sentence& s, float* logits, int64_t V, Best& best) {
    for (int64_t i = 0; i < s.rows; ++i) {
        float* line = logits + i * V;
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

// A sentence's rows with one token more. UNSUITABLE: some continuations are impossible, which the definition knows how to go on from
Result advance(Sentence& s, float* logits, int64_t V) {
    static thread_local std::vector<float> memory_score;
    static thread_local std::vector<int64_t> memory_where;
    const int64_t c = 2 * s.k;
    float* score = scratch(memory_score, c);
    int64_t* where = scratch(memory_where, c);
    Best best{score, where, c, 0};
    if (!choose(s, logits, V, best)) return NOT_A_NUMBER;
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
    s.rows = s.k, s.length += 1;
    return GOES_ON;
}

}  // namespace

extern "C" {

// At most so many steps, and none after one that ends a sentence, whose `result` says how. NO_ROOM: the KV cache, the position embeddings
// or the reader need more room; then the call is to be made again
int64_t search_sentences(Batch* batch, int64_t most, const Reader* reader, Step* step) {
    const int64_t V = reader->vocabulary;
    static thread_local std::vector<int64_t> memory_first;
    int64_t* first = scratch(memory_first, batch->sentences);
    for (; most > 0; --most) {
        int64_t rows = 0, live = 0;
        for (int64_t b = 0; b < batch->sentences; ++b) {
            if (!batch->live[b]->has_room(*reader, *step)) return NO_ROOM;
            first[b] = rows, rows += batch->live[b]->rows;
        }
        if (rows > reader->width) return NO_ROOM;
        read(*batch, rows, *reader, *step);
#pragma omp parallel for schedule(static) reduction(+ : live) if (rows * V > WORTH_THREADS / 8)
        for (int64_t b = 0; b < batch->sentences; ++b) {
            Sentence& s = *batch->live[b];
            s.result = advance(s, reader->logits + first[b] * V, V);
            live += s.result == GOES_ON;
        }
        if (live < batch->sentences) return FOUND;
    }
    return GOES_ON;
}

}  // extern "C"
