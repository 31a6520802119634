// Activations as bytes, each group of 32 columns with a scale of its own.
#pragma once

#include "../packed.h"
#include "decode.h"

namespace trivium::TRIVIUM_ISA {

// Nearest whole numbers, halves to even.
static inline IntVec rounded(Vec v) {
#if defined(__AVX512F__)
    return (IntVec)_mm512_maskz_cvtps_epi32(-1, (__m512)v);
#elif defined(__AVX2__)
    return (IntVec)_mm256_cvtps_epi32((__m256)v);
#elif defined(__aarch64__)
    return (IntVec)vcvtnq_s32_f32((float32x4_t)v);
#else
    const Vec rounder = splat(12582912.0f);  // 1.5 * 2^23
    return (IntVec)(v + rounder) - (IntVec)rounder;
#endif
}

// Whole numbers from -128 to 127 as bytes; others, of rows that are not finite, as any. Returns the bytes' sum.
static inline int32_t put_bytes(IntVec v, int8_t* out) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
    const __m128i bytes = _mm512_maskz_cvtepi32_epi8(-1, (__m512i)v);
    _mm_storeu_si128((__m128i*)out, bytes);
#else
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    const __m128i bytes = _mm_packs_epi16(words, _mm_set1_epi16(-128));
    _mm_storel_epi64((__m128i*)out, bytes);
#endif
    // Eight at a time, each 128 more than it is.
    const __m128i sums = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(sums) + _mm_extract_epi32(sums, 2) - 128 * static_cast<int32_t>(lanes);
#else
    int32_t sum = 0;
    for (int i = 0; i < lanes; ++i) {
        out[i] = static_cast<int8_t>(v[i]);
        sum += out[i];
    }
    return sum;
#endif
}

// One row of x. If any element is not finite, all scales are NaN, so that it shows in every output.
static void quantize_row(const float* x, const QuantizedRows& out) {
    constexpr int parts = packed_group_columns / lanes;
    Vec zero_if_finite = Vec{};
    for (int64_t g = 0; g < out.num_groups(); ++g, x += packed_group_columns) {
        Vec largest = Vec{};
        for (int i = 0; i < parts; ++i) {
            const Vec v = load(x + i * lanes);
            largest = max(largest, (Vec)((IntVec)v & 0x7fffffff));
            zero_if_finite = fma(v, Vec{}, zero_if_finite);
        }
        const float magnitude = lane_max(largest);
        const float scale = magnitude / static_cast<float>(largest_quantized);
        // A magnitude so small that its inverse overflows is as good as none.
        const Vec inverse = splat(magnitude > 1e-36f ? static_cast<float>(largest_quantized) / magnitude : 0.0f);
        int32_t sums[2] = {0, 0};
        for (int i = 0; i < parts; ++i)
            sums[i * lanes / 16] += put_bytes(rounded(load(x + i * lanes) * inverse),
                                              out.q + g * packed_group_columns + i * lanes);
        out.scales[g] = scale;
        out.sums[g] = scale * static_cast<float>(sums[0] + sums[1]);
        out.q_sums[2 * g] = sums[0];
        out.q_sums[2 * g + 1] = sums[1];
    }
    if (lane_sum(zero_if_finite) != 0.0f)  // NaN is not equal to anything
        for (int64_t g = 0; g < out.num_groups(); ++g) out.scales[g] = out.sums[g] = bits_to_float(0x7fc00000);
}

}  // namespace trivium::TRIVIUM_ISA
