// Linear layers on packed weights of at most four bits with half of the multiplications, for processors that add bytes beside
// multiplying them. After Winograd (1968), two columns, an even and an odd one, of x and w take one product:
//
//     x_e w_e + x_o w_o = (x_e + w_o) (x_o + w_e) - x_e x_o - w_o w_e
//
// What is subtracted belongs to x or to w alone: it is summed once for each row of x, and once for each of w. Whole numbers are
// exact, so the sums are those of packed_linear.h, to the bit.
#pragma once

#include "packed_linear.h"

#if defined(__AVX512VNNI__) && !defined(__AMX_INT8__)
#define TRIVIUM_HALVES_PRODUCTS

namespace trivium::TRIVIUM_ISA {

// With fewer rows, making a tile ready costs more than it saves.
constexpr int64_t fewest_halved_rows = 24;
// Rows of x that meet a slice of weights together: as many as there are registers for their sums. Of some of them the
// products are summed beside each other, so that a multiply-add need not wait for the one before.
constexpr int halved_rows_together = 12, halved_rows_beside = 4;

// Both factors have to fit into a byte: x_e + w_o, which is made unsigned by adding the largest x, and x_o + w_e, whose
// smallest value is made -128.
constexpr int odd_shift = largest_quantized, even_shift = largest_quantized - 128;
template <WeightType type>
constexpr bool can_be_halved = Group<type>::largest + 2 * largest_quantized <= 255;

// A tile of weights, unit by unit, in slices: the columns that share a scale.
template <WeightType type>
struct HalvedTile {
    using U = Unit<type>;
    using W = Group<type>;
    struct alignas(64) Slice {
        ByteVec quads[W::quads_per_scale];  // shifted
        IntVec start;                       // of sums: what belongs to the weights alone
        IntVec factors[U::has_factors ? 1 : 0];
    };
    struct alignas(64) HalvedUnit {
        Slice slices[U::num_groups * W::num_scales];
        IntVec pairs[U::p.has_minima ? U::num_pairs : 0];
        Vec scale;
        Vec minimum;
    };
    HalvedUnit* units;

    void make(const uint8_t* tile, int64_t num_units) const {
        for (int64_t u = 0; u < num_units; ++u) {
            const U unit(tile, u, 0);
            HalvedUnit& to = units[u];
            for (int g = 0; g < U::num_groups; ++g) {
                const W group = unit.group(g);
#pragma GCC unroll 2
                for (int s = 0; s < W::num_scales; ++s) {
                    Slice& slice = to.slices[g * W::num_scales + s];
                    IntVec own = IntVec{};
#pragma GCC unroll 4
                    for (int i = 0; i < W::quads_per_scale; i += 2) {
                        const ByteVec even = group.quad(s * W::quads_per_scale + i) + static_cast<uint8_t>(even_shift);
                        const ByteVec odd = group.quad(s * W::quads_per_scale + i + 1) + static_cast<uint8_t>(odd_shift);
                        own = add_products<255>(own, odd, (IntVec)even);
                        slice.quads[i] = even;
                        slice.quads[i + 1] = odd;
                    }
                    slice.start = -own;
                    if constexpr (U::has_factors) slice.factors[0] = group.factor(s);
                }
            }
            to.scale = unit.scale();
            if constexpr (U::p.has_minima) {
                for (int i = 0; i < U::num_pairs; ++i) to.pairs[i] = unit.pair(i);
                to.minimum = unit.minimum();
            }
        }
    }
};

// Of four runs of 16 columns of a row of x: what belongs to x alone, with the shifts of the weights in it.
static inline __m128i own_products(__m512i x) {
    const __m512i even = _mm512_add_epi8(x, _mm512_set1_epi8(odd_shift));
    const __m512i odd = _mm512_add_epi8(_mm512_shuffle_epi32(x, _MM_PERM_CDAB), _mm512_set1_epi8(even_shift));
    // (x_e + odd_shift) (x_o + even_shift) less the product of the shifts, which the weights have in theirs. Every other
    // lane has its neighbour's columns.
    const __m512i products = _mm512_dpbusd_epi32(_mm512_set1_epi32(-4 * odd_shift * even_shift), even, odd);
    const __m512i sums = _mm512_add_epi32(products, _mm512_shuffle_epi32(products, _MM_PERM_BADC));
    return _mm512_castsi512_si128(_mm512_maskz_compress_epi32(0x1111, sums));
}

// `num_x` rows of x, unit by unit, so that what meets a slice of weights lies together.
template <WeightType type, int num_x>
struct HalvedRows {
    using U = Unit<type>;
    using W = Group<type>;
    struct Columns {  // of a unit, and of one digit
        struct {
            int32_t fours[num_x][8];
            int32_t starts[W::num_scales][num_x];  // of sums: what belongs to x alone, and to the offset
        } groups[U::num_groups];
        int32_t pairs[U::p.has_minima ? U::num_pairs : 0][num_x];
        float sums[num_x];
        float scales[num_x];
        int32_t is_double[num_x];  // the first says it of all
    };
    // Rows that are laid together take as much as they do alone (laid_row_bytes).
    static_assert(sizeof(Columns) == num_x * 4 * (U::num_groups * (8 + W::num_scales) + (U::p.has_minima ? U::num_pairs : 0) + 3));
    Columns* columns;  // [digits, units]

    const Columns& at(int64_t u, int64_t digit, int64_t num_units) const { return columns[digit * num_units + u]; }

    void lay(const QuantizedRows& x) const {
        for (int64_t u = 0; u < x.num_units(); ++u) {
            const bool is_double = num_double<type>(x, num_x, u) != 0;
            for (int64_t digit = 0; digit <= is_double; ++digit) {
                Columns& to = columns[digit * x.num_units() + u];
                to.is_double[0] = is_double;
                for (int m = 0; m < num_x; ++m) lay_row(x.from_row(m), u, digit, m, to);
            }
        }
    }

private:
    static void lay_row(const QuantizedRows& x, int64_t u, int64_t digit, int m, Columns& to) {
        const int64_t first = digit * x.columns + u * U::columns;
        for (int g = 0; g < U::num_groups; g += 2) {
            constexpr int count = U::num_groups == 1 ? 1 : 2;
            const int8_t* const q = x.q + first + g * packed_group_columns;
            alignas(16) int32_t own[4];
            _mm_store_si128((__m128i*)own, own_products(_mm512_maskz_loadu_epi32(count == 1 ? 0xff : 0xffff, q)));
            for (int i = 0; i < count; ++i) {
                memcpy(to.groups[g + i].fours[m], q + i * packed_group_columns, packed_group_columns);
                for (int s = 0; s < W::num_scales; ++s) {
                    const int32_t of_x = W::num_scales == 2 ? own[2 * i + s] : own[2 * i] + own[2 * i + 1];
                    int32_t of_offset = 0;
                    if constexpr (U::has_factors && U::p.offset != 0)
                        of_offset = -U::p.offset * x.sums_of_16[first / 16 + 2 * (g + i) + s];
                    else if constexpr (U::p.offset != 0)
                        of_offset = U::offset_sum(x, u);
                    to.groups[g + i].starts[s][m] = of_offset - of_x;
                }
            }
        }
        if constexpr (U::p.has_minima && U::has_factors)
            for (int i = 0; i < U::num_pairs; ++i) to.pairs[i][m] = U::pair_of_sums(x, u, digit, i);
        to.sums[m] = U::has_factors ? 0.0f : x.sums[u];
        to.scales[m] = x.digit_scale(u, digit);
    }
};

// Adds the slice of scale s of a group to whole-number sums of all rows from `from` on.
template <WeightType type, int num_x, int from = 0, typename XGroup>
static inline void add_halved_slice(const typename HalvedTile<type>::Slice& slice, const XGroup& x, int s, IntVec* sums) {
    using W = Group<type>;
    constexpr int left = num_x - from, count = left < halved_rows_beside ? left : halved_rows_beside;
    IntVec products[count];
#pragma GCC unroll 4
    for (int m = 0; m < count; ++m) products[m] = slice.start + x.starts[s][from + m];
#pragma GCC unroll 4
    for (int i = 0; i < W::quads_per_scale; i += 2)
#pragma GCC unroll 4
        for (int m = 0; m < count; ++m) {
            const int32_t* const fours = x.fours[from + m] + s * W::quads_per_scale + i;
            const ByteVec unsigned_factors = slice.quads[i + 1] + (ByteVec)(IntVec{} + fours[0]);
            const ByteVec signed_factors = slice.quads[i] + (ByteVec)(IntVec{} + fours[1]);
            products[m] = add_products<255>(products[m], unsigned_factors, (IntVec)signed_factors);
        }
#pragma GCC unroll 4
    for (int m = 0; m < count; ++m) {
        if constexpr (Unit<type>::has_factors)
            sums[from + m] += slice.factors[0] * products[m];
        else
            sums[from + m] = products[m];
    }
    if constexpr (count < left) add_halved_slice<type, num_x, from + count>(slice, x, s, sums);
}

// Adds a digit of a unit to the sums of all rows.
template <WeightType type, int num_x>
static inline void add_halved_digit(const typename HalvedTile<type>::HalvedUnit& unit,
                                    const typename HalvedRows<type, num_x>::Columns& x, NextTile& next, Vec* sums) {
    using U = Unit<type>;
    using W = Group<type>;
    IntVec products[num_x];
    set_to_zero(products);
    for (int g = 0; g < U::num_groups; ++g) {
        next.fetch_some();
        for (int s = 0; s < W::num_scales; ++s)
            add_halved_slice<type, num_x>(unit.slices[g * W::num_scales + s], x.groups[g], s, products);
    }
#pragma GCC unroll 12
    for (int m = 0; m < num_x; ++m) {
        Vec values = unit.scale * to_float(products[m]);
        if constexpr (U::p.has_minima && U::has_factors) {
            IntVec others = IntVec{};
#pragma GCC unroll 8
            for (int i = 0; i < U::num_pairs; ++i) others = add_word_products(others, unit.pairs[i], IntVec{} + x.pairs[i][m]);
            values = fma(unit.minimum, to_float(others), values);
        } else if constexpr (U::p.has_minima) {
            values = fma(unit.minimum, splat(x.sums[m]), values);
        }
        sums[m] = fma(values, splat(x.scales[m]), sums[m]);
    }
}

// The outputs of a tile for `num_x` rows of x from `first` on.
template <WeightType type, int num_x>
[[gnu::noinline]] static void multiply_halved(const LinearPart& task, const HalvedRows<type, num_x>& x,
                                              const HalvedTile<type>& weight, int64_t tile_row, int64_t first, NextTile& next) {
    const int64_t num_units = task.weight.columns / Unit<type>::columns;
    Vec sums[num_x];
    set_to_zero(sums);
    fetch_outputs(task, tile_row, 1, first, num_x);
    for (int64_t u = 0; u < num_units; ++u) {
        add_halved_digit<type, num_x>(weight.units[u], x.at(u, 0, num_units), next, sums);
        if (x.at(u, 0, num_units).is_double[0])
            add_halved_digit<type, num_x>(weight.units[u], x.at(u, 1, num_units), next, sums);
    }
#pragma GCC unroll 12
    for (int m = 0; m < num_x; ++m) put_outputs(task, tile_row, first + m, sums[m]);
}

// Rows of x that meet a tile before the next one is made ready: as many as fill half of a second-level cache of 1 MiB with
// what is laid of their first digits.
constexpr int64_t halved_block_bytes = 512 << 10, most_halved_block_rows = 8 * halved_rows_together;

template <WeightType type>
static constexpr int64_t laid_row_bytes(int64_t columns) {
    return columns / Unit<type>::columns * static_cast<int64_t>(sizeof(typename HalvedRows<type, 1>::Columns));
}

template <WeightType type>
static constexpr int64_t halved_block_rows(int64_t columns) {
    const int64_t fitting = halved_block_bytes / laid_row_bytes<type>(columns) / halved_rows_together * halved_rows_together;
    if (fitting > most_halved_block_rows) return most_halved_block_rows;
    return fitting > fewest_halved_rows ? fitting : fewest_halved_rows;
}

template <WeightType type>
static constexpr int64_t halved_tile_bytes(int64_t columns) {
    return columns / Unit<type>::columns * static_cast<int64_t>(sizeof(typename HalvedTile<type>::HalvedUnit));
}

template <WeightType type>
static constexpr int64_t halved_scratch(int64_t columns) {
    constexpr int64_t digits = digits_of(Unit<type>::columns);
    return halved_tile_bytes<type>(columns) + digits * halved_block_rows<type>(columns) * laid_row_bytes<type>(columns);
}

// `scratch`: halved_scratch bytes.
template <WeightType type>
static void packed_linear_by_halves(const LinearPart& task, const QuantizedRows& x, void* scratch) {
    constexpr int64_t digits = digits_of(Unit<type>::columns);
    const int64_t columns = task.weight.columns, num_groups = columns / packed_group_columns;
    const int64_t tile_bytes = packed_tile_bytes(packed_layout(type), columns), most_rows = halved_block_rows<type>(columns);
    const int64_t num_blocks = (task.num_x + most_rows - 1) / most_rows;
    const HalvedTile<type> weight = {static_cast<typename HalvedTile<type>::HalvedUnit*>(scratch)};
    char* const laid = static_cast<char*>(scratch) + halved_tile_bytes<type>(columns);
    for (int64_t block = 0; block < num_blocks; ++block) {
        const int64_t begin = task.num_x * block / num_blocks, end = task.num_x * (block + 1) / num_blocks;
        const int64_t passes = (end - begin + halved_rows_together - 1) / halved_rows_together;
        const auto for_rows = [&](const auto& work) {
            for_near_equal_groups<halved_rows_together>(begin, end, [&]<int num_x>(int64_t first) {
                using Rows = HalvedRows<type, num_x>;
                char* const at = laid + digits * (first - begin) * laid_row_bytes<type>(columns);
                work(Rows{reinterpret_cast<typename Rows::Columns*>(at)}, first);
            });
        };
        for_rows([&](const auto& rows, int64_t first) { rows.lay(x.from_row(first)); });
        const LinearPart pass = end < task.num_x ? task.without_following() : task;
        for (int64_t t = task.first_tile; t < task.last_tile; ++t) {
            const uint8_t* const tile = task.weight.data + t * tile_bytes;
            NextTile next = NextTile::after_this(pass, tile_bytes, tile + tile_bytes, tile_bytes, passes * num_groups);
            weight.make(tile, x.num_units());
            for_rows([&](const auto& rows, int64_t first) {
                multiply_halved(task, rows, weight, t * packed_tile_rows, first, next);
            });
        }
    }
}

}  // namespace trivium::TRIVIUM_ISA

#endif
