// Rows turned by a Hadamard matrix, 64 columns at a time, and put as bytes with one scale.
#pragma once

#include "../packed.h"
#include "quantize.h"

namespace trivium::TRIVIUM_ISA {

// Sums and differences of lanes that are `apart`, a power of two, from each other: the sum in the lower lane.
template <int apart>
static inline Vec turn_lanes(Vec v) {
    static constexpr auto pattern = [] {
        struct {
            alignas(64) int32_t partner[lanes];
            alignas(64) float sign[lanes];
        } p = {};
        for (int i = 0; i < lanes; ++i) {
            p.partner[i] = i ^ apart;
            p.sign[i] = i & apart ? -1.0f : 1.0f;
        }
        return p;
    }();
#if defined(__clang__)
    Vec other;
    for (int i = 0; i < lanes; ++i) other[i] = v[i ^ apart];
#else
    IntVec partner;
    memcpy(&partner, pattern.partner, sizeof partner);
    const Vec other = __builtin_shuffle(v, partner);
#endif
    return fma(v, load(pattern.sign), other);  // the product is exact
}

// -1 where the bits 0 to 2 and 3 to 5 of a column have an odd number in common. A run of equal numbers (weights that all lie
// on one side of zero) has the same share in each column of such a run turned: the signs are those of a bent function.
struct ColumnSigns {
    alignas(64) float signs[turned_columns];
    constexpr ColumnSigns() : signs() {
        for (int i = 0; i < turned_columns; ++i) signs[i] = __builtin_popcount(i >> 3 & i & 7) & 1 ? -1.0f : 1.0f;
    }
};
static constexpr ColumnSigns column_signs;

// out = x S H, where S has signs on its diagonal and H has 64 rows of signs. An eighth of that leaves products of rows as
// they are. Columns that are 32 apart meet first, and neighbours last, in every instruction set.
static inline void turn_64(const float* x, float* out) {
    constexpr int parts = turned_columns / lanes;
    Vec v[parts];
#pragma GCC unroll 16
    for (int i = 0; i < parts; ++i) v[i] = load(x + i * lanes) * load(column_signs.signs + i * lanes);
#pragma GCC unroll 4
    for (int apart = parts / 2; apart > 0; apart /= 2)
#pragma GCC unroll 16
        for (int i = 0; i < parts; ++i)
            if (!(i & apart)) {
                const Vec a = v[i], b = v[i | apart];
                v[i] = a + b;
                v[i | apart] = a - b;
            }
#pragma GCC unroll 16
    for (int i = 0; i < parts; ++i) {
        if constexpr (lanes > 8) v[i] = turn_lanes<8>(v[i]);
        if constexpr (lanes > 4) v[i] = turn_lanes<4>(v[i]);
        store(out + i * lanes, turn_lanes<1>(turn_lanes<2>(v[i])));
    }
}

static inline IntVec max(IntVec a, IntVec b) {
#if defined(__AVX512F__)
    return (IntVec)_mm512_max_epi32((__m512i)a, (__m512i)b);
#else
    return a > b ? a : b;
#endif
}

static inline int32_t lane_max(IntVec v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32((__m512i)v);
#else
    int32_t largest = v[0];
    for (int i = 1; i < lanes; ++i) largest = v[i] > largest ? v[i] : largest;
    return largest;
#endif
}

// If any element is not finite, the scale is NaN, so that it shows in every output.
static void turn_row(const float* x, float* turned, const TurnedRows& out) {
    IntVec largest = IntVec{};  // bits of magnitudes: those of a larger one are larger, and those of what is no number most
    for (int64_t c = 0; c < out.columns; c += turned_columns) {
        turn_64(x + c, turned + c);
#pragma GCC unroll 16
        for (int i = 0; i < turned_columns; i += lanes)
            largest = max((IntVec)load(turned + c + i) & 0x7fffffff, largest);
    }
    constexpr int32_t infinite = 0x7f800000;
    const int32_t bits = lane_max(largest);
    const float magnitude = bits_to_float(static_cast<uint32_t>(bits));
    // A magnitude so small that its inverse overflows is as good as none.
    const Vec inverse = splat(bits < infinite && magnitude > 1e-36f ? 127.0f / magnitude : 0.0f);
    WordVec sums = WordVec{};
    for (int64_t c = 0; c < out.columns; c += lanes) {
        const IntVec q = rounded(load(turned + c) * inverse);
        put_bytes(q, out.q + c);
        sums += (WordVec)q;
    }
    uint32_t sum = 0;
    for (int i = 0; i < lanes; ++i) sum += sums[i];
    *out.scales = bits < infinite ? magnitude * (0.125f / 127.0f) : bits_to_float(0x7fc00000);
    // Of a row that is not finite the sum may be any number, and 128 times it more than an int holds.
    *out.q_sums = bits < infinite ? static_cast<int32_t>(sum) : 0;
}

}  // namespace trivium::TRIVIUM_ISA
