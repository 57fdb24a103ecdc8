// What a CUDA source sees of the executor (cuda_threads.cpp): the words of the language as macros, the rest as calls.
#pragma once
#include <cstddef>
#include <utility>

#define UNWATCHED __attribute__((no_sanitize("thread")))

struct Place { unsigned x, y, z; };

namespace executor {
Place thread(), block(), threads(), blocks();
void barrier(int site);
long collective(unsigned mask, long value, int lane, int site);  // lane: whose value comes back; -1: the ballot
void access(const void* address, int size, int kind);            // kind: 0 a read, 1 a write, 2 an atomic one
template <class T> UNWATCHED T atomically(T* address, T value, bool adds) {
    access(address, sizeof(T), 2);
    T before = *address;
    *address = adds ? before + value : value;
    return before;
}

// Letters of parameters: i a number; F, I, U, B, L a pointer to float, int, any four bytes, a byte, eight bytes
template <class T> constexpr char letter = 'i';
template <class T> constexpr char letter<const T*> = letter<T*>;
template <> constexpr char letter<float*> = 'F';
template <> constexpr char letter<int*> = 'I';
template <> constexpr char letter<unsigned*> = 'U';
template <> constexpr char letter<unsigned char*> = 'B';
template <> constexpr char letter<long long*> = 'L';
template <auto f, class F = decltype(f)> struct Caller;
template <auto f, class... A> struct Caller<f, void (*)(A...)> {
    static constexpr char types[] = {letter<A>..., 0};
    template <size_t... i> UNWATCHED static void call(const long* values, std::index_sequence<i...>) { f((A)values[i]...); }
    UNWATCHED static void run(const long* values) { call(values, std::index_sequence_for<A...>()); }
};
struct Kernel { const char* name; const char* types; void (*run)(const long* values); };
}  // namespace executor

#define KERNEL(f) {#f, executor::Caller<&f>::types, executor::Caller<&f>::run}
#define SITE (__LINE__ + (__COUNTER__ << 16))  // two on one line differ
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ thread_local  // one memory for all threads of a block: they are fibers of one thread
#define threadIdx executor::thread()
#define blockIdx executor::block()
#define blockDim executor::threads()
#define gridDim executor::blocks()
#define __syncthreads() executor::barrier(SITE)
#define __shfl_sync(mask, value, lane) ((decltype(value))executor::collective(mask, value, (lane) & 31, SITE))
#define __ballot_sync(mask, value) ((unsigned)executor::collective(mask, (value) ? 1 : 0, -1, SITE))
#define __popc __builtin_popcount
#define atomicAdd(address, value) executor::atomically(address, value, true)
#define atomicExch(address, value) executor::atomically(address, value, false)
