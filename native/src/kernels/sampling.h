// The passes over a row of logits that choosing its next token takes. trivium/kernels/sample.py says what they compute.
#pragma once

#include "../kernels.h"
#include "vector.h"

namespace trivium::TRIVIUM_ISA {

// Half as many lanes, of twice the width.
typedef float HalfVec __attribute__((vector_size(2 * lanes)));
typedef double DoubleVec __attribute__((vector_size(4 * lanes)));
typedef int64_t LongVec __attribute__((vector_size(4 * lanes)));

// A product that is rounded before it is added to: weights are the same on machines that fuse the two and those that do not.
static inline Vec unfused(Vec product) {
#if defined(__AVX512F__)
    asm("" : "+v"(product));
#elif defined(__x86_64__)
    asm("" : "+x"(product));
#elif defined(__aarch64__)
    asm("" : "+w"(product));
#else
    volatile Vec kept = product;
    product = kept;
#endif
    return product;
}

static Largest largest(const float* x, int64_t count) {
    constexpr float infinity = __builtin_inff();
    constexpr int64_t chunk = 32 * lanes;
    Largest best = {-infinity, 0, true};
    IntVec below_infinity = ~IntVec{};  // false for what is not a number, too
    for (int64_t first = 0; first < count; first += chunk) {
        const int64_t last = first + chunk < count ? first + chunk : count;
        Vec most = splat(-infinity);
        int64_t i = first;
        for (; i + lanes <= last; i += lanes) {
            const Vec v = load(x + i);
            most = max(v, most);
            below_infinity &= v < splat(infinity);
        }
        if (i < last) {
            float rest[lanes];
            store(rest, splat(-infinity));
            memcpy(rest, x + i, 4 * (last - i));
            most = max(load(rest), most);
            below_infinity &= load(rest) < splat(infinity);
        }
        if (const float value = lane_max(most); value > best.value) best = {value, first, true};
    }
    for (int i = 0; i < lanes; ++i) best.is_finite = best.is_finite && below_infinity[i];
    best.is_finite = best.is_finite && best.value > -infinity;
    while (best.is_finite && x[best.index] != best.value) ++best.index;
    return best;
}

static double sum_of_exponentials(const float* x, int64_t count, float largest) {
    constexpr int64_t chunk = 32 * lanes;  // summed in float32
    const Vec most = splat(largest);
    double sum = 0;
    for (int64_t first = 0; first < count; first += chunk) {
        const int64_t last = first + chunk < count ? first + chunk : count;
        Vec part{};
        int64_t i = first;
        for (; i + lanes <= last; i += lanes) part += exp(load(x + i) - most);
        if (i < last) {
            float rest[lanes];
            store(rest, splat(-__builtin_inff()));
            memcpy(rest, x + i, 4 * (last - i));
            part += exp(load(rest) - most);
        }
        sum += lane_sum(part);
    }
    return sum;
}

// out[i] = 2^(draw_weight_bits + (x[i] - largest) * scale), rounded to whole numbers; 0 below 2^0.
static inline void store_weights(Vec x, Vec largest, Vec scale, int64_t* out) {
    const Vec rounder = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number, in the low bits
    const Vec all = unfused((x - largest) * scale);
    const IntVec is_kept = all >= splat(-static_cast<float>(draw_weight_bits));
    const Vec exponent = is_kept ? all : Vec{};
    const Vec shifted = exponent + rounder;
    const Vec rest = exponent - (shifted - rounder);
    Vec power = unfused(splat(0.001340039f) * rest) + 0.009672156f;
    power = unfused(power * rest) + 0.055503275f;
    power = unfused(power * rest) + 0.24022229f;
    power = unfused(power * rest) + 0.6931472f;
    power = unfused(power * rest) + 1.0f;
    const IntVec bits = ((IntVec)shifted - (IntVec)rounder + (draw_weight_bits + 127)) << 23;
    const Vec scaled = is_kept ? power * (Vec)bits : Vec{};
    const DoubleVec big = DoubleVec{} + 0x1p52;  // as the rounder above
    for (int half = 0; half < 2; ++half) {
        HalfVec part;
        memcpy(&part, reinterpret_cast<const char*>(&scaled) + half * sizeof part, sizeof part);
        const LongVec weights = (LongVec)(__builtin_convertvector(part, DoubleVec) + big) - (LongVec)big;
        memcpy(out + half * lanes / 2, &weights, sizeof weights);
    }
}

static void draw_weights(const float* x, int64_t count, float largest, float scale, int64_t* out) {
    const Vec most = splat(largest), scales = splat(scale);
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) store_weights(load(x + i), most, scales, out + i);
    if (i == count) return;
    float rest[lanes] = {};
    int64_t weights[lanes];
    memcpy(rest, x + i, 4 * (count - i));
    store_weights(load(rest), most, scales, weights);
    memcpy(out + i, weights, 8 * (count - i));
}

static WeightSum weights_at_least(const int64_t* weights, int64_t count, int64_t least) {
    constexpr int64_t wide = lanes / 2, chains = 4;
    LongVec counts[chains] = {}, masses[chains] = {};
    const LongVec bar = LongVec{} + least;
    int64_t i = 0;
    for (; i + chains * wide <= count; i += chains * wide)
        for (int64_t c = 0; c < chains; ++c) {
            LongVec v;
            memcpy(&v, weights + i + c * wide, sizeof v);
            const LongVec is_in = v >= bar;  // all bits, which is -1
            counts[c] -= is_in;
            masses[c] += v & is_in;
        }
    WeightSum sum = {0, 0};
    for (int64_t c = 0; c < chains; ++c)
        for (int64_t lane = 0; lane < wide; ++lane) {
            sum.count += counts[c][lane];
            sum.mass += masses[c][lane];
        }
    for (; i < count; ++i)
        if (weights[i] >= least) sum = {sum.count + 1, sum.mass + weights[i]};
    return sum;
}

}  // namespace trivium::TRIVIUM_ISA
