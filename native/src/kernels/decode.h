// Weights of every type as float32, bit for bit as the format defines them: a scale is a float16 times a small whole
// number, so that products with the quantized values are exact and at most one rounding is left.
#pragma once

#include "../weight_type.h"
#include "vector.h"

namespace trivium::TRIVIUM_ISA {

static inline uint16_t read_u16(const uint8_t* p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float bits_to_float(uint32_t bits) {
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static inline float half_to_float(uint16_t half) {
#if defined(__F16C__)
    return _cvtsh_ss(half);
#else
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
    const uint32_t exponent = (half >> 10) & 31, mantissa = half & 0x3ff;
    if (exponent == 31) return bits_to_float(sign | 0x7f800000 | mantissa << 13);
    if (exponent == 0) {  // subnormal: a whole number of 2^-24
        const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
        return sign ? -magnitude : magnitude;
    }
    return bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
#endif
}

static inline float read_half(const uint8_t* p) { return half_to_float(read_u16(p)); }

static inline float bf16_to_float(uint16_t v) { return bits_to_float(static_cast<uint32_t>(v) << 16); }

static inline void decode_f32(const uint8_t* __restrict data, float* __restrict out, int64_t count) { memcpy(out, data, 4 * count); }

static inline void decode_f16(const uint8_t* __restrict data, float* __restrict out, int64_t count) {
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16)
        _mm512_storeu_ps(out + i, _mm512_maskz_cvtph_ps(-1, _mm256_loadu_si256((const __m256i*)(data + 2 * i))));
#elif defined(__F16C__)
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(data + 2 * i))));
#endif
    for (; i < count; ++i) out[i] = half_to_float(read_u16(data + 2 * i));
}

static inline void decode_bf16(const uint8_t* __restrict data, float* __restrict out, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out[i] = bf16_to_float(read_u16(data + 2 * i));
}

// Sixteen quantized values at a time are taken out of their bits, as bytes, and then widened and scaled.

typedef uint8_t Bytes __attribute__((vector_size(16)));

static inline Bytes load_bytes(const void* p) {
    Bytes v;
    memcpy(&v, p, sizeof v);
    return v;
}

// The field of each byte that starts at bit `shift`; shift + bits of the mask <= 8, so that no neighbour shows.
static inline Bytes field(Bytes v, int shift, uint8_t mask) {
    typedef uint16_t Words __attribute__((vector_size(16)));
    return (Bytes)((Words)v >> shift) & mask;
}

// Byte i is `value` where bit i is set, else 0.
static inline Bytes where_bit(uint16_t bits, uint8_t value) {
    typedef uint64_t Halves __attribute__((vector_size(16)));
    const uint64_t repeat = 0x0101010101010101;
    const Halves repeated = {(bits & 255) * repeat, (bits >> 8) * repeat};
    const Bytes bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    return (Bytes)(((Bytes)repeated & bit) == bit) & value;
}

// out[i] = scale * q[i], q read as signed.
static inline void put(float* __restrict out, Bytes q, float scale) {
#if defined(__AVX512F__)
    _mm512_storeu_ps(out, _mm512_maskz_cvtepi32_ps(-1, _mm512_maskz_cvtepi8_epi32(-1, (__m128i)q)) * scale);
#elif defined(__AVX2__)
    const __m128i low = (__m128i)q, high = _mm_unpackhi_epi64(low, low);
    _mm256_storeu_ps(out, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)) * scale);
    _mm256_storeu_ps(out + 8, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)) * scale);
#else
    int8_t values[16];
    memcpy(values, &q, sizeof values);
    for (int i = 0; i < 16; ++i) out[i] = scale * values[i];
#endif
}

// out[i] = scale * q[i] + offset. The product is exact, so that it does not matter whether the two are fused.
static inline void put(float* __restrict out, Bytes q, float scale, float offset) {
#if defined(__AVX512F__)
    const Vec values = (Vec)_mm512_maskz_cvtepi32_ps(-1, _mm512_maskz_cvtepi8_epi32(-1, (__m128i)q));
    store(out, fma(values, splat(scale), splat(offset)));
#elif defined(__AVX2__)
    const __m128i low = (__m128i)q, high = _mm_unpackhi_epi64(low, low);
    store(out, fma((Vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)), splat(scale), splat(offset)));
    store(out + 8, fma((Vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)), splat(scale), splat(offset)));
#else
    int8_t values[16];
    memcpy(values, &q, sizeof values);
    for (int i = 0; i < 16; ++i) out[i] = scale * values[i] + offset;
#endif
}

// The block decoders. Which bits lie where: trivium/kernels/dequantize.py says it in fewer words.

static inline void decode_q8_0(const uint8_t* block, float* out) {
    const float d = read_half(block);
    put(out, load_bytes(block + 2), d);
    put(out + 16, load_bytes(block + 18), d);
}

static inline void decode_q4_0(const uint8_t* block, float* out) {
    const float d = read_half(block);
    const Bytes q = load_bytes(block + 2);
    put(out, field(q, 0, 15) - 8, d);
    put(out + 16, field(q, 4, 15) - 8, d);
}

static inline void decode_q4_1(const uint8_t* block, float* out) {
    const float d = read_half(block), minimum = read_half(block + 2);
    const Bytes q = load_bytes(block + 4);
    put(out, field(q, 0, 15), d, minimum);
    put(out + 16, field(q, 4, 15), d, minimum);
}

static inline void decode_q5_0(const uint8_t* block, float* out) {
    const float d = read_half(block);
    const Bytes q = load_bytes(block + 6);
    put(out, (field(q, 0, 15) | where_bit(read_u16(block + 2), 16)) - 16, d);
    put(out + 16, (field(q, 4, 15) | where_bit(read_u16(block + 4), 16)) - 16, d);
}

static inline void decode_q5_1(const uint8_t* block, float* out) {
    const float d = read_half(block), minimum = read_half(block + 2);
    const Bytes q = load_bytes(block + 8);
    put(out, field(q, 0, 15) | where_bit(read_u16(block + 4), 16), d, minimum);
    put(out + 16, field(q, 4, 15) | where_bit(read_u16(block + 6), 16), d, minimum);
}

static inline void decode_q2_k(const uint8_t* block, float* out) {
    const float d = read_half(block + 80), dmin = read_half(block + 82);
    for (int sub = 0; sub < 16; ++sub, out += 16) {
        const Bytes q = load_bytes(block + 16 + sub / 8 * 32 + sub % 2 * 16);
        put(out, field(q, sub % 8 / 2 * 2, 3), d * (block[sub] & 15), -dmin * (block[sub] >> 4));
    }
}

static inline void decode_q3_k(const uint8_t* block, float* out) {
    const uint8_t* packed = block + 96;
    const float d = read_half(block + 108);
    for (int sub = 0; sub < 16; ++sub, out += 16) {
        const int low = sub < 8 ? packed[sub] & 15 : packed[sub - 8] >> 4;
        const int high = (packed[8 + sub % 4] >> (sub / 4 * 2)) & 3;
        const Bytes third_bits = field(load_bytes(block + sub % 2 * 16), sub / 2, 1);
        const Bytes q = field(load_bytes(block + 32 + sub / 8 * 32 + sub % 2 * 16), sub % 8 / 2 * 2, 3);
        put(out, q + 4 * third_bits - 4, d * ((low | high << 4) - 32));
    }
}

// Six-bit scale and minimum of sub-block `sub` of Q4_K and Q5_K.
struct ScaleAndMinimum {
    int scale;
    int minimum;
};

static inline ScaleAndMinimum k_scale(const uint8_t* packed, int sub) {
    if (sub < 4) return {packed[sub] & 63, packed[sub + 4] & 63};
    return {(packed[sub + 4] & 15) | (packed[sub - 4] >> 6) << 4, (packed[sub + 4] >> 4) | (packed[sub] >> 6) << 4};
}

static inline void decode_q4_k(const uint8_t* block, float* out) {
    const float d = read_half(block), dmin = read_half(block + 2);
    for (int sub = 0; sub < 8; ++sub) {
        const ScaleAndMinimum k = k_scale(block + 4, sub);
        for (int part = 0; part < 2; ++part, out += 16) {
            const Bytes q = load_bytes(block + 16 + sub / 2 * 32 + part * 16);
            put(out, field(q, sub % 2 * 4, 15), d * k.scale, -dmin * k.minimum);
        }
    }
}

static inline void decode_q5_k(const uint8_t* block, float* out) {
    const float d = read_half(block), dmin = read_half(block + 2);
    for (int sub = 0; sub < 8; ++sub) {
        const ScaleAndMinimum k = k_scale(block + 4, sub);
        for (int part = 0; part < 2; ++part, out += 16) {
            const Bytes fifth_bits = field(load_bytes(block + 16 + part * 16), sub, 1);
            const Bytes q = load_bytes(block + 48 + sub / 2 * 32 + part * 16);
            put(out, field(q, sub % 2 * 4, 15) | 16 * fifth_bits, d * k.scale, -dmin * k.minimum);
        }
    }
}

static inline void decode_q6_k(const uint8_t* block, float* out) {
    const float d = read_half(block + 208);
    const int8_t* scales = reinterpret_cast<const int8_t*>(block + 192);
    for (int sub = 0; sub < 16; ++sub, out += 16) {
        const Bytes low = field(load_bytes(block + sub / 8 * 64 + sub % 4 * 16), sub % 8 / 4 * 4, 15);
        const Bytes high = field(load_bytes(block + 128 + sub / 8 * 32 + sub % 2 * 16), sub % 8 / 2 * 2, 3);
        put(out, (low | 16 * high) - 32, d * scales[sub]);
    }
}

template <void (*decode_block)(const uint8_t*, float*), WeightType type>
static inline void decode_blocks(const uint8_t* __restrict data, float* __restrict out, int64_t count) {
    constexpr WeightLayout blocks = layout(type);
    for (int64_t i = 0; i < count; i += blocks.block_elements, data += blocks.block_bytes) decode_block(data, out + i);
}

// `count` elements from the start of a block on; whole blocks.
static void decode(WeightType type, const uint8_t* data, float* out, int64_t count) {
    switch (type) {
        case WeightType::f32: return decode_f32(data, out, count);
        case WeightType::f16: return decode_f16(data, out, count);
        case WeightType::bf16: return decode_bf16(data, out, count);
        case WeightType::q8_0: return decode_blocks<decode_q8_0, WeightType::q8_0>(data, out, count);
        case WeightType::q4_0: return decode_blocks<decode_q4_0, WeightType::q4_0>(data, out, count);
        case WeightType::q4_1: return decode_blocks<decode_q4_1, WeightType::q4_1>(data, out, count);
        case WeightType::q5_0: return decode_blocks<decode_q5_0, WeightType::q5_0>(data, out, count);
        case WeightType::q5_1: return decode_blocks<decode_q5_1, WeightType::q5_1>(data, out, count);
        case WeightType::q2_k: return decode_blocks<decode_q2_k, WeightType::q2_k>(data, out, count);
        case WeightType::q3_k: return decode_blocks<decode_q3_k, WeightType::q3_k>(data, out, count);
        case WeightType::q4_k: return decode_blocks<decode_q4_k, WeightType::q4_k>(data, out, count);
        case WeightType::q5_k: return decode_blocks<decode_q5_k, WeightType::q5_k>(data, out, count);
        case WeightType::q6_k: return decode_blocks<decode_q6_k, WeightType::q6_k>(data, out, count);
    }
}

}  // namespace trivium::TRIVIUM_ISA
