// The beam search of sentences that start and end at any step: with --softmax full --select topk, sampling or dba; with --softmax top or
// lexical and a list of words for each sentence --select topk. The results are the same bits as those
// of its definition, and of the definitions that its headers name.
// Definition: search/loop.py, search/strategies/select/topk.py.
//
// Shapes: k beam, n live rows of a sentence (one before the first token, then at most k), c = 2k candidates, V vocabulary, T token capacity
// of a row, N rows of all sentences, G constraints.

#include "banks.hpp"
#include "ngrams.hpp"
#include "remaining.hpp"
#include "topk.hpp"

namespace {

// (3) Let the decoder read each row's last token
void decode_step(Batch& batch, int64_t rows, const Reader& reader, Step& step) {
    static thread_local std::vector<Line> memory_lines;
    Line *lines = scratch(memory_lines, rows), *line = lines;
    float* x = reader.x;
    for (int64_t b = 0; b < batch.sentences; ++b) {
        Sentence& s = *batch.live[b];
        for (int64_t r = 0; r < s.rows; ++r, x += reader.d) {
            const int64_t row = s.remaining ? s.reading : r, at = s.remaining ? s.read[row] + r : s.length;
            embed(reader, s.tokens[row * s.T + at], at, x);
            s.history[row * s.T + at] = static_cast<int32_t>(s.used);
            *line++ = {s.slot, s.used++, at + 1, s.history + row * s.T};
        }
    }
    step.x = reader.x, step.rows = rows, step.block = 1, step.lines = lines;
    run_decoder(reader.layers, &step);
    run_linear(batch.output ? batch.output : reader.output, reader.x, rows, reader.logits);
    batch.calls += 1, batch.decoder_rows += rows;
}

// (4) Divide a row's logits (V,) by the temperature and find their normaliser; return false for NaN
bool normalise(const Rules& rules, float* line, int64_t V, float& highest, float& log_total) {
    if (rules.temperature != 1.0f)
        for (int64_t w = 0; w < V; ++w) line[w] /= rules.temperature;
    highest = largest(line, V), log_total = std::log(sum_of_powers(line, V, highest));
    return !std::isnan((line[0] - highest) - log_total);
}

// (4), (5) The same, and set forbidden words to -inf
bool forbid(const Sentence& s, int64_t row, float* line, int64_t V, float& highest, float& log_total) {
    const Rules& rules = *s.rules;
    if (!normalise(rules, line, V, highest, log_total)) return false;
    auto ban = [&](int64_t word) {
        if (const int64_t column = column_of(s, word); column >= 0) line[column] = -INFINITY;
    };
    ban(rules.pad);
    if (s.length < rules.min_len) ban(rules.eos);
    if (rules.ngram) repeated_ngrams(s.tokens + row * s.T + 1, s.length, rules.ngram, ban);
    return true;
}

// Add a row's continuations, or EOS only, as places `first` + word; of allowed outputs, those of the automaton. total(logit): as in
// Best::add_line
template <typename Total>
void add_words(const Sentence& s, int64_t row, const float* line, int64_t V, int64_t first, Best& best, Total total) {
    auto look = [&](int64_t w) {
        if (const float value = total(line[w]); best.takes(value)) best.add(value, first + w);
    };
    const int64_t eos = column_of(s, s.rules->eos), left = s.limit - s.length;
    if (s.allowed) outputs_of(s).for_each_allowed(s.allowed_state[row], left, eos, look);
    else if (left > 0) best.add_line(line, V, first, total);
    else look(eos);
}

// (4) to (6) Find the best continuations of a sentence's rows from their logits (n, V), as places row x V + word; return false for NaN
bool choose(const Sentence& s, float* logits, int64_t V, Best& best) {
    static thread_local std::vector<float> memory_score;
    static thread_local std::vector<int64_t> memory_where;
    const Rules& rules = *s.rules;
    for (int64_t i = 0; i < s.rows; ++i) {
        float *line = logits + i * V, highest, log_total;
        if (!forbid(s, i, line, V, highest, log_total)) return false;
        const float before = s.score[i * s.T + s.length];
        auto log_prob = [&](float logit) { return (logit - highest) - log_total; };  // rounded as in log_softmax
        if (rules.children >= best.c) {
            add_words(s, i, line, V, i * V, best, [&](float logit) { return log_prob(logit) + before; });
            continue;
        }
        Best own{scratch(memory_score, rules.children), scratch(memory_where, rules.children), rules.children, 0};
        add_words(s, i, line, V, i * V, own, log_prob);
        for (int64_t j = 0; j < own.count; ++j)
            if (const float value = own.score[j] + before; best.takes(value)) best.add(value, own.where[j]);
    }
    return true;
}

// Extend the rows of a sentence by the tokens that its samples draw; each sample that ends is an answer. Samples with the same tokens share
// a row
Result draw(Sentence& s, float* logits, int64_t V) {
    static thread_local std::vector<int64_t> memory_word, memory_parent;
    static thread_local std::vector<float> memory_kept;
    static thread_local DrawTable left;
    const Rules& rules = *s.rules;
    const int64_t k = rules.k, at = s.length + 1;
    int64_t *word = scratch(memory_word, k), *parent = scratch(memory_parent, k), rows = 0;
    for (int64_t i = 0; i < s.rows; ++i) {
        float *line = logits + i * V, highest, log_total;
        if (!forbid(s, i, line, V, highest, log_total)) return NOT_A_NUMBER;
        for (int64_t w = 0; w < V; ++w) line[w] = (line[w] - highest) - log_total;
        if (s.length >= s.limit) std::fill_n(line, rules.eos, -INFINITY), std::fill(line + rules.eos + 1, line + V, -INFINITY);
        if (s.allowed) {
            scratch(memory_kept, V), std::copy_n(line, V, memory_kept.data()), std::fill_n(line, V, -INFINITY);
            outputs_of(s).for_each_allowed(s.allowed_state[i], s.limit - s.length, rules.eos, [&](int64_t w) { line[w] = memory_kept[w]; });
        }
        const Draw word_of(line, V, rules.sampling_cut, left);
        for (int64_t sample = 0; sample < k; ++sample)
            if (s.row[sample] == i) word[sample] = word_of(uniform(s.seed, s.number, sample, s.length));
    }
    for (int64_t sample = 0; sample < k; ++sample) {
        const int64_t i = s.row[sample], w = word[sample];
        if (i < 0) continue;
        s.row[sample] = -1;
        if (w < 0) continue;
        const float total = logits[i * V + w] + s.score[i * s.T + s.length];
        if (w == rules.eos) {
            s.order[s.finished] = s.finished, finish(s, s.finished, i, total, s.length), ++s.finished;
            continue;
        }
        int64_t j = 0;
        while (j < rows && (parent[j] != i || s.next_tokens[j * s.T + at] != w)) ++j;
        if (j == rows) continue_row(s, j, i, w, total), parent[rows++] = i;
        s.row[sample] = j;
    }
    if (!rows) return FINISHED;
    next_beam(s, rows);
    return GOES_ON;
}

// (8), (9) Finish hypotheses and write the rows of the next beam: the best candidates that continue. write(j, i): write the states of row j,
// which continues the i-th candidate
template <typename Write>
Result continue_with(Sentence& s, const Candidates& all, Write write) {
    static thread_local Places stays;
    stays.clear();
    if (decide(s, all, stays)) return FINISHED;
    const int64_t n = std::min<int64_t>(stays.size(), all.most);
    for (int64_t j = 0; j < n; ++j) continue_row(s, j, all.row(stays[j]), all.word(stays[j]), all.score[stays[j]]), write(j, stays[j]);
    next_beam(s, n);
    return GOES_ON;
}

// Return the logits of a sentence's listed words (n, listed), of those of all lists (n, columns)
float* listed_logits(const Sentence& s, const float* logits, int64_t columns) {
    static thread_local std::vector<float> memory;
    float *own = scratch(memory, s.rows * s.listed), *to = own;
    for (int64_t i = 0; i < s.rows; ++i, logits += columns)
        for (int64_t w = 0; w < s.listed; ++w) *to++ = logits[s.columns[w]];
    return own;
}

// Extend a sentence's rows by one token, from logits (n, V) of all words or of its own. Return TOO_FEW_CONTINUATIONS if fewer than 2k
// continuations are possible; then the Python loop takes the sentence over
Result advance(Sentence& s, float* logits, int64_t V) {
    static thread_local std::vector<float> memory_score;
    static thread_local std::vector<int64_t> memory_where;
    const Rules& rules = *s.rules;
    const int64_t c = 2 * rules.k;
    Best best{scratch(memory_score, c), scratch(memory_where, c), c, 0};
    if (!choose(s, logits, V, best)) return NOT_A_NUMBER;
    while (best.count && best.score[best.count - 1] == -INFINITY) --best.count;
    if (s.words) {
        const int64_t all_words = s.words[s.listed - 1] + 1;
        for (int64_t j = 0; j < best.count; ++j) best.where[j] = best.where[j] / V * all_words + s.words[best.where[j] % V];
        V = all_words;
    }
    Candidates all{best.score, best.where, nullptr, best.count, V, rules.eos, rules.k, s.length >= s.limit};
    if (!rules.variable && !s.allowed && all.c < (all.at_limit ? s.rows : c)) return TOO_FEW_CONTINUATIONS;
    if (rules.variable) all.c = prune(s, all);
    return continue_with(s, all, [](int64_t, int64_t) {});
}

// Extend a sentence's rows by one token; its candidates are in banks
Result advance_in_banks(Sentence& s, float* logits, int64_t V) {
    static thread_local Scratch m;
    static thread_local std::vector<float> highest, log_total, before, score;
    static thread_local std::vector<int64_t> where, bank;
    const Rules& rules = *s.rules;
    const Phrases& phrases = *s.phrases;
    const int64_t k = s.slots + (s.goal > 0 ? rules.competing : 0), n = s.rows, G = phrases.G, left = s.limit - s.length;
    scratch(highest, n), scratch(log_total, n), scratch(before, n), scratch(score, 2 * k), scratch(where, 2 * k), scratch(bank, 2 * k);
    for (int64_t i = 0; i < n; ++i) {
        float* line = logits + i * V;
        if (!forbid(s, i, line, V, highest[i], log_total[i])) return NOT_A_NUMBER;
        before[i] = s.score[i * s.T + s.length];
        if (left > 0) continue;
        std::fill_n(line, rules.eos, -INFINITY), std::fill(line + rules.eos + 1, line + V, -INFINITY);
    }
    const bool infeasible = s.infeasible;
    choose(phrases,
           {logits, highest.data(), log_total.data(), before.data(), s.state, s.met, n, V, rules.eos, s.slots, rules.competing,
            std::min(2 * k, n * V - 1), rules.per_row, rules.even, s.in_phrases, left, infeasible, infeasible},
           m);
    const int64_t c = std::min<int64_t>(2 * k, m.order.size());
    for (int64_t i = 0; i < c; ++i) {
        const Candidate& found = m.candidate[m.order[i]];
        score[i] = found.score, where[i] = found.row * V + found.token, bank[i] = found.bank;
    }
    const Candidates all{score.data(), where.data(), bank.data(), c, V, rules.eos, m.most, left <= 0};
    return continue_with(s, all, [&](int64_t j, int64_t i) {
        std::copy_n(m.state.data() + m.order[i] * G, G, s.next_state + j * G);
        std::copy_n(m.count.data() + m.order[i] * G, G, s.next_met + j * G);
    });
}

Result extend(Sentence& s, float* logits, int64_t V) {
    static Result (*const extensions[])(Sentence&, float*, int64_t) = {advance, draw, advance_in_banks};
    auto normalise_line = [&](float* line, float& highest, float& log_total) { return normalise(*s.rules, line, V, highest, log_total); };
    if (s.words) return advance(s, listed_logits(s, logits, V), s.listed);
    if (s.remaining) return score_output(s, logits, V, normalise_line);
    return extensions[s.rules->selection](s, logits, V);
}

// Return whether each sentence has memory for the next step; compact the KV cache where it is full
bool have_room(const Batch& batch, const Reader& reader, const Step& step) {
    int64_t full = 0;
    bool room = true;
    for (int64_t b = 0; b < batch.sentences; ++b) full += cache_is_full(*batch.live[b], step);
    Parallel sentences;
#pragma omp parallel for schedule(dynamic) reduction(&& : room) if (full > 1)
    for (int64_t b = 0; b < batch.sentences; ++b) sentences.run([&] { room = has_room(*batch.live[b], reader, step) && room; });
    sentences.check();
    return room;
}

Result search(Batch& batch, int64_t most, const Reader& reader, Step& step) {
    const int64_t V = batch.output ? batch.columns : reader.vocabulary;
    static thread_local std::vector<int64_t> memory_first;
    int64_t* first = scratch(memory_first, batch.sentences);
    for (; most > 0; --most) {
        int64_t rows = 0, live = 0;
        for (int64_t b = 0; b < batch.sentences; ++b) {
            find_remaining(*batch.live[b], reader);
            first[b] = rows, rows += batch.live[b]->rows;
        }
        if (rows > reader.width || !have_room(batch, reader, step)) return NO_ROOM;
        decode_step(batch, rows, reader, step);
        Parallel sentences;
#pragma omp parallel for schedule(static) reduction(+ : live) if (batch.sentences > 1 && rows * V > WORTH_THREADS / 8)
        for (int64_t b = 0; b < batch.sentences; ++b) sentences.run([&] {
            Sentence& s = *batch.live[b];
            s.result = extend(s, reader.logits + first[b] * V, V);
            live += s.result == GOES_ON;
        });
        sentences.check();
        if (live < batch.sentences) return FINISHED;
    }
    return GOES_ON;
}

}  // namespace

// Make at most `most` steps. Stop after a step that ends a sentence; its `result` says why. NO_ROOM: the KV cache, the position embeddings
// or the reader need more memory; then the caller enlarges them and repeats the call
ENTRY int64_t search_sentences(Batch* batch, int64_t most, const Reader* reader, Step* step) {
    return guarded([&] { return int64_t{search(*batch, most, *reader, *step)}; });
}
