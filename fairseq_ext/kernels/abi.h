// What Python and the compiled library share: structures and functions, in plain C without a preprocessor's lines. cffi reads this file
// (library.py), and the C++ files include it by entry.hpp, so each layout is written once. A function of type int64_t may return OUT_OF_MEMORY.
//
// Shapes: N lines or rows of a step, d features, V vocabulary, k beam, T token capacity of a row, S sentences, G constraints.

// ---- A Transformer (transformer.cpp)

// Layer normalisation
typedef struct Norm {
    const float *weight, *bias;  // (d,); null: no such norm
    double eps;
} Norm;

// A linear map, packed (linear.hpp)
typedef struct Linear {
    const void* weight;     // (panels, in, PANEL) float32 or int16, or (panels, in / 4, PANEL, 4) int8
    const float* bias;      // (out,) or null
    const float* scale;     // int8 and int16: (panels x PANEL,) of each column
    const int32_t* offset;  // int8: (panels x PANEL,) 128 x the column's sum, which x's shift to unsigned adds
    int64_t in, out, kind;
} Linear;

typedef struct Layer {
    Norm self_norm;
    Linear self_in, self_out;  // self_in: query (scaled), key, value
    Norm cross_norm;
    Linear cross_query, cross_out;  // unused in an encoder
    Norm ffn_norm;
    Linear ffn_in, ffn_out;
    int64_t activation;  // RELU, GELU or SILU
} Layer;

typedef struct LayerStack {
    const Layer* layers;
    int64_t count, d, heads, pre_norm;
    Norm final_norm;
} LayerStack;

// Keys and values of a KV cache, strides in elements: layer, key or value, sentence, head, position; features are neighbours
typedef struct Cache {
    float* data;
    int64_t layer, value, sentence, head, positions;
} Cache;

// A line of a step whose sentences have read different numbers of tokens
typedef struct Line {
    int64_t slot, position, count;  // its sentence's slot in the KV cache; position of its keys and values; number of positions it sees
    const int32_t* history;         // (count,) positions that it sees, ascending; its own position is the last
} Line;

// Input of one decoder step
typedef struct Step {
    float* x;  // (N, d) embedded tokens; the features when done
    int64_t rows, block, sentences, width, positions_before;  // positions in use before this step, which adds width x block
    const int64_t* place;  // (n,) place of each row among sentences x width; null: in order
    const int64_t* slot;   // (sentences,) slot of each sentence in the KV cache and the source mask; null: in order
    const float* mask;     // (sentences or 1, width x block, positions) 0 where a token sees a position; null: it sees all up to its own
    int64_t mask_sentence;  // elements from one sentence's mask to the next; 0: they share one
    const float* source_mask;  // (sentences, source positions); null: none is padded
    Cache target, source;  // the KV cache: of self-attention, of cross-attention
    const Line* lines;  // (N,) replaces positions_before, place, slot and mask; null: those are used
    float* attention;   // (N, source positions) to which the attention of all layers and heads is added, in the place of features; null: no
} Step;

// A fully compiled decoder
typedef struct Reader {
    const void *layers, *step, *output;  // step's x is this one's
    int64_t *block, *positions_before;   // two fields of step: the block's width, and the number of tokens before it
    const float *embedding, *positions;  // (V, d), (positions, d)
    float *x, *logits;                   // (width, d), (width, V)
    int64_t d, vocabulary, width, room;  // width: largest block that fits into x and logits; room: number of positions
    float scale;                         // factor of the embedding
    Norm embedding_norm;                 // of the sum of both
} Reader;

// ---- Search (beam.cpp)

// Automata over tokens as one table of M states and E arcs
typedef struct Arcs {
    const int64_t* first;           // (M + 1,) the arcs of each state
    const int32_t *token, *target;  // (E,) ascending in a state; (E,) next state
} Arcs;

// Required phrases: N sentences in the tables, V vocabulary, G constraints, M states of their automata, W next tokens of a state
typedef struct Phrases {
    Arcs arcs;
    const int32_t* hits;                    // (E,) how often each arc meets its phrase
    const int64_t *base, *root;             // (M,)
    const bool* pending;                    // (M,)
    const int64_t *value, *proposed;        // (M,); (M, W) padded with -1
    const int64_t *need, *size, *total;     // (N, G), (N, G), (N,)
    const int64_t* root_after_token;        // (V,) -1: unchanged; null: no word boundaries are known
    const bool* continues_word;             // (V,); or null
    int64_t G, W, ordered;
} Phrases;

// Allowed outputs
typedef struct Automata {
    Arcs arcs;
    const int32_t* shortest;  // (M,) fewest tokens to an end
    const int32_t* longest;   // (M,) most tokens to an end; null where no bound needs it
} Automata;

// The words that may be drawn: the top_k most likely ones (0: all), the most likely ones with probability top_p, or those with a
// log-probability of min_log_prob or more
typedef struct SamplingCut {
    int64_t top_k;
    double top_p, min_log_prob;
} SamplingCut;

// Settings of every sentence
typedef struct Rules {
    int64_t k, min_len, eos, pad, ngram;  // ngram: size of n-grams that may not repeat, 0: off
    // variable: a sentence may have fewer than k rows; children: largest number of continuations of a row
    int64_t selection, stop, variable, children;
    int64_t paper_expansion, prune_bound;           // OPTIMAL: a candidate that ends takes a place; rows that cannot win are dropped
    SamplingCut sampling_cut;                       // SAMPLES: the words that are drawn from
    int64_t even, per_row, competing;               // BANKS: as in banks.hpp
    int64_t max_extra_tokens;                       // EARLY: of an estimate, in addition to the missing ones
    int64_t normalize;                    // scores are totals / length^lenpen, else totals + reward x min(length, rewarded)
    float temperature;
    double threshold, finished_threshold;  // nats that a candidate may lie behind the best, and behind the best finished hypothesis
    double max_nats_per_token;  // EARLY: the part of a total below it is not divided by the length
    // EARLY, of an estimate: the cost of n missing tokens, and of 1 + max_extra_tokens others
    const float *missing_cost, *extra_cost;
    const float *divisor, *estimate_divisor;  // by length: what totals of finished hypotheses, and of estimates, are divided by
} Rules;

// One sentence's search. The caller owns the arrays
typedef struct Sentence {
    const Rules* rules;
    int64_t limit, T, m;           // limit: largest number of tokens before EOS
    int64_t enough;                // hypotheses that there is room for, and that are enough
    double limit_divisor, lenpen;  // (limit + 1)^lenpen
    const double* reward;          // (limit + 2,) of each length; null: none
    int64_t slot, seed, number;    // slot in the KV cache; seed and number of its random numbers
    // required phrases: those of its pool, null for none; its number there; number of tokens; they cannot be met; rows that the banks share
    const Phrases* phrases;
    int64_t in_phrases, goal, infeasible, slots;
    // words that are scored, ascending (--softmax top, lexical), null for all; (listed,) column of each in the step's logits
    const int64_t *words, *columns;
    int64_t listed;
    // state
    int64_t result;                            // GOES_ON while it is live
    int64_t length, rows, used;                // tokens chosen so far, live rows, positions of the slot in use
    int64_t finished, waiting;                 // hypotheses that are answers, and those that wait to become one (RANKED)
    // pruned candidates that would have become rows; rows that a full beam of k would have had in addition
    int64_t dropped, unused_rows;
    int64_t full;                              // the n-best list has been full (EARLY)
    // highest sum of log-probabilities of a hypothesis; largest possible loss of the answer (OPTIMAL)
    double best_total, gap;
    int64_t* row;                              // (k,) of each sample, -1 when it has ended
    // places in found of the answers, and of hypotheses that may still become answers, best first
    int64_t *order, *unconfirmed;
    double* best;                              // (m,) scores of the answers, best first (OPTIMAL, EARLY)
    int64_t *tokens, *next_tokens;             // (k, T) the first token, then those chosen
    float *score, *next_score;                 // (k, T) sum of log-probabilities up to each token; 0 of the first
    int32_t *history, *next_history;           // (k, T) position of each token in the slot
    int64_t *state, *next_state, *met, *next_met;  // (k, G) state and met counts of each row's phrases
    // found (enough, T): each hypothesis' length with EOS, tokens and sums of log-probabilities, as in `tokens` and `score`
    int64_t *found_length, *found_tokens;
    float* found_score;
    // allowed outputs: the automata, null where every output is allowed; (k,) state of each row
    const Automata* allowed;
    int64_t *allowed_state, *next_allowed_state;
    // number of outputs that are left, once they are so few that all of them are answers (remaining.hpp); 0 before. Each is a row of
    // `tokens`; the one of which the next step reads `rows` tokens
    int64_t remaining, reading;
    int64_t *ends, *read;                      // (k,) number of tokens of each before EOS; how many of them the decoder has read
} Sentence;

// The sentences that are searched together
typedef struct Batch {
    Sentence* const* live;
    int64_t sentences;
    int64_t calls, decoder_rows;  // decoder calls; their rows, summed
    const void* output;           // the output layer of all listed words, with `columns` outputs; null: the reader's
    int64_t columns;
} Batch;

// ---- Softmax (shortlist.cpp, lsh.cpp)

typedef struct Shortlist {
    const void* packed;  // of the base, packed
    const int64_t* base;  // (T,)
    int64_t T;
    const float *weight, *bias;  // (V, d); (V,) or null
    int64_t d;
    double temperature;
} Shortlist;

typedef struct Screen {
    const void* packed;           // (V, d) rounded to 16 bits, packed
    const float *weight, *bias;   // (V, d); (V,) or null
    const int64_t* always;        // (num_always,) ids that are rescored in every row
    int64_t num_always, V, d, m, more;  // the m best words are rescored, up to `more` if they are not enough
    double temperature, largest, spread, tolerance;  // norms of the rounding: largest row's, and the matrix's (largest singular value)
} Screen;

// The index of an LSH softmax, as `Index` of lsh_torch.py
typedef struct Index {
    const int64_t* dimensions;  // (K, P)
    const int32_t* words;       // (W x V,)
    const int32_t* offsets;     // (W x B + 1,), B codes a band
    int64_t K, P, u, bits, V, B;
    int64_t ones;  // number of additional dimensions at which states are 1 (a bias)
} Index;

// ---- Parallel decoding of one sentence (parallel.cpp)

typedef struct Row Row;

// A live row. Buffers have the size of the widest block, limit + 1 positions; w is the width of the current block
struct Row {
    int64_t* tokens;     // (T,) the first token, then the verified ones
    int64_t* length;     // verified tokens
    double* score;       // (T,) log-probability of each verified token
    int64_t* draft;      // (w - 1,) the draft, followed by further proposed tokens
    double* confidence;        // probability that each proposed token is right if those before it are
    int64_t* word;       // (w,) each position's best word
    double* word_score;  // (w,) its log-probability
    double* margin;      // (w,) its distance to the second best, if least_margin is set
    // functions of the method: draft tokens (none if a draft does not pay), learn from the result
    int64_t (*draft_block)(void* method, Row* row, int64_t most);
    void (*learn)(void* method, const Row* row, int64_t verified);  // or null
    void* method;
    int64_t limit, min_len, eos, pad;  // limit: largest number of tokens before EOS
    int64_t ngram;                     // size of n-grams that may not repeat; 0: off
    int64_t every;                     // log-probabilities of every position are required
    double least_margin;               // closer positions are read again alone; 0: none
    // state
    int64_t w, redo;               // w: 0 before the first draft; redo: the next position is read alone
    int64_t first_guess, guesses;  // word[first_guess, first_guess + guesses): words of the last call after the verified ones
    int64_t verified, broken;      // of the last call: number of verified tokens; the position with NaN
    // counts
    int64_t checked, redone;  // positions verified in blocks; positions of these that were read again
    int64_t calls, positions, committed, offered, accepted;
};

// Proposes at most `most` tokens after the row's verified ones, with the confidence of each; returns their number
typedef struct Drafter {
    int64_t (*propose)(void* state, const Row* row, int64_t most, int64_t* token, double* sure);
    void* state;
} Drafter;

// Methods of parallel decoding: jacobi, gs-jacobi, hybrid-jacobi
typedef struct Blocks {
    Drafter drafter;
    int64_t b, parallel_length, one_block, hybrid;
    int64_t end;  // state: length at which the current block ends
} Blocks;

// The method window
typedef struct Window {
    Drafter drafter;
    int64_t b, cheap;                     // b: 0 for no limit
    double any_draft, position, beyond;   // costs, in calls
    double decay, most_trust;
    int64_t patience, longest_pause;
    double right, expected;               // state
    int64_t useless, pause, offered;
} Window;

// States of the sources of drafts
typedef struct Trajectory {
    int64_t pad;  // draft token after the last call's outputs; NONE: the last verified token
} Trajectory;

typedef struct Previous {
    Drafter fallback;
    const int64_t* previous_output;  // (columns,)
    const double* match_confidence;  // (tail + 1,) confidence of a place by the length of the match
    int64_t columns, tail, next, tokens_read;
    double doubt_decay, min_confidence, confidence;
} Previous;

// ---- Functions

// beam.cpp
int64_t search_sentences(Batch* batch, int64_t most, const Reader* reader, Step* step);

// levels.cpp
int64_t supports(const char* level);

// log_probs.cpp
void log_softmax(float* x, int64_t lines, int64_t V, float temperature);
void topk(const float* x, int64_t lines, int64_t V, int64_t k, float* score, int64_t* column);
void best_of_sentences(const float* x, int64_t V, const float* before, const int64_t* first, int64_t sentences, int64_t c, int64_t* row,
                       int64_t* column, float* score);
void block_ngrams(const int64_t* tokens, int64_t rows, int64_t T, int64_t row_stride, int64_t n, float* value, int64_t C,
                  const int64_t* ids, int64_t id_stride);
int64_t draw_words(const float* x, int64_t V, const int64_t* row, const double* u, int64_t n, const SamplingCut* cut, int64_t* word);

// lsh.cpp
int64_t wta_hash(const float* x, int64_t n, int64_t D, const int64_t* dimensions, int64_t K, int64_t P, int64_t u, int64_t bits,
                 int32_t* codes);
int64_t find_words(const Index* index, const float* x, int64_t n, int64_t d, int64_t t, const uint8_t* always, const uint8_t* never,
                   int64_t* ids, int64_t clock, double* seconds);

// parallel.cpp
int64_t draft_blocks(void* method, Row* row, int64_t most);
int64_t draft_window(void* method, Row* row, int64_t most);
void learn_window(void* method, const Row* row, int64_t verified);
int64_t draft_row(Row* row);
int64_t commit_row(Row* row);
int64_t call_row(Row* row, const Reader* reader);
int64_t propose_nothing(void*, const Row*, int64_t, int64_t*, double*);
int64_t propose_trajectory(void* state, const Row* row, int64_t most, int64_t* token, double* sure);
int64_t propose_previous(void* state, const Row* row, int64_t most, int64_t* token, double* sure);

// shortlist.cpp
int64_t shortlist_log_probs(const Shortlist* list, const float* x, int64_t n, const int64_t* found, int64_t m, int64_t* ids, float* y,
                            int64_t clock, double* seconds);
int64_t screen(const Screen* s, const float* x, int64_t n, float* y, uint8_t* known, float* ceiling, float* error);

// transformer.cpp
int64_t panel_columns(void);
int64_t works(void);
int64_t linear(const Linear* map, const float* x, int64_t lines, float* y, int64_t epilogue);
void outputs_of_linear(const Linear* from, const int64_t* outputs, Linear* to);
int64_t layer_norm(const Norm* norm, const float* x, int64_t lines, int64_t d, float* y);
int64_t encode(const LayerStack* stack, float* x, const int64_t* start, int64_t sentences);
int64_t decode(const LayerStack* stack, const Step* step);
