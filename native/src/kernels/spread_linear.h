// Linear layers on packed weights for several rows of x, where registers are few. An instruction can take one factor from
// memory, but only a whole vector; so what all lanes share (four bytes of a row of x, its scale) is written to memory once for
// each lane. Spread like that, some columns of a few rows fill the first-level cache, where they meet many tiles of weights. The
// sums are those of packed_linear.h, to the bit.
#pragma once

#include "packed_linear.h"

#if defined(TRIVIUM_SUMS_PAIRS_OF_BYTES)

namespace trivium::TRIVIUM_ISA {

constexpr int64_t fewest_spread_rows = 2;
// Rows of x that meet a vector of weights together: as many as there are registers for their sums.
constexpr int spread_rows_together = 6;
// Groups of columns that are spread together, at most. Twelve of six rows take 23 KiB where weights have one scale a group.
constexpr int64_t spread_groups_together = 12;
// Rows of x and tiles whose sums are kept while one run of groups after the other is added to them; and the tiles' weights of
// one run stay in the second-level cache meanwhile (of Q4_1 120 KiB).
constexpr int64_t spread_rows_block = 64, spread_tiles_block = 32;

// Groups of columns of `num_x` rows of x: [groups, vectors of a group, num_x]. The vectors of a group are its quads, its scale,
// and for each scale of the weights what their minimum is multiplied by or what their offset adds to whole-number sums.
template <WeightType type, int num_x>
struct SpreadRows {
    using W = Group<type>;
    static constexpr int scale_at = 8, extra_at = 9, vectors_per_group = extra_at + W::num_scales;

    IntVec* vectors;

    const IntVec& at(int64_t g, int vector, int m) const { return vectors[(g * vectors_per_group + vector) * num_x + m]; }
    IntVec& at(int64_t g, int vector, int m) { return vectors[(g * vectors_per_group + vector) * num_x + m]; }

    void spread(const QuantizedRows& x, int64_t first_group, int64_t num_groups) {
        for (int64_t i = 0; i < num_groups; ++i)
            for (int m = 0; m < num_x; ++m) {
                const int64_t g = first_group + i;
                const auto* const quads = reinterpret_cast<const FourBytes*>(x.q + m * x.stride + g * packed_group_columns);
                for (int q = 0; q < 8; ++q) at(i, q, m) = IntVec{} + quads[q];
                at(i, scale_at, m) = (IntVec)splat(x.scales[m * x.num_groups() + g]);
                for (int s = 0; s < W::num_scales; ++s)
                    at(i, extra_at + s, m) = W::p.has_minima ? (IntVec)splat(W::minimum_factor(s, x, m, g))
                                                             : IntVec{} + W::offset_sum(s, x, m, g);
            }
    }
};

// Sums of 16 bits and the products of pairs of bytes. Left to itself the compiler adds products to each other first, for which
// there are no registers left.
static inline IntVec add_pairs(IntVec pairs, ByteVec w, const IntVec& x) {
    IntVec products;
    asm("vpmaddubsw %2, %3, %1\n\tvpaddw %1, %0, %0" : "+x"(pairs), "=&x"(products) : "m"(x), "x"(w));
    return pairs;
}

// Adds `factor` times the products of the quads of scale s of group g to a whole-number sum of each row.
template <int largest, WeightType type, int num_x, typename Quad>
static inline void add_spread_products(const Quad& quad, const SpreadRows<type, num_x>& x, int64_t g, int s, int16_t factor,
                                       IntVec (&sums)[num_x]) {
    constexpr int fitting = pairs_that_fit<largest>, count = Group<type>::quads_per_scale;
    IntVec pairs[num_x];
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
        const ByteVec w = quad(s * count + i);
#pragma GCC unroll 6
        for (int m = 0; m < num_x; ++m) {
            const IntVec& fours = x.at(g, s * count + i, m);
            pairs[m] = i % fitting == 0 ? (IntVec)_mm256_maddubs_epi16((__m256i)w, (__m256i)fours) : add_pairs(pairs[m], w, fours);
            if (i % fitting == fitting - 1 || i == count - 1) sums[m] += widened_pairs(pairs[m], factor);
        }
    }
}

// Adds the groups first_group … of `lanes` rows of a tile to an output vector of each row of x.
template <WeightType type, int num_x>
static inline void add_spread_groups(const SpreadRows<type, num_x>& x, const uint8_t* tile, int part, int64_t first_group,
                                     int64_t num_groups, NextTile& next, Vec (&sums)[num_x]) {
    using X = SpreadRows<type, num_x>;
    using W = Group<type>;
    for (int64_t g = 0; g < num_groups; ++g) {
        next.fetch_some();
        const W group(tile, first_group + g, part);
#pragma GCC unroll 2
        for (int s = 0; s < W::num_scales; ++s) {
            IntVec products[num_x] = {};
            if constexpr (!W::p.has_minima)
                for (int m = 0; m < num_x; ++m) products[m] = x.at(g, X::extra_at + s, m);
            if constexpr (W::largest <= 127) {
                add_spread_products<W::largest>([&](int i) { return group.quad(i); }, x, g, s, 1, products);
            } else {
                add_spread_products<15>([&](int i) { return group.quad(i) & 15; }, x, g, s, 1, products);
                add_spread_products<15>([&](int i) { return shifted(group.quad(i), 4, 15); }, x, g, s, 16, products);
            }
            const Vec scales = group.scale(s);
#pragma GCC unroll 6
            for (int m = 0; m < num_x; ++m)
                sums[m] = fma(scales * (Vec)x.at(g, X::scale_at, m), to_float(products[m]), sums[m]);
            if constexpr (W::p.has_minima) {
                const Vec minima = group.minimum(s);
#pragma GCC unroll 6
                for (int m = 0; m < num_x; ++m) sums[m] = fma(minima, (Vec)x.at(g, X::extra_at + s, m), sums[m]);
            }
        }
    }
}

// Rows and columns of x that meet some tiles.
struct SpreadBlock {
    int64_t first_row;
    int64_t first_group;
    int64_t num_groups;
    bool is_last;  // of the columns
    int64_t first_tile;
    int64_t last_tile;
};

// Adds the products of a block with `num_x` rows to `sums` [tiles, tile_parts, num_x], which become outputs with the last
// columns.
template <WeightType type, int num_x>
[[gnu::noinline]] static void multiply_spread(const LinearPart& task, const QuantizedRows& all_x, const SpreadBlock& block,
                                              bool fetches, IntVec* spread, Vec* sums) {
    SpreadRows<type, num_x> x = {spread};
    x.spread(all_x.from_row(block.first_row), block.first_group, block.num_groups);
    const int64_t tile_bytes = packed_tile_bytes(packed_layout(type), task.weight.columns);
    const int64_t block_bytes = tile_bytes * block.num_groups / all_x.num_groups();
    for (int64_t t = block.first_tile; t < block.last_tile; ++t) {
        const uint8_t* const tile = task.weight.data + t * tile_bytes;
        const uint8_t* const next_tile = tile + tile_bytes + tile_bytes * block.first_group / all_x.num_groups();
        NextTile next(next_tile, fetches && t + 1 < block.last_tile ? block_bytes : 0, tile_parts * block.num_groups);
        for (int part = 0; part < tile_parts; ++part, sums += num_x) {
            const int64_t row = t * packed_tile_rows + part * lanes;
            if (row >= task.weight.rows) return;
            Vec now[num_x] = {};
            if (block.first_group > 0) {
#pragma GCC unroll 6
                for (int m = 0; m < num_x; ++m) now[m] = sums[m];
            }
            add_spread_groups<type, num_x>(x, tile, part, block.first_group, block.num_groups, next, now);
#pragma GCC unroll 6
            for (int m = 0; m < num_x; ++m) {
                if (block.is_last)
                    put_outputs(task, row, block.first_row + m, now[m]);
                else
                    sums[m] = now[m];
            }
        }
    }
}

constexpr int64_t spread_scratch =
    sizeof(IntVec) * spread_groups_together * spread_rows_together * SpreadRows<WeightType::q6_k, 1>::vectors_per_group +
    sizeof(float) * spread_rows_block * spread_tiles_block * packed_tile_rows;

// `scratch`: spread_scratch bytes.
template <WeightType type>
static void packed_linear_by_spread_rows(const LinearPart& task, const QuantizedRows& x, void* scratch) {
    Vec* const all_sums = static_cast<Vec*>(scratch);
    IntVec* const spread = reinterpret_cast<IntVec*>(all_sums + spread_rows_block * spread_tiles_block * tile_parts);
    const int64_t num_groups = x.num_groups(), num_runs = (num_groups + spread_groups_together - 1) / spread_groups_together;
    for (int64_t begin = 0; begin < task.num_x; begin += spread_rows_block) {
        const int64_t end = begin + spread_rows_block < task.num_x ? begin + spread_rows_block : task.num_x;
        for (int64_t t = task.first_tile; t < task.last_tile; t += spread_tiles_block) {
            const int64_t last = t + spread_tiles_block < task.last_tile ? t + spread_tiles_block : task.last_tile;
            for (int64_t i = 0; i < num_runs; ++i) {
                const int64_t first = num_groups * i / num_runs, count = num_groups * (i + 1) / num_runs - first;
                for_near_equal_groups<spread_rows_together>(begin, end, [&]<int num_x>(int64_t first_row) {
                    Vec* const sums = all_sums + (first_row - begin) * spread_tiles_block * tile_parts;
                    multiply_spread<type, num_x>(task, x, {first_row, first, count, i == num_runs - 1, t, last},
                                                 first_row == begin, spread, sums);
                });
            }
        }
    }
}

}  // namespace trivium::TRIVIUM_ISA

#endif
