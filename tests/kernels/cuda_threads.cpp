// An executor of CUDA sources on a CPU: every thread of a block is a fiber, in an order drawn at random, and what it does is watched.
//
// A kernel is compiled with -fsanitize=thread, whose calls before every access come here instead of to that sanitizer. Reported, with the
// kernel stopped: an access outside the tensors it was given and its shared memory; a read of shared memory that its block has not written;
// two accesses to one word by threads that no barrier orders (those of two blocks never are), one of them a write; a barrier or a warp
// collective that not all its threads reach; a lane outside the mask; overflow, shifts and indices that C++ does not define. Compiled with
// -fsanitize=address,undefined, a kernel has tensors of its own between red zones, and those sanitizers watch.
//
// Not shown: the order in which a GPU's memory becomes visible, speed, and blocks side by side (they follow each other, in random order).
// Words have 4 bytes; a smaller access counts as its word's. A write that leaves a tensor's word as it was is no race.
#include "cuda_threads.hpp"

#include <dlfcn.h>
#include <link.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>
#ifdef SANITIZED
extern "C" void __asan_poison_memory_region(const void*, size_t), __asan_unpoison_memory_region(const void*, size_t);
#else
#define __asan_poison_memory_region(begin, bytes)
#define __asan_unpoison_memory_region(begin, bytes)
#endif

constexpr unsigned SHARED = 49152;  // bytes of dynamic shared memory that a launch may ask for
extern "C" {
__thread char dynamic_shared[SHARED] __attribute__((aligned(16)));
#define DYNAMIC(name) extern __thread char name[SHARED] __attribute__((alias("dynamic_shared")));
DYNAMIC_NAMES  // every `extern __shared__` name of the source, all at one address
}
extern const executor::Kernel kernels[];

namespace {
enum Kind { READ, WRITE, ATOMIC };
const char* const VERB[] = {"reads", "writes", "changes"};
enum State { READY, BARRIER, COLLECTIVE, DONE };
struct Fiber {
    ucontext_t context;
    State state;
    int site, lane;
    unsigned mask;
    long value;
};
struct Access {
    int block = -1, thread = 0;
    unsigned epoch = 0;  // barriers before it
};
struct Seen {  // accesses of one kind to a word: the last, the last by another thread, and whether several blocks made some
    Access last, other;
    bool blocks = false;
    bool conflicts(const Access& a) const {
        auto clash = [&](const Access& b) { return b.block == a.block && b.thread != a.thread && b.epoch == a.epoch; };
        return last.block >= 0 && (blocks || last.block != a.block || clash(last) || clash(other));
    }
    void add(const Access& a) {
        blocks |= last.block >= 0 && last.block != a.block;
        if (last.block != a.block || last.thread != a.thread) other = last;
        last = a;
    }
};
struct Word { Seen by[3]; };

constexpr size_t STACK = 1 << 16;
std::vector<Fiber> fibers(1024);
std::vector<char> stacks(1024 * STACK);
std::vector<int> ready;
std::vector<std::pair<const char*, long>> tensors;  // begin and bytes
std::unordered_map<size_t, Word> words;
std::mt19937 chance;
ucontext_t home;
bool active;
int current;
unsigned epoch, shared_bytes;
Place place, threads_of_block, blocks_of_grid;
const executor::Kernel* kernel;
const long* arguments;
std::string report;
char *shared_begin, *shared_end;
struct { const char* address; int size; char before[16]; std::string told; } suspect;  // a write after another thread's

std::string number(long n) { return std::to_string(n); }
std::string line(int site) { return "line " + number(site & 0xffff); }
[[noreturn]] void fail(const std::string& what) {
    report = std::string(kernel->name) + ": thread " + number(current) + " of block " + number(place.x) + ", " + number(place.y) + " " + what;
    suspect.address = nullptr;
    active = false;
    setcontext(&home);
    __builtin_unreachable();
}
void settle() {
    const char* address = suspect.address;
    suspect.address = nullptr;
    if (address && memcmp(address, suspect.before, suspect.size)) fail(suspect.told);
}
void pause(State state) {
    settle();
    fibers[current].state = state;
    if (state == READY) ready.push_back(current);
    swapcontext(&fibers[current].context, &home);
}
void enter() {
    kernel->run(arguments);
    settle();
    fibers[current].state = DONE;
}

// Wait until the threads from..to of the mask have all come to this site; the last one calls `done` before the others go on.
template <class Done> void meet(int from, int to, unsigned mask, State state, int site, Done done) {
    Fiber& mine = fibers[current];
    mine.site = site, mine.mask = mask, mine.state = state;
    auto in = [&](int i) { return state == BARRIER || mask >> (i - from) & 1; };
    for (int i = from; i < to; i++)
        if (in(i) && (fibers[i].state != state || fibers[i].site != site || fibers[i].mask != mask)) return pause(state);
    settle();
    done();
    for (int i = from; i < to; i++)
        if (in(i) && (fibers[i].state = READY, i != current)) ready.push_back(i);
}

void run_block() {
    __asan_unpoison_memory_region(dynamic_shared, SHARED);
    for (char* byte = shared_begin; byte < shared_end; byte += 4) *(unsigned*)byte = chance();  // what another kernel left
    __asan_poison_memory_region(dynamic_shared + shared_bytes, SHARED - shared_bytes);
    for (size_t at = size_t(shared_begin) / 4; at < size_t(shared_end) / 4; at++) words.erase(at);
    epoch = 0;
    const int n = threads_of_block.x;
    for (int i = 0; i < n; i++) {
        ucontext_t& context = fibers[i].context;
        getcontext(&context);
        context.uc_stack.ss_sp = &stacks[i * STACK];
        context.uc_stack.ss_size = STACK;
        context.uc_link = &home;
        makecontext(&context, enter, 0);
        fibers[i].state = READY;
    }
    ready.resize(n);
    std::iota(ready.begin(), ready.end(), 0);
    while (!ready.empty()) {
        std::swap(ready[chance() % ready.size()], ready.back());
        current = ready.back();
        ready.pop_back();
        active = true;
        swapcontext(&home, &fibers[current].context);
        active = false;
        if (!report.empty()) return;
    }
    for (current = 0; current < n && fibers[current].state == DONE;) current++;
    for (int other = 0; current < n; other++) {
        const Fiber& f = fibers[other % n];
        bool last = other >= 2 * n;
        if (f.state != DONE && f.site == fibers[current].site && f.mask == fibers[current].mask && !last) continue;
        report = std::string(kernel->name) + ": thread " + number(current) + " waits in " + line(fibers[current].site) + " for thread " +
                 number(other % n) + (f.state == DONE ? ", which has ended" : ", which waits in " + line(f.site));
        return;
    }
}

int find_shared(dl_phdr_info* info, size_t, void* base) {
    for (int i = 0; i < info->dlpi_phnum && (void*)info->dlpi_addr == base; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS) {
            shared_begin = (char*)info->dlpi_tls_data;
            shared_end = shared_begin + info->dlpi_phdr[i].p_memsz / 4 * 4;
        }
    return 0;
}
}  // namespace

namespace executor {
Place thread() { return {unsigned(current), 0, 0}; }
Place block() { return place; }
Place threads() { return threads_of_block; }
Place blocks() { return blocks_of_grid; }

void barrier(int site) {
    meet(0, threads_of_block.x, 0, BARRIER, site, [] { epoch++; });
}

long collective(unsigned mask, long value, int lane, int site) {
    int from = current / 32 * 32, to = std::min(from + 32, int(threads_of_block.x));
    if (!(mask >> (current - from) & 1)) fail("is not in its own mask in " + line(site));
    if (to - from < 32 && mask >> (to - from)) fail("names lanes beyond its block in " + line(site));
    if (lane >= 0 && !(mask >> lane & 1)) fail("asks for lane " + number(lane) + ", which is not in the mask, in " + line(site));
    Fiber& mine = fibers[current];
    mine.value = value, mine.lane = lane;
    meet(from, to, mask, COLLECTIVE, site, [&] {
        long given[32], ballot = 0;
        for (int i = from; i < to; i++) given[i - from] = fibers[i].value, ballot |= long(mask >> (i - from) & fibers[i].value & 1) << (i - from);
        for (int i = from; i < to; i++)
            if (mask >> (i - from) & 1) fibers[i].value = fibers[i].lane < 0 ? ballot : given[fibers[i].lane];
    });
    return mine.value;
}

void access(const void* address, int size, int kind) {
    if (!active) return;
    settle();
    const char* p = (const char*)address;
    if (p >= stacks.data() && p < stacks.data() + stacks.size()) return;
    if (chance() % (kind == ATOMIC ? 4 : 32) == 0) pause(READY);
#ifndef SANITIZED
    bool shared = p >= shared_begin && p < shared_end;
    const char* beyond = dynamic_shared + shared_bytes;
    auto holds = [&](std::pair<const char*, long> t) { return p >= t.first && p + size <= t.first + t.second; };
    if (shared ? p + size > beyond && p < dynamic_shared + SHARED && p >= dynamic_shared : std::none_of(tensors.begin(), tensors.end(), holds)) {
        std::string where = shared ? ", byte " + number(p - dynamic_shared) + " of " + number(shared_bytes) + " of shared memory" : "";
        for (auto& [begin, bytes] : tensors)
            if (!shared && labs(p - begin) < 1 << 20) where += ", byte " + number(p - begin) + " of " + number(bytes);
        fail(std::string(VERB[kind]) + " out of bounds" + where);
    }
    std::string what = std::string(VERB[kind]) + (shared ? " a word of shared memory " : " a word of a tensor ");
    Access a{int(place.y * blocks_of_grid.x + place.x), current, epoch};
    for (size_t at = size_t(p) / 4; at <= (size_t(p) + size - 1) / 4; at++) {
        Seen(&by)[3] = words[at].by;
        if (shared && kind != WRITE && by[WRITE].last.block < 0) fail(what + "that its block has not written");
        for (Kind other : {READ, ATOMIC, WRITE}) {
            if (other == kind ? kind != WRITE : kind != WRITE && other == READ) continue;
            if (!by[other].conflicts(a)) continue;
            std::string told = what + "that another thread " + VERB[other] + ", with no barrier between";
            if (other == READ || kind != WRITE || shared) fail(told);
            suspect.address = p, suspect.size = size, suspect.told = told;
            memcpy(suspect.before, p, size);
        }
        by[kind].add(a);
    }
#endif
}
}  // namespace executor

extern "C" {
// Run a kernel; null, or in words what it does wrong. bytes: of each tensor; letters: cuda_threads.hpp.
const char* launch(const char* name, const unsigned* grid, unsigned block, unsigned shared, const long* values, const long* bytes,
                   const char* letters, unsigned seed) {
    for (kernel = kernels; strcmp(kernel->name, name); kernel++)
        if (!kernel->name[0]) return "there is no such kernel";
    auto fits = [](char given, char wanted) { return given == wanted || (wanted == 'U' && given != 'i'); };
    if (!std::equal(letters, letters + strlen(letters), kernel->types, kernel->types + strlen(kernel->types), fits)) return kernel->types;
    if (!grid[0] || !grid[1] || grid[0] >> 31 || grid[1] > 65535 || !block || block > 1024 || shared > SHARED) return "no GPU launches this";
    Dl_info info;
    dladdr((void*)kernels, &info);
    dl_iterate_phdr(find_shared, (dynamic_shared[0] = 0, info.dli_fbase));
    std::vector<long> own(values, values + strlen(letters));
    tensors.clear();
    for (size_t i = 0; i < own.size(); i++) {
        if (letters[i] == 'i') continue;
#ifdef SANITIZED
        own[i] = (long)memcpy(new char[bytes[i]], values[i] ? (void*)values[i] : &own, bytes[i]);
#endif
        tensors.push_back({(const char*)own[i], bytes[i]});
    }
    chance.seed(seed);
    arguments = own.data(), shared_bytes = shared;
    threads_of_block = {block, 1, 1}, blocks_of_grid = {grid[0], grid[1], 1};
    report.clear();
    words.clear();
    std::vector<unsigned> order(size_t(grid[0]) * grid[1]);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), chance);
    for (unsigned at : order) {
        place = {at % grid[0], at / grid[0], 0};
        run_block();
        if (!report.empty()) return report.c_str();
    }
#ifdef SANITIZED
    for (size_t i = 0; i < own.size(); i++)
        if (letters[i] != 'i' && bytes[i]) memcpy((void*)values[i], (void*)own[i], bytes[i]);
#endif
    return nullptr;
}

#ifndef SANITIZED  // what the compiler calls before accesses, and where an operation is not defined
#define WATCH(size)                                                                  \
    void __tsan_read##size(void* p) { executor::access(p, size, READ); }             \
    void __tsan_write##size(void* p) { executor::access(p, size, WRITE); }           \
    void __tsan_unaligned_read##size(void* p) { executor::access(p, size, READ); }   \
    void __tsan_unaligned_write##size(void* p) { executor::access(p, size, WRITE); }
WATCH(1) WATCH(2) WATCH(4) WATCH(8) WATCH(16)
void __tsan_read_range(void* p, long size) { executor::access(p, int(size), READ); }
void __tsan_write_range(void* p, long size) { executor::access(p, int(size), WRITE); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
struct Source { const char* file; unsigned line, column; };
#define UNDEFINED(name) \
    void __ubsan_handle_##name(Source* at) { fail("does what C++ does not define (" #name ") in line " + number(at->line)); }
UNDEFINED(add_overflow) UNDEFINED(sub_overflow) UNDEFINED(mul_overflow) UNDEFINED(negate_overflow) UNDEFINED(divrem_overflow)
UNDEFINED(shift_out_of_bounds) UNDEFINED(out_of_bounds)
#endif
}
