// Linear layers on rows of bytes with AMX tiles: 64 columns of a packed tile are a tile as the instruction wants it. Up to 32
// rows of x meet two packed tiles at a time, over all columns, before their sums are taken out of the tiles.
#pragma once

#if defined(__AMX_INT8__)

#include "amx_linear.h"
#include "byte_rows.h"

namespace trivium::TRIVIUM_ISA {

constexpr int64_t fewest_byte_rows_for_tiles = 16;
constexpr int64_t byte_rows_per_pass = 512;  // with 1,536 columns 0.8 MiB, of 2 MiB of second-level cache

// The sums of `pairs` times 16 rows of x and two packed tiles: tmm0 … tmm3, [16, 16] int32, those of the first rows first.
template <int pairs>
static inline void multiply_byte_tiles(const TurnedRows& x, const uint8_t* tile, int64_t tile_bytes, NextTile& next,
                                       int32_t* sums) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (pairs > 1) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t c = 0; c < x.columns; c += turned_columns) {
        next.fetch_some();
        _tile_stream_loadd(6, tile + packed_tile_rows * c, quad_bytes);
        _tile_loadd(4, x.q + c, x.stride);
        _tile_dpbsud(0, 4, 6);
        next.fetch_some();
        _tile_stream_loadd(7, tile + tile_bytes + packed_tile_rows * c, quad_bytes);
        _tile_dpbsud(1, 4, 7);
        if constexpr (pairs > 1) {
            next.fetch_some();
            _tile_loadd(5, x.q + 16 * x.stride + c, x.stride);
            _tile_dpbsud(2, 5, 6);
            next.fetch_some();
            _tile_dpbsud(3, 5, 7);
        }
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 256, 64);
    if constexpr (pairs > 1) {
        _tile_stored(2, sums + 512, 64);
        _tile_stored(3, sums + 768, 64);
    }
}

// Rows `first` … of x and packed tiles t, t + 1; of rows before `done` the outputs are there already.
template <int pairs>
static inline void byte_tile_outputs(const LinearPart& task, const TurnedRows& all_x, int64_t t, int64_t num_tiles,
                                     int64_t first, int64_t done, NextTile& next) {
    const TurnedRows x = all_x.from_row(first);
    const int64_t tile_bytes = byte_rows_tile_bytes(task.weight.columns);
    alignas(64) int32_t sums[pairs * 2 * 16 * 16];
    // Where there is no second tile the first is taken twice.
    multiply_byte_tiles<pairs>(x, task.weight.data + t * tile_bytes, num_tiles > 1 ? tile_bytes : 0, next, sums);
    const Vec scales[2] = {byte_row_scales(task, t, 0), byte_row_scales(task, t + num_tiles - 1, 0)};
    const int64_t skipped = done - first;
    put_many_outputs(task, t * packed_tile_rows, static_cast<int>(num_tiles), done, 16 * pairs - skipped, [&](int64_t i, int tile) {
        const int64_t m = skipped + i;
        IntVec sum;
        memcpy(&sum, sums + (m / 16 * 2 + tile) * 256 + m % 16 * 16, sizeof sum);
        return scaled_sum(sum, x, m, scales[tile]);
    });
}

// Blocks of 32 and 16 rows; where the rows are no multiple, the last block begins earlier.
static void byte_rows_by_tiles(const LinearPart& task, const TurnedRows& x) {
    const int64_t tile_bytes = byte_rows_tile_bytes(x.columns), blocks_of_columns = x.columns / turned_columns;
    shape_tiles(16, 16);
    for (int64_t pass = 0; pass < task.num_x; pass += byte_rows_per_pass) {
        const int64_t end = pass + byte_rows_per_pass < task.num_x ? pass + byte_rows_per_pass : task.num_x;
        // Before each product a few lines are fetched: as many at once as a block of columns needs would keep loads waiting.
        const int64_t num_products = 2 * ((end - pass + 15) / 16) * blocks_of_columns;
        const LinearPart part = end < task.num_x ? task.without_following() : task;
        for (int64_t t = task.first_tile; t < task.last_tile; t += 2) {
            const int64_t num_tiles = task.last_tile - t < 2 ? 1 : 2;
            const uint8_t* const after = task.weight.data + (t + num_tiles) * tile_bytes;
            NextTile next = NextTile::after_this(part, tile_bytes, after, 2 * tile_bytes, num_products);
            int64_t done = pass;
            for (; done + 32 <= end; done += 32) byte_tile_outputs<2>(task, x, t, num_tiles, done, done, next);
            while (done < end) {
                const int64_t first = done + 16 <= task.num_x ? done : task.num_x - 16;
                byte_tile_outputs<1>(task, x, t, num_tiles, first, done, next);
                done = first + 16;
            }
        }
    }
    _tile_release();
}

}  // namespace trivium::TRIVIUM_ISA

#endif
