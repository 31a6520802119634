// Linear layers on rows of bytes (packed.h) and turned activations. Products are summed as whole numbers over all columns,
// exactly, and scaled once: an output is the same to the bit for any number of rows and in every instruction set.
#pragma once

#include "../kernels.h"
#include "byte_products.h"
#include "next_tile.h"
#include "outputs.h"
#include "turn.h"

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

// Whole numbers may be summed in several chains, so that a multiply-add need not wait for the one before.
template <int num_x>
constexpr int byte_row_chains = num_x >= 4 ? 1 : 4;

// The outputs of `lanes` rows of a tile for `num_x` rows of x from `first` on.
template <int num_x>
static void multiply_byte_rows(const LinearPart& task, const TurnedRows& all_x, int64_t t, int part, int64_t first,
                               NextTile& next) {
    constexpr int chains = byte_row_chains<num_x>;
    constexpr int64_t quads_together = packed_group_columns / 4;
    const TurnedRows x = all_x.from_row(first);
    const uint8_t* const tile = task.weight.data + t * byte_rows_tile_bytes(x.columns) + part * 4 * lanes;
    IntVec sums[num_x][chains] = {};
    for (int64_t begin = 0; begin < x.columns / 4; begin += quads_together) {
        next.fetch_some();
#pragma GCC unroll 8
        for (int64_t q = 0; q < quads_together; ++q) {
            const ByteVec quad = load_quad(tile + (begin + q) * quad_bytes);
#pragma GCC unroll 8
            for (int m = 0; m < num_x; ++m) {
                const FourBytes a = reinterpret_cast<const FourBytes*>(x.q + m * x.stride)[begin + q];
                sums[m][q % chains] = add_products<255>(sums[m][q % chains], quad, a);
            }
        }
    }
    const Vec scales = byte_row_scales(task, t, part);
    for (int m = 0; m < num_x; ++m) {
        for (int i = 1; i < chains; ++i) sums[m][0] += sums[m][i];
        put_outputs(task, t * packed_tile_rows + part * lanes, first + m, scaled_sum(sums[m][0], x, m, scales));
    }
}

// As many rows of x share a quad as there are registers for their sums.
constexpr int byte_rows_together = lanes == 16 ? 8 : 4;

template <int num_x>
static inline void multiply_byte_tile(const LinearPart& task, const TurnedRows& x, int64_t t, int64_t first, NextTile& next) {
    for (int part = 0; part < tile_parts; ++part)
        if (t * packed_tile_rows + part * lanes < task.weight.rows) multiply_byte_rows<num_x>(task, x, t, part, first, next);
}

template <int num_x = byte_rows_together - 1>
static inline void multiply_byte_rest(const LinearPart& task, const TurnedRows& x, int64_t t, int64_t first, int64_t count,
                                      NextTile& next) {
    if constexpr (num_x > 0) {
        if (count == num_x) return multiply_byte_tile<num_x>(task, x, t, first, next);
        multiply_byte_rest<num_x - 1>(task, x, t, first, count, next);
    }
}

// Rows of x that all tiles of a task pass over before the next rows do, so that they are read from a cache near by.
constexpr int64_t byte_rows_block_bytes = 256 << 10, byte_rows_block_rows = 64;

static void byte_rows_by_vectors(const LinearPart& task, const TurnedRows& x) {
    const int64_t columns = task.weight.columns, tile_bytes = byte_rows_tile_bytes(columns);
    const int64_t fitting = byte_rows_block_bytes / columns / byte_rows_together * byte_rows_together;
    const int64_t block = fitting > byte_rows_block_rows ? fitting : byte_rows_block_rows;
    for (int64_t begin = 0; begin < task.num_x; begin += block) {
        const int64_t end = begin + block < task.num_x ? begin + block : task.num_x;
        const int64_t passes = (end - begin + byte_rows_together - 1) / byte_rows_together * tile_parts;
        for (int64_t t = task.first_tile; t < task.last_tile; ++t) {
            const bool fetches = t + 1 < task.last_tile && end - begin >= fewest_rows_to_fetch_for;
            NextTile next(task.weight.data + (t + 1) * tile_bytes, fetches ? tile_bytes : 0,
                          passes * columns / packed_group_columns);
            int64_t first = begin;
            for (; first + byte_rows_together <= end; first += byte_rows_together)
                multiply_byte_tile<byte_rows_together>(task, x, t, first, next);
            multiply_byte_rest(task, x, t, first, end - first, next);
        }
    }
}

}  // namespace trivium::TRIVIUM_ISA
