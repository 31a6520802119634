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

// `lanes` float16 values.
static inline Vec load_halves(const uint8_t* p) {
#if defined(__AVX512F__)
    return (Vec)_mm512_maskz_cvtph_ps(-1, _mm256_loadu_si256((const __m256i*)p));
#elif defined(__F16C__)
    return (Vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#elif defined(__aarch64__)
    return (Vec)vcvt_f32_f16((float16x4_t)vld1_u16((const uint16_t*)p));
#else
    typedef uint16_t Halves __attribute__((vector_size(2 * lanes)));
    Halves halves;
    memcpy(&halves, p, sizeof halves);
    const IntVec all = __builtin_convertvector(halves, IntVec), magnitude = all & 0x7fff;
    const IntVec normal = (magnitude << 13) + (112 << 23), special = magnitude << 13 | 0x7f800000;
    const Vec subnormal = __builtin_convertvector(magnitude, Vec) * 5.9604644775390625e-8f;  // a whole number of 2^-24
    const IntVec bits = magnitude < 0x400 ? (IntVec)subnormal : (magnitude < 0x7c00 ? normal : special);
    return (Vec)(bits | (all & 0x8000) << 16);
#endif
}

static inline float bf16_to_float(uint16_t v) { return bits_to_float(static_cast<uint32_t>(v) << 16); }

// To the nearest, ties to even; what is not a number stays so.
static inline uint16_t float_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return static_cast<uint16_t>(x == x ? (bits + 0x7fff + ((bits >> 16) & 1)) >> 16 : 0x7fc0);
}

// The same, as float32.
static inline Vec rounded_to_bf16(Vec x) {
    const WordVec bits = (WordVec)x, nearest = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    return x == x ? (Vec)nearest : splat(bits_to_float(0x7fc00000));
}

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

// Sixteen signed bytes as float32.
struct Widened {
    Vec part[16 / lanes];
};

static inline Widened widen(Bytes q) {
#if defined(__AVX512F__)
    return {(Vec)_mm512_maskz_cvtepi32_ps(-1, _mm512_maskz_cvtepi8_epi32(-1, (__m128i)q))};
#elif defined(__AVX2__)
    const __m128i low = (__m128i)q, high = _mm_unpackhi_epi64(low, low);
    return {(Vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)), (Vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high))};
#else
    int8_t values[16];
    memcpy(values, &q, sizeof values);
    Widened w;
    for (int i = 0; i < 16; ++i) w.part[i / lanes][i % lanes] = values[i];
    return w;
#endif
}

// A sink takes the values of a block as they come, `lanes` at a time, from the first to the last.

struct Store {
    float* out;
    void take(int i, Vec values) { store(out + i, values); }
};

// scale * q[0 … 15], values i … i + 15 of the block.
template <typename Sink>
static inline void put(Sink& sink, int i, Bytes q, float scale) {
    const Widened w = widen(q);
    for (int p = 0; p < 16 / lanes; ++p) sink.take(i + p * lanes, w.part[p] * scale);
}

// scale * q + offset. The product is exact, so that it does not matter whether the two are fused.
template <typename Sink>
static inline void put(Sink& sink, int i, Bytes q, float scale, float offset) {
    const Widened w = widen(q);
    for (int p = 0; p < 16 / lanes; ++p) sink.take(i + p * lanes, fma(w.part[p], splat(scale), splat(offset)));
}

// The block types. Which bits lie where: trivium/kernels/dequantize.py says it in fewer words.

struct Q8_0 {
    static constexpr WeightType type = WeightType::q8_0;
    template <typename Sink>
    static void decode(const uint8_t* block, Sink& sink) {
        const float d = read_half(block);
        put(sink, 0, load_bytes(block + 2), d);
        put(sink, 16, load_bytes(block + 18), d);
    }
};

struct Q4_0 {
    static constexpr WeightType type = WeightType::q4_0;
    template <typename Sink>
    static void decode(const uint8_t* block, Sink& sink) {
        const float d = read_half(block);
        const Bytes q = load_bytes(block + 2);
        put(sink, 0, field(q, 0, 15) - 8, d);
        put(sink, 16, field(q, 4, 15) - 8, d);
    }
};

struct Q4_1 {
    static constexpr WeightType type = WeightType::q4_1;
    template <typename Sink>
    static void decode(const uint8_t* block, Sink& sink) {
        const float d = read_half(block), minimum = read_half(block + 2);
        const Bytes q = load_bytes(block + 4);
        put(sink, 0, field(q, 0, 15), d, minimum);
        put(sink, 16, field(q, 4, 15), d, minimum);
    }
};

struct Q5_0 {
    static constexpr WeightType type = WeightType::q5_0;
    template <typename Sink>
    static void decode(const uint8_t* block, Sink& sink) {
        const float d = read_half(block);
        const Bytes q = load_bytes(block + 6);
        put(sink, 0, (field(q, 0, 15) | where_bit(read_u16(block + 2), 16)) - 16, d);
        put(sink, 16, (field(q, 4, 15) | where_bit(read_u16(block + 4), 16)) - 16, d);
    }
};

struct Q5_1 {
    static constexpr WeightType type = WeightType::q5_1;
    template <typename Sink>
    static void decode(const uint8_t* block, Sink& sink) {
        const float d = read_half(block), minimum = read_half(block + 2);
        const Bytes q = load_bytes(block + 8);
        put(sink, 0, field(q, 0, 15) | where_bit(read_u16(block + 4), 16), d, minimum);
        put(sink, 16, field(q, 4, 15) | where_bit(read_u16(block + 6), 16), d, minimum);
    }
};

struct Q2_K {
    static constexpr WeightType type = WeightType::q2_k;
    template <typename Sink>
    static void decode(const uint8_t* block, Sink& sink) {
        const float d = read_half(block + 80), dmin = read_half(block + 82);
        for (int sub = 0; sub < 16; ++sub) {
            const Bytes q = load_bytes(block + 16 + sub / 8 * 32 + sub % 2 * 16);
            put(sink, sub * 16, field(q, sub % 8 / 2 * 2, 3), d * (block[sub] & 15), -dmin * (block[sub] >> 4));
        }
    }
};

struct Q3_K {
    static constexpr WeightType type = WeightType::q3_k;
    template <typename Sink>
    static void decode(const uint8_t* block, Sink& sink) {
        const uint8_t* packed = block + 96;
        const float d = read_half(block + 108);
        for (int sub = 0; sub < 16; ++sub) {
            const int low = sub < 8 ? packed[sub] & 15 : packed[sub - 8] >> 4;
            const int high = (packed[8 + sub % 4] >> (sub / 4 * 2)) & 3;
            const Bytes third_bits = field(load_bytes(block + sub % 2 * 16), sub / 2, 1);
            const Bytes q = field(load_bytes(block + 32 + sub / 8 * 32 + sub % 2 * 16), sub % 8 / 2 * 2, 3);
            put(sink, sub * 16, q + 4 * third_bits - 4, d * ((low | high << 4) - 32));
        }
    }
};

// Six-bit scale and minimum of sub-block `sub` of Q4_K and Q5_K.
struct ScaleAndMinimum {
    int scale;
    int minimum;
};

static inline ScaleAndMinimum k_scale(const uint8_t* packed, int sub) {
    if (sub < 4) return {packed[sub] & 63, packed[sub + 4] & 63};
    return {(packed[sub + 4] & 15) | (packed[sub - 4] >> 6) << 4, (packed[sub + 4] >> 4) | (packed[sub] >> 6) << 4};
}

struct Q4_K {
    static constexpr WeightType type = WeightType::q4_k;
    template <typename Sink>
    static void decode(const uint8_t* block, Sink& sink) {
        const float d = read_half(block), dmin = read_half(block + 2);
        for (int sub = 0; sub < 8; ++sub) {
            const ScaleAndMinimum k = k_scale(block + 4, sub);
            for (int part = 0; part < 2; ++part) {
                const Bytes q = load_bytes(block + 16 + sub / 2 * 32 + part * 16);
                put(sink, sub * 32 + part * 16, field(q, sub % 2 * 4, 15), d * k.scale, -dmin * k.minimum);
            }
        }
    }
};

struct Q5_K {
    static constexpr WeightType type = WeightType::q5_k;
    template <typename Sink>
    static void decode(const uint8_t* block, Sink& sink) {
        const float d = read_half(block), dmin = read_half(block + 2);
        for (int sub = 0; sub < 8; ++sub) {
            const ScaleAndMinimum k = k_scale(block + 4, sub);
            for (int part = 0; part < 2; ++part) {
                const Bytes fifth_bits = field(load_bytes(block + 16 + part * 16), sub, 1);
                const Bytes low = field(load_bytes(block + 48 + sub / 2 * 32 + part * 16), sub % 2 * 4, 15);
                put(sink, sub * 32 + part * 16, low | 16 * fifth_bits, d * k.scale, -dmin * k.minimum);
            }
        }
    }
};

struct Q6_K {
    static constexpr WeightType type = WeightType::q6_k;
    template <typename Sink>
    static void decode(const uint8_t* block, Sink& sink) {
        const float d = read_half(block + 208);
        const int8_t* scales = reinterpret_cast<const int8_t*>(block + 192);
        for (int sub = 0; sub < 16; ++sub) {
            const Bytes low = field(load_bytes(block + sub / 8 * 64 + sub % 4 * 16), sub % 8 / 4 * 4, 15);
            const Bytes high = field(load_bytes(block + 128 + sub / 8 * 32 + sub % 2 * 16), sub % 8 / 2 * 2, 3);
            put(sink, sub * 16, (low | 16 * high) - 32, d * scales[sub]);
        }
    }
};

// Calls `use` with the block type's struct.
template <typename Use>
static inline void with_block_type(WeightType type, const Use& use) {
    switch (type) {
        case WeightType::q8_0: return use(Q8_0{});
        case WeightType::q4_0: return use(Q4_0{});
        case WeightType::q4_1: return use(Q4_1{});
        case WeightType::q5_0: return use(Q5_0{});
        case WeightType::q5_1: return use(Q5_1{});
        case WeightType::q2_k: return use(Q2_K{});
        case WeightType::q3_k: return use(Q3_K{});
        case WeightType::q4_k: return use(Q4_K{});
        case WeightType::q5_k: return use(Q5_K{});
        case WeightType::q6_k: return use(Q6_K{});
        default: return;  // the plain types, and rows of bytes, which no file has
    }
}

// `count` elements from the start of a block on; whole blocks.
static void decode(WeightType type, const uint8_t* data, float* out, int64_t count) {
    if (type == WeightType::f32) return decode_f32(data, out, count);
    if (type == WeightType::f16) return decode_f16(data, out, count);
    if (type == WeightType::bf16) return decode_bf16(data, out, count);
    with_block_type(type, [&](auto block_type) {
        constexpr WeightLayout blocks = layout(block_type.type);
        for (int64_t i = 0; i < count; i += blocks.block_elements) {
            Store sink{out + i};
            block_type.decode(data + i / blocks.block_elements * blocks.block_bytes, sink);
        }
    });
}

}  // namespace trivium::TRIVIUM_ISA
