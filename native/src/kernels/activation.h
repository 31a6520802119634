// The activations of gates, by vectors.
#pragma once

#include "../kernels.h"
#include "vector.h"

namespace trivium::TRIVIUM_ISA {

// x / (1 + e^-x); and gelu by tanh, which is x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
static inline Vec activate(Vec x, Activation activation) {
    constexpr float twice = 2 * 0.79788456f * log2_e;
    const Vec power = activation == Activation::silu ? x * log2_e : x * fma(x * x, splat(twice * 0.044715f), splat(twice));
    return x / (1.0f + exp2<5>(-max(splat(-126.0f), power)));
}

}  // namespace trivium::TRIVIUM_ISA
