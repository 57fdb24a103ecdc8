// Runs on its own (test_levels.py): products by tiles, with a class in the place of the processor's, have the bits of those without tiles.
// The class does what the instructions do, and counts what the processor refuses. Prints what differs; its status is the number of that.

#include <cstdio>

#include "levels.cpp"

namespace {

int failures = 0;
int64_t tile_calls = 0;
bool use_tiles = false;

void expect(bool met, const char* what) {
    if (!met && ++failures < 20) std::printf("%s\n", what);
}

// tdpbusd, tileloadd and tilestored in loops, by the processor's manual
struct PlainTiles {
    static inline thread_local TileShapes shapes;
    static inline thread_local uint8_t memory[8][16][64];

    static bool permitted() { return use_tiles; }
    static void configure(const TileShapes& given) {
        static_assert(sizeof given == 64, "ldtilecfg reads 64 bytes");
        expect(given.palette == 1 && !given.start_line, "another palette");
        for (int t = 0; t < 16; ++t) {
            const bool none = !given.bytes[t] && !given.lines[t], fits = given.bytes[t] <= 64 && given.lines[t] <= 16;
            expect(t < 8 ? fits && given.bytes[t] && given.lines[t] : none, "a shape that no tile has");
        }
        expect(!shapes.palette, "tiles of a thread are configured twice");
        shapes = given;
        std::memset(memory, 0, sizeof memory);
    }
    static void release() {
        expect(shapes.palette, "released without shapes");
        shapes = {};
        std::memset(memory, 0x55, sizeof memory);
    }
    template <int T>
    static void clear() {
        expect(shapes.palette, "a tile without shape");
        std::memset(memory[T], 0, sizeof memory[T]);
    }
    template <int T>
    static void load(const void* from, int64_t stride) {
        expect(shapes.palette, "a tile without shape");
        std::memset(memory[T], 0, sizeof memory[T]);
        for (int line = 0; line < shapes.lines[T]; ++line)
            std::memcpy(memory[T][line], static_cast<const char*>(from) + line * stride, shapes.bytes[T]);
    }
    template <int T>
    static void store(void* to, int64_t stride) {
        expect(shapes.palette, "a tile without shape");
        for (int line = 0; line < shapes.lines[T]; ++line)
            std::memcpy(static_cast<char*>(to) + line * stride, memory[T][line], shapes.bytes[T]);
    }
    template <int SUM, int X, int WEIGHT>
    static void multiply_add() {
        const TileShapes& s = shapes;
        expect(s.lines[SUM] == s.lines[X] && s.bytes[SUM] == s.bytes[WEIGHT] && s.bytes[X] == s.lines[WEIGHT] * 4, "shapes that do not fit");
        for (int m = 0; m < s.lines[SUM]; ++m)
            for (int k = 0; k < s.bytes[X] / 4; ++k)
                for (int n = 0; n < s.bytes[SUM] / 4; ++n) {
                    uint32_t sum;
                    std::memcpy(&sum, memory[SUM][m] + 4 * n, 4);
                    for (int b = 0; b < 4; ++b)
                        sum += static_cast<uint32_t>(memory[X][m][4 * k + b] * static_cast<int8_t>(memory[WEIGHT][k][4 * n + b]));
                    std::memcpy(memory[SUM][m] + 4 * n, &sum, 4);
                }
#pragma omp atomic
        ++tile_calls;
    }
};

}  // namespace

#undef TILES
#define TILES PlainTiles
#include "linear.hpp"

namespace {

uint32_t state = 1;
float number() {  // -1 to 1
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(state >> 8) / (1 << 23) - 1.0f;
}

void compare(int64_t lines, int64_t in, int64_t out, Epilogue epilogue) {
    const int64_t panels = (out + PANEL - 1) / PANEL;
    std::vector<int8_t> weight(panels * in * PANEL);
    std::vector<int32_t> offset(panels * PANEL);
    std::vector<float> x(lines * in), scale(panels * PANEL), bias(out), first(lines * out);
    for (float& each : x) each = number() * 9.0f;
    for (int64_t k = 0; k < in; ++k) x[lines / 2 * in + k] = 1.0f;  // only the largest sums
    for (float& each : scale) each = number();
    for (float& each : bias) each = number();
    for (float& each : first) each = number();
    for (int64_t o = 0; o < out; ++o)
        for (int64_t k = 0; k < in; ++k) {
            const auto value = static_cast<int8_t>(o == 3 ? 127 : o == 4 ? -127 : std::nearbyint(number() * 127.0f));
            weight[(o / PANEL * in + k / 4 * 4) * PANEL + o % PANEL * 4 + k % 4] = value;
            offset[o] += 128 * value;
        }
    const Linear map{weight.data(), lines % 2 ? bias.data() : nullptr, scale.data(), offset.data(), in, out, INT8};
    auto with = first, without = first;
    use_tiles = false, tile_calls = 0;
    multiply(map, x.data(), lines, without.data(), epilogue);
    expect(!tile_calls, "tiles without permission");
    use_tiles = true;
    multiply(map, x.data(), lines, with.data(), epilogue);
    const bool same = !std::memcmp(with.data(), without.data(), with.size() * sizeof(float));
    if (!same) std::printf("%d lines, %d inputs, %d outputs, epilogue %d: ", (int)lines, (int)in, (int)out, (int)epilogue);
    expect(same, "other bits");
    expect((tile_calls > 0) == (lines >= 16 && tile_inputs(in) >= 32), "tiles at other shapes");
    expect(!PlainTiles::shapes.palette, "the tiles were not released");
}

#if defined(HAS_TILES)
struct Killing : PlainTiles {  // as a machine that announces tiles which it does not have
    static void configure(const TileShapes&) { asm volatile("ud2"); }
};

struct Losing : PlainTiles {  // as a system that does not save them
    template <int T>
    static void store(void* to, int64_t stride) {
        std::memset(memory[T], 0, sizeof memory[T]);
        PlainTiles::store<T>(to, stride);
    }
};
#endif

}  // namespace

int main() {
#if defined(HAS_TILES)
    expect(!work_in_child<PlainTiles>(), "tiles without permission in a child process");
    use_tiles = true;
    expect(work_in_child<PlainTiles>(), "tiles do not work in a child process");
    expect(!work_in_child<Killing>() && !work_in_child<Losing>(), "tiles that do not work are taken");
#endif
    for (int64_t lines = 1; lines <= 70; ++lines) compare(lines, 64, 70, static_cast<Epilogue>(lines % 5));
    for (int64_t in : {4, 8, 20, 36, 40, 44, 48, 52, 60, 68, 96, 100, 128, 132, 200, 256, 300, 512})
        for (int64_t lines : {5, 16, 17, 33}) compare(lines, in, 1 + in % 131, lines % 2 ? PLAIN : ADD);
    compare(40, 512, 1000, RELU);  // in several threads
    return std::min(failures, 99);
}
