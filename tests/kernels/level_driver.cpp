// Runs on its own, without Python, as on a processor that is not there (test_levels.py): kernels of one level against loops in double
// precision, 8-bit products against their sum of whole numbers. Prints what differs; its status is the number of that.
//
//     level_driver LEVEL      fails as well where the processor does not have that level

#include <cstdio>

#include "transformer.cpp"
#include "levels.cpp"
#include "log_probs.cpp"

namespace {

int failures = 0;
uint32_t state = 1;

float number() {  // -1 to 1
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(state >> 8) / (1 << 23) - 1.0f;
}

std::vector<float> numbers(int64_t count) {
    std::vector<float> out(count);
    for (float& each : out) each = number();
    return out;
}

void near(const char* what, double got, double expected, double tolerance) {
    if (std::fabs(got - expected) <= tolerance) return;
    if (++failures < 20) std::printf("%s: %.9g instead of %.9g\n", what, got, expected);
}

// Weights as transformer.py packs them, from whole numbers or others w (out, in)
template <class T>
struct Packed {
    std::vector<T> weight;
    std::vector<float> scale;
    std::vector<int32_t> offset;
    Packed(const std::vector<float>& w, int64_t in, int64_t out, int64_t together) {
        const int64_t panels = (out + PANEL - 1) / PANEL;
        weight.resize(panels * in * PANEL), scale.assign(panels * PANEL, 1.0f), offset.resize(panels * PANEL);
        for (int64_t o = 0; o < out; ++o)
            for (int64_t k = 0; k < in; ++k) {
                const T value = static_cast<T>(w[o * in + k]);
                weight[(o / PANEL * in + k / together * together) * PANEL + o % PANEL * together + k % together] = value;
                offset[o] += 128 * static_cast<int32_t>(value);
            }
    }
    Linear linear(const float* bias, int64_t in, int64_t out, Kind kind) const {
        return {weight.data(), bias, scale.data(), offset.data(), in, out, kind};
    }
};

void linear_layers() {
    const int64_t shapes[][3] = {{1, 4, 1}, {2, 8, 63}, {3, 64, 64}, {5, 16, 130}, {6, 32, 33}, {13, 64, 96}, {1, 36, 161}, {2, 8, 300}, {7, 20, 100}, {16, 64, 65}, {37, 96, 130}};
    for (auto [lines, in, out] : shapes) {
        auto x = numbers(lines * in), w = numbers(out * in), bias = numbers(out);
        std::vector<float> y(lines * out), whole_w(out * in), whole_x(lines * in);
        linear(&(const Linear&)Packed<float>(w, in, out, 1).linear(bias.data(), in, out, FLOAT32), x.data(), lines, y.data(), RELU);
        for (int64_t i = 0; i < lines; ++i)
            for (int64_t o = 0; o < out; ++o) {
                double sum = bias[o];
                for (int64_t k = 0; k < in; ++k) sum += static_cast<double>(x[i * in + k]) * w[o * in + k];
                near("float32", y[i * out + o], std::max(sum, 0.0), 2e-5);
            }
        for (float& each : whole_w) each = std::nearbyint(number() * 127.0f);
        for (float& each : whole_x) each = std::nearbyint(number() * 127.0f);
        for (int64_t i = 0; i < lines; ++i) whole_x[i * in] = i % 2 ? 127.0f : -127.0f;  // so that its scale is 1
        for (Kind kind : {INT8, INT16}) {
            const Packed<int8_t> bytes(whole_w, in, out, 4);
            const Packed<int16_t> shorts(whole_w, in, out, 1);
            const Linear map = kind == INT8 ? bytes.linear(nullptr, in, out, kind) : shorts.linear(nullptr, in, out, kind);
            linear(&map, whole_x.data(), lines, y.data(), PLAIN);
            for (int64_t i = 0; i < lines; ++i)
                for (int64_t o = 0; o < out; ++o) {
                    int64_t sum = 0;
                    for (int64_t k = 0; k < in; ++k) sum += static_cast<int64_t>(whole_x[i * in + k]) * static_cast<int64_t>(whole_w[o * in + k]);
                    near(kind == INT8 ? "int8" : "int16", y[i * out + o], static_cast<double>(sum), 0.0);
                }
        }
    }
}

void normalisers() {
    for (int64_t V : {1, 7, 64, 1000}) {
        auto x = numbers(V);
        for (float& each : x) each *= 20.0f;
        auto y = x;
        double total = 0.0;
        for (float each : x) total += std::exp(static_cast<double>(each));
        log_softmax(y.data(), 1, V, 1.0f);
        for (int64_t k = 0; k < V; ++k) near("log-softmax", y[k], x[k] - std::log(total), 2e-5);
        float best[3];
        int64_t column[3];
        topk(x.data(), 1, V, std::min<int64_t>(3, V), best, column);
        auto sorted = x;
        std::sort(sorted.begin(), sorted.end(), std::greater<float>());
        for (int64_t k = 0; k < std::min<int64_t>(3, V); ++k) near("top-k", x[column[k]], sorted[k], 0.0);
    }
}

// Attention of a sentence's positions to each other, heads of h features (whole vectors and others)
void attention(int64_t heads, int64_t h, int64_t length) {
    const int64_t d = heads * h;
    auto in = numbers(3 * length * d);
    std::vector<float> score(length + LANES), out(d);
    VisiblePositions visible{in.data() + d, in.data() + 2 * d, h, 3 * d, length, nullptr};
    for (int64_t i = 0; i < length; ++i) {
        attend(in.data() + i * 3 * d, visible, heads, h, score.data(), out.data());
        for (int64_t head = 0; head < heads; ++head) {
            std::vector<double> power(length);
            double total = 0.0;
            for (int64_t j = 0; j < length; ++j) {
                double dot = 0.0;
                for (int64_t k = head * h; k < (head + 1) * h; ++k) dot += static_cast<double>(in[i * 3 * d + k]) * in[j * 3 * d + d + k];
                total += power[j] = std::exp(dot);
            }
            for (int64_t k = head * h; k < (head + 1) * h; ++k) {
                double sum = 0.0;
                for (int64_t j = 0; j < length; ++j) sum += power[j] / total * in[j * 3 * d + 2 * d + k];
                near("attention", out[k], sum, 1e-5);
            }
        }
    }
}

}  // namespace

int main(int count, char** given) {
    if (count > 1 && !supports(given[1])) std::printf("the processor lacks %s\n", given[1]), ++failures;
    if (!works()) std::printf("works() says no\n"), ++failures;
    linear_layers();
    normalisers();
    for (int64_t h : {3, 4, 8, 16, 48, 64, 80, 128})
        for (int64_t heads : {1, 2, 3}) attention(heads, h, 21);
    return std::min(failures, 99);
}
