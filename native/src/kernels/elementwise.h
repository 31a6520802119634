// Norm, rotation, gating, and the roundings between them: one row at a time.
#pragma once

#include <math.h>

#include "../kernels.h"
#include "activation.h"
#include "decode.h"

namespace trivium::TRIVIUM_ISA {

static void rms_norm(const float* x, const float* weight, float eps, float* out, int64_t dim) {
    constexpr int parts = 16 / lanes;  // sixteen sums for every width of vectors, and then one tree
    Vec squares[parts] = {};
    int64_t i = 0;
    for (; i + 16 <= dim; i += 16)
        for (int p = 0; p < parts; ++p) {
            const Vec v = load(x + i + p * lanes);
            squares[p] = fma(v, v, squares[p]);
        }
    float sums[parts];
    for (int p = 0; p < parts; ++p) sums[p] = lane_sum(squares[p]);
    for (int left = parts; left > 1; left /= 2)
        for (int p = 0; p < left / 2; ++p) sums[p] = sums[2 * p] + sums[2 * p + 1];
    float sum = sums[0];
    for (; i < dim; ++i) sum = fma(x[i], x[i], sum);
    const float scale = 1.0f / sqrtf(sum / static_cast<float>(dim) + eps);
    for (i = 0; i < dim; ++i) out[i] = x[i] * scale * weight[i];
}

// (x - mean) / sqrt(variance + eps) * weight + bias
static void layer_norm(const float* x, const float* weight, const float* bias, float eps, float* out, int64_t dim) {
    Vec sums{};
    int64_t i = 0;
    for (; i + lanes <= dim; i += lanes) sums += load(x + i);
    float sum = lane_sum(sums);
    for (; i < dim; ++i) sum += x[i];
    const float mean = sum / static_cast<float>(dim);
    Vec squares{};
    for (i = 0; i + lanes <= dim; i += lanes) {
        const Vec rest = load(x + i) - splat(mean);
        squares = fma(rest, rest, squares);
    }
    float variance = lane_sum(squares);
    for (; i < dim; ++i) variance += (x[i] - mean) * (x[i] - mean);
    const float scale = 1.0f / sqrtf(variance / static_cast<float>(dim) + eps);
    for (i = 0; i < dim; ++i) out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

static void rotary(const float* x, const float* cos, const float* sin, float* out, int64_t half, int64_t dim) {
    // Outputs of a prompt are in no cache near by, and heads follow each other: those of one some lines ahead are fetched.
    constexpr int64_t floats_of_line = 16, floats_ahead = 1024;
    for (int64_t ahead = 0; ahead < dim; ahead += floats_of_line) __builtin_prefetch(out + floats_ahead + ahead, 1, 3);
    int64_t i = 0;
    for (; i + lanes <= half; i += lanes) {  // by vectors, also where `out` is x
        const Vec first = load(x + i), second = load(x + i + half), c = load(cos + i), s = load(sin + i);
        store(out + i, fma(first, c, -(second * s)));
        store(out + i + half, fma(second, c, first * s));
    }
    for (; i < half; ++i) {
        const float first = x[i], second = x[i + half];
        out[i] = fma(first, cos[i], -(second * sin[i]));
        out[i + half] = fma(second, cos[i], first * sin[i]);
    }
    for (i = 2 * half; i < dim; ++i) out[i] = x[i];
}

static void gated(const float* gate, const float* up, Activation activation, float* out, int64_t count) {
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) store(out + i, activate(load(gate + i), activation) * load(up + i));
    if (i == count) return;
    float rest[2][lanes] = {};
    memcpy(rest[0], gate + i, 4 * (count - i));
    memcpy(rest[1], up + i, 4 * (count - i));
    store(rest[0], activate(load(rest[0]), activation) * load(rest[1]));
    memcpy(out + i, rest[0], 4 * (count - i));
}

// x times the share of a normal distribution below x. The share beyond |x| is t (c1 + t (c2 + … c5)) e^(-x^2 / 2) / 2 with
// t = 1 / (1 + p |x| / sqrt(2)), to 8e-8 (Abramowitz and Stegun, 7.1.26).
static inline Vec gelu(Vec x) {
    const Vec size = x < 0.0f ? -x : x, t = 1.0f / fma(size, splat(0.3275911f * 0.70710678f), splat(1.0f));
    Vec p = splat(1.061405429f);
    p = fma(p, t, splat(-1.453152027f));
    p = fma(p, t, splat(1.421413741f));
    p = fma(p, t, splat(-0.284496736f));
    p = fma(p, t, splat(0.254829592f));
    const Vec beyond = 0.5f * p * t * exp(-0.5f * x * x);
    return x * (x < 0.0f ? beyond : 1.0f - beyond);
}

template <ElementFunction function>
static inline Vec element(Vec x) {
    if constexpr (function == ElementFunction::gelu) return gelu(x);
    if constexpr (function == ElementFunction::gelu_tanh) return activate(x, Activation::gelu_tanh);
    if constexpr (function == ElementFunction::relu) return max(x, Vec{});
    if constexpr (function == ElementFunction::silu) return activate(x, Activation::silu);
}

template <typename Function>
static inline void each_vector(const float* x, float* out, int64_t count, const Function& function) {
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) store(out + i, function(load(x + i)));
    if (i == count) return;
    float rest[lanes] = {};
    memcpy(rest, x + i, 4 * (count - i));
    store(rest, function(load(rest)));
    memcpy(out + i, rest, 4 * (count - i));
}

template <ElementFunction function>
static void each_element(const float* x, float* out, int64_t count) {
    each_vector(x, out, count, [](Vec v) { return element<function>(v); });
}

static void exponentials(const float* x, float largest, float* out, int64_t count) {
    each_vector(x, out, count, [most = splat(largest)](Vec v) { return exp(v - most); });
}

static void activate_row(const float* x, ElementFunction function, float* out, int64_t count) {
    switch (function) {
        case ElementFunction::gelu: return each_element<ElementFunction::gelu>(x, out, count);
        case ElementFunction::gelu_tanh: return each_element<ElementFunction::gelu_tanh>(x, out, count);
        case ElementFunction::relu: return each_element<ElementFunction::relu>(x, out, count);
        case ElementFunction::silu: return each_element<ElementFunction::silu>(x, out, count);
    }
}

static void add_scaled(const float* x, float scale, float* sum, int64_t count) {
    for (int64_t i = 0; i < count; ++i) sum[i] += x[i] * scale;
}

}  // namespace trivium::TRIVIUM_ISA
