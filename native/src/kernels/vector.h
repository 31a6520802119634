// Vectors of float32 of the width of the instruction set that this translation unit is compiled for.
//
// Everything here and in the sibling headers lies in a namespace of that instruction set, and no inline function of
// the standard library is used: the linker keeps one copy of those, and it could be one the machine cannot run.
#pragma once

#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace trivium::TRIVIUM_ISA {

#if defined(__AVX512F__)
constexpr int64_t lanes = 16;
#elif defined(__AVX2__)
constexpr int64_t lanes = 8;
#else
constexpr int64_t lanes = 4;
#endif

typedef float Vec __attribute__((vector_size(4 * lanes)));
typedef int32_t IntVec __attribute__((vector_size(4 * lanes)));
typedef uint32_t WordVec __attribute__((vector_size(4 * lanes)));

static inline Vec load(const float* p) {
    Vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void store(float* p, Vec v) { memcpy(p, &v, sizeof v); }

// The first `count` lanes, with zeros in the others.
static inline Vec load_first(const float* p, int64_t count) {
    if (count >= lanes) return load(p);
    Vec v{};
    if (count > 0) memcpy(&v, p, 4 * count);
    return v;
}

static inline void store_first(float* p, Vec v, int64_t count) {
    if (count >= lanes) return store(p, v);
    if (count > 0) memcpy(p, &v, 4 * count);
}

static inline WordVec load_words(const uint8_t* p) {
    WordVec v;
    memcpy(&v, p, sizeof v);
    return v;
}

// Words that are used in two ways, one after the other. With sixteen registers each way loads them anew: kept, they would
// push a sum out of its register.
static inline WordVec load_words_anew(const uint8_t* p) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    WordVec v;
    asm volatile("vmovdqu (%1), %0" : "=x"(v) : "r"(p), "m"(*(const WordVec*)p));
    return v;
#else
    return load_words(p);
#endif
}

// The same vector, which the compiler may not load again for each use.
static inline Vec in_register(Vec v) {
#if defined(__x86_64__)
    asm("" : "+v"(v));
#elif defined(__aarch64__)
    asm("" : "+w"(v));
#endif
    return v;
}

static inline IntVec in_register(IntVec v) { return (IntVec)in_register((Vec)v); }

// Sums that begin with 0, each in its register. Of `= {}` for an array the compiler makes a `rep stos` of some dozens of cycles,
// and memory that sums are then read from and written to.
template <typename V>
static inline __attribute__((always_inline)) void set_to_zero(V& sum) {
    sum = in_register(V{});
}
template <typename V, size_t count>
static inline __attribute__((always_inline)) void set_to_zero(V (&sums)[count]) {
#pragma GCC unroll 32
    for (size_t i = 0; i < count; ++i) set_to_zero(sums[i]);
}

static inline IntVec lane_numbers() {
    IntVec numbers = {};
    for (int i = 0; i < lanes; ++i) numbers[i] = i;
    return numbers;
}

static inline Vec splat(float x) { return x - Vec{}; }

// a * b + c, rounded once where the machine can.
static inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

static inline float fma(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// b where they are equal or one is not a number.
static inline Vec max(Vec a, Vec b) {
#if defined(__AVX512F__)
    return (Vec)_mm512_maskz_max_ps(-1, (__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}

// Sums of neighbouring lanes, those of a and then those of b.
static inline Vec pair_sums(Vec a, Vec b) {
    IntVec even, odd;
    for (int i = 0; i < lanes; ++i) {
        even[i] = 2 * i;
        odd[i] = 2 * i + 1;
    }
#if defined(__clang__)
    Vec evens, odds;
    for (int i = 0; i < lanes; ++i) {
        evens[i] = even[i] < lanes ? a[even[i] % lanes] : b[even[i] % lanes];
        odds[i] = odd[i] < lanes ? a[odd[i] % lanes] : b[odd[i] % lanes];
    }
    return evens + odds;
#else
    return __builtin_shuffle(a, b, even) + __builtin_shuffle(a, b, odd);
#endif
}

// As one tree of neighbours.
static inline float lane_sum(Vec v) {
    for (int64_t n = lanes; n > 1; n /= 2) v = pair_sums(v, v);
    return v[0];
}

static inline float lane_max(Vec v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#elif defined(__aarch64__)
    return vmaxvq_f32((float32x4_t)v);
#else
    float largest = v[0];
    for (int i = 1; i < lanes; ++i) largest = v[i] > largest ? v[i] : largest;
    return largest;
#endif
}

#if defined(__AVX512F__)

// The upper halves of a's words and then of b's: what they are as bfloat16, if that holds them.
static inline __m512i upper_halves(Vec a, Vec b) {
    alignas(64) static constexpr uint16_t places[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                        33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    return _mm512_permutex2var_epi16((__m512i)a, _mm512_load_si512(places), (__m512i)b);
}

// Lanes of two vectors beside each other, in which numbers take `left` lanes each: the first and the second halves of all.
template <int left>
struct Halves {
    alignas(64) int32_t first[16], second[16];
    constexpr Halves() : first(), second() {
        constexpr int half = left / 2;
        for (int i = 0; i < 16; ++i) {
            first[i] = i / half * left + i % half;
            second[i] = first[i] + half;
        }
    }
};

// The largest lane of each of sixteen vectors: every round makes one of two vectors, with half of the lanes of each.
static inline Vec lane_maxima(Vec (&v)[16]) {
    const auto round = [&]<int left>() {
        static constexpr Halves<left> halves;
        const __m512i first = _mm512_load_si512(halves.first), second = _mm512_load_si512(halves.second);
#pragma GCC unroll 8
        for (int i = 0; i < left / 2; ++i) {
            const __m512 a = (__m512)v[2 * i], b = (__m512)v[2 * i + 1];
            v[i] = max((Vec)_mm512_permutex2var_ps(a, first, b), (Vec)_mm512_permutex2var_ps(a, second, b));
        }
    };
    round.template operator()<16>();
    round.template operator()<8>();
    round.template operator()<4>();
    round.template operator()<2>();
    return v[0];
}

#endif

// e^x to about one unit in the last place; 0 below -87, where float32 runs out of normal numbers.
// e^x = 2^n e^r with n whole and |r| <= ln(2) / 2, and e^r by its Taylor series to the 7th power (rest < 6e-9).
static inline Vec exp(Vec x) {
    const Vec log2_e = splat(1.44269504f), ln2_high = splat(0.693359375f), ln2_low = splat(-2.12194440e-4f);
    const Vec rounder = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number, in the low bits
    const Vec too_low = splat(-87.0f), too_high = splat(88.0f);
    const Vec clamped = x > too_high ? too_high : (x < too_low ? too_low : x);
    const Vec shifted = fma(clamped, log2_e, rounder);
    const Vec n = shifted - rounder;
    const Vec r = fma(-n, ln2_low, fma(-n, ln2_high, clamped));
    Vec p = splat(1.0f / 5040);
    p = fma(p, r, splat(1.0f / 720));
    p = fma(p, r, splat(1.0f / 120));
    p = fma(p, r, splat(1.0f / 24));
    p = fma(p, r, splat(1.0f / 6));
    p = fma(p, r, splat(0.5f));
    p = fma(p, r, splat(1.0f));
    p = fma(p, r, splat(1.0f));
    const IntVec exponent = ((IntVec)shifted - (IntVec)rounder + 127) << 23;
    return x < too_low ? Vec{} : p * (Vec)exponent;
}

static inline float exp(float x) { return exp(splat(x))[0]; }

// 2^x for x up to 126, and 0 or less than any normal number below -126. 2^x = 2^n 2^r with n whole and |r| <= 1/2, and 2^r by a polynomial of least
// relative error among those that are 1 at 0: 1.0e-4 of degree 3, 9.1e-8 of degree 5.
template <int degree>
static inline Vec exp2(Vec x) {
#if defined(__AVX512F__)
    // Of -infinity r and p are no numbers, and p times 2 to the power of it is 0 by the instruction's definition.
    const Vec n = (Vec)_mm512_maskz_roundscale_ps(-1, (__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Vec r = x - n;
#else
    const Vec clamped = max(splat(-127.0f), x);
    const Vec rounder = splat(12582912.0f);  // 1.5 * 2^23: the sum's low bits are n
    const Vec shifted = clamped + rounder, r = clamped - (shifted - rounder);
#endif
    Vec p;
    if constexpr (degree == 3) {
        p = fma(splat(0.0550089329f), r, splat(0.242210954f));
        p = fma(p, r, splat(0.693282902f));
    } else {
        static_assert(degree == 5);
        p = fma(splat(0.00132647273f), r, splat(0.00967151299f));
        p = fma(p, r, splat(0.0555073358f));
        p = fma(p, r, splat(0.240222424f));
        p = fma(p, r, splat(0.693147004f));
    }
    p = fma(p, r, splat(1.0f));
#if defined(__AVX512F__)
    return (Vec)_mm512_maskz_scalef_ps(-1, (__m512)p, (__m512)n);
#else
    return (Vec)((WordVec)p + ((WordVec)shifted << 23));  // at -127 all bits become 0; what is above 126 is any number
#endif
}

constexpr float log2_e = 1.44269504f;

}  // namespace trivium::TRIVIUM_ISA
