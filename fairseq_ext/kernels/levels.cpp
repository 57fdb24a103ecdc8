// Whether this processor has what a level of compiling.py is compiled for.

#include <cstdint>
#include <cstring>

#ifdef __aarch64__
#include <sys/auxv.h>
#endif

extern "C" int64_t supports(const char* level) {
    auto is = [&](const char* name) { return std::strcmp(level, name) == 0; };
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
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
