// An operator new that fails when it is reported to.

#include <atomic>
#include <cstdlib>
#include <new>

#include "entry.hpp"

namespace {

std::atomic<int64_t> left{-1};  // allocations until one fails; negative: none does

}  // namespace

void* operator new(std::size_t size) {
    if (left >= 0 && left-- == 0) throw std::bad_alloc();
    void* made = std::malloc(size);
    if (!made) throw std::bad_alloc();
    return made;
}

void operator delete(void* made) noexcept { std::free(made); }
void operator delete(void* made, std::size_t) noexcept { std::free(made); }

// The allocation after `count` more ones fails; returns how many were left to be made since the last time
ENTRY int64_t starve(int64_t after) { return left.exchange(after); }
