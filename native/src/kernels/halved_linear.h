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

// Processors of AMD have two units that multiply vectors and two more that add them; in those of Intel the same two do both.
static bool adds_beside_products() {
    static const bool by_amd = __builtin_cpu_is("amd");
    return by_amd;
}

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

// A tile of weights, slice by slice: the columns that share a scale.
template <WeightType type>
struct HalvedTile {
    using W = Group<type>;
    struct alignas(64) Slice {
        ByteVec quads[W::quads_per_scale];  // shifted
        IntVec start;                       // of sums: what belongs to the weights alone
        Vec scales;
        Vec minima;
    };
    Slice* slices;

    void make(const uint8_t* tile, int64_t num_groups) const {
        for (int64_t g = 0; g < num_groups; ++g) {
            const W group(tile, g, 0);
#pragma GCC unroll 2
            for (int s = 0; s < W::num_scales; ++s) {
                Slice& slice = slices[g * W::num_scales + s];
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
                slice.scales = group.scale(s);
                if constexpr (W::p.has_minima) slice.minima = group.minimum(s);
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

// `num_x` rows of x, group by group, so that what meets a slice of weights lies together.
template <WeightType type, int num_x>
struct HalvedRows {
    using W = Group<type>;
    struct Columns {
        int32_t fours[num_x][8];
        float scales[num_x];
        int32_t starts[W::num_scales][num_x];  // of sums: what belongs to x alone
        float minimum_factors[W::p.has_minima ? W::num_scales : 0][num_x];
    };
    // Rows that are laid together take as much as they do alone (laid_row_bytes).
    static_assert(sizeof(Columns) == num_x * 4 * (9 + W::num_scales * (W::p.has_minima ? 2 : 1)));
    Columns* columns;

    void lay(const QuantizedRows& x) const {
        for (int m = 0; m < num_x; ++m)
            for (int64_t g = 0; g < x.num_groups(); g += 2) {
                const int count = x.num_groups() - g < 2 ? 1 : 2;
                const int8_t* const q = x.q + m * x.stride + g * packed_group_columns;
                alignas(16) int32_t own[4];
                _mm_store_si128((__m128i*)own, own_products(_mm512_maskz_loadu_epi32(count == 1 ? 0xff : 0xffff, q)));
                for (int i = 0; i < count; ++i) {
                    Columns& to = columns[g + i];
                    memcpy(to.fours[m], q + i * packed_group_columns, packed_group_columns);
                    to.scales[m] = x.scales[m * x.num_groups() + g + i];
                    for (int s = 0; s < W::num_scales; ++s) {
                        const int32_t of_x = W::num_scales == 2 ? own[2 * i + s] : own[2 * i] + own[2 * i + 1];
                        to.starts[s][m] = W::offset_sum(s, x, m, g + i) - of_x;
                        if constexpr (W::p.has_minima) to.minimum_factors[s][m] = W::minimum_factor(s, x, m, g + i);
                    }
                }
            }
    }
};

// Adds the slice of scale s to the sums of all rows from `from` on.
template <WeightType type, int num_x, int from = 0>
static inline void add_halved_slice(const typename HalvedTile<type>::Slice& slice,
                                    const typename HalvedRows<type, num_x>::Columns& x, int s, Vec* sums) {
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
    for (int m = from; m < from + count; ++m) {
        sums[m] = fma(slice.scales * x.scales[m], to_float(products[m - from]), sums[m]);
        if constexpr (W::p.has_minima) sums[m] = fma(slice.minima, splat(x.minimum_factors[s][m]), sums[m]);
    }
    if constexpr (count < left) add_halved_slice<type, num_x, from + count>(slice, x, s, sums);
}

// The outputs of a tile for `num_x` rows of x from `first` on.
template <WeightType type, int num_x>
[[gnu::noinline]] static void multiply_halved(const LinearPart& task, const HalvedRows<type, num_x>& x,
                                              const HalvedTile<type>& weight, int64_t tile_row, int64_t first, NextTile& next) {
    using W = Group<type>;
    const int64_t num_groups = task.weight.columns / packed_group_columns;
    Vec sums[num_x] = {};
    for (int64_t g = 0; g < num_groups; ++g) {
        next.fetch_some();
        for (int s = 0; s < W::num_scales; ++s)
            add_halved_slice<type, num_x>(weight.slices[g * W::num_scales + s], x.columns[g], s, sums);
    }
    for (int m = 0; m < num_x; ++m) put_outputs(task, tile_row, first + m, sums[m]);
}

// Rows of x that meet a tile before the next one is made ready: as many as fill half of a second-level cache of 1 MiB with
// what is laid of them.
constexpr int64_t halved_block_bytes = 512 << 10, most_halved_block_rows = 8 * halved_rows_together;

template <WeightType type>
static constexpr int64_t laid_row_bytes(int64_t columns) {
    return columns / packed_group_columns * static_cast<int64_t>(sizeof(typename HalvedRows<type, 1>::Columns));
}

template <WeightType type>
static constexpr int64_t halved_block_rows(int64_t columns) {
    const int64_t fitting = halved_block_bytes / laid_row_bytes<type>(columns) / halved_rows_together * halved_rows_together;
    if (fitting > most_halved_block_rows) return most_halved_block_rows;
    return fitting > fewest_halved_rows ? fitting : fewest_halved_rows;
}

template <WeightType type>
static constexpr int64_t halved_tile_bytes(int64_t columns) {
    const int64_t num_slices = columns / packed_group_columns * Group<type>::num_scales;
    return num_slices * static_cast<int64_t>(sizeof(typename HalvedTile<type>::Slice));
}

template <WeightType type>
static constexpr int64_t halved_scratch(int64_t columns) {
    return halved_tile_bytes<type>(columns) + halved_block_rows<type>(columns) * laid_row_bytes<type>(columns);
}

// `scratch`: halved_scratch bytes.
template <WeightType type>
static void packed_linear_by_halves(const LinearPart& task, const QuantizedRows& x, void* scratch) {
    const int64_t columns = task.weight.columns, num_groups = x.num_groups();
    const int64_t tile_bytes = packed_tile_bytes(packed_layout(type), columns), most_rows = halved_block_rows<type>(columns);
    const int64_t num_blocks = (task.num_x + most_rows - 1) / most_rows;
    const HalvedTile<type> weight = {static_cast<typename HalvedTile<type>::Slice*>(scratch)};
    char* const laid = static_cast<char*>(scratch) + halved_tile_bytes<type>(columns);
    for (int64_t block = 0; block < num_blocks; ++block) {
        const int64_t begin = task.num_x * block / num_blocks, end = task.num_x * (block + 1) / num_blocks;
        const int64_t passes = (end - begin + halved_rows_together - 1) / halved_rows_together;
        const auto for_rows = [&](const auto& work) {
            for_near_equal_groups<halved_rows_together>(begin, end, [&]<int num_x>(int64_t first) {
                using Rows = HalvedRows<type, num_x>;
                char* const at = laid + (first - begin) * laid_row_bytes<type>(columns);
                work(Rows{reinterpret_cast<typename Rows::Columns*>(at)}, first);
            });
        };
        for_rows([&](const auto& rows, int64_t first) { rows.lay(x.from_row(first)); });
        for (int64_t t = task.first_tile; t < task.last_tile; ++t) {
            const uint8_t* const tile = task.weight.data + t * tile_bytes;
            NextTile next(tile + tile_bytes, t + 1 < task.last_tile ? tile_bytes : 0, passes * num_groups);
            weight.make(tile, num_groups);
            for_rows([&](const auto& rows, int64_t first) {
                multiply_halved(task, rows, weight, t * packed_tile_rows, first, next);
            });
        }
    }
}

}  // namespace trivium::TRIVIUM_ISA

#endif
