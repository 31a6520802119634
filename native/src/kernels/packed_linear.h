// Linear layers on packed weights (packed.h) and quantized activations. Products of bytes are summed as whole numbers,
// exactly; each group of 32 columns (or 16) then joins the output's float32 sum, in the order of the columns. So an
// output is the same to the bit for any number of rows, and for every instruction set that fuses multiply and add.
#pragma once

#include "../kernels.h"
#include "next_tile.h"
#include "outputs.h"
#include "packed_group.h"
#include "quantize.h"
#include "with_constant.h"

namespace trivium::TRIVIUM_ISA {

// Adds the group g to an output vector of each of the first `num_x` rows of x.
template <WeightType type, int num_x>
static inline void add_group(const Group<type>& group, const QuantizedRows& x, int64_t g, Vec* sums) {
    using W = Group<type>;
    constexpr int count = W::quads_per_scale;
    for (int s = 0; s < W::num_scales; ++s) {
        ByteVec quads[count];
        for (int q = 0; q < count; ++q) quads[q] = group.quad(s * count + q);
        IntVec products[num_x];
#pragma GCC unroll 8
        for (int m = 0; m < num_x; ++m)
            products[m] = sum_products<W::largest, count>(quads, x.q + m * x.stride + g * packed_group_columns + 4 * s * count,
                                                          W::p.offset != 0 ? W::offset_sum(s, x, m, g) : 0);
        const Vec scales = group.scale(s);
        Vec minima{};
        if constexpr (W::p.has_minima) minima = group.minimum(s);
#pragma GCC unroll 8
        for (int m = 0; m < num_x; ++m) {
            sums[m] = fma(scales * x.scales[m * x.num_groups() + g], to_float(products[m]), sums[m]);
            if constexpr (W::p.has_minima) sums[m] = fma(minima, splat(W::minimum_factor(s, x, m, g)), sums[m]);
        }
    }
}

// The outputs of a tile for the first row of x. All vectors of the tile's rows share what is read of x.
template <WeightType type>
[[gnu::noinline]] static void multiply_row(const LinearPart& task, const QuantizedRows& x, const uint8_t* tile,
                                           int64_t tile_row, int64_t first, NextTile& next) {
    const int64_t num_groups = x.num_groups();
    Vec sums[tile_parts] = {};
#pragma GCC unroll 2
    for (int64_t g = 0; g < num_groups; ++g) {
        next.fetch_some();
#pragma GCC unroll 4
        for (int part = 0; part < tile_parts; ++part) add_group<type, 1>(Group<type>(tile, g, part), x, g, sums + part);
    }
    for (int part = 0; part < tile_parts; ++part)
        if (const int64_t row = tile_row + part * lanes; row < task.weight.rows) put_outputs(task, row, first, sums[part]);
}

// The outputs of a tile for the first `num_x` rows of x. Not inlined: one function for all numbers of rows has too many values
// for its registers.
template <WeightType type, int num_x>
[[gnu::noinline]] static void multiply_rows(const LinearPart& task, const QuantizedRows& x, const uint8_t* tile,
                                            int64_t tile_row, int64_t first, NextTile& next) {
    const int64_t num_groups = x.num_groups();
    for (int part = 0; part < tile_parts; ++part) {
        const int64_t row = tile_row + part * lanes;
        if (row >= task.weight.rows) return;
        Vec sums[num_x] = {};
#pragma GCC unroll 4
        for (int64_t g = 0; g < num_groups; ++g) {
            next.fetch_some();
            add_group<type, num_x>(Group<type>(tile, g, part), x, g, sums);
        }
        for (int m = 0; m < num_x; ++m) put_outputs(task, row, first + m, sums[m]);
    }
}

// As many rows of x share the group's quads as there are registers for their sums.
constexpr int packed_rows_together = lanes == 16 ? 8 : 4;

// Rows of x that all tiles of a task pass over before the next rows do, so that they are read from a cache near by: so many
// bytes of them, and so many rows at least, that reading the tiles again costs little.
constexpr int64_t packed_block_bytes = 128 << 10, packed_block_rows = 64;

template <WeightType type>
static void packed_linear_of(const LinearPart& task, const QuantizedRows& x) {
    const int64_t columns = task.weight.columns, tile_bytes = packed_tile_bytes(packed_layout(type), columns);
    const int64_t fitting = packed_block_bytes / columns / packed_rows_together * packed_rows_together;
    const int64_t block = fitting > packed_block_rows ? fitting : packed_block_rows;
    const uint8_t* const end_of_tiles = task.weight.data + task.last_tile * tile_bytes;
    for (int64_t begin = 0; begin < task.num_x; begin += block) {
        const int64_t end = begin + block < task.num_x ? begin + block : task.num_x;
        const int64_t passes = (end - begin + packed_rows_together - 1) / packed_rows_together * tile_parts;
        for (int64_t t = task.first_tile; t < task.last_tile; ++t) {
            const uint8_t* const tile = task.weight.data + t * tile_bytes;
            const bool are_few = end - begin < fewest_rows_to_fetch_for;
            const int64_t num_steps = passes * x.num_groups(), next_bytes = t + 1 < task.last_tile ? tile_bytes : 0;
            NextTile next = are_few ? NextTile::ahead_of(tile, tile_bytes, end_of_tiles, x.num_groups())
                                    : NextTile(tile + tile_bytes, next_bytes, num_steps);
            for_near_equal_groups<packed_rows_together>(begin, end, [&]<int num_x>(int64_t first) {
                if constexpr (num_x == 1)
                    multiply_row<type>(task, x.from_row(first), tile, t * packed_tile_rows, first, next);
                else
                    multiply_rows<type, num_x>(task, x.from_row(first), tile, t * packed_tile_rows, first, next);
            });
        }
    }
}

}  // namespace trivium::TRIVIUM_ISA
