// Tiles (AMX): eight registers of up to 16 lines of up to 64 bytes, and products of them, of bytes. This is the code of the level `amx`
// (compiling.py), and of the trial that decides whether it is taken (levels.cpp).
// tests/kernels/tiles.cpp runs these functions with another class in the place of `Tiles`.
#pragma once

#include <cstdint>
#include <utility>

namespace {

constexpr int64_t TILE_LINES = 16, TILE_BYTES = 64;

struct TileShapes {  // as ldtilecfg reads it
    uint8_t palette, start_line, reserved[14];
    uint16_t bytes[16];  // of a line of each tile
    uint8_t lines[16];
};

// Return how many inputs a tile takes at once: the most that divide `in`, a multiple of 4
inline int64_t tile_inputs(int64_t in) {
    int64_t inputs = TILE_BYTES;
    while (in % inputs) inputs -= 4;
    return inputs;
}

// Return the shapes for the sums of `lines` lines (tiles 0 to 3), lines of x with `inputs` inputs (tile 4), and their weights (5 to 7)
inline TileShapes tile_shapes(int64_t lines, int64_t inputs) {
    TileShapes shapes = {};
    shapes.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
        shapes.bytes[tile] = static_cast<uint16_t>(tile == 4 ? inputs : TILE_BYTES);
        shapes.lines[tile] = static_cast<uint8_t>(tile < 5 ? lines : inputs / 4);
    }
    return shapes;
}

// Multiply lines of unsigned bytes x by a panel of V x 16 columns of signed bytes (linear.hpp) -> sums (lines, V x 16). The tiles have the
// shapes of `tile_shapes`
template <class T, int... V>
inline void tile_products(const uint8_t* x, int64_t in, int64_t inputs, const int8_t* weight, int32_t* sums, std::integer_sequence<int, V...>) {
    constexpr int64_t stride = sizeof...(V) * TILE_BYTES;  // bytes of four inputs' weights, and of a line of sums
    (T::template clear<V>(), ...);
    for (int64_t k = 0; k < in; k += inputs, weight += inputs / 4 * stride) {
        T::template load<4>(x + k, in);
        ((T::template load<5 + V % 3>(weight + V * TILE_BYTES, stride), T::template multiply_add<V, 4, 5 + V % 3>()), ...);
    }
    (T::template store<V>(sums + V * 16, stride), ...);
}

}  // namespace

#if defined(__x86_64__) && defined(__linux__) && (__has_include(<amxint8intrin.h>) || __has_include(<amxintrin.h>))
#define HAS_TILES  // the compiler knows their instructions: g++ since 11, or clang++
#include <sys/syscall.h>
#include <unistd.h>

namespace {

#define TILE_CODE __attribute__((target("amx-tile,amx-int8")))

// The processor's tiles. The instructions are not those of the compiler's headers, whose loads may be moved before the stores of what they
// load
struct Tiles {
    // Return whether the system lets this process use them
    static bool permitted() {
        static const bool got = syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
        return got;
    }
    TILE_CODE static void configure(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
    // Without it the system saves 8 KiB whenever it switches threads
    TILE_CODE static void release() { asm volatile("tilerelease" ::: "memory"); }
    template <int TILE>
    TILE_CODE static void clear() {
        asm volatile("tilezero %%tmm%c0" ::"i"(TILE));
    }
    template <int TILE>
    TILE_CODE static void load(const void* from, int64_t stride) {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(TILE) : "memory");
    }
    template <int TILE>
    TILE_CODE static void store(void* to, int64_t stride) {
        asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(TILE) : "memory");
    }
    // SUM += X (unsigned) x WEIGHT (signed)
    template <int SUM, int X, int WEIGHT>
    TILE_CODE static void multiply_add() {
        asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(X), "i"(WEIGHT));
    }
};

}  // namespace
#endif
