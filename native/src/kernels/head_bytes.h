// A head's row of a token (its key, its value, or a query) as bytes with one scale.
//
// Keys and queries are turned (turn.h) before: that leaves their products as they are, and spreads what stands in a few
// dimensions over all of them, so that a step of the scale is small for each.
#pragma once

#include "../kernels.h"
#include "quantize.h"
#include "turn.h"

namespace trivium::TRIVIUM_ISA {

struct HeadBytes {
    alignas(64) int8_t bytes[max_kv_dim];  // and zeros up to a whole group of 16
    float scale;                           // NaN if an element is not finite
    int32_t sum;                           // of the bytes

    // `x` has room for elements up to a whole group of 16, which are put to 0.
    void take(float* x, int64_t dim) {
        const int64_t padded = (dim + 15) / 16 * 16;
        for (int64_t d = dim; d < padded; ++d) x[d] = 0.0f;
        IntVec largest = IntVec{};  // bits of magnitudes, as in turn_row
        for (int64_t d = 0; d < padded; d += lanes) largest = max((IntVec)load(x + d) & 0x7fffffff, largest);
        constexpr int32_t infinite = 0x7f800000;
        const int32_t bits = lane_max(largest);
        const float magnitude = bits_to_float(static_cast<uint32_t>(bits));
        // A magnitude so small that its inverse overflows is as good as none.
        const Vec inverse = splat(bits < infinite && magnitude > 1e-36f ? 127.0f / magnitude : 0.0f);
        WordVec sums = WordVec{};
        for (int64_t d = 0; d < padded; d += lanes) {
            const IntVec q = rounded(load(x + d) * inverse);
            put_bytes(q, bytes + d);
            sums += (WordVec)q;
        }
        uint32_t all = 0;
        for (int i = 0; i < lanes; ++i) all += sums[i];
        scale = bits < infinite ? magnitude / 127.0f : bits_to_float(0x7fc00000);
        sum = bits < infinite ? static_cast<int32_t>(all) : 0;
    }
};

// Turned by Hadamard matrices of 64 dimensions, and of fewer, powers of two, for what is left. Each is made orthogonal.
static inline void turn_head(const float* x, int64_t dim, float* out) {
    int64_t d = 0;
    for (; d + turned_columns <= dim; d += turned_columns) {
        turn_64(x + d, out + d);
        for (int64_t i = 0; i < turned_columns; i += lanes) store(out + d + i, load(out + d + i) * 0.125f);
    }
    for (int64_t size = turned_columns / 2; size > 0; size /= 2) {
        if (!((dim - d) & size)) continue;
        for (int64_t i = 0; i < size; ++i) out[d + i] = x[d + i] * column_signs.signs[i];
        for (int64_t apart = size / 2; apart > 0; apart /= 2)
            for (int64_t i = 0; i < size; ++i)
                if (!(i & apart)) {
                    const float a = out[d + i], b = out[d + (i | apart)];
                    out[d + i] = a + b;
                    out[d + (i | apart)] = a - b;
                }
        const float length = __builtin_sqrtf(static_cast<float>(size));
        for (int64_t i = 0; i < size; ++i) out[d + i] /= length;
        d += size;
    }
}

static inline void take_turned(const float* x, int64_t dim, HeadBytes& out) {
    alignas(64) float turned[max_kv_dim];
    turn_head(x, dim, turned);
    out.take(turned, dim);
}

static inline void take_as_it_is(const float* x, int64_t dim, HeadBytes& out) {
    alignas(64) float copy[max_kv_dim];
    memcpy(copy, x, 4 * dim);
    out.take(copy, dim);
}

}  // namespace trivium::TRIVIUM_ISA
