// Parallel decoding (--decoding) of a single row: one call that drafts, reads, verifies and
// commits, and the drafters. The definitions work on arrays of rows.
// Definition: search/parallel/driver.py, search/parallel/drafts.py, search/strategies/decoding/_parallel.py,
// search/strategies/decoding/window.py.

#include "ngrams.hpp"
#include "reader.hpp"
#include "topk.hpp"
#include "vectors.hpp"

namespace {

enum Status : int64_t { GOES_ON, DONE, ALL_BANNED, NOT_A_NUMBER, NO_ROOM };

constexpr int64_t NONE = -1;  // no draft at this position

int64_t last_token(const Row& row) { return row.tokens[*row.length]; }
int64_t guess(const Row& row, int64_t i) { return i < row.guesses ? row.word[row.first_guess + i] : NONE; }

double trust_of(const Window& self) { return std::min(self.most_trust, self.right / self.expected); }
double price(const Window& self, int64_t j) {
    return 1 + self.any_draft + self.position * (j + (self.beyond - 1) * std::max<int64_t>(0, j - self.cheap));
}

// Return the best column of a line (V,) other than pad and eos, of equals the first
int64_t best_word(const float* line, int64_t V, int64_t pad, int64_t eos) {
    float best = -INFINITY;
    int64_t found = 0;
    auto look = [&](int64_t first, int64_t end) {
        for (int64_t c = first; c < end; ++c)
            if (line[c] > best && c != pad && c != eos) best = line[c], found = c;
    };
    int64_t c = 0;
    for (; c + BLOCK <= V; c += BLOCK)
        if (block_max(line + c) > best) look(c, c + BLOCK);  // false for most blocks
    look(c, V);
    return found;
}

// Return log P of a word, rounded as in log_softmax: (x - max) - log sum
float log_probability(const float* line, int64_t V, int64_t word, float highest) {
    return (line[word] - highest) - std::log(sum_of_powers(line, V, highest));
}

// Compute the logits of the words after the row's last token and after each draft token
void read(const Reader& reader, const Row& row) {
    const int64_t length = *row.length, d = reader.d;
    for (int64_t i = 0; i < row.w; ++i) {
        const int64_t token = i == 0 ? last_token(row) : row.draft[i - 1] == NONE ? row.pad : row.draft[i - 1];
        embed(reader, token, length + i, reader.x + i * d);
    }
    *reader.block = row.w, *reader.positions_before = length;
    run_decoder(reader.layers, reader.step);
    run_linear(reader.output, reader.x, row.w, reader.logits);
}

// Sets the logits of banned words to -inf for a while; the normaliser still counts them
struct Banned {
    static inline thread_local std::vector<int64_t> memory;
    static inline thread_local std::vector<std::pair<int64_t, float>> words;
    const int64_t* history = nullptr;  // the row's tokens, then the draft

    explicit Banned(const Row& row) {
        words.clear();
        if (!row.ngram) return;
        int64_t* text = scratch(memory, *row.length + row.w);
        std::copy(row.draft, row.draft + row.w - 1, std::copy(row.tokens + 1, row.tokens + 1 + *row.length, text));
        history = text;
    }

    void take(const Row& row, int64_t i, float* line) const {
        auto ban = [&](int64_t word) { words.emplace_back(word, line[word]), line[word] = -INFINITY; };
        if (history) repeated_ngrams(history, *row.length + i, row.ngram, ban);
    }

    // Restore the logits; return the largest of them, or `highest`
    float give_back(float* line, float highest) const {
        for (; !words.empty(); words.pop_back())  // a word may have been banned twice
            line[words.back().first] = words.back().second, highest = std::max(highest, words.back().second);
        return highest;
    }
};

// Choose each position's best word other than pad; EOS only from the minimum length on, and no other word at the limit. Log-probabilities,
// which need an exponential for every word, are computed up to the first word that differs from the draft or is EOS; with `every`, for all
// positions
void choose(const Reader& reader, Row& row) {
    const int64_t V = reader.vocabulary, length = *row.length;
    const Banned banned(row);
    bool right = true;
    for (int64_t i = 0; i < row.w; ++i) {
        float* line = reader.logits + i * V;
        banned.take(row, i, line);
        const int64_t best = best_word(line, V, row.pad, length + i < row.min_len ? row.eos : row.pad);
        const int64_t chosen = length + i >= row.limit ? row.eos : best;
        const bool lost = line[chosen] == -INFINITY;  // every word is banned
        row.word[i] = lost ? 0 : chosen;
        const float highest = banned.give_back(line, std::max({line[best], line[row.pad], line[row.eos]}));
        row.word_score[i] = lost ? -INFINITY : right || row.every ? log_probability(line, V, row.word[i], highest) : 0.0f;
        right = right && row.word[i] != row.eos && i + 1 < row.w && row.word[i] == row.draft[i];
    }
}

}  // namespace

// ---- The methods; draft_row, commit_row and call_row call them, and they may throw

ENTRY int64_t draft_blocks(void* method, Row* row, int64_t most) {
    Blocks& self = *static_cast<Blocks*>(method);
    const int64_t length = *row->length;
    if (length >= self.end) {
        const bool is_single = self.hybrid && length >= self.parallel_length;
        self.end = length + (is_single ? 1 : self.one_block ? self.parallel_length : self.b);
    }
    const int64_t m = std::min(self.end - length - 1, most);
    bool known = true;
    for (int64_t i = 0; i < m; ++i) known = known && guess(*row, i) != NONE;
    if (known) {
        for (int64_t i = 0; i < m; ++i) row->draft[i] = guess(*row, i);
        return m;
    }
    const int64_t found = self.drafter.propose(self.drafter.state, row, m, row->draft, row->confidence);
    for (int64_t i = found; i < m; ++i) row->draft[i] = NONE;
    return m;
}

ENTRY int64_t draft_window(void* method, Row* row, int64_t most) {
    Window& self = *static_cast<Window*>(method);
    self.offered = 0;
    if (self.pause) return --self.pause, 0;
    if (self.b) most = std::min(most, self.b - 1);
    if (most <= 0) return 0;
    const double trust = trust_of(self);
    self.offered = self.drafter.propose(self.drafter.state, row, most, row->draft, row->confidence);
    if (!self.offered) return 0;
    double best = 1.0, tokens = 1.0, likely = 1.0;
    int64_t width = 0;
    for (int64_t j = 1; j <= self.offered; ++j) {
        likely *= std::min(row->confidence[j - 1] * trust, 1.0);
        tokens += likely;
        const double gain = tokens / price(self, j);
        if (gain > best || (gain == best && !width)) best = gain, width = j;
    }
    self.useless = width ? 0 : self.useless + 1;
    if (self.useless > self.patience) self.pause = std::min(self.useless, self.longest_pause);
    return width;
}

ENTRY void learn_window(void* method, const Row* row, int64_t verified) {
    Window& self = *static_cast<Window*>(method);
    const int64_t m = std::min({verified, self.offered, row->w});
    if (!std::min(self.offered, row->w)) return;
    double right = 0.0, expected = 0.0;
    for (int64_t j = 0; j < m; ++j) right += row->draft[j] == row->word[j], expected += row->confidence[j];
    self.right = self.decay * self.right + right;
    self.expected = std::max(1e-3, self.decay * self.expected + expected);
}

// ---- A call, and its parts

namespace {

// (1) Draft the row's next block, and return its width. Without a draft if the next position must be read alone
int64_t draft(Row* row) {
    row->w = 1 + row->draft_block(row->method, row, row->redo ? 0 : row->limit - *row->length);
    return row->w;
}

// Commit the verified words of the block: (4) words are verified as far as the draft agrees with them, (5) and up to EOS or the length
// limit; (6) verified words become history, the other words become guesses; (7) a finished row is done
Status commit(Row* row_) {
    Row& row = *row_;
    const int64_t w = row.w;
    int64_t verified = 1;
    while (verified < w && row.word[verified - 1] == row.draft[verified - 1] && row.word[verified - 1] != row.eos) ++verified;
    bool finished = row.word[verified - 1] == row.eos;
    row.redo = 0;
    if (row.least_margin > 0 && w > 1) {
        int64_t apart = 0;
        while (apart < verified && !(row.margin[apart] < row.least_margin)) ++apart;
        row.checked += std::min(apart + 1, verified);
        row.redo = apart < verified;
        row.redone += row.redo;
        finished = finished && !row.redo;
        verified = apart;
    }
    row.verified = verified;
    for (int64_t i = 0; i < std::max<int64_t>(1, verified); ++i)
        if (std::isnan(row.word_score[i])) return row.broken = i, NOT_A_NUMBER;
    if (row.learn) row.learn(row.method, row_, verified);
    row.calls += 1, row.positions += w, row.committed += verified, row.accepted += std::max<int64_t>(verified - 1, 0);
    row.offered += w - 1 - std::count(row.draft, row.draft + w - 1, NONE);
    bool lost = false;  // every word was banned
    for (int64_t i = 0; i < verified; ++i) {
        row.tokens[*row.length + 1 + i] = row.word[i];
        row.score[*row.length + 1 + i] = row.word_score[i];
        lost = lost || row.word_score[i] == -INFINITY;
    }
    *row.length += verified;
    row.first_guess = verified, row.guesses = w - verified;
    row.w = 0;
    return lost ? ALL_BANNED : finished ? DONE : GOES_ON;
}

Status call(Row* row, const Reader& reader) {
    if (!row->w) draft(row);
    if (row->w > reader.width || *row->length + row->w > reader.room) return NO_ROOM;
    read(reader, *row);  // (2)
    choose(reader, *row);  // (3)
    return commit(row);
}

}  // namespace

ENTRY int64_t draft_row(Row* row) {
    return guarded([&] { return draft(row); });
}

ENTRY int64_t commit_row(Row* row) {
    return guarded([&] { return int64_t{commit(row)}; });
}

// Make a whole call. NO_ROOM: the reader needs memory for row.w positions after row.length; then the caller enlarges it and repeats the
// call
ENTRY int64_t call_row(Row* row, const Reader* reader) {
    return guarded([&] { return int64_t{call(row, *reader)}; });
}

// ---- Sources of drafts
//
// The definitions, for arrays of rows: search/parallel/drafts.py.

namespace {

// Find the place of the earlier output after its longest match with the end of the row; of several, the one nearest to the expected place
void find(Previous& self, const Row* row) {
    const int64_t expected = self.next, tail = std::min(self.tail, *row->length + 1);
    int64_t longest = 0, distance = 0;
    for (int64_t end = 1; end <= self.columns; ++end) {
        int64_t length = 0;
        while (length < std::min(end, tail) && self.previous_output[end - 1 - length] == row->tokens[*row->length - length]) ++length;
        const int64_t away = std::abs(end - expected);
        if (length > longest || (length && length == longest && away < distance)) self.next = end, longest = length, distance = away;
    }
    self.confidence = self.match_confidence[longest];
}

}  // namespace

ENTRY int64_t propose_nothing(void*, const Row*, int64_t, int64_t*, double*) { return 0; }

ENTRY int64_t propose_trajectory(void* state, const Row* row, int64_t most, int64_t* token, double* sure) {
    const int64_t pad = static_cast<Trajectory*>(state)->pad, filler = pad == NONE ? last_token(*row) : pad;
    for (int64_t i = 0; i < most; ++i) token[i] = guess(*row, i) == NONE ? filler : guess(*row, i), sure[i] = 0.5;
    return most;
}

ENTRY int64_t propose_previous(void* state, const Row* row, int64_t most, int64_t* token, double* sure) {
    Previous& self = *static_cast<Previous*>(state);
    const int64_t fresh = *row->length - self.tokens_read;
    if (fresh) {
        bool has_diverged = false;
        for (int64_t i = 0; i < fresh; ++i)
            has_diverged = has_diverged || self.next + i >= self.columns ||
                           self.previous_output[self.next + i] != row->tokens[self.tokens_read + 1 + i];
        self.next += fresh, self.tokens_read = *row->length;
        if (has_diverged)
            find(self, row);
        else
            self.confidence = 1 - (1 - self.confidence) * std::pow(self.doubt_decay, fresh);
    }
    const int64_t left = std::max<int64_t>(0, std::min(most, self.columns - self.next));
    if (!left || self.confidence < self.min_confidence)
        if (int64_t others = self.fallback.propose(self.fallback.state, row, most, token, sure)) return others;
    for (int64_t i = 0; i < left; ++i) token[i] = self.previous_output[self.next + i], sure[i] = self.confidence;
    return left;
}
