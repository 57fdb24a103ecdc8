// Common code of the functions that Python calls: they are exported, report a lack of memory, and release large scratch memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

extern "C" {
#include "abi.h"
}

// All other functions are hidden (-fvisibility=hidden); abi.h declares entry points
#define ENTRY extern "C" __attribute__((visibility("default")))

constexpr int64_t OUT_OF_MEMORY = INT64_MIN;  // the result if memory runs out; mirrored in library.py
constexpr int64_t MAX_KEPT = 16 << 20;        // bytes of a scratch memory that a thread may keep between two calls

// The larger scratch memories of this thread, with functions that release them
inline thread_local std::vector<std::pair<void*, void (*)(void*)>> large_scratch;

namespace {

// Return memory of a thread for `size` elements, which later calls reuse. Old values stay, new elements are zeros
template <class T>
T* scratch(std::vector<T>& memory, int64_t size) {
    if (static_cast<int64_t>(memory.size()) < size) {
        if (size > MAX_KEPT / static_cast<int64_t>(sizeof(T)))
            large_scratch.emplace_back(&memory, [](void* released) { std::vector<T>().swap(*static_cast<std::vector<T>*>(released)); });
        memory.resize(size);
    }
    return memory.data();
}

// Run the body of an entry point; return its result, 0 if it has none
template <class Body>
int64_t guarded(Body body) {
    int64_t result = OUT_OF_MEMORY;
    try {
        if constexpr (std::is_void_v<decltype(body())>)
            body(), result = 0;
        else
            result = body();
    } catch (const std::exception&) {  // only bad_alloc, or length_error of a vector, can be thrown
    }
    for (auto [memory, release] : large_scratch) release(memory);
    large_scratch.clear();
    return result;
}

// Runs the bodies of a parallel loop and catches their exceptions
class Parallel {
    std::atomic<bool> failed{false};

public:
    template <class Body>
    void run(Body body) noexcept {
        try {
            body();
        } catch (const std::exception&) {
            failed = true;
        }
    }
    // Call after the loop: throws if memory ran out in a body
    void check() const {
        if (failed) throw std::bad_alloc();
    }
};

}  // namespace
