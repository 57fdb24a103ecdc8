// An executor of CUDA sources on a CPU: every thread of a block is a fiber, in an order drawn at random, and what it does is watched.
//
// A kernel is compiled with -fsanitize=thread, whose calls before every access come here instead of to that sanitizer. Reported, with the
// kernel stopped: an access outside the tensors it was given and its shared memory; a read of shared memory that its block has not written;
// two accesses to one word by threads that no barrier orders (those of two blocks never are), one of them a write; a barrier or a warp
// collective that not all its threads reach; a lane outside the mask; overflow, shifts and indices that C++ does not define. A kernel that
// is compiled with -fsanitize=address,undefined instead is watched by those sanitizers.
//
// Not shown: the order in which a GPU's memory becomes visible, speed, and blocks side by side (they follow each other, in random order).
// Words have 4 bytes; a smaller access counts as its word's. Two writes to a tensor's word are not reported: what they leave shows them.
#include "cuda_threads.hpp"

#include <ucontext.h>
#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

extern char __start_shared[] __attribute__((weak)), __stop_shared[] __attribute__((weak));  // the linker's; none without shared memory

namespace {
enum Kind { READ, WRITE, ATOMIC };
const char* const VERB[] = {"reads", "writes", "changes"};
enum State { READY, WAITING, DONE };
struct Fiber {
    ucontext_t context;
    State state;
    int site, lane;
    unsigned mask;
    long value;
};
struct Region { const char* begin; long bytes; bool shared; };
struct Seen {  // accesses of one kind to a word
    int block = -1, thread;  // of the first access; of all since the last barrier, -1: several threads
    unsigned epoch;
};

constexpr size_t STACK = 1 << 16;
std::vector<Fiber> fibers(1024);
std::vector<char> stacks(1024 * STACK), dynamic;
std::vector<int> ready;
std::vector<Region> regions;
std::unordered_map<size_t, std::array<Seen, 3>> words;  // by kind
std::mt19937 chance;
ucontext_t home;
unsigned epoch;  // barriers so far, and beginnings of blocks
executor::Places at;
unsigned& current = at.thread.x;
void (*kernel)(...);
const long* a;  // its arguments
std::string report;

std::string number(long n) { return std::to_string(n); }
std::string line(int site) { return "line " + number(site & 0xffff); }
[[noreturn]] void fail(const std::string& what) {
    report = "thread " + number(current) + " of block " + number(at.block.x) + ", " + number(at.block.y) + " " + what;
    setcontext(&home);
    __builtin_unreachable();
}
void pause(State state) {
    fibers[current].state = state;
    if (state == READY) ready.push_back(current);
    swapcontext(&fibers[current].context, &home);
}
void enter() {
    kernel(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15]);
    fibers[current].state = DONE;
}

// Wait until the threads from..to of the mask (0: all) have all reached this site; the last one calls `done` before the others go on.
template <class Done> void meet(int from, int to, unsigned mask, int site, Done done) {
    Fiber& mine = fibers[current];
    mine.site = site, mine.mask = mask, mine.state = WAITING;
    auto in = [&](int i) { return !mask || mask >> (i - from) & 1; };
    for (int i = from; i < to; i++)
        if (in(i) && (fibers[i].state != WAITING || fibers[i].site != site || fibers[i].mask != mask)) return pause(WAITING);
    done();
    for (int i = from; i < to; i++)
        if (in(i) && (fibers[i].state = READY, i != int(current))) ready.push_back(i);
}

void run_block() {
    epoch++;
    ready.clear();
    const int n = at.threads.x;
    for (int i = 0; i < n; i++) {
        ucontext_t& context = fibers[i].context;
        getcontext(&context);
        context.uc_stack = {&stacks[i * STACK], 0, STACK};
        context.uc_link = &home;
        makecontext(&context, enter, 0);
        fibers[i].state = READY;
        ready.push_back(i);
    }
    while (!ready.empty()) {
        std::swap(ready[chance() % ready.size()], ready.back());
        current = ready.back();
        ready.pop_back();
        swapcontext(&home, &fibers[current].context);
        if (!report.empty()) return;
    }
    auto waits = std::find_if(fibers.begin(), fibers.begin() + n, [](Fiber& f) { return f.state != DONE; });
    if (waits == fibers.begin() + n) return;
    auto misses = [&](Fiber& f) { return f.state == DONE || f.site != waits->site || f.mask != waits->mask; };
    auto missed = std::find_if(fibers.begin(), fibers.begin() + n, misses);
    report = "thread " + number(waits - fibers.begin()) + " waits in " + line(waits->site) + " for thread " + number(missed - fibers.begin()) +
             (missed->state == DONE ? ", which has ended" : ", which waits in " + line(missed->site));
}
}  // namespace

namespace executor {
Places here() { return at; }
char* dynamic_shared() { return dynamic.data(); }

void barrier(int site) { meet(0, at.threads.x, 0, site, [] { epoch++; }); }

long collective(unsigned mask, long value, int lane, int site) {
    int from = current / 32 * 32, to = std::min(from + 32, int(at.threads.x));
    if (!(mask >> (current - from) & 1)) fail("is not in its own mask in " + line(site));
    if (to - from < 32 && mask >> (to - from)) fail("names lanes beyond its block in " + line(site));
    if (lane >= 0 && !(mask >> lane & 1)) fail("asks for lane " + number(lane) + ", which is not in the mask, in " + line(site));
    Fiber& mine = fibers[current];
    mine.value = value, mine.lane = lane;
    meet(from, to, mask, site, [&] {
        long given[32], ballot = 0;
        for (int i = from; i < to; i++) given[i - from] = fibers[i].value, ballot |= long(mask >> (i - from) & fibers[i].value & 1) << (i - from);
        for (int i = from; i < to; i++)
            if (mask >> (i - from) & 1) fibers[i].value = fibers[i].lane < 0 ? ballot : given[fibers[i].lane];
    });
    return mine.value;
}

void access(const void* address, int size, int kind) {
    const char* p = (const char*)address;
    if (p >= stacks.data() && p < stacks.data() + stacks.size()) return;
    if (chance() % (kind == ATOMIC ? 4 : 32) == 0) pause(READY);
    auto holds = [&](const Region& r) { return p >= r.begin && p + size <= r.begin + r.bytes; };
    auto region = std::find_if(regions.begin(), regions.end(), holds);
    if (region == regions.end()) fail(std::string(VERB[kind]) + " out of bounds");
    bool shared = region->shared;
    auto message = [&](const std::string& end) { return VERB[kind] + std::string(shared ? " shared memory " : " a tensor's word ") + end; };
    int block = at.block.y * at.blocks.x + at.block.x;
    for (size_t word = size_t(p) / 4; word <= (size_t(p) + size - 1) / 4; word++) {
        auto& by = words[word];
        for (Seen& of : by)
            if (shared && of.block != block) of.block = -1;  // another block's memory
        if (shared && kind != WRITE && by[WRITE].block < 0) fail(message("that its block has not written"));
        for (int other : {READ, ATOMIC, WRITE}) {
            const Seen& of = by[other];
            bool ordered = of.block < 0 || (of.block == block && (of.epoch != epoch || of.thread == int(current)));
            if (ordered || (other == kind && (kind != WRITE || !shared))) continue;
            fail(message(std::string("that another thread ") + VERB[other] + ", with no barrier between"));
        }
        Seen& mine = by[kind];
        mine.thread = mine.block >= 0 && mine.epoch == epoch && mine.thread != int(current) ? -1 : current;
        mine.epoch = epoch;
        if (mine.block < 0) mine.block = block;
    }
}
}  // namespace executor

extern "C" {
// Run a kernel; null, or in words what it does wrong. values, bytes: 16 arguments, and how long those are that are tensors.
const char* launch(void (*f)(...), const unsigned* grid, unsigned block, unsigned shared, const long* values, const long* bytes, unsigned seed) {
    kernel = f, a = values;
    at.threads = {block, 1, 1}, at.blocks = {grid[0], grid[1], 1};
    std::vector<char>(shared).swap(dynamic);
    regions = {{__start_shared, __stop_shared - __start_shared, true}, {dynamic.data(), long(shared), true}};
    for (int i = 0; i < 16; i++) regions.push_back({(const char*)values[i], bytes[i], false});
    chance.seed(seed);
    report.clear();
    words.clear();
    std::vector<unsigned> order(size_t(grid[0]) * grid[1]);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), chance);
    for (unsigned i : order) {
        at.block = {i % grid[0], i / grid[0], 0};
        run_block();
        if (!report.empty()) return report.c_str();
    }
    return nullptr;
}

// What the compiler calls before accesses, and where an operation is not defined
#define WATCH(size)                                                      \
    void __tsan_read##size(void* p) { executor::access(p, size, READ); } \
    void __tsan_write##size(void* p) { executor::access(p, size, WRITE); }
WATCH(1) WATCH(2) WATCH(4) WATCH(8) WATCH(16)
void __tsan_init() {}
struct Source { const char* file; unsigned line, column; };
#define UNDEFINED(name) \
    void __ubsan_handle_##name(Source* at) { fail("does what C++ does not define (" #name ") in line " + number(at->line)); }
UNDEFINED(add_overflow) UNDEFINED(sub_overflow) UNDEFINED(mul_overflow) UNDEFINED(negate_overflow) UNDEFINED(divrem_overflow)
UNDEFINED(shift_out_of_bounds) UNDEFINED(out_of_bounds)
}
