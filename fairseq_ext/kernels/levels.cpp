// Checks whether this processor has the instructions of a level (compiling.py).

#include <cstdint>
#include <cstring>

#include "entry.hpp"
#include "tiles.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif
#if defined(HAS_TILES)
#include <cerrno>
#include <csignal>
#include <sys/resource.h>
#include <sys/wait.h>
#endif

namespace {

#if defined(__x86_64__)
// Return whether the processor has the features of x86-64-v3 other than AVX2, FMA, BMI1 and BMI2; not all compilers can query them
bool has_rest_of_v3() {
    unsigned a, b, c, d, of_one = 0, of_extended = 0;  // feature bits of these leaves' ecx
    if (__get_cpuid(1, &a, &b, &c, &d)) of_one = c;
    if (__get_cpuid(0x80000001, &a, &b, &c, &d)) of_extended = c;
    return of_one & bit_MOVBE && of_one & bit_F16C && of_extended & bit_LZCNT;
}
#endif

#if defined(HAS_TILES)
// Tiles T whose thread sleeps before each product, so that the system has the occasion to lose them
template <class T>
struct SleepingTiles : T {
    template <int SUM, int X, int WEIGHT>
    static void multiply_add() {
        usleep(100);
        T::template multiply_add<SUM, X, WEIGHT>();
    }
};

// Return whether a small product by tiles T is right
template <class T>
bool small_product_is_right() {
    constexpr int64_t in = 128, columns = 32;
    uint8_t x[TILE_LINES * in];
    int8_t weight[in * columns];  // (in / 4, columns, 4)
    int32_t sums[TILE_LINES * columns];
    for (int64_t i = 0; i < TILE_LINES * in; ++i) x[i] = static_cast<uint8_t>(i * 37 + i / 5);
    for (int64_t i = 0; i < in * columns; ++i) weight[i] = static_cast<int8_t>(i * 91 + i / 3);
    T::configure(tile_shapes(TILE_LINES, TILE_BYTES));
    tile_products<SleepingTiles<T>>(x, in, TILE_BYTES, weight, sums, std::make_integer_sequence<int, columns / 16>());
    T::release();
    bool right = true;
    for (int64_t i = 0; i < TILE_LINES * columns; ++i) {
        int32_t sum = 0;
        for (int64_t k = 0; k < in; ++k) sum += x[i / columns * in + k] * weight[(k / 4 * columns + i % columns) * 4 + k % 4];
        right = right && sums[i] == sum;
    }
    return right;
}

// Return whether a child process multiplies right by tiles T: some machines announce tiles and end a process that uses them
template <class T>
bool work_in_child() {
    const pid_t child = fork();
    if (child == 0) {
        const rlimit no_core = {};
        setrlimit(RLIMIT_CORE, &no_core);
        for (int number : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) signal(number, SIG_DFL);
        _exit(T::permitted() && small_product_is_right<T>() ? 0 : 1);
    }
    int status = 1;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    return status == 0;
}

// Return whether the processor has tiles and the system saves them
bool has_tiles() {
    unsigned a, b, c = 0, d = 0, enabled, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
    asm("xgetbv" : "=a"(enabled), "=d"(high) : "c"(0));
    const unsigned states = 3u << 17, features = 3u << 24;  // the tiles' shapes and bytes; AMX-TILE and AMX-INT8
    return (enabled & states) == states && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & features) == features;
}
#endif

}  // namespace

ENTRY int64_t supports(const char* level) {
    auto is = [&](const char* name) { return std::strcmp(level, name) == 0; };
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                      __builtin_cpu_supports("bmi2") && has_rest_of_v3();
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#if defined(HAS_TILES)
    if (is("amx") && avx512 && __builtin_cpu_supports("avx512vnni")) {
        static const bool tiles = has_tiles() && work_in_child<Tiles>();  // once a process
        return tiles;
    }
#endif
    return (is("avx2") && avx2) || (is("avxvnni") && avx2 && __builtin_cpu_supports("avxvnni")) || (is("avx512") && avx512) ||
           (is("avx512vnni") && avx512 && __builtin_cpu_supports("avx512vnni"));
#elif defined(__aarch64__)
    const bool dotprod = getauxval(AT_HWCAP) & (1 << 20);  // HWCAP_ASIMDDP and HWCAP2_I8MM of Linux
    return is("neon") || (is("dotprod") && dotprod) || (is("i8mm") && dotprod && getauxval(AT_HWCAP2) & (1 << 13));
#else
    return 0;
#endif
}
