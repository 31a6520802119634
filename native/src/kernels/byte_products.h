// Products of bytes, summed as whole numbers.
#pragma once

#include "../packed.h"
#include "decode.h"

// No instruction sums four products of bytes exactly; those of pairs fit into 16 bits where values are small.
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
#define TRIVIUM_SUMS_PAIRS_OF_BYTES
#endif

namespace trivium::TRIVIUM_ISA {

constexpr int tile_parts = 16 / lanes;  // vectors that make up the 16 rows of a tile
typedef uint8_t ByteVec __attribute__((vector_size(4 * lanes)));
typedef int32_t FourBytes __attribute__((may_alias, aligned(1)));

static inline ByteVec load_quad(const uint8_t* p) {
    ByteVec v;
    memcpy(&v, p, sizeof v);
    return v;
}

// The bits of each byte that the mask keeps once they are `shift` places lower (higher, where it is negative). There are no
// shifts of bytes; what comes over from a neighbour is masked.
static inline ByteVec shifted(ByteVec v, int shift, uint8_t mask) {
    typedef uint16_t Words __attribute__((vector_size(4 * lanes)));
    return (ByteVec)(shift < 0 ? (Words)v << -shift : (Words)v >> shift) & mask;
}

// Byte i is `value` where bit i is set, else 0.
static inline ByteVec bytes_where(const uint8_t* bits, uint8_t value) {
#if defined(__AVX512BW__)
    uint64_t mask;
    memcpy(&mask, bits, sizeof mask);
    return (ByteVec)_mm512_maskz_set1_epi8(mask, static_cast<char>(value));
#elif defined(__AVX2__)
    FourBytes all;
    memcpy(&all, bits, sizeof all);
    const __m256i byte_of_bit = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit_of_byte = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
    const __m256i own = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(all), byte_of_bit), bit_of_byte);
    return (ByteVec)_mm256_cmpeq_epi8(own, bit_of_byte) & value;
#else
    ByteVec v;
    for (int i = 0; i < 4 * lanes; i += 16) {
        const Bytes part = where_bit(read_u16(bits + i / 8), value);
        memcpy(reinterpret_cast<uint8_t*>(&v) + i, &part, sizeof part);
    }
    return v;
#endif
}

// Lane i of the sum grows by the four bytes of w's lane i, unsigned, times the four of `a`, signed. Exact as long as
// values are at most `largest`.
template <int largest>
static inline IntVec add_products(IntVec sum, ByteVec w, int32_t a) {
#if defined(__AVX512VNNI__)
    return (IntVec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, _mm512_set1_epi32(a));
#elif defined(__ARM_FEATURE_DOTPROD)
    const int8x16_t four = (int8x16_t)vdupq_n_s32(a);
    if constexpr (largest <= 127) {  // the same as signed bytes
        return (IntVec)vdotq_s32((int32x4_t)sum, (int8x16_t)w, four);
    } else {  // w - 128 is a signed byte; what is wanting is 128 times the sum of the four
        const int32x4_t less = vdotq_s32((int32x4_t)sum, (int8x16_t)(w ^ 128), four);
        return (IntVec)vaddq_s32(less, vshlq_n_s32(vdotq_s32(vdupq_n_s32(0), vdupq_n_s8(1), four), 7));
    }
#else
    int8_t four[4];
    memcpy(four, &a, sizeof four);
    for (int i = 0; i < lanes; ++i)
        for (int c = 0; c < 4; ++c) sum[i] += int32_t{w[4 * i + c]} * four[c];
    return sum;
#endif
}

// The same, with the four bytes in every lane of `fours`.
template <int largest>
static inline IntVec add_products(IntVec sum, ByteVec w, IntVec fours) {
#if defined(__AVX512VNNI__)
    return (IntVec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)fours);
#else
    return add_products<largest>(sum, w, static_cast<int32_t>(fours[0]));
#endif
}

#if defined(TRIVIUM_SUMS_PAIRS_OF_BYTES)

typedef int16_t ShortVec __attribute__((vector_size(4 * lanes)));

// In each word two bytes of w, unsigned, times two of x, signed; in each lane two words of w times two of x.
static inline ShortVec byte_pairs(ByteVec w, IntVec x) {
#if defined(__AVX512BW__)
    return (ShortVec)_mm512_maddubs_epi16((__m512i)w, (__m512i)x);
#else
    return (ShortVec)_mm256_maddubs_epi16((__m256i)w, (__m256i)x);
#endif
}
static inline IntVec word_pairs(IntVec w, IntVec x) {
#if defined(__AVX512BW__)
    return (IntVec)_mm512_madd_epi16((__m512i)w, (__m512i)x);
#else
    return (IntVec)_mm256_madd_epi16((__m256i)w, (__m256i)x);
#endif
}

// The sum and word_pairs. Left to itself the compiler adds products to each other first, for which there are no registers left.
static inline IntVec add_word_pairs(IntVec sum, IntVec w, IntVec x) {
    IntVec products;
    asm("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+v"(sum), "=&v"(products) : "v"(w), "v"(x));
    return sum;
}

// Pairs of products of bytes that can be summed in 16 bits, of values up to `largest` and activations.
template <int largest>
constexpr int pairs_that_fit = 32767 / (2 * largest_quantized * largest);

static inline IntVec words_of(int16_t word) { return (IntVec)(ShortVec{} + word); }

// Sums of 16 bits are widened by being multiplied with the words of `factors`, of which a lane's two are the same.
template <int largest, int count, typename Quad>
static inline IntVec add_short_products(IntVec sum, const Quad& quad, const FourBytes* x, IntVec factors) {
    constexpr int fitting = pairs_that_fit<largest>;
    ShortVec pairs{};
    for (int i = 0; i < count; ++i) {
        const ShortVec products = byte_pairs(quad(i), IntVec{} + x[i]);
        pairs = i % fitting == 0 ? products : pairs + products;
        if (i % fitting == fitting - 1 || i == count - 1) sum += word_pairs((IntVec)pairs, factors);
    }
    return sum;
}

#endif

// `start` and, in each lane, the products of `count` quads, whose values are at most `largest`, and as many times four bytes.
template <int largest, int count>
static inline IntVec sum_products(const ByteVec* quads, const int8_t* x, int32_t start) {
    const auto* const fours = reinterpret_cast<const FourBytes*>(x);
#if defined(TRIVIUM_SUMS_PAIRS_OF_BYTES)
    const IntVec sum = IntVec{} + start;
    if constexpr (largest <= 127) return add_short_products<largest, count>(sum, [&](int i) { return quads[i]; }, fours, words_of(1));
    const IntVec low = add_short_products<15, count>(sum, [&](int i) { return quads[i] & 15; }, fours, words_of(1));
    return add_short_products<15, count>(low, [&](int i) { return shifted(quads[i], 4, 15); }, fours, words_of(16));
#else
    // Whole numbers may be summed in several chains, so that a multiply-add need not wait for the one before.
    constexpr int chains = count == 8 ? 2 : 1;
    IntVec sums[chains] = {};
    sums[0] += start;
    for (int i = 0; i < count; ++i) sums[i % chains] = add_products<largest>(sums[i % chains], quads[i], fours[i]);
    for (int i = 1; i < chains; ++i) sums[0] += sums[i];
    return sums[0];
#endif
}

// Two whole numbers of each lane, as words.
static inline IntVec words_beside(IntVec low, IntVec high) { return (low & 0xffff) | high << 16; }

// A factor of whole-number sums, as add_multiplied wants it.
static inline IntVec as_factor(IntVec v) {
#if defined(TRIVIUM_SUMS_PAIRS_OF_BYTES)
    return words_beside(v, v);
#else
    return v;
#endif
}

// `sum` and, in each lane, `factors` times what sum_products gives.
template <int largest, int count>
static inline IntVec add_multiplied(IntVec sum, IntVec factors, const ByteVec* quads, const int8_t* x) {
#if defined(TRIVIUM_SUMS_PAIRS_OF_BYTES)
    static_assert(largest <= 127);
    const auto* const fours = reinterpret_cast<const FourBytes*>(x);
    return add_short_products<largest, count>(sum, [&](int i) { return quads[i]; }, fours, factors);
#else
    return sum + factors * sum_products<largest, count>(quads, x, 0);
#endif
}

// Lane i of the sum grows by the two words of w's lane i times those of x's.
static inline IntVec add_word_products(IntVec sum, IntVec w, IntVec x) {
#if defined(__AVX512VNNI__)
    return (IntVec)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
#elif defined(TRIVIUM_SUMS_PAIRS_OF_BYTES)
    return sum + word_pairs(w, x);
#else
    return sum + (w << 16 >> 16) * (x << 16 >> 16) + (w >> 16) * (x >> 16);
#endif
}

static inline Vec to_float(IntVec v) {
#if defined(__AVX512F__)
    return (Vec)_mm512_maskz_cvtepi32_ps(-1, (__m512i)v);
#elif defined(__AVX2__)
    return (Vec)_mm256_cvtepi32_ps((__m256i)v);
#elif defined(__aarch64__)
    return (Vec)vcvtq_f32_s32((int32x4_t)v);
#else
    Vec f;
    for (int i = 0; i < lanes; ++i) f[i] = static_cast<float>(v[i]);
    return f;
#endif
}

static inline IntVec load_signed(const uint8_t* p) {
#if defined(__AVX512F__)
    return (IntVec)_mm512_maskz_cvtepi8_epi32(-1, _mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
    return (IntVec)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
    IntVec v;
    for (int i = 0; i < lanes; ++i) v[i] = static_cast<int8_t>(p[i]);
    return v;
#endif
}

static inline IntVec load_unsigned(const uint8_t* p) {
#if defined(__AVX512F__)
    return (IntVec)_mm512_maskz_cvtepu8_epi32(-1, _mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
    return (IntVec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
    return load_signed(p) & 255;
#endif
}

}  // namespace trivium::TRIVIUM_ISA
