// Activations as bytes, each unit of columns with a scale of its own.
#pragma once

#include "../packed.h"
#include "byte_products.h"

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

// The digits of a unit of x, from first to last: numbers(i) are those of columns i …. Puts their sums too, of so many columns as
// the row keeps.
template <typename Numbers>
static inline void put_digits(const QuantizedRows& out, int64_t unit, int64_t digit, const Numbers& numbers) {
    const int64_t first = unit * out.unit_columns, at = digit * out.columns + first;
    int16_t* const of_16 = out.sums_of_16 + at / 16;
    for (int64_t i = 0; i < out.unit_columns; i += packed_group_columns) {
        int32_t halves[2] = {0, 0};
        for (int64_t j = 0; j < packed_group_columns; j += lanes) halves[j / 16] += put_bytes(numbers(i + j), out.q + at + i + j);
        if (digits_of(out.unit_columns) == 1) {
            out.sums[unit] = static_cast<float>(halves[0] + halves[1]);
        } else {
            of_16[i / 16] = static_cast<int16_t>(halves[0]);
            of_16[i / 16 + 1] = static_cast<int16_t>(halves[1]);
            out.sums_of_32[(at + i) / 32] = static_cast<int16_t>(halves[0] + halves[1]);
        }
    }
}

// One row of x. If any element is not finite, all scales are NaN, so that it shows in every output.
static void quantize_row(const float* x, const QuantizedRows& out) {
    const int64_t columns = out.unit_columns;
    Vec zero_if_finite = Vec{};
    for (int64_t unit = 0; unit < out.num_units(); ++unit, x += columns) {
        Vec largest = Vec{};
        for (int64_t i = 0; i < columns; i += lanes) {
            const Vec v = load(x + i);
            largest = max(largest, (Vec)((IntVec)v & 0x7fffffff));
            zero_if_finite = fma(v, Vec{}, zero_if_finite);
        }
        const float magnitude = lane_max(largest);
        // A magnitude so small that its inverse overflows is as good as none.
        const bool is_any = magnitude > 1e-36f;
        const Vec inverse = splat(is_any ? static_cast<float>(largest_quantized) / magnitude : 0.0f);
        out.scales[unit] = magnitude / static_cast<float>(largest_quantized);
        Vec squares = Vec{};  // whole numbers that float32 holds
        put_digits(out, unit, 0, [&](int64_t i) {
            const IntVec digits = rounded(load(x + i) * inverse);
            squares = fma(to_float(digits), to_float(digits), squares);
            return digits;
        });
        if (digits_of(columns) == 1) continue;
        out.is_double[unit] = is_any && lane_sum(squares) < static_cast<float>(least_mean_square * columns);
        put_digits(out, unit, 1, [&](int64_t i) {
            if (!out.is_double[unit]) return IntVec{};
            const Vec v = load(x + i);
            return rounded(fma(v, inverse, -to_float(rounded(v * inverse))) * static_cast<float>(steps_of_a_digit));
        });
    }
    if (lane_sum(zero_if_finite) != 0.0f)  // NaN is not equal to anything
        for (int64_t unit = 0; unit < out.num_units(); ++unit) out.scales[unit] = bits_to_float(0x7fc00000);
}

}  // namespace trivium::TRIVIUM_ISA
