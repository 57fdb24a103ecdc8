// Log-probabilities of all words from weights that were rounded to 8 bits at random, the best words' from the weights themselves, and a
// bound of what the rounding of the others changes. softmax/random_rounding.py holds the definition, the bound and why it holds.
//
// Shapes: n rows, V words, d features. A state is two lines of 8 bits, high and low byte of its 16.

#include <tuple>
#include <utility>

#include "decoder/linear.hpp"
#include "softmax/shortlist.hpp"
#include "search/topk.hpp"

namespace {

constexpr float SAFETY = 1.001f;   // for the rounding of the bounds themselves
constexpr float ROUNDING = 1e-6f;  // of float32, in sums of probabilities
constexpr float STEP = 0.5f;       // nats by which more words are scored again, if need be
constexpr int STEPS = 8;           // at most
constexpr float GRID = 8.0f;       // thresholds a nat
constexpr float WHOLE = 32512.0f;  // largest of 16 bits whose high byte is one of -127 to 127
constexpr int SLIM = VECTORS / 2, COLUMNS = SLIM * LANES;  // of a panel here: half of PANEL, so that more lines meet it at once
constexpr int MOST_ROWS = 5;  // that do: 10 lines times SLIM vectors are 20 of 32 registers

// screen_int8.py reads its fields from here
struct ScreenInt8 {
    const int32_t* packed;         // (panels, d / 4, COLUMNS) four weights each
    const float* scale;            // (panels x COLUMNS,) of each word
    const int32_t* offset;         // (panels x COLUMNS,) 128 x the sum of the word's weights
    const float *weight, *bias;    // (V, d); (V,) or null
    const int64_t* always;         // (kept,) ids that are scored again in every row
    int64_t kept, V, d, m, more;   // about m words are scored again, up to `more` where they do not do
    double temperature, tolerance;
    double coarsest, longest;      // largest scale; largest norm of a word's weights
    double tail, reach;            // L; how many deviations no logit is beyond
};

// R lines (bytes of 2 states each R = 2, ...) times a panel. The next weights are prefetched where they come from memory
template <int R, bool FIRST>
inline void panel_bytes(const int32_t* x, int64_t stride, const int32_t* weight, int64_t fours, ints sums[R][SLIM]) {
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < SLIM; ++v) sums[r][v] = ints{};
    for (int64_t k = 0; k < fours; ++k, weight += COLUMNS) {
        if constexpr (FIRST)
            for (int64_t b = 0; b < COLUMNS * 4; b += 64) __builtin_prefetch(reinterpret_cast<const char*>(weight) + AHEAD + b);
        ints w[SLIM];
        for (int v = 0; v < SLIM; ++v) w[v] = *reinterpret_cast<const loose_ints*>(weight + v * LANES);
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < SLIM; ++v) sums[r][v] = dot4(sums[r][v], x[r * stride + k], w[v]);
    }
}

// States as bytes: lines (2n, d) unsigned, high then low; unit (n,) what the low byte counts in; rest (n,) the norm of what is lost
void split(const float* x, int64_t n, int64_t d, uint8_t* lines, float* unit, float* rest) {
    for (int64_t i = 0; i < n; ++i) {
        const float* from = x + i * d;
        float largest = 0.0f;
        for (int64_t k = 0; k < d; ++k) largest = std::max(largest, std::fabs(from[k]));
        const float factor = largest > 0.0f ? WHOLE / largest : 0.0f;
        unit[i] = largest / WHOLE;
        double lost = 0.0;
        for (int64_t k = 0; k < d; ++k) {
            const float nearest = std::nearbyint(from[k] * factor);
            const int32_t whole = nearest == nearest ? static_cast<int32_t>(nearest) : 0;
            const int32_t high = (whole + 128) >> 8;
            lines[2 * i * d + k] = static_cast<uint8_t>(high + 128);
            lines[(2 * i + 1) * d + k] = static_cast<uint8_t>(whole - 256 * high + 128);
            const double off = from[k] - static_cast<double>(whole) * unit[i];
            lost += off * off;
        }
        rest[i] = static_cast<float>(std::sqrt(lost));  // NaN where a state is
    }
}

// Logits y (n, V) of the rounded weights, and the largest of each panel, maxima (n, panels)
struct Product {
    const ScreenInt8& s;
    const uint8_t* lines;
    const float* unit;
    int64_t panels;
    float *y, *maxima;

    template <int R, bool FIRST>
    void rows(int64_t panel, int64_t row) const {
        const int64_t fours = s.d / 4, first = panel * COLUMNS, columns = std::min<int64_t>(COLUMNS, s.V - first);
        ints sums[2 * R][SLIM];
        panel_bytes<2 * R, FIRST>(reinterpret_cast<const int32_t*>(lines) + 2 * row * fours, fours, s.packed + panel * fours * COLUMNS, fours, sums);
        for (int r = 0; r < R; ++r) {
            const float times = unit[row + r] / static_cast<float>(s.temperature);
            alignas(64) float logits[COLUMNS];
            for (int v = 0; v < SLIM; ++v) {
                const ints offset = LESS_128 ? ints{} : (ints)*reinterpret_cast<const loose_ints*>(s.offset + first + v * LANES);
                const floats high = __builtin_convertvector((ints)(sums[2 * r][v] - offset), floats);
                const floats low = __builtin_convertvector((ints)(sums[2 * r + 1][v] - offset), floats);
                store(logits + v * LANES, (high * 256.0f + low) * (load(s.scale + first + v * LANES) * times));
            }
            if (s.bias)
                for (int64_t c = 0; c < columns; ++c) logits[c] += s.bias[first + c] / static_cast<float>(s.temperature);
            for (int64_t c = columns; c < COLUMNS; ++c) logits[c] = -INFINITY;
            std::memcpy(y + (row + r) * s.V + first, logits, columns * sizeof(float));
            float highest = logits[0];
            for (int c = 1; c < COLUMNS; ++c) highest = std::max(highest, logits[c]);
            maxima[(row + r) * panels + panel] = highest;
        }
    }

    template <bool FIRST>
    void group(int64_t panel, int64_t row, int64_t n) const {
        switch (n) {
            case 1: return rows<1, FIRST>(panel, row);
            case 2: return rows<2, FIRST>(panel, row);
            case 3: return rows<3, FIRST>(panel, row);
            case 4: return rows<4, FIRST>(panel, row);
            default: return rows<MOST_ROWS, FIRST>(panel, row);
        }
    }

    void panel(int64_t at, int64_t n) const {
        const int64_t groups = (n + MOST_ROWS - 1) / MOST_ROWS, many = (n + groups - 1) / groups;
        group<true>(at, 0, many);
        for (int64_t row = many; row < n; row += many) group<false>(at, row, std::min(many, n - row));
    }
};

struct Sums {
    float first, second;
};

// Sums of e^(x - highest) over a line, and of the squares of e^(x - highest) scale
Sums sums_of_powers(const float* line, const float* scale, int64_t V, float highest) {
    floats first[4] = {}, second[4] = {};
    int64_t k = 0;
    for (; k + BLOCK <= V; k += BLOCK)
        for (int v = 0; v < 4; ++v) {
            const floats power = exponential(load(line + k + v * LANES) - highest), scaled = power * load(scale + k + v * LANES);
            first[v] += power;
            second[v] += scaled * scaled;
        }
    Sums total{sum((first[0] + first[1]) + (first[2] + first[3])), sum((second[0] + second[1]) + (second[2] + second[3]))};
    for (; k < V; ++k) {
        const float power = exponential(line[k] - highest), scaled = power * scale[k];
        total.first += power;
        total.second += scaled * scaled;
    }
    return total;
}

// One row: the words at or above a threshold are scored again
struct Row {
    const ScreenInt8& s;
    const float *x, *maxima;  // (d,), (panels,)
    float* line;              // (V,) rounded logits
    float norm, lost;         // of the rounded state, and of what its rounding lost; both over the temperature
    std::vector<int64_t>& ids;
    std::vector<float>&exact, &near;

    // The words from `from` up to below `to`, unless that makes too many; the first time those of `always` with them
    bool take(float from, float to, bool first) {
        const size_t before = ids.size();
        for (int64_t k = 0, panel = 0; k < s.V; k += COLUMNS, ++panel) {
            if (!(maxima[panel] >= from)) continue;
            for (int64_t i = k; i < std::min<int64_t>(k + COLUMNS, s.V); ++i)
                if (line[i] >= from && line[i] < to) ids.push_back(i);
            if (!first && ids.size() > static_cast<size_t>(s.more)) {
                ids.resize(before);
                return false;
            }
        }
        const size_t found = ids.size();
        for (int64_t i = 0; first && i < s.kept; ++i)
            if (std::find(ids.begin(), ids.begin() + found, s.always[i]) == ids.begin() + found) ids.push_back(s.always[i]);
        exact.resize(ids.size()), near.resize(ids.size());
        gathered_linear(x, 1, s.d, s.weight, s.bias, ids.data() + before, static_cast<int64_t>(ids.size() - before), exact.data() + before);
        for (size_t i = before; i < ids.size(); ++i) {
            exact[i] /= static_cast<float>(s.temperature);
            near[i] = line[ids[i]];
        }
        return true;
    }

    // Bound of |log Z - log Z'|; rest: the share of the words that were taken as rounded, square: the sum of their (share x scale)^2,
    // most: the largest share of one
    float error_of_log_z(float rest, float square, float most) const {
        rest += ROUNDING;
        const float L = static_cast<float>(s.tail), deviation = 0.5f * norm * static_cast<float>(s.coarsest);
        const float h = static_cast<float>(s.reach) * deviation, moved = lost * static_cast<float>(s.longest);
        most = std::min(most, rest);
        const float together = std::sqrt(2.0f * L) * 0.5f * norm * std::sqrt(square);
        const float squares = rest + 8.0f * std::max(std::sqrt(L * most * rest), L * most);
        const float share =
            std::exp(h + moved) * (together + 0.5f * std::exp(h) * deviation * deviation * squares + rest * std::expm1(moved));
        return share < 0.5f ? -std::log1p(-share) * SAFETY : INFINITY;
    }

    // Log-probabilities into the line and 1 into known (V,) at those that are exact; returns a log-probability that no other word
    // exceeds, and the bound of log Z's error
    std::pair<float, float> finish(uint8_t* known, std::vector<float>& sorted, int64_t panels) {
        sorted.assign(maxima, maxima + panels);
        const int64_t nth = std::min(s.m, (panels + 3) / 4) - 1;
        std::nth_element(sorted.begin(), sorted.begin() + nth, sorted.end(), [](float a, float b) { return a > b; });
        const float h = static_cast<float>(s.reach) * 0.5f * norm * static_cast<float>(s.coarsest) + lost * static_cast<float>(s.longest);
        auto threshold_of = [&](float from) { return std::ceil((from + h * SAFETY) * GRID) / GRID; };
        float from = sorted[nth], threshold = threshold_of(from);
        take(from, INFINITY, true);
        const float highest = std::max(threshold, *std::max_element(exact.begin(), exact.end()));
        for (size_t i = 0; i < ids.size(); ++i) line[ids[i]] = exact[i] > threshold ? -INFINITY : near[i];
        // subtle: a word below the threshold counts as rounded, also if it was scored again
        const Sums first = sums_of_powers(line, s.scale, s.V, highest);
        double total = 0.0, rest = first.first, square = first.second;
        for (float logit : exact) total += logit > threshold ? std::exp(logit - highest) : 0.0f;
        auto error_so_far = [&] {
            const float Z = static_cast<float>(total + rest);
            const float most = std::exp(threshold + h - highest) / Z;
            return error_of_log_z(static_cast<float>(rest) / Z, static_cast<float>(std::max(square, 0.0) + ROUNDING * first.second) / (Z * Z), most);
        };
        float error = error_so_far();
        for (int step = 0; step < STEPS && !(error <= static_cast<float>(s.tolerance)); ++step) {
            if (!take_more(from - STEP, from)) break;
            from -= STEP;
            const float before = threshold;
            threshold = threshold_of(from);
            for (size_t i = 0; i < ids.size(); ++i)
                if (exact[i] > threshold && !(exact[i] > before)) {
                    const double power = std::exp(near[i] - highest), scaled = power * s.scale[ids[i]];
                    rest -= power, square -= scaled * scaled, total += std::exp(exact[i] - highest);
                }
            error = error_so_far();
        }
        for (size_t i = 0; i < ids.size(); ++i) {
            line[ids[i]] = exact[i];
            known[ids[i]] = 1;
        }
        const float log_total = static_cast<float>(std::log(total + rest));
        for (int64_t k = 0; k < s.V; ++k) line[k] = (line[k] - highest) - log_total;
        return {(threshold - highest) - log_total, error};
    }

    // The words below those taken, but for those of `always`, which are in already
    bool take_more(float from, float to) {
        std::vector<float> kept(s.kept);
        for (int64_t i = 0; i < s.kept; ++i) kept[i] = line[s.always[i]], line[s.always[i]] = -INFINITY;
        const bool found = take(from, to, false);
        for (int64_t i = 0; i < s.kept; ++i) line[s.always[i]] = kept[i];
        return found;
    }
};

}  // namespace

extern "C" {

int64_t screen_int8_columns() { return COLUMNS; }

// y (n, V) = log-probabilities of x (n, d); known (n, V), zero before: which of them the full weights gave; ceiling (n,): what no other
// word's log-probability exceeds; error (n,): bound of what log Z is wrong by
void screen_int8(const ScreenInt8* s, const float* x, int64_t n, float* y, uint8_t* known, float* ceiling, float* error) {
    static thread_local std::vector<uint8_t> bytes;
    static thread_local std::vector<float> units, losses, highest;
    const int64_t panels = (s->V + COLUMNS - 1) / COLUMNS;
    uint8_t* lines = scratch(bytes, 2 * n * s->d);
    float *unit = scratch(units, n), *lost = scratch(losses, n), *maxima = scratch(highest, n * panels);
    split(x, n, s->d, lines, unit, lost);
    const Product product{*s, lines, unit, panels, y, maxima};
#pragma omp parallel for schedule(static) if (2 * n * s->d * s->V > 4 * WORTH_THREADS)
    for (int64_t panel = 0; panel < panels; ++panel) product.panel(panel, n);
#pragma omp parallel for schedule(static) if (n * s->V > WORTH_THREADS / 8)
    for (int64_t i = 0; i < n; ++i) {
        thread_local std::vector<int64_t> ids;
        thread_local std::vector<float> exact, near, sorted;
        ids.clear(), exact.clear(), near.clear();
        const float* state = x + i * s->d;
        double squares = 0.0;
        for (int64_t k = 0; k < s->d; ++k) squares += static_cast<double>(state[k]) * state[k];
        const double over = SAFETY / s->temperature;
        const float norm = static_cast<float>((std::sqrt(squares) + lost[i]) * over);
        Row row{*s, state, maxima + i * panels, y + i * s->V, norm, static_cast<float>(lost[i] * over), ids, exact, near};
        if (!(norm < INFINITY)) {  // no number: the row is to be computed in full
            ceiling[i] = INFINITY, error[i] = INFINITY;
            continue;
        }
        std::tie(ceiling[i], error[i]) = row.finish(known + i * s->V, sorted, panels);
    }
}

}  // extern "C"
