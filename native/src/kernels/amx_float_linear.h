// Linear layers on packed bfloat16 weights with AMX tiles: a slice of 32 columns of 16 weight rows is a tile as it lies in
// memory, and so are 32 columns of 16 rows of x. One instruction adds their products in the order of float_linear.h.
#pragma once

#include "amx_tiles.h"
#include "float_linear.h"

namespace trivium::TRIVIUM_ISA {

// With fewer rows tiles are too empty to be faster than vectors.
constexpr int64_t fewest_float_tile_rows = 8;
// Rows of x that meet a pair of weight tiles before the next pair does: as many as stay in the second-level cache.
constexpr int64_t float_pass_bytes = 1 << 20;
constexpr int64_t slice_words = float_slice_columns / 2;  // of 4 bytes

struct FloatTileSums {
    alignas(64) float of[4][16 * packed_tile_rows];
};

// `x` points at one or two tiles' first rows, `weights` at one or two tiles' first slices. Tiles 0 … 3 are the sums of (x 0, weights 0),
// (x 0, weights 1), (x 1, weights 0), (x 1, weights 1).
template <bool more_x, bool more_weights>
static inline void multiply_float_tiles(const uint8_t* const (&x)[2], int64_t x_stride, const uint8_t* const (&weights)[2],
                                        int64_t num_slices, FloatTileSums& sums) {
    constexpr int64_t slice_bytes = float_slice_bytes(WeightType::bf16), sum_stride = 4 * packed_tile_rows;
    _tile_zero(0);
    if constexpr (more_weights) _tile_zero(1);
    if constexpr (more_x) _tile_zero(2);
    if constexpr (more_x && more_weights) _tile_zero(3);
    for (int64_t s = 0; s < num_slices; ++s) {
        _tile_loadd(4, x[0] + s * 64, x_stride);
        _tile_loadd(6, weights[0] + s * slice_bytes, 64);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (more_weights) {
            _tile_loadd(7, weights[1] + s * slice_bytes, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if constexpr (more_x) {
            _tile_loadd(5, x[1] + s * 64, x_stride);
            _tile_dpbf16ps(2, 5, 6);
            if constexpr (more_weights) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums.of[0], sum_stride);
    if constexpr (more_weights) _tile_stored(1, sums.of[1], sum_stride);
    if constexpr (more_x) _tile_stored(2, sums.of[2], sum_stride);
    if constexpr (more_x && more_weights) _tile_stored(3, sums.of[3], sum_stride);
}

// One or two weight tiles from `tile` on, for rows of x from `done` on, at most 32 and up to `end`: returns how many are
// done then. A tile that would reach beyond the last row of x begins earlier, and leaves out what is done.
static inline int64_t multiply_float_block(const LinearPart& task, const uint32_t* all_x, int64_t tile, int64_t rows_of_tile,
                                           int64_t done, int64_t end) {
    const int64_t padded = padded_columns(task.weight.columns), tile_bytes = packed_tile_bytes(WeightType::bf16, padded);
    const bool more_x = end - done > rows_of_tile, more_weights = tile + 1 < task.last_tile;
    const int64_t last_first = task.num_x - rows_of_tile;
    int64_t first[2] = {done, done + rows_of_tile};
    for (int64_t& row : first) row = row < last_first ? row : last_first;
    const uint8_t *x[2], *weights[2];
    for (int i = 0; i < 2; ++i) {
        x[i] = reinterpret_cast<const uint8_t*>(all_x + first[i] * padded) + 2 * padded;  // behind the pairs for vectors
        weights[i] = task.weight.data + (tile + i) * tile_bytes;
    }
    FloatTileSums sums;
    const int64_t num_slices = padded / float_slice_columns;
    if (more_x) {
        more_weights ? multiply_float_tiles<true, true>(x, 4 * padded, weights, num_slices, sums)
                     : multiply_float_tiles<true, false>(x, 4 * padded, weights, num_slices, sums);
    } else {
        more_weights ? multiply_float_tiles<false, true>(x, 4 * padded, weights, num_slices, sums)
                     : multiply_float_tiles<false, false>(x, 4 * padded, weights, num_slices, sums);
    }
    for (int i = 0; i <= more_x; ++i) {
        const int64_t skipped = done - first[i];
        put_many_outputs(task, tile * packed_tile_rows, 1 + more_weights, done, rows_of_tile - skipped, [&](int64_t m, int w) {
            return load(sums.of[2 * i + w] + (skipped + m) * packed_tile_rows);
        });
        done = first[i] + rows_of_tile;
    }
    return done;
}

static void float_linear_by_tiles(const LinearPart& task, const uint32_t* x) {
    const int64_t rows_of_tile = task.num_x < 16 ? task.num_x : 16;
    const int64_t rows_in_cache = float_pass_bytes / (2 * padded_columns(task.weight.columns)) / 32 * 32;
    const int64_t rows_of_pass = rows_in_cache < 32 ? 32 : rows_in_cache;
    shape_tiles(rows_of_tile, slice_words);
    for (int64_t pass = 0; pass < task.num_x; pass += rows_of_pass) {
        const int64_t end = pass + rows_of_pass < task.num_x ? pass + rows_of_pass : task.num_x;
        for (int64_t tile = task.first_tile; tile < task.last_tile; tile += 2)
            for (int64_t done = pass; done < end;) done = multiply_float_block(task, x, tile, rows_of_tile, done, end);
    }
    _tile_release();
}

}  // namespace trivium::TRIVIUM_ISA
