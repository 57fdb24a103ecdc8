// The search of sentences with required phrases, many steps in one call: --select dba,
// --stop early, --softmax full. The definition is search/loop.py with search/strategies/select/dba.py and
// search/strategies/stop/early.py. The results are the same bits.
//
// All sentences start together and so have the same number of tokens. A sentence keeps its slot of the KV cache; its rows' new tokens take
// W positions a step, and positions that are in no row's history are dropped when the cache is full.
//
// Shapes: N sentences, n live rows, k beam, W the most rows of a sentence, G constraints, T places for the tokens of a row, V vocabulary,
// F = 2k hypotheses of a sentence at most, m the length of the n-best list.

#include "early.hpp"
#include "ngrams.hpp"
#include "reader.hpp"
#include "result.hpp"
#include "step.hpp"

namespace {

constexpr int64_t ROOM_STEPS = 4;  // more KV cache positions are requested unless this many steps fit after compaction

// Decoder input of each row, and selection input of each row and live sentence
struct StepInputs {
    std::vector<Line> lines;
    std::vector<int64_t> number, steps_left;
    std::vector<float> score;
    std::vector<char> infeasible;
};

// (3) Let the decoder read each row's last token
void decode_step(ConstrainedSearch& s, const Reader& reader, Step& step, StepInputs& inputs) {
    const int64_t n = s.rows();
    Line* line = scratch(inputs.lines, n);
    for (int64_t i = 0; i < s.live; ++i)
        for (int64_t r = s.first[i]; r < s.first[i + 1]; ++r) {
            const int64_t position = s.used + r - s.first[i];
            reader.embed(s.tokens[r * s.T + s.length], s.length, reader.x + r * reader.d);
            s.history[r * s.T + s.length] = static_cast<int32_t>(position);
            line[r] = {s.slot[i], position, s.length + 1, s.history + r * s.T};
        }
    step.x = reader.x, step.rows = n, step.block = 1, step.lines = line;
    run_decoder(reader.layers, &step);
    run_linear(reader.output, reader.x, n, reader.logits);
    s.used += s.W, s.calls += 1, s.decoder_rows += n;
}

// (4), (5) Compute the log-probabilities of a row's next words, or of EOS only; return false for NaN
bool score_words(const ConstrainedSearch& s, float* line, int64_t V, const int64_t* tokens, bool at_limit) {
    log_softmax_line(line, V, s.temperature);
    if (std::isnan(line[0])) return false;
    line[s.pad] = -INFINITY;
    const float end = line[s.eos];
    if (at_limit) std::fill_n(line, V, -INFINITY);
    line[s.eos] = s.length < s.min_len ? -INFINITY : end;
    if (s.ngram) repeated_ngrams(tokens + 1, s.length, s.ngram, [&](int64_t word) { line[word] = -INFINITY; });
    return true;
}

// Store a candidate as a finished hypothesis: its row's tokens and EOS
void finish(ConstrainedSearch& s, int64_t slot, const Candidate& c) {
    const int64_t f = slot * 2 * s.k + s.finished[slot]++;
    std::copy_n(s.tokens + c.row * s.T, s.length + 1, s.found_tokens + f * s.T);
    std::copy_n(s.score + c.row * s.T, s.length + 1, s.found_score + f * s.T);
    s.found_length[f] = s.length + 1;
    s.found_tokens[f * s.T + s.length + 1] = c.token;
    s.found_score[f * s.T + s.length + 1] = c.score;
}

// Write the r-th row of the next beam: a candidate's row and its token
void continue_row(ConstrainedSearch& s, int64_t r, const Scratch& m, int64_t at) {
    const Candidate& c = m.candidate[at];
    const int64_t G = s.phrases->G;
    std::copy_n(s.tokens + c.row * s.T, s.length + 1, s.next_tokens + r * s.T);
    std::copy_n(s.score + c.row * s.T, s.length + 1, s.next_score + r * s.T);
    std::copy_n(s.history + c.row * s.T, s.length + 1, s.next_history + r * s.T);
    std::copy_n(m.state.data() + at * G, G, s.next_state + r * G);
    std::copy_n(m.count.data() + at * G, G, s.next_met + r * G);
    s.next_tokens[r * s.T + s.length + 1] = c.token;
    s.next_score[r * s.T + s.length + 1] = c.score;
}

// (9) Store finished hypotheses; the remaining candidates form the next beam
void build_next_beam(ConstrainedSearch& s, const std::vector<Outcome>& outcomes) {
    int64_t live = 0, n = 0, W = 0;
    for (int64_t i = 0; i < s.live; ++i) {
        const Outcome& o = outcomes[i];
        const int64_t slot = s.slot[i];
        s.dropped += o.dropped, s.full |= o.full;
        for (int64_t j : o.done) finish(s, slot, o.choice.candidate[o.choice.order[j]]);
        if (o.final) {
            s.order[s.ended++] = slot;
            continue;
        }
        const int64_t from = n;
        for (int64_t j : o.stays) continue_row(s, n++, o.choice, o.choice.order[j]);
        W = std::max(W, n - from);
        s.slot[live] = slot, s.first[live++] = from;
    }
    s.live = live, s.first[live] = n, s.W = W;
    std::swap(s.tokens, s.next_tokens), std::swap(s.score, s.next_score), std::swap(s.history, s.next_history);
    std::swap(s.state, s.next_state), std::swap(s.met, s.next_met);
    ++s.length;
}

// Drop the positions that are in no live row's history
void compact(ConstrainedSearch& s, const Reader& reader, const Step& step) {
    int64_t used = 0;
    Parallel sentences;
#pragma omp parallel for schedule(dynamic) reduction(max : used)
    for (int64_t i = 0; i < s.live; ++i) sentences.run([&] {
        static thread_local std::vector<int32_t> kept, to;
        kept.clear(), to.assign(s.used, -1);
        for (int64_t r = s.first[i]; r < s.first[i + 1]; ++r)
            for (int64_t t = 0; t < s.length; ++t) to[s.history[r * s.T + t]] = 0;
        for (int64_t p = 0; p < s.used; ++p)
            if (to[p] == 0) to[p] = static_cast<int32_t>(kept.size()), kept.push_back(static_cast<int32_t>(p));
        for (int64_t r = s.first[i]; r < s.first[i + 1]; ++r)
            for (int64_t t = 0; t < s.length; ++t) s.history[r * s.T + t] = to[s.history[r * s.T + t]];
        keep_positions(reader.layers, &step, s.slot[i], kept.data(), kept.size());
        used = std::max<int64_t>(used, kept.size());
    });
    sentences.check();
    s.used = used;
}

// Do (4) to (8) for every live sentence; return false if the model returns NaN
bool choose_all(ConstrainedSearch& s, const Reader& reader, StepInputs& inputs, std::vector<Outcome>& outcomes) {
    const int64_t n = s.rows(), V = reader.vocabulary, best = std::min(2 * s.k, s.W * V - 1);
    scratch(inputs.score, n), scratch(inputs.number, s.live), scratch(inputs.steps_left, s.live), scratch(inputs.infeasible, s.live);
    for (int64_t r = 0; r < n; ++r) inputs.score[r] = s.score[r * s.T + s.length];
    for (int64_t i = 0; i < s.live; ++i) {
        inputs.number[i] = s.number[s.slot[i]], inputs.steps_left[i] = s.limit[s.slot[i]] - s.length;
        inputs.infeasible[i] = s.infeasible[s.slot[i]];
    }
    const bool* infeasible = reinterpret_cast<const bool*>(inputs.infeasible.data());
    const Rows rows{reader.logits, inputs.score.data(), s.state, s.met, s.first, inputs.number.data(), inputs.steps_left.data(), infeasible,
                    infeasible, s.live, V, s.eos, s.k, best, s.per_row,
                    std::min(2 * s.k, best + s.W * (s.per_row + s.phrases->G * s.phrases->W) + 1), s.even};
    if (static_cast<int64_t>(outcomes.size()) < s.live) outcomes.resize(s.live);
    bool good = true;
    Parallel sentences;
#pragma omp parallel for schedule(dynamic) reduction(&& : good) if (n * V > WORTH_THREADS / 8)
    for (int64_t i = 0; i < s.live; ++i) sentences.run([&] {
        bool numbers = true;
        for (int64_t r = s.first[i]; r < s.first[i + 1]; ++r)
            numbers = numbers && score_words(s, reader.logits + r * V, V, s.tokens + r * s.T, inputs.steps_left[i] <= 0);
        good = good && numbers;
        if (!numbers) return;
        choose(*s.phrases, rows, i, outcomes[i].choice);
        decide(s, i, rows, outcomes[i]);
    });
    sentences.check();
    return good;
}

Result search(ConstrainedSearch& s, const Reader& reader, Step& step, int64_t steps) {
    static thread_local StepInputs inputs;
    static thread_local std::vector<Outcome> outcomes;
    for (int64_t i = 0; i < steps && s.live; ++i) {
        if (s.used + s.W > step.target.positions) {
            compact(s, reader, step);
            if (s.used + ROOM_STEPS * s.W > step.target.positions) return NO_ROOM;
        }
        if (s.length + 2 > s.T || s.length >= reader.room || s.rows() > reader.width) return NO_ROOM;
        decode_step(s, reader, step, inputs);
        if (!choose_all(s, reader, inputs, outcomes)) return NOT_A_NUMBER;
        build_next_beam(s, outcomes);
    }
    return s.live ? GOES_ON : FINISHED;
}

}  // namespace

// Make at most `steps` steps; stop earlier when all sentences have ended. NO_ROOM: the KV cache, the reader, the position embeddings or the
// rows' tokens need more memory; then the caller enlarges them and repeats the call
ENTRY int64_t search_constrained(ConstrainedSearch* sentences, const Reader* reader, Step* step, int64_t steps) {
    return guarded([&] { return int64_t{search(*sentences, *reader, *step, steps)}; });
}
