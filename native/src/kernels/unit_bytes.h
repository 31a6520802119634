// The bytes of units (packed.h), made of their bits.
#pragma once

#include "../packed.h"
#include "byte_products.h"

namespace trivium::TRIVIUM_ISA {

constexpr int64_t unit_columns = 256, unit_groups = unit_columns / packed_group_columns, unit_quads = unit_columns / 4;

// A unit of a tile.
template <WeightType type>
class ByteUnit {
public:
    static constexpr PackedLayout p = packed_layout(type);
    static constexpr int bits = p.low_bits + p.high_bits;
    static constexpr int64_t bytes = packed_tile_bytes(p, unit_columns);
    static constexpr bool has_floors = p.has_minima;

    explicit ByteUnit(const uint8_t* unit) : unit_(unit) {}

    Vec scales(int part) const { return load(reinterpret_cast<const float*>(unit_) + part * lanes); }
    // 16 factors, then 16 floors or factors more.
    const uint8_t* numbers(int g) const { return unit_ + 64 + 32 * g; }
    const uint8_t* low_bits(int g) const { return unit_ + p.head_bytes + g * packed_group_bytes(p); }
    const uint8_t* high_bits(int g) const { return low_bits(g) + bits_bytes(p.low_bits); }
    IntVec floors(int g, int part) const { return load_signed(numbers(g) + 16 + part * lanes); }

    // As quads [64][64], each byte 128 more than its value.
    void expand(uint8_t* quads) const;

private:
    const uint8_t* unit_;
};

#if defined(__AVX512VNNI__)

// Columns 0 … 15 and 16 … 31 of a group, of the rows of a vector r: four times 16 bytes each.
struct GroupHalves {
    __m512i at[2];
};

struct alignas(64) RowBytes {
    uint8_t at[4][64];
};
// Each row of a vector r, of 16: its number as bytes, or as a word's low byte, or as words.
static constexpr RowBytes rows_as_bytes = [] {
    RowBytes all = {};
    for (int r = 0; r < 4; ++r)
        for (int i = 0; i < 64; ++i) all.at[r][i] = static_cast<uint8_t>(4 * (i / 16) + r);
    return all;
}();
static constexpr RowBytes rows_as_low_bytes = [] {
    RowBytes all = rows_as_bytes;
    for (int r = 0; r < 4; ++r)
        for (int i = 1; i < 64; i += 2) all.at[r][i] = 0x80;  // which is 0 after the shuffle
    return all;
}();
static constexpr RowBytes rows_as_words = [] {
    RowBytes all = rows_as_bytes;
    for (int r = 0; r < 4; ++r)
        for (int i = 1; i < 64; i += 2) all.at[r][i] = 0;
    return all;
}();

static inline __m512i load_line(const void* p) { return _mm512_loadu_si512(p); }
static inline __m512i in_each_lane(const void* p) {
    return _mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128(static_cast<const __m128i*>(p)));
}
static inline __m512i words(int value) { return _mm512_set1_epi16(static_cast<short>(value)); }

// Entries `first` … `first` + 15 of the table of each row of vector r: q * factor / steps, as bytes. The first eight are those
// with even numbers.
template <int bits, int first>
static inline __m512i table_of(__m512i factors) {
    static constexpr auto words_of_q = [] {
        struct {
            alignas(64) uint16_t even[32], odd[32];
        } all = {};
        for (int i = 0; i < 32; ++i) {
            all.even[i] = static_cast<uint16_t>((first + i % 8) << (16 - bits));
            all.odd[i] = static_cast<uint16_t>((first + 8 + i % 8) << (8 - bits));
        }
        return all;
    }();
    const __m512i even = _mm512_mulhi_epu16(load_line(words_of_q.even), factors);
    const __m512i odd = _mm512_mullo_epi16(load_line(words_of_q.odd), factors);
    return _mm512_ternarylogic_epi32(words(0xff00), odd, even, 0xca);  // 0xff00 ? odd : even
}

// Without floors: of four and five bits unsigned, of six bits signed.
template <WeightType type>
static inline __attribute__((always_inline)) GroupHalves halves_of(const ByteUnit<type>& unit, int g, int r) {
    constexpr int bits = ByteUnit<type>::bits;
    const uint8_t* const numbers = unit.numbers(g);
    const __m512i nibbles = load_line(unit.low_bits(g) + r * quad_bytes);
    if constexpr (bits < 6) {
        const __m512i factors = _mm512_maskz_shuffle_epi8(-1, in_each_lane(numbers), load_line(rows_as_low_bytes.at[r]));
        const __m512i fifteen = _mm512_set1_epi8(15);
        const __m512i q[2] = {_mm512_and_si512(nibbles, fifteen),
                              _mm512_and_si512(_mm512_maskz_srli_epi16(-1, nibbles, 4), fifteen)};
        const __m512i table = table_of<bits, 0>(factors);
        GroupHalves bytes = {{_mm512_maskz_shuffle_epi8(-1, table, q[0]), _mm512_maskz_shuffle_epi8(-1, table, q[1])}};
        if constexpr (bits == 5) {
            const __m512i upper = table_of<5, 16>(factors);
            for (int half = 0; half < 2; ++half) {
                __mmask64 is_upper;
                memcpy(&is_upper, unit.high_bits(g) + (2 * r + half) * 8, sizeof is_upper);
                bytes.at[half] = _mm512_mask_shuffle_epi8(bytes.at[half], is_upper, upper, q[half]);
            }
        }
        return bytes;
    } else {
        // Words of q - 32, times 1024.
        const __m512i pairs = load_line(unit.high_bits(g) + r / 2 * quad_bytes), nibble = words(15 << 10), top = words(0xc000);
        const auto times_1024 = [&](__m512i low_bits, int field) {
            const int shift = 14 - 2 * field - 8 * (r % 2);
            const __m512i high_bits = _mm512_maskz_slli_epi16(-1, pairs, shift);
            return _mm512_ternarylogic_epi32(top, high_bits, low_bits, 0xca);  // top ? high : low
        };
        const __m512i q[4] = {times_1024(_mm512_maskz_slli_epi16(-1, nibbles, 10), 0),
                              times_1024(_mm512_and_si512(_mm512_maskz_slli_epi16(-1, nibbles, 6), nibble), 1),
                              times_1024(_mm512_and_si512(_mm512_maskz_slli_epi16(-1, nibbles, 2), nibble), 2),
                              times_1024(_mm512_and_si512(_mm512_maskz_srli_epi16(-1, nibbles, 2), nibble), 3)};
        const __m512i rows = load_line(rows_as_words.at[r]);
        GroupHalves bytes;
        for (int half = 0; half < 2; ++half) {
            const __m256i all = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(numbers + 16 * half)));
            const __m512i factors = _mm512_maskz_permutexvar_epi16(-1, rows, _mm512_castsi256_si512(all));
            bytes.at[half] = _mm512_maskz_packs_epi16(-1, _mm512_mulhrs_epi16(q[2 * half], factors),
                                                      _mm512_mulhrs_epi16(q[2 * half + 1], factors));
        }
        return bytes;
    }
}

// Four vectors of [4 rows, 4 words] as quads: word c of all 16 rows beside each other.
static inline void put_as_quads(const __m512i* rows, uint8_t* quads) {
    const __m512i low01 = _mm512_maskz_unpacklo_epi32(-1, rows[0], rows[1]);
    const __m512i high01 = _mm512_maskz_unpackhi_epi32(-1, rows[0], rows[1]);
    const __m512i low23 = _mm512_maskz_unpacklo_epi32(-1, rows[2], rows[3]);
    const __m512i high23 = _mm512_maskz_unpackhi_epi32(-1, rows[2], rows[3]);
    _mm512_storeu_si512(quads, _mm512_maskz_unpacklo_epi64(-1, low01, low23));
    _mm512_storeu_si512(quads + quad_bytes, _mm512_maskz_unpackhi_epi64(-1, low01, low23));
    _mm512_storeu_si512(quads + 2 * quad_bytes, _mm512_maskz_unpacklo_epi64(-1, high01, high23));
    _mm512_storeu_si512(quads + 3 * quad_bytes, _mm512_maskz_unpackhi_epi64(-1, high01, high23));
}

template <WeightType type>
void ByteUnit<type>::expand(uint8_t* quads) const {
    for (int g = 0; g < unit_groups; ++g) {
        __m512i rows[2][4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
            const GroupHalves halves = halves_of(*this, g, r);
            __m512i floors = _mm512_set1_epi8(-128);
            if constexpr (has_floors) {
                const __m512i rows_of_r = load_line(rows_as_bytes.at[r]);
                floors = _mm512_add_epi8(floors, _mm512_maskz_shuffle_epi8(-1, in_each_lane(numbers(g) + 16), rows_of_r));
            }
            for (int half = 0; half < 2; ++half) rows[half][r] = _mm512_add_epi8(halves.at[half], floors);
        }
        for (int half = 0; half < 2; ++half) put_as_quads(rows[half], quads + (8 * g + 4 * half) * quad_bytes);
    }
}

#else

template <WeightType type>
void ByteUnit<type>::expand(uint8_t* quads) const {
    for (int g = 0; g < unit_groups; ++g) {
        const uint8_t *const low = low_bits(g), *const high = high_bits(g);
        for (int row = 0; row < packed_tile_rows; ++row) {
            const int64_t r = row % 4, at = r * quad_bytes + row / 4 * 16;
            for (int c = 0; c < packed_group_columns; ++c) {
                int value;
                if constexpr (bits == 6) {
                    const int field = c / 8, k = c % 8;
                    const int low_bits = low[at + 2 * k + field / 2] >> field % 2 * 4 & 15;
                    const int high_bits = high[r / 2 * quad_bytes + row / 4 * 16 + 2 * k + r % 2] >> 2 * field & 3;
                    const int q = (low_bits | high_bits << 4) ^ 32;  // which is 32 more than it stands for
                    value = ((q - 32) * static_cast<int8_t>(numbers(g)[c / 16 * 16 + row]) + 16) >> 5;
                } else {
                    const int turned = low[at + c % 16] >> c / 16 * 4 & 15;
                    int q = turned >> 1 | (turned & 1) << 3;
                    const int bit = row / 4 * 16 + c % 16;
                    if constexpr (bits == 5) q |= (high[(2 * r + c / 16) * 8 + bit / 8] >> bit % 8 & 1) << 4;
                    value = q * numbers(g)[row] >> bits;
                    value += static_cast<int8_t>(numbers(g)[16 + row]);
                }
                quads[(8 * g + c / 4) * quad_bytes + 4 * row + c % 4] = static_cast<uint8_t>(value + 128);
            }
        }
    }
}

#endif

}  // namespace trivium::TRIVIUM_ISA
