// Linear layers on packed weights (packed.h) and quantized activations. Products of bytes are summed as whole numbers,
// exactly; each group of 32 columns (or 16) then joins the output's float32 sum, in the order of the columns. So an
// output is the same to the bit for any number of rows, and for every instruction set that fuses multiply and add.
#pragma once

#include "../kernels.h"
#include "../packed.h"
#include "decode.h"
#include "next_tile.h"
#include "outputs.h"

namespace trivium::TRIVIUM_ISA {

constexpr int tile_parts = 16 / lanes;  // vectors that make up the 16 rows of a tile
typedef uint8_t ByteVec __attribute__((vector_size(4 * lanes)));

static inline ByteVec load_quad(const uint8_t* p) {
    ByteVec v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline ByteVec shifted(ByteVec v, int shift, uint8_t mask) {
    typedef uint16_t Words __attribute__((vector_size(4 * lanes)));
    return (ByteVec)((Words)v >> shift) & mask;
}

// Byte i is `value` where bit i is set, else 0.
static inline ByteVec bytes_where(const uint8_t* bits, uint8_t value) {
#if defined(__AVX512BW__)
    uint64_t mask;
    memcpy(&mask, bits, sizeof mask);
    return (ByteVec)_mm512_maskz_set1_epi8(mask, static_cast<char>(value));
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
#elif defined(__AVX2__)
    const __m256i four = _mm256_set1_epi32(a);
    if constexpr (largest <= 127) {  // pairs of products fit into 16 bits
        const __m256i pairs = _mm256_maddubs_epi16((__m256i)w, four);
        return (IntVec)_mm256_add_epi32((__m256i)sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    } else {
        const __m256i low = _mm256_maddubs_epi16((__m256i)(w & 15), four);
        const __m256i high = _mm256_maddubs_epi16((__m256i)shifted(w, 4, 15), four);
        const __m256i both = _mm256_add_epi32(_mm256_madd_epi16(low, _mm256_set1_epi16(1)),
                                              _mm256_madd_epi16(high, _mm256_set1_epi16(16)));
        return (IntVec)_mm256_add_epi32((__m256i)sum, both);
    }
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

static inline IntVec load_unsigned(const uint8_t* p) { return load_signed(p) & 255; }

typedef int32_t FourBytes __attribute__((may_alias, aligned(1)));

// A group of 32 columns of `lanes` rows, ready to be multiplied.
template <WeightType type>
struct Group {
    static constexpr PackedLayout p = packed_layout(type);
    static constexpr int num_scales = p.by_16 ? 2 : 1;
    ByteVec quads[8];
    Vec scales[num_scales];
    Vec minima[num_scales];  // added, where the type has them

    // `unit` and `group` point at the unit's and the group's beginning; rows part * lanes … of the tile.
    void load(const uint8_t* unit, const uint8_t* group, int part) {
        load_scales(unit, group, part * lanes);
        const int64_t at = part * 4 * lanes;
        const uint8_t* const low = group + p.scale_bytes + at;
        const uint8_t* const high = group + p.scale_bytes + bits_bytes(p.low_bits);
        if constexpr (p.low_bits == 8) {
            for (int q = 0; q < 8; ++q) quads[q] = load_quad(low + q * quad_bytes);
        } else if constexpr (p.low_bits == 4) {
            for (int v = 0; v < 4; ++v) {
                const ByteVec both = load_quad(low + v * quad_bytes);
                quads[v] = both & 15;
                quads[v + 4] = shifted(both, 4, 15);
            }
        } else {
            for (int v = 0; v < 2; ++v) {
                const ByteVec four = load_quad(low + v * quad_bytes);
                for (int f = 0; f < 4; ++f) quads[4 * v + f] = shifted(four, 2 * f, 3);
            }
        }
        if constexpr (p.high_bits == 1) {
            for (int q = 0; q < 8; ++q) quads[q] |= bytes_where(high + q * 8 + at / 8, 1 << p.low_bits);
        } else if constexpr (p.high_bits == 2) {
            for (int v = 0; v < 2; ++v) {
                const ByteVec four = load_quad(high + v * quad_bytes + at);
                for (int f = 0; f < 4; ++f) quads[4 * v + f] |= shifted(four, 2 * f, 3) << p.low_bits;
            }
        }
    }

    void load_scales(const uint8_t* unit, const uint8_t* group, int row) {
        const Vec d = load_halves(unit + 2 * row);
        if constexpr (p.head_bytes == 0) {
            scales[0] = d;
            if constexpr (p.has_minima) minima[0] = load_halves(unit + 32 + 2 * row);
        } else if constexpr (type == WeightType::q2_k) {
            const Vec dmin = load_halves(unit + 32 + 2 * row);
            for (int s = 0; s < 2; ++s) {
                const IntVec both = load_unsigned(group + 16 * s + row);
                scales[s] = d * to_float(both & 15);
                minima[s] = -dmin * to_float(both >> 4);
            }
        } else if constexpr (p.by_16) {
            for (int s = 0; s < 2; ++s) scales[s] = d * to_float(load_signed(group + 16 * s + row));
        } else {
            scales[0] = d * to_float(load_unsigned(group + row));
            minima[0] = -load_halves(unit + 32 + 2 * row) * to_float(load_unsigned(group + 16 + row));
        }
    }

    // The part of one output vector that the group `g` of one row of x adds. Whole numbers may be summed in several
    // chains, so that a multiply-add need not wait for the one before; the sum is the same.
    template <int num_chains>
    Vec add_to(Vec sum, const QuantizedRows& x, int64_t row, int64_t g) const {
        constexpr int largest = (1 << (p.low_bits + p.high_bits)) - 1;
        const int64_t num_groups = x.num_groups();
        // Four bytes at a time, each straight from memory into all lanes.
        const FourBytes* const a = reinterpret_cast<const FourBytes*>(x.q + row * x.stride + g * packed_group_columns);
        const int32_t* const q_sums = x.q_sums + 2 * (row * num_groups + g);
        const float scale = x.scales[row * num_groups + g];
        if constexpr (p.by_16) {
            for (int s = 0; s < 2; ++s) {
                IntVec products = IntVec{} - p.offset * q_sums[s];
                for (int i = 4 * s; i < 4 * s + 4; ++i) products = add_products<largest>(products, quads[i], a[i]);
                sum = fma(scales[s] * scale, to_float(products), sum);
                if constexpr (p.has_minima) sum = fma(minima[s], splat(scale * static_cast<float>(q_sums[s])), sum);
            }
        } else {
            IntVec products[num_chains] = {};
            if constexpr (p.offset != 0) products[0] = products[0] - p.offset * (q_sums[0] + q_sums[1]);
            for (int i = 0; i < 8; ++i)
                products[i % num_chains] = add_products<largest>(products[i % num_chains], quads[i], a[i]);
            for (int i = 1; i < num_chains; ++i) products[0] += products[i];
            sum = fma(scales[0] * scale, to_float(products[0]), sum);
            if constexpr (p.has_minima) sum = fma(minima[0], splat(x.sums[row * num_groups + g]), sum);
        }
        return sum;
    }
};

// The outputs of `lanes` rows of a tile for `num_x` rows of x from `first` on.
template <WeightType type, int num_x>
static inline void multiply_part(const PackedPart& task, const uint8_t* tile, int part, int64_t first, NextTile& next,
                                 Vec* sums) {
    constexpr PackedLayout p = packed_layout(type);
    constexpr int64_t group_bytes = packed_group_bytes(p), groups = p.unit_columns / packed_group_columns;
    constexpr int64_t unit_bytes = p.head_bytes + groups * group_bytes;
    for (int m = 0; m < num_x; ++m) sums[m] = Vec{};
    const QuantizedRows x = task.x.from_row(first);
    const int64_t num_groups = x.num_groups();
#pragma GCC unroll 4
    for (int64_t g = 0; g < num_groups; ++g) {
        const uint8_t* const unit = tile + g / groups * unit_bytes;
        Group<type> group;
        group.load(unit, unit + p.head_bytes + g % groups * group_bytes, part);
        next.fetch_some();
#pragma GCC unroll 8
        for (int m = 0; m < num_x; ++m) sums[m] = group.template add_to<2>(sums[m], x, m, g);
    }
}

template <WeightType type, int num_x>
static void multiply_rows(const PackedPart& task, const uint8_t* tile, int64_t tile_row, int64_t first, NextTile& next) {
    for (int part = 0; part < tile_parts; ++part) {
        const int64_t row = tile_row + part * lanes;
        if (row >= task.weight.rows) return;
        Vec sums[num_x];
        multiply_part<type, num_x>(task, tile, part, first, next, sums);
        for (int m = 0; m < num_x; ++m) put_outputs(task, row, first + m, sums[m]);
    }
}

// As many rows of x share the group's quads as there are registers for their sums.
constexpr int packed_rows_together = lanes == 16 ? 8 : 4;

template <WeightType type, int num_x = packed_rows_together>
static void multiply_rest(const PackedPart& task, const uint8_t* tile, int64_t tile_row, int64_t first, int64_t count,
                          NextTile& next) {
    if constexpr (num_x > 0) {
        if (count >= num_x) {
            multiply_rows<type, num_x>(task, tile, tile_row, first, next);
            first += num_x;
            count -= num_x;
        }
        if (count > 0) multiply_rest<type, num_x - 1>(task, tile, tile_row, first, count, next);
    }
}

// Rows of x that all tiles of a task pass over before the next rows do, so that they are read from a cache near by: so many
// bytes of them, and so many rows at least, that reading the tiles again costs little.
constexpr int64_t packed_block_bytes = 128 << 10, packed_block_rows = 64;

template <WeightType type>
static void packed_linear_of(const PackedPart& task) {
    const int64_t tile_bytes = packed_tile_bytes(packed_layout(type), task.weight.columns);
    const int64_t fitting = packed_block_bytes / task.weight.columns / packed_rows_together * packed_rows_together;
    const int64_t block = fitting > packed_block_rows ? fitting : packed_block_rows;
    for (int64_t begin = 0; begin < task.num_x; begin += block) {
        const int64_t end = begin + block < task.num_x ? begin + block : task.num_x;
        const int64_t passes = (end - begin + packed_rows_together - 1) / packed_rows_together * tile_parts;
        for (int64_t t = task.first_tile; t < task.last_tile; ++t) {
            const uint8_t* const tile = task.weight.data + t * tile_bytes;
            const int64_t row = t * packed_tile_rows;
            const bool fetches = t + 1 < task.last_tile && end - begin >= fewest_rows_to_fetch_for;
            NextTile next(tile + tile_bytes, fetches ? tile_bytes : 0, passes * task.x.num_groups());
            int64_t first = begin;
            for (; first + packed_rows_together <= end; first += packed_rows_together)
                multiply_rows<type, packed_rows_together>(task, tile, row, first, next);
            multiply_rest<type, packed_rows_together - 1>(task, tile, row, first, end - first, next);
        }
    }
}

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
        const float scale = magnitude / 127.0f;
        // A magnitude so small that its inverse overflows is as good as none.
        const Vec inverse = splat(magnitude > 1e-36f ? 127.0f / magnitude : 0.0f);
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
