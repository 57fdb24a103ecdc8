// All layers of a Transformer's encoder or decoder on the CPU, float32 (weights may be 8 bits), in one call.
//
// Definition: model/transformer/layers.py.
// The definition computes the same by torch operations. The arithmetic is the same; the gain is in
// operator dispatch, temporaries, transposed copies, and attention to positions that are not in a row's history.
//
// Shapes: N = n x b lines (n rows, b new tokens each), d features, H heads, h = d / H, f feed-forward features, V vocabulary.

#include "attention.hpp"
#include "linear.hpp"
#include "norm.hpp"

namespace {

// ---- Parts of a layer

// Return the input of a block: x, normalised if the model is pre-norm
const float* norm_before(const LayerStack& stack, const Norm& norm, const float* x, int64_t lines, float* y) {
    if (!stack.pre_norm) return x;
    normalise(norm, x, lines, stack.d, y);
    return y;
}

// Finish the output of a block: x is normalised in place if the model is post-norm
void norm_after(const LayerStack& stack, const Norm& norm, float* x, int64_t lines) {
    if (!stack.pre_norm) normalise(norm, x, lines, stack.d, x);
}

void feed_forward(const LayerStack& stack, const Layer& layer, float* x, int64_t lines, float* y, float* wide) {
    multiply(layer.ffn_in, norm_before(stack, layer.ffn_norm, x, lines, y), lines, wide, static_cast<Epilogue>(layer.activation));
    multiply(layer.ffn_out, wide, lines, x, ADD);
    norm_after(stack, layer.ffn_norm, x, lines);
}

int64_t widest(const LayerStack& stack) {
    int64_t wide = 3 * stack.d;
    for (int64_t i = 0; i < stack.count; ++i) wide = std::max(wide, stack.layers[i].ffn_in.out);
    return wide;
}

thread_local std::vector<float> memory_y, memory_wide, memory_score;

// Return whether linear maps compute 64 x 1 x 1 = 64. This is called in a separate process after compiling, since instructions that the
// processor does not have end the process
bool multiplies_right() {
    constexpr int64_t in = 64, lines = 20;  // enough for all forms of a product
    std::vector<float> weight(in * PANEL, 1.0f), x(lines * in, 1.0f), y(lines * PANEL);
    std::vector<int8_t> bytes(in * PANEL, 1);
    std::vector<int16_t> shorts(in * PANEL, 1);
    std::vector<float> scale(PANEL, 1.0f);
    std::vector<int32_t> offset(PANEL, in * 128);
    bool good = true;
    for (int64_t kind : {FLOAT32, INT16, INT8}) {
        const void* data = weight.data();
        if (kind == INT16) data = shorts.data();
        if (kind == INT8) data = bytes.data();
        multiply({data, nullptr, scale.data(), offset.data(), in, PANEL, kind}, x.data(), lines, y.data(), PLAIN);
        for (float value : y) good = good && std::fabs(value - in) < 1e-4f;
    }
    return good;
}

// Run all layers of an encoder on sentences without padding: x (N, d), sentence s has lines start[s] to start[s + 1]
void run_encoder(const LayerStack& stack, float* x, const int64_t* start, int64_t sentences) {
    int64_t d = stack.d, h = d / stack.heads, lines = start[sentences], longest = 0;
    for (int64_t s = 0; s < sentences; ++s) longest = std::max(longest, start[s + 1] - start[s]);
    float *y = scratch(memory_y, lines * d), *wide = scratch(memory_wide, lines * widest(stack));
    for (const Layer* layer = stack.layers; layer < stack.layers + stack.count; ++layer) {
        multiply(layer->self_in, norm_before(stack, layer->self_norm, x, lines, y), lines, wide, PLAIN);
        Parallel attention;
#pragma omp parallel for schedule(dynamic) if (sentences > 1 && lines * longest * d > WORTH_THREADS)
        for (int64_t s = 0; s < sentences; ++s) attention.run([&] {
            float* score = scratch(memory_score, longest + LANES);
            const float* first = wide + start[s] * 3 * d;
            VisiblePositions visible{first + d, first + 2 * d, h, 3 * d, start[s + 1] - start[s], nullptr};
            for (int64_t i = start[s]; i < start[s + 1]; ++i) attend(wide + i * 3 * d, visible, stack.heads, h, score, y + i * d);
        });
        attention.check();
        multiply(layer->self_out, y, lines, x, ADD);
        norm_after(stack, layer->self_norm, x, lines);
        feed_forward(stack, *layer, x, lines, y, wide);
    }
    if (stack.final_norm.weight) normalise(stack.final_norm, x, lines, d, x);
}

}  // namespace

// All layers of a decoder over every row's new tokens
void run_decoder(const void* layers, const void* step_) {
    const LayerStack& stack = *static_cast<const LayerStack*>(layers);
    const Step& step = *static_cast<const Step*>(step_);
    int64_t d = stack.d, heads = stack.heads, h = d / heads, b = step.block, lines = step.rows * b;
    int64_t added = step.width * b, positions = step.positions_before + added;
    float *x = step.x, *y = scratch(memory_y, lines * d), *wide = scratch(memory_wide, lines * widest(stack));
    // sentence, new position and mask of each line
    static thread_local std::vector<int64_t> sentence, position;
    static thread_local std::vector<const float*> where, source_where;
    static thread_local PositionLists history, source;
    int64_t slots = step.slot ? *std::max_element(step.slot, step.slot + step.sentences) + 1 : step.sentences;
    if (step.lines) positions = step.target.positions;
    scratch(sentence, lines), scratch(position, lines), scratch(where, lines), scratch(source_where, slots);
    for (int64_t i = 0; i < lines; ++i) {
        if (step.lines) {
            sentence[i] = step.lines[i].slot, position[i] = step.lines[i].position;
            continue;
        }
        int64_t place = step.place ? step.place[i / b] : i / b, inside = place % step.width * b + i % b;
        int64_t s = place / step.width;
        sentence[i] = step.slot ? step.slot[s] : s;
        position[i] = step.positions_before + inside;
        if (step.mask) where[i] = step.mask + s * step.mask_sentence + inside * positions;
    }
    if (step.mask) history.read(lines, positions, where);
    if (step.source_mask) {
        for (int64_t s = 0; s < slots; ++s) source_where[s] = step.source_mask + s * step.source.positions;
        source.read(slots, step.source.positions, source_where);
    }
    int64_t longest = std::max(positions, step.source.positions);
    auto all_lines = [&](auto line) {
        Parallel attention;
        for_each(lines, lines * longest * d > WORTH_THREADS, [&](int64_t i) {
            attention.run([&] { line(i, scratch(memory_score, longest + LANES)); });
        });
        attention.check();
    };
    const int64_t* sentence_of = sentence.data();
    const int64_t* position_of = position.data();
    PositionLists *histories = &history, *sources = &source;

    for (int64_t l = 0; l < stack.count; ++l) {
        const Layer& layer = stack.layers[l];
        multiply(layer.self_in, norm_before(stack, layer.self_norm, x, lines, y), lines, wide, PLAIN);
        float* target = step.target.data + l * step.target.layer;
        for (int64_t i = 0; i < lines; ++i)
            for (int64_t head = 0; head < heads; ++head) {
                float* to = target + sentence_of[i] * step.target.sentence + head * step.target.head + position_of[i] * h;
                std::memcpy(to, wide + i * 3 * d + d + head * h, h * sizeof(float));
                std::memcpy(to + step.target.value, wide + i * 3 * d + 2 * d + head * h, h * sizeof(float));
            }
        all_lines([&](int64_t i, float* score) {
            const float* key = target + sentence_of[i] * step.target.sentence;
            VisiblePositions visible{key, key + step.target.value, step.target.head, h, step.width == 1 ? position_of[i] + 1 : positions, nullptr};
            if (step.mask) visible.count = histories->count[i], visible.position = histories->positions.data() + i * positions;
            if (step.lines) visible.count = step.lines[i].count, visible.position = step.lines[i].history;
            attend(wide + i * 3 * d, visible, heads, h, score, y + i * d);
        });
        multiply(layer.self_out, y, lines, x, ADD);
        norm_after(stack, layer.self_norm, x, lines);

        multiply(layer.cross_query, norm_before(stack, layer.cross_norm, x, lines, y), lines, wide, PLAIN);
        const float* keys = step.source.data + l * step.source.layer;
        all_lines([&](int64_t i, float* score) {
            int64_t s = sentence_of[i];
            const float* key = keys + s * step.source.sentence;
            VisiblePositions visible{key, key + step.source.value, step.source.head, h, step.source.positions, nullptr};
            if (step.source_mask) visible.count = sources->count[s], visible.position = sources->positions.data() + s * step.source.positions;
            if (step.attention) visible.weights = step.attention + i * step.source.positions;
            attend(wide + i * d, visible, heads, h, score, y + i * d);
        });
        if (step.attention && l + 1 == stack.count) return;
        multiply(layer.cross_out, y, lines, x, ADD);
        norm_after(stack, layer.cross_norm, x, lines);

        feed_forward(stack, layer, x, lines, y, wide);
    }
    if (stack.final_norm.weight) normalise(stack.final_norm, x, lines, d, x);
}

// Move these positions of a slot's keys and values, in ascending order, to its start
void keep_positions(const void* layers, const void* step, int64_t slot, const int32_t* kept, int64_t count) {
    const LayerStack& stack = *static_cast<const LayerStack*>(layers);
    const Cache& cache = static_cast<const Step*>(step)->target;
    const int64_t h = stack.d / stack.heads;
    for (int64_t l = 0; l < stack.count; ++l)
        for (int64_t value : {int64_t{0}, cache.value})
            for (int64_t head = 0; head < stack.heads; ++head) {
                float* first = cache.data + l * cache.layer + value + slot * cache.sentence + head * cache.head;
                for (int64_t i = 0; i < count; ++i)
                    if (kept[i] != i) std::memcpy(first + i * h, first + kept[i] * h, h * sizeof(float));
            }
}

void run_linear(const void* packed, const float* x, int64_t lines, float* y) {
    multiply(*static_cast<const Linear*>(packed), x, lines, y, PLAIN);
}

void run_norm(const void* norm, const float* x, int64_t lines, int64_t d, float* y) {
    normalise(*static_cast<const Norm*>(norm), x, lines, d, y);
}

// ---- entry points

ENTRY int64_t panel_columns() { return PANEL; }

ENTRY int64_t works() {
    return guarded([] { return int64_t{multiplies_right()}; });
}

ENTRY int64_t linear(const Linear* map, const float* x, int64_t lines, float* y, int64_t epilogue) {
    return guarded([&] { multiply(*map, x, lines, y, static_cast<Epilogue>(epilogue)); });
}

ENTRY void outputs_of_linear(const Linear* from, const int64_t* outputs, Linear* to) { copy_outputs(*from, outputs, *to); }

ENTRY int64_t layer_norm(const Norm* norm, const float* x, int64_t lines, int64_t d, float* y) {
    return guarded([&] { normalise(*norm, x, lines, d, y); });
}

ENTRY int64_t encode(const LayerStack* stack, float* x, const int64_t* start, int64_t sentences) {
    return guarded([&] { run_encoder(*stack, x, start, sentences); });
}

ENTRY int64_t decode(const LayerStack* stack, const Step* step) {
    return guarded([&] { run_decoder(stack, step); });
}
