// From features to the best next words: log-softmax and top-k.

#include "vectors.hpp"

namespace {

constexpr int64_t BLOCK = 64;  // columns that a top-k looks at together

}  // namespace

extern "C" {

// x (lines, V) -> log-probabilities of x / temperature, in place
void log_softmax(float* x, int64_t lines, int64_t V, float temperature) {
#pragma omp parallel for schedule(static) if (lines * V > WORTH_THREADS / 8)
    for (int64_t i = 0; i < lines; ++i) {
        float *line = x + i * V, highest = -INFINITY, total = 0.0f;
        if (temperature != 1.0f)
            for (int64_t k = 0; k < V; ++k) line[k] /= temperature;
#pragma omp simd reduction(max : highest)
        for (int64_t k = 0; k < V; ++k) highest = std::max(highest, line[k]);
#pragma omp simd reduction(+ : total)
        for (int64_t k = 0; k < V; ++k) total += exponential(line[k] - highest);
        float log_total = std::log(total);
        for (int64_t k = 0; k < V; ++k) line[k] = (line[k] - highest) - log_total;
    }
}

// The k best of each line of x (lines, V), best first, of equals the first: scores and columns (lines, k)
void topk(const float* x, int64_t lines, int64_t V, int64_t k, float* score, int64_t* column) {
#pragma omp parallel for schedule(static) if (lines * V > WORTH_THREADS / 8)
    for (int64_t i = 0; i < lines; ++i) {
        const float* line = x + i * V;
        float* best = score + i * k;
        int64_t *where = column + i * k, found = 0;
        for (int64_t first = 0; first < V; first += BLOCK) {
            int64_t end = std::min(first + BLOCK, V);
            float highest = -INFINITY;
#pragma omp simd reduction(max : highest)
            for (int64_t c = first; c < end; ++c) highest = std::max(highest, line[c]);
            if (found == k && !(highest > best[k - 1])) continue;  // most blocks end here
            for (int64_t c = first; c < end; ++c) {
                if (found == k && !(line[c] > best[k - 1])) continue;
                int64_t place = found < k ? found++ : k - 1;
                for (; place > 0 && line[c] > best[place - 1]; --place) best[place] = best[place - 1], where[place] = where[place - 1];
                best[place] = line[c], where[place] = c;
            }
        }
    }
}

}  // extern "C"
