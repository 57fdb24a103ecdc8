// Checks whether this processor has the instructions of a level (compiling.py).

#include <cstdint>
#include <cstring>

#include "entry.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
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

}  // namespace

ENTRY int64_t supports(const char* level) {
    auto is = [&](const char* name) { return std::strcmp(level, name) == 0; };
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                      __builtin_cpu_supports("bmi2") && has_rest_of_v3();
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return (is("avx2") && avx2) || (is("avxvnni") && avx2 && __builtin_cpu_supports("avxvnni")) || (is("avx512") && avx512) ||
           (is("avx512vnni") && avx512 && __builtin_cpu_supports("avx512vnni"));
#elif defined(__aarch64__)
    const bool dotprod = getauxval(AT_HWCAP) & (1 << 20);  // HWCAP_ASIMDDP and HWCAP2_I8MM of Linux
    return is("neon") || (is("dotprod") && dotprod) || (is("i8mm") && dotprod && getauxval(AT_HWCAP2) & (1 << 13));
#else
    return 0;
#endif
}
