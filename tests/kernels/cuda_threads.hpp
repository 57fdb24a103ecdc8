// What a CUDA source sees of the executor (cuda_threads.cpp): the words of the language as macros, the rest as calls.
#pragma once

namespace executor {
struct Place { unsigned x, y, z; };
struct Places { Place thread, block, threads, blocks; };
Places here();
char* dynamic_shared();
void barrier(int site);
long collective(unsigned mask, long value, int lane, int site);  // lane: whose value comes back; -1: the ballot
void access(const void* address, int size, int kind);            // kind: 0 a read, 1 a write, 2 an atomic one
template <class T> __attribute__((no_sanitize("thread"))) T atomically(T* address, T value, bool adds) {
#ifdef __SANITIZE_THREAD__
    access(address, sizeof(T), 2);
#endif
    T before = *address;
    *address = adds ? before + value : value;
    return before;
}
}  // namespace executor

#define SITE (__LINE__ + (__COUNTER__ << 16))  // two on one line differ
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static __attribute__((section("shared")))  // one memory for the blocks, which follow each other
#define threadIdx executor::here().thread
#define blockIdx executor::here().block
#define blockDim executor::here().threads
#define gridDim executor::here().blocks
#define __syncthreads() executor::barrier(SITE)
#define __shfl_sync(mask, value, lane) ((decltype(value))executor::collective(mask, value, (lane) & 31, SITE))
#define __ballot_sync(mask, value) ((unsigned)executor::collective(mask, (value) ? 1 : 0, -1, SITE))
#define __popc __builtin_popcount
#define atomicAdd(address, value) executor::atomically(address, value, true)
#define atomicExch(address, value) executor::atomically(address, value, false)
