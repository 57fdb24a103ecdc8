// Seconds of a kernel's stages, measured by one of the system's clocks.
#pragma once

#include <cstdint>
#include <ctime>

namespace {

struct Stages {
    clockid_t clock;
    double last;  // time of the last call of `next`

    explicit Stages(int64_t id) : clock(static_cast<clockid_t>(id)) { last = now(); }

    double now() const {
        timespec time;
        clock_gettime(clock, &time);
        return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    }

    // Return the seconds since the last call
    double next() {
        const double before = last;
        last = now();
        return last - before;
    }
};

}  // namespace
