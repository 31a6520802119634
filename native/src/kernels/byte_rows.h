// Linear layers on rows of bytes (packed.h) and turned activations. Products are summed as whole numbers over all columns,
// exactly, and scaled once: an output is the same to the bit for any number of rows and in every instruction set.
#pragma once

#include "../kernels.h"
#include "byte_products.h"
#include "next_tile.h"
#include "outputs.h"
#include "turn.h"
#include "with_constant.h"

namespace trivium::TRIVIUM_ISA {

// `lanes` outputs of one row of x from their sum of products with bytes that are 128 too large.
static inline Vec scaled_sum(IntVec sum, const TurnedRows& x, int64_t x_row, Vec weight_scales) {
    const Vec scaled = to_float(sum - 128 * x.q_sums[x_row]) * (weight_scales * x.scales[x_row]);
    return in_register(scaled);  // not to be joined with the sum that follows: that would round once instead of twice
}

static inline Vec byte_row_scales(const LinearPart& task, int64_t tile, int part) {
    const uint8_t* const scales = task.weight.data + tile * byte_rows_tile_bytes(task.weight.columns) +
                                  packed_tile_rows * task.weight.columns;
    return load(reinterpret_cast<const float*>(scales) + part * lanes);
}

// `outputs` [num_x, vectors], from weight row `row` on.
[[gnu::noinline]] static void put_scaled_sums(const LinearPart& task, int64_t row, int vectors, int64_t first, int64_t num_x,
                                              const Vec* outputs) {
    put_many_outputs(task, row, vectors, first, num_x, [&](int64_t m, int v) { return outputs[m * vectors + v]; });
}

#if !defined(TRIVIUM_SUMS_PAIRS_OF_BYTES)

// Tiles and rows of x that are multiplied together: as many as there are registers for their sums. The more they are, the
// less often both are read from their caches.
constexpr int byte_tiles_together = lanes == 16 ? 2 : 1;
constexpr int byte_rows_together = lanes == 16 ? 12 : 4;

// Whole numbers may be summed in several chains, so that a multiply-add need not wait for the one before.
template <int num_x>
constexpr int byte_row_chains = num_x >= 4 ? 1 : 4;

// The outputs of `lanes` rows of each of `num_tiles` tiles from t on, for `num_x` rows of x from `first` on.
template <int num_x, int num_tiles>
static void multiply_byte_rows(const LinearPart& task, const TurnedRows& all_x, int64_t t, int part, int64_t first,
                               NextTile& next) {
    constexpr int chains = byte_row_chains<num_x>;
    constexpr int64_t quads_together = packed_group_columns / 4;
    const TurnedRows x = all_x.from_row(first);
    const int64_t tile_bytes = byte_rows_tile_bytes(x.columns);
    const uint8_t* const tile = task.weight.data + t * tile_bytes + part * 4 * lanes;
    IntVec sums[num_x][num_tiles][chains];
    set_to_zero(sums);
    if constexpr (num_x >= fewest_rows_to_fetch_for) fetch_outputs(task, t * packed_tile_rows + part * lanes, num_tiles, first, num_x);
    for (int64_t begin = 0; begin < x.columns / 4; begin += quads_together) {
        next.fetch_some();
#pragma GCC unroll 8
        for (int64_t q = 0; q < quads_together; ++q) {
            ByteVec quads[num_tiles];
            for (int i = 0; i < num_tiles; ++i) quads[i] = load_quad(tile + i * tile_bytes + (begin + q) * quad_bytes);
#pragma GCC unroll 12
            for (int m = 0; m < num_x; ++m) {
                const FourBytes a = reinterpret_cast<const FourBytes*>(x.q + m * x.stride)[begin + q];
                if constexpr (num_tiles == 1) {
                    sums[m][0][q % chains] = add_products<255>(sums[m][0][q % chains], quads[0], a);
                } else {
                    const IntVec fours = in_register(IntVec{} + a);
#pragma GCC unroll 2
                    for (int i = 0; i < num_tiles; ++i)
                        sums[m][i][q % chains] = add_products<255>(sums[m][i][q % chains], quads[i], fours);
                }
            }
        }
    }
    Vec outputs[num_x][num_tiles];
#pragma GCC unroll 2
    for (int i = 0; i < num_tiles; ++i) {
        const Vec scales = byte_row_scales(task, t + i, part);
#pragma GCC unroll 12
        for (int m = 0; m < num_x; ++m) {
#pragma GCC unroll 4
            for (int c = 1; c < chains; ++c) sums[m][i][0] += sums[m][i][c];
            outputs[m][i] = scaled_sum(sums[m][i][0], x, m, scales);
        }
    }
    // Tiles lie beside each other where a vector is a whole tile.
    put_scaled_sums(task, t * packed_tile_rows + part * lanes, num_tiles, first, num_x, outputs[0]);
}

template <int num_x, int num_tiles>
static inline void multiply_byte_parts(const LinearPart& task, const TurnedRows& x, int64_t t, int64_t first,
                                       NextTile& next) {
    for (int part = 0; part < tile_parts; ++part)
        if (t * packed_tile_rows + part * lanes < task.weight.rows)
            multiply_byte_rows<num_x, num_tiles>(task, x, t, part, first, next);
}

template <int num_tiles>
static inline void multiply_byte_block(const LinearPart& task, const TurnedRows& x, int64_t t, int64_t begin, int64_t end,
                                       NextTile& next) {
    for_near_equal_groups<byte_rows_together>(begin, end, [&]<int num_x>(int64_t first) {
        multiply_byte_parts<num_x, num_tiles>(task, x, t, first, next);
    });
}

// Rows of x that all tiles of a task pass over before the next rows do, so that they are read from a cache near by.
constexpr int64_t byte_rows_block_bytes = 256 << 10, byte_rows_block_rows = 60;

static void byte_rows_by_vectors(const LinearPart& task, const TurnedRows& x) {
    const int64_t columns = task.weight.columns, tile_bytes = byte_rows_tile_bytes(columns);
    const int64_t fitting = byte_rows_block_bytes / columns / byte_rows_together * byte_rows_together;
    const int64_t block = fitting > byte_rows_block_rows ? fitting : byte_rows_block_rows;
    for (int64_t begin = 0; begin < task.num_x; begin += block) {
        const int64_t end = begin + block < task.num_x ? begin + block : task.num_x;
        const int64_t passes = (end - begin + byte_rows_together - 1) / byte_rows_together * tile_parts;
        const LinearPart pass = end < task.num_x ? task.without_following() : task;
        for (int64_t t = task.first_tile; t < task.last_tile;) {
            // Few rows are bound by reading, which goes faster through one tile after the other.
            const bool are_few = end - begin < fewest_rows_to_fetch_for;
            const bool alone = are_few || t + byte_tiles_together > task.last_tile;
            const int64_t after = t + (alone ? 1 : byte_tiles_together);
            const uint8_t* const tile = task.weight.data + t * tile_bytes;
            const int64_t num_steps = passes * columns / packed_group_columns;
            NextTile next = are_few ? NextTile::ahead_of(pass, tile_bytes, tile, num_steps)
                                    : NextTile::after_this(pass, tile_bytes, task.weight.data + after * tile_bytes,
                                                           byte_tiles_together * tile_bytes, num_steps);
            alone ? multiply_byte_block<1>(task, x, t, begin, end, next)
                  : multiply_byte_block<byte_tiles_together>(task, x, t, begin, end, next);
            t = after;
        }
    }
}

#endif

}  // namespace trivium::TRIVIUM_ISA
