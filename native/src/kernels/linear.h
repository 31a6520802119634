// Linear layers: a tile of weight rows is expanded into the L1 cache, a chunk of columns at a time, and multiplied with
// all rows of x; where x has one row, blocks are multiplied as they are expanded, and never stored. Each output is one vector of partial sums that runs over the columns in order, one fused
// multiply-add per `lanes` columns, and then one tree over the lanes: the same either way, for any number of rows.
#pragma once

#include "../kernels.h"
#include "decode.h"

namespace trivium::TRIVIUM_ISA {

// Outputs computed together: as many partial sums as the registers hold beside their inputs.
constexpr int rows_together = lanes == 16 ? 4 : 3;
constexpr int weights_together = 4;
static_assert(linear_tile == 2 * weights_together);

// sums[m * linear_tile + n] += x[m] * weight[n] over `count` columns, a multiple of `lanes`.
template <int num_x, int num_weights>
static inline void accumulate(const float* x, int64_t x_stride, const float* weight, int64_t weight_stride,
                              int64_t count, Vec* sums) {
    Vec s[num_x][num_weights];
    for (int m = 0; m < num_x; ++m)
        for (int n = 0; n < num_weights; ++n) s[m][n] = sums[m * linear_tile + n];
    for (int64_t k = 0; k < count; k += lanes) {
        Vec a[num_x];
        for (int m = 0; m < num_x; ++m) a[m] = load(x + m * x_stride + k);
        for (int n = 0; n < num_weights; ++n) {
            const Vec b = load(weight + n * weight_stride + k);
            for (int m = 0; m < num_x; ++m) s[m][n] = fma(a[m], b, s[m][n]);
        }
    }
    for (int m = 0; m < num_x; ++m)
        for (int n = 0; n < num_weights; ++n) sums[m * linear_tile + n] = s[m][n];
}

// All rows of x with `num_weights` rows of a tile.
template <int num_weights>
static inline void accumulate_rows(const LinearPart& part, int64_t column, const float* weight, int64_t weight_stride,
                                   int64_t count, Vec* sums) {
    const float* x = part.x + column;
    int64_t m = 0;
    for (; m + rows_together <= part.num_x; m += rows_together)
        accumulate<rows_together, num_weights>(x + m * part.x_stride, part.x_stride, weight, weight_stride, count,
                                               sums + m * linear_tile);
    for (; m < part.num_x; ++m)
        accumulate<1, num_weights>(x + m * part.x_stride, part.x_stride, weight, weight_stride, count,
                                   sums + m * linear_tile);
}

static void accumulate_tile(const LinearPart& part, int64_t column, const float* weight, int64_t weight_stride,
                            int64_t count, int64_t num_weights, Vec* sums) {
    if (part.num_x == 1 && num_weights == linear_tile)
        return accumulate<1, linear_tile>(part.x + column, part.x_stride, weight, weight_stride, count, sums);
    int64_t n = 0;
    for (; n + weights_together <= num_weights; n += weights_together)
        accumulate_rows<weights_together>(part, column, weight + n * weight_stride, weight_stride, count, sums + n);
    for (; n < num_weights; ++n)
        accumulate_rows<1>(part, column, weight + n * weight_stride, weight_stride, count, sums + n);
}

// Multiplies what it takes with x.
struct Dot {
    const float* x;
    Vec sum;
    void take(int i, Vec values) { sum = fma(load(x + i), values, sum); }
};

// How far ahead of a block that is multiplied memory is asked for: beyond the latency of memory at the speed of a core.
constexpr int64_t bytes_ahead = 8192;

// sums[n] = x . rows[n], block by block over `count` rows at once, so that their sums do not wait for each other.
template <typename BlockType, int count>
static inline void dot_rows(const uint8_t* rows, int64_t row_bytes, const float* x, int64_t columns, Vec* sums) {
    constexpr WeightLayout blocks = layout(BlockType::type);
    Dot dots[count];
    for (int n = 0; n < count; ++n) dots[n] = {x, Vec{}};
    for (int64_t column = 0; column < columns; column += blocks.block_elements, rows += blocks.block_bytes) {
        for (int n = 0; n < count; ++n) {
            dots[n].x = x + column;
            for (int64_t i = 0; i < blocks.block_bytes; i += cache_line) prefetch(rows + n * row_bytes + bytes_ahead + i);
            BlockType::decode(rows + n * row_bytes, dots[n]);
        }
    }
    for (int n = 0; n < count; ++n) sums[n] = dots[n].sum;
}

// The sums of a tile for a single row of x; false where the weight's type has no blocks.
static bool dot_tile(const LinearPart& part, const uint8_t* rows, int64_t row_bytes, int64_t num_weights, Vec* sums) {
    return with_block_type(part.weight.type, [&](auto block_type) {
        int64_t n = 0;
        for (; n + weights_together <= num_weights; n += weights_together)
            dot_rows<decltype(block_type), weights_together>(rows + n * row_bytes, row_bytes, part.x,
                                                             part.weight.columns, sums + n);
        for (; n < num_weights; ++n)
            dot_rows<decltype(block_type), 1>(rows + n * row_bytes, row_bytes, part.x, part.weight.columns, sums + n);
    });
}

// The sums of a tile for all rows of x.
static void multiply_tile(const LinearPart& part, const uint8_t* rows, int64_t row_bytes, int64_t num_weights,
                          Vec* sums) {
    const int64_t columns = part.weight.columns;
    const bool in_place = part.weight.type == WeightType::f32 && columns % lanes == 0;
    for (int64_t i = 0; i < part.num_x * linear_tile; ++i) sums[i] = Vec{};
    for (int64_t column = 0; column < columns; column += linear_chunk) {
        const int64_t count = columns - column < linear_chunk ? columns - column : linear_chunk;
        const uint8_t* const chunk = rows + bytes_of(part.weight.type, column);
        if (in_place) {
            accumulate_tile(part, column, reinterpret_cast<const float*>(chunk), columns, count, num_weights, sums);
            continue;
        }
        for (int64_t n = 0; n < num_weights; ++n) {
            float* const row = part.scratch + n * linear_row;
            decode(part.weight.type, chunk + n * row_bytes, row, count);
            for (int64_t i = count; i < padded(count); ++i) row[i] = 0.0f;
        }
        accumulate_tile(part, column, part.scratch, linear_row, padded(count), num_weights, sums);
    }
}

static void linear(const LinearPart& part) {
    constexpr int sums_together = lanes < linear_tile ? lanes : linear_tile;
    const int64_t row_bytes = bytes_of(part.weight.type, part.weight.columns);
    Vec* const sums = reinterpret_cast<Vec*>(part.scratch + linear_tile * linear_row);
    for (int64_t first = part.first; first < part.last; first += linear_tile) {
        const int64_t num_weights = part.last - first < linear_tile ? part.last - first : linear_tile;
        const uint8_t* const rows = part.weight.data + first * row_bytes;
        if (part.num_x != 1 || !dot_tile(part, rows, row_bytes, num_weights, sums))
            multiply_tile(part, rows, row_bytes, num_weights, sums);
        for (int64_t m = 0; m < part.num_x; ++m) {
            for (int64_t n = 0; n < num_weights; n += sums_together) {
                const Vec results = lane_sums<sums_together>(sums + m * linear_tile + n);
                for (int64_t i = 0; i < sums_together && n + i < num_weights; ++i) {
                    const float bias = part.bias ? part.bias[first + n + i] : 0.0f;
                    part.out[m * part.out_stride + first + n + i] = results[i] + bias;
                }
            }
        }
    }
}

}  // namespace trivium::TRIVIUM_ISA
