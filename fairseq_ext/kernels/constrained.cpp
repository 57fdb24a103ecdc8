// The search of sentences with required phrases, many steps in one call: --select dba,
// --stop early, --softmax full. The definition is search/loop.py with search/strategies/select/dba.py and
// search/strategies/stop/early.py. The results are the same bits.
//
// All sentences start together and so have equally many tokens. A sentence keeps its slot of the KV cache; its rows' new tokens take W
// positions a step, and positions that no row has seen are dropped when there is no room for more.
//
// Shapes: N sentences, n live rows, k beam, W the most rows of a sentence, G constraints, T places for the tokens of a row, V vocabulary,
// F = 2k hypotheses of a sentence at most, m the length of the n-best list.

#include "early.hpp"
#include "ngrams.hpp"
#include "reader.hpp"
#include "result.hpp"
#include "step.hpp"

namespace {

constexpr int64_t ROOM_STEPS = 4;  // there is too little room where fewer steps' positions are free after compaction

// What the decoder is told of each row, and the selection of each row and live sentence
struct Lines {
    std::vector<Line> of_rows;
    std::vector<int64_t> number, left;
    std::vector<float> before;
    std::vector<char> infeasible;
};

// (3) the decoder reads each row's last token
void read(Sentences& s, const Reader& reader, Step& step, Lines& lines) {
    const int64_t n = s.rows();
    Line* line = scratch(lines.of_rows, n);
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
    s.used += s.W, s.calls += 1, s.read += n;
}

// (4), (5) the log-probabilities of a row's next words, or of EOS alone; false where they are no numbers
bool score_words(const Sentences& s, float* line, int64_t V, const int64_t* tokens, bool at_limit) {
    log_softmax_line(line, V, s.temperature);
    if (std::isnan(line[0])) return false;
    line[s.pad] = -INFINITY;
    const float end = line[s.eos];
    if (at_limit) std::fill_n(line, V, -INFINITY);
    line[s.eos] = s.length < s.min_len ? -INFINITY : end;
    if (s.ngram) repeated_ngrams(tokens + 1, s.length, s.ngram, [&](int64_t word) { line[word] = -INFINITY; });
    return true;
}

// A candidate is a hypothesis: its row's tokens and EOS
void finish(Sentences& s, int64_t slot, const Candidate& c) {
    const int64_t f = slot * 2 * s.k + s.finished[slot]++;
    std::copy_n(s.tokens + c.row * s.T, s.length + 1, s.found_tokens + f * s.T);
    std::copy_n(s.score + c.row * s.T, s.length + 1, s.found_score + f * s.T);
    s.found_length[f] = s.length + 1;
    s.found_tokens[f * s.T + s.length + 1] = c.token;
    s.found_score[f * s.T + s.length + 1] = c.score;
}

// The r-th row of the next beam: a candidate's row and its token
void go_on(Sentences& s, int64_t r, const Scratch& m, int64_t at) {
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

// (9) what has ended is kept, and the rest is the next beam
void follow(Sentences& s, const std::vector<Outcome>& outcomes) {
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
        for (int64_t j : o.stays) go_on(s, n++, o.choice, o.choice.order[j]);
        W = std::max(W, n - from);
        s.slot[live] = slot, s.first[live++] = from;
    }
    s.live = live, s.first[live] = n, s.W = W;
    std::swap(s.tokens, s.next_tokens), std::swap(s.score, s.next_score), std::swap(s.history, s.next_history);
    std::swap(s.state, s.next_state), std::swap(s.met, s.next_met);
    ++s.length;
}

// Drops the positions that are in no live row's history
void compact(Sentences& s, const Reader& reader, const Step& step) {
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

// (4) to (8) of every live sentence; false where the model gives NaN
bool choose_all(Sentences& s, const Reader& reader, Lines& lines, std::vector<Outcome>& outcomes) {
    const int64_t n = s.rows(), V = reader.vocabulary, best = std::min(2 * s.k, s.W * V - 1);
    scratch(lines.before, n), scratch(lines.number, s.live), scratch(lines.left, s.live), scratch(lines.infeasible, s.live);
    for (int64_t r = 0; r < n; ++r) lines.before[r] = s.score[r * s.T + s.length];
    for (int64_t i = 0; i < s.live; ++i) {
        lines.number[i] = s.number[s.slot[i]], lines.left[i] = s.limit[s.slot[i]] - s.length;
        lines.infeasible[i] = s.infeasible[s.slot[i]];
    }
    const bool* infeasible = reinterpret_cast<const bool*>(lines.infeasible.data());
    const Rows rows{reader.logits, lines.before.data(), s.state, s.met, s.first, lines.number.data(), lines.left.data(), infeasible,
                    infeasible, s.live, V, s.eos, s.k, best, s.each, std::min(2 * s.k, best + s.W * (s.each + s.phrases->G * s.phrases->W) + 1), s.even};
    if (static_cast<int64_t>(outcomes.size()) < s.live) outcomes.resize(s.live);
    bool good = true;
    Parallel sentences;
#pragma omp parallel for schedule(dynamic) reduction(&& : good) if (n * V > WORTH_THREADS / 8)
    for (int64_t i = 0; i < s.live; ++i) sentences.run([&] {
        bool numbers = true;
        for (int64_t r = s.first[i]; r < s.first[i + 1]; ++r)
            numbers = numbers && score_words(s, reader.logits + r * V, V, s.tokens + r * s.T, lines.left[i] <= 0);
        good = good && numbers;
        if (!numbers) return;
        choose(*s.phrases, rows, i, outcomes[i].choice);
        decide(s, i, rows, outcomes[i]);
    });
    sentences.check();
    return good;
}

Result search(Sentences& s, const Reader& reader, Step& step, int64_t steps) {
    static thread_local Lines lines;
    static thread_local std::vector<Outcome> outcomes;
    for (int64_t i = 0; i < steps && s.live; ++i) {
        if (s.used + s.W > step.target.positions) {
            compact(s, reader, step);
            if (s.used + ROOM_STEPS * s.W > step.target.positions) return NO_ROOM;
        }
        if (s.length + 2 > s.T || s.length >= reader.room || s.rows() > reader.width) return NO_ROOM;
        read(s, reader, step, lines);
        if (!choose_all(s, reader, lines, outcomes)) return NOT_A_NUMBER;
        follow(s, outcomes);
    }
    return s.live ? GOES_ON : FOUND;
}

}  // namespace

// Makes so many steps, or fewer where all sentences have ended. NO_ROOM: the KV cache, the reader, the position embeddings or the rows' tokens
// need more room; then the call is to be made again
ENTRY int64_t search_constrained(Sentences* sentences, const Reader* reader, Step* step, int64_t steps) {
    return guarded([&] { return int64_t{search(*sentences, *reader, *step, steps)}; });
}
