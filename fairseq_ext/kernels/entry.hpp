// What the functions that Python calls have in common: they are exported, they tell when memory runs
// out, and they give back large scratch memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

// All other functions are hidden (-fvisibility=hidden); library.py reads the signatures of these
#define ENTRY extern "C" __attribute__((visibility("default")))

constexpr int64_t OUT_OF_MEMORY = INT64_MIN;  // the result where memory ran out; mirrored in library.py
constexpr int64_t KEPT = 16 << 20;            // bytes of scratch memory that may stay with a thread between two calls

// The scratch memory of this thread that is larger, and what releases it
inline thread_local std::vector<std::pair<void*, void (*)(void*)>> large_scratch;

namespace {

// Memory of a thread for `size` elements, used again by later calls. What was there stays, the rest is zeros
template <class T>
T* scratch(std::vector<T>& memory, int64_t size) {
    if (static_cast<int64_t>(memory.size()) < size) {
        if (size > KEPT / static_cast<int64_t>(sizeof(T)))
            large_scratch.emplace_back(&memory, [](void* released) { std::vector<T>().swap(*static_cast<std::vector<T>*>(released)); });
        memory.resize(size);
    }
    return memory.data();
}

// The result of an entry point whose body is this, 0 where the body has none
template <class Body>
int64_t guarded(Body body) {
    int64_t result = OUT_OF_MEMORY;
    try {
        if constexpr (std::is_void_v<decltype(body())>)
            body(), result = 0;
        else
            result = body();
    } catch (const std::exception&) {  // bad_alloc, or length_error of a vector: nothing else is thrown
    }
    for (auto [memory, release] : large_scratch) release(memory);
    large_scratch.clear();
    return result;
}

// Runs the bodies of a parallel loop, which no exception may leave
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
    // behind the loop: throws where memory ran out in one of them
    void check() const {
        if (failed) throw std::bad_alloc();
    }
};

}  // namespace
