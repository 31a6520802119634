// Linear layers on packed bfloat16 weights with AMX tiles: a slice of 32 columns of 16 weight rows is a tile as it lies in
// memory, and so are 32 columns of 16 rows of x. One instruction adds their products in the order of float_linear.h.
#pragma once

#include "amx_tiles.h"
#include "float_linear.h"
#include "short_bf16.h"

namespace trivium::TRIVIUM_ISA {

// With fewer rows tiles are too empty to be faster than vectors.
constexpr int64_t fewest_float_tile_rows = 8;
// Rows of x, and bytes of a chunk of their columns, that weights meet before the next ones do: half of the 2 MiB of second-level
// cache that processors with AMX have.
constexpr int64_t float_pass_rows = 256, float_chunk_bytes = 1 << 20;
// Pairs of weight tiles that meet a chunk before the next chunk, where there are several: their sums lie beside it.
constexpr int64_t float_pairs_together = 16;
constexpr int64_t slice_words = float_slice_columns / 2;  // of 4 bytes

// Of two times two tiles: (x 0, weights 0), (x 0, weights 1), (x 1, weights 0), (x 1, weights 1).
struct FloatTileSums {
    alignas(64) float of[4][16 * packed_tile_rows];
};
constexpr int64_t float_tile_scratch = float_pairs_together * (float_pass_rows / 32 + 1) * int64_t{sizeof(FloatTileSums)};

// Slices of columns. Sums go on from those of the slices before.
struct SliceRange {
    int64_t first, last;
};

// Rows of x from `done` on, at most two tiles of them. A tile that would reach beyond the last row begins earlier.
struct FloatBlock {
    int64_t done, first[2];
    bool more_x;

    FloatBlock(int64_t done, int64_t end, int64_t num_x, int64_t rows_of_tile)
        : done(done), first{done, done + rows_of_tile}, more_x(end - done > rows_of_tile) {
        for (int64_t& row : first) row = row + rows_of_tile < num_x ? row : num_x - rows_of_tile;
    }
    int64_t end(int64_t rows_of_tile) const { return first[more_x] + rows_of_tile; }
};

// `x` points at one or two tiles' first rows, `weights` at one or two tiles' first slices, whose successors are fetched.
template <bool more_x, bool more_weights>
static inline void multiply_float_tiles(const uint8_t* const (&x)[2], int64_t x_stride, const uint8_t* const (&weights)[2],
                                        SliceRange slices, NextTile (&next)[2], FloatTileSums& sums) {
    constexpr int64_t slice_bytes = float_slice_bytes(WeightType::bf16), sum_stride = 4 * packed_tile_rows;
    if (slices.first == 0) {
        _tile_zero(0);
        if constexpr (more_weights) _tile_zero(1);
        if constexpr (more_x) _tile_zero(2);
        if constexpr (more_x && more_weights) _tile_zero(3);
    } else {
        _tile_loadd(0, sums.of[0], sum_stride);
        if constexpr (more_weights) _tile_loadd(1, sums.of[1], sum_stride);
        if constexpr (more_x) _tile_loadd(2, sums.of[2], sum_stride);
        if constexpr (more_x && more_weights) _tile_loadd(3, sums.of[3], sum_stride);
    }
    for (int64_t s = slices.first; s < slices.last; ++s) {
        next[0].fetch_some();
        _tile_stream_loadd(6, weights[0] + s * slice_bytes, 64);
        _tile_loadd(4, x[0] + s * 64, x_stride);
        _tile_dpbf16ps(0, 4, 6);
        next[1].fetch_some();
        if constexpr (more_weights) {
            _tile_stream_loadd(7, weights[1] + s * slice_bytes, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if constexpr (more_x) {
            next[0].fetch_some();
            _tile_loadd(5, x[1] + s * 64, x_stride);
            _tile_dpbf16ps(2, 5, 6);
            next[1].fetch_some();
            if constexpr (more_weights) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums.of[0], sum_stride);
    if constexpr (more_weights) _tile_stored(1, sums.of[1], sum_stride);
    if constexpr (more_x) _tile_stored(2, sums.of[2], sum_stride);
    if constexpr (more_x && more_weights) _tile_stored(3, sums.of[3], sum_stride);
}

// One or two weight tiles from `tile` on.
static inline void multiply_float_block(const LinearPart& task, const uint32_t* all_x, int64_t tile, const FloatBlock& block,
                                        SliceRange slices, NextTile (&next)[2], FloatTileSums& sums) {
    const int64_t padded = padded_columns(task.weight.columns), tile_bytes = packed_tile_bytes(WeightType::bf16, padded);
    const int64_t x_stride = laid_stride(task.weight.columns);
    const uint8_t *x[2], *weights[2];
    for (int i = 0; i < 2; ++i) {
        x[i] = reinterpret_cast<const uint8_t*>(all_x + block.first[i] * x_stride) + 2 * padded;  // behind the pairs for vectors
        weights[i] = task.weight.data + (tile + i) * tile_bytes;
    }
    if (block.more_x) {
        tile + 1 < task.last_tile ? multiply_float_tiles<true, true>(x, 4 * x_stride, weights, slices, next, sums)
                                  : multiply_float_tiles<true, false>(x, 4 * x_stride, weights, slices, next, sums);
    } else {
        tile + 1 < task.last_tile ? multiply_float_tiles<false, true>(x, 4 * x_stride, weights, slices, next, sums)
                                  : multiply_float_tiles<false, false>(x, 4 * x_stride, weights, slices, next, sums);
    }
}

static inline void put_float_block(const LinearPart& task, int64_t tile, const FloatBlock& block, int64_t rows_of_tile,
                                   const FloatTileSums& sums) {
    int64_t done = block.done;
    for (int i = 0; i <= block.more_x; ++i) {
        const int64_t skipped = done - block.first[i];
        put_many_outputs(task, tile * packed_tile_rows, tile + 1 < task.last_tile ? 2 : 1, done, rows_of_tile - skipped,
                         [&](int64_t m, int w) { return load(sums.of[2 * i + w] + (skipped + m) * packed_tile_rows); });
        done = block.first[i] + rows_of_tile;
    }
}

// At least `fewest_float_tile_rows` rows. `scratch`: float_tile_scratch bytes.
static void float_linear_by_tiles(const LinearPart& task, const uint32_t* x, void* scratch) {
    constexpr int64_t slice_bytes = float_slice_bytes(WeightType::bf16);
    const int64_t rows_of_tile = task.num_x < 16 ? task.num_x : 16, num_passes = (task.num_x + float_pass_rows - 1) / float_pass_rows;
    const int64_t columns = padded_columns(task.weight.columns), num_slices = columns / float_slice_columns;
    const int64_t tile_bytes = packed_tile_bytes(WeightType::bf16, columns);
    shape_tiles(rows_of_tile, slice_words);
    for (int64_t pass = 0; pass < num_passes; ++pass) {
        const int64_t begin = task.num_x * pass / num_passes, end = task.num_x * (pass + 1) / num_passes;
        const int64_t num_chunks = (2 * columns * (end - begin) + float_chunk_bytes - 1) / float_chunk_bytes;
        const int64_t tiles_together = num_chunks > 1 ? 2 * float_pairs_together : task.last_tile - task.first_tile;
        const auto multiply_pair = [&](int64_t tile, int64_t last_tile, int64_t chunk, FloatTileSums* kept) {
            const SliceRange slices = {num_slices * chunk / num_chunks, num_slices * (chunk + 1) / num_chunks};
            const auto same_slices_of = [&](int64_t t) -> NextTile {
                const int64_t num_bytes = t < last_tile ? (slices.last - slices.first) * slice_bytes : 0;
                return {task.weight.data + t * tile_bytes + slices.first * slice_bytes, num_bytes,
                        (end - begin + 15) / 16 * (slices.last - slices.first)};
            };
            NextTile next[2] = {same_slices_of(tile + 2), same_slices_of(tile + 3)};
            FloatTileSums passing;
            for (int64_t done = begin; done < end; ++kept) {
                const FloatBlock block(done, end, task.num_x, rows_of_tile);
                FloatTileSums& sums = num_chunks > 1 ? *kept : passing;
                multiply_float_block(task, x, tile, block, slices, next, sums);
                if (chunk + 1 == num_chunks) put_float_block(task, tile, block, rows_of_tile, sums);
                done = block.end(rows_of_tile);
            }
        };
        for (int64_t first = task.first_tile; first < task.last_tile; first += tiles_together) {
            const int64_t last = first + tiles_together < task.last_tile ? first + tiles_together : task.last_tile;
            for (int64_t chunk = 0; chunk < num_chunks; ++chunk)
                for (int64_t tile = first; tile < last; tile += 2)
                    multiply_pair(tile, last, chunk,
                                  static_cast<FloatTileSums*>(scratch) + (tile - first) / 2 * (float_pass_rows / 32 + 1));
        }
    }
    _tile_release();
}

// Slices made of short bfloat16 become tiles: vectors of two columns of a chain become those of two neighbours.
static void chains_to_pairs(uint8_t* slices, int64_t num_slices) {
    for (uint8_t* four_columns = slices; four_columns < slices + num_slices * float_slice_bytes(WeightType::bf16); four_columns += 128) {
        const WordVec even = load_words(four_columns), odd = load_words(four_columns + 64);
        const WordVec first = even >> 16 | (odd & 0xffff0000), second = (even & 0xffff) | odd << 16;
        memcpy(four_columns, &first, sizeof first);
        memcpy(four_columns + 64, &second, sizeof second);
    }
}

// Two weight tiles as bfloat16.
static constexpr int64_t short_tile_scratch(int64_t columns) { return 2 * packed_tile_bytes(WeightType::bf16, columns); }

// Short bfloat16, two tiles at a time. `scratch`: those tiles, and float_tile_scratch bytes.
static void short_linear_by_tiles(const LinearPart& task, const uint32_t* x, void* scratch) {
    const int64_t columns = task.weight.columns, num_slices = padded_columns(columns) / float_slice_columns;
    const int64_t short_bytes = packed_tile_bytes(WeightType::short_bf16, columns);
    const int64_t tile_bytes = packed_tile_bytes(WeightType::bf16, columns);
    uint8_t* const tiles = static_cast<uint8_t*>(scratch);
    for (int64_t first = task.first_tile; first < task.last_tile; first += 2) {
        const int64_t count = task.last_tile - first < 2 ? 1 : 2, row = first * packed_tile_rows;
        for (int64_t t = 0; t < count; ++t) {
            NextTile nothing;
            ShortSlices(task.weight.data + (first + t) * short_bytes, num_slices).expand(num_slices, tiles + t * tile_bytes, nothing);
            chains_to_pairs(tiles + t * tile_bytes, num_slices);
        }
        LinearPart part = task;
        part.weight = {WeightType::bf16, tiles, task.weight.rows - row, columns};
        part.first_tile = 0;
        part.last_tile = count;
        part.bias = task.bias ? task.bias + row : nullptr;
        part.out = task.out + row;
        float_linear_by_tiles(part, x, tiles + 2 * tile_bytes);
    }
}

}  // namespace trivium::TRIVIUM_ISA
