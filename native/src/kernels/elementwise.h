// Norm, rotation, gating, and the roundings between them: one row at a time.
#pragma once

#include <math.h>

#include "../kernels.h"
#include "decode.h"

namespace trivium::TRIVIUM_ISA {

static void rms_norm(const float* x, const float* weight, float eps, float* out, int64_t dim) {
    Vec squares{};
    int64_t i = 0;
    for (; i + lanes <= dim; i += lanes) squares = fma(load(x + i), load(x + i), squares);
    float sum = lane_sum(squares);
    for (; i < dim; ++i) sum += x[i] * x[i];
    const float scale = 1.0f / sqrtf(sum / static_cast<float>(dim) + eps);
    for (i = 0; i < dim; ++i) out[i] = x[i] * scale * weight[i];
}

static void rotary(const float* x, const float* cos, const float* sin, float* out, int64_t half, int64_t dim) {
    for (int64_t i = 0; i < half; ++i) {
        const float first = x[i], second = x[i + half];
        out[i] = first * cos[i] - second * sin[i];
        out[i + half] = second * cos[i] + first * sin[i];
    }
    for (int64_t i = 2 * half; i < dim; ++i) out[i] = x[i];
}

// x / (1 + e^-x); and gelu by tanh, which is x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
static inline Vec activate(Vec x, Activation activation) {
    const Vec exponent = activation == Activation::silu
                             ? -x
                             : x * fma(x * x, splat(-2 * 0.79788456f * 0.044715f), splat(-2 * 0.79788456f));
    return x / (1.0f + exp(exponent));
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

static void add_scaled(const float* x, float scale, float* sum, int64_t count) {
    for (int64_t i = 0; i < count; ++i) sum[i] += x[i] * scale;
}

}  // namespace trivium::TRIVIUM_ISA
