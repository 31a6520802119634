// Linear layers on short bfloat16 by vectors: what bfloat16 gives, to the bit, from three quarters of the bytes. Some slices at a
// time are made into bfloat16, where they stay in the first-level cache while all rows of x meet them.
#pragma once

#include "float_linear.h"
#include "short_bf16.h"

namespace trivium::TRIVIUM_ISA {

constexpr int64_t short_chunk_slices = 8;
// Rows whose sums are kept from chunk to chunk. Making a slice takes about as long as multiplying it by six rows.
constexpr int64_t short_pass_rows = 256;
// So few rows pass over slices once, which are fetched some KiB ahead; for more those of the next chunk are fetched while these
// are multiplied.
constexpr int64_t rows_fetched_ahead = 3;
constexpr int64_t parts_of_short_tile = packed_tile_rows / lanes;
constexpr int64_t short_tiles_together = parts_of_short_tile < float_parts_together ? float_parts_together / parts_of_short_tile : 1;
constexpr int64_t short_steps = short_tiles_together * parts_of_short_tile / float_parts_together;

using PartSums = Vec[float_parts_together];
struct ShortScratch {
    alignas(64) uint8_t slices[short_tiles_together][short_chunk_slices * float_slice_bytes(WeightType::bf16)];
    PartSums sums[short_steps][short_pass_rows];
};

// Slices of vectors of weight rows.
template <int num_parts>
struct ShortChunk {
    const uint8_t* parts[num_parts];
    int64_t num_slices;
};

// Adds products with all `rows` of x to their sums: as many at a time as fit, then the rest at once.
template <int num_parts, int num_x = float_rows_together, typename Meanwhile>
static void add_short_chunk(const ShortChunk<num_parts>& chunk, const Word* x, int64_t x_stride, int64_t rows,
                            const Meanwhile& meanwhile, PartSums* kept) {
    if constexpr (num_x > 0) {
        for (; rows >= num_x; rows -= num_x, x += num_x * x_stride, kept += num_x) {
            Vec sums[num_x][num_parts];
            for (int m = 0; m < num_x; ++m)
                for (int p = 0; p < num_parts; ++p) sums[m][p] = kept[m][p];
            add_float_slices<WeightType::short_bf16, num_x, num_parts>(chunk.parts, x, x_stride, chunk.num_slices, meanwhile, sums);
            for (int m = 0; m < num_x; ++m)
                for (int p = 0; p < num_parts; ++p) kept[m][p] = sums[m][p];
        }
        if (rows > 0) add_short_chunk<num_parts, num_x - 1>(chunk, x, x_stride, rows, meanwhile, kept);
    }
}

// `rows` rows of x from `first_x` on, at most as many as a pass has, by tiles from `first_tile` on.
template <int64_t num_tiles>
static void multiply_short_tiles(const LinearPart& task, const uint32_t* all_x, int64_t first_tile, int64_t first_x, int64_t rows,
                                 ShortScratch& scratch) {
    constexpr int64_t num_parts = num_tiles * parts_of_short_tile;
    constexpr int parts_of_step = num_parts < float_parts_together ? num_parts : float_parts_together;
    constexpr int64_t words_of_slice = 2 * Slice<WeightType::bf16>::num_steps;
    const int64_t tile_bytes = packed_tile_bytes(WeightType::short_bf16, task.weight.columns);
    const int64_t num_slices = padded_columns(task.weight.columns) / float_slice_columns, x_stride = laid_stride(task.weight.columns);
    const Word* const x = reinterpret_cast<const Word*>(all_x) + first_x * x_stride;
    ShortSlices slices[num_tiles];
    for (int64_t t = 0; t < num_tiles; ++t) slices[t] = {task.weight.data + (first_tile + t) * tile_bytes, num_slices};
    for (int64_t step = 0; step < num_parts / parts_of_step; ++step)
        memset(scratch.sums[step], 0, rows * sizeof scratch.sums[step][0]);
    const bool is_ahead = task.num_x <= rows_fetched_ahead;
    const int64_t num_groups = (rows + float_rows_together - 1) / float_rows_together;
    NextTile ahead;
    const auto tile = [&](int64_t t) { return task.weight.data + t * tile_bytes; };
    if (is_ahead) ahead = NextTile::ahead_of(task, tile_bytes, tile(first_tile), num_slices);
    const int64_t chunk_slices = is_ahead ? 2 : short_chunk_slices;
    for (int64_t first = 0; first < num_slices; first += chunk_slices) {
        ShortChunk<parts_of_step> chunk;
        chunk.num_slices = num_slices - first < chunk_slices ? num_slices - first : chunk_slices;
        NextTile following[num_tiles];
        for (int64_t t = 0; t < num_tiles; ++t) {
            slices[t].expand(chunk.num_slices, scratch.slices[t], ahead);
            if (is_ahead) continue;
            const int64_t chunk_bytes = short_chunk_slices * ShortLayout::slice_bytes;
            const int64_t num_steps = num_groups * chunk.num_slices * num_parts / parts_of_step;
            if (first + chunk.num_slices < num_slices)
                following[t] = NextTile(slices[t].next(), chunk_bytes, num_steps);
            else  // and its tables
                following[t] = NextTile::after_this(task, tile_bytes, tile(first_tile + num_tiles + t),
                                                    chunk_bytes + ShortLayout::slice_bytes, num_steps);
        }
        for (int64_t step = 0; step < num_parts / parts_of_step; ++step) {
            for (int64_t p = 0; p < parts_of_step; ++p) {
                const int64_t part = step * parts_of_step + p;
                chunk.parts[p] = scratch.slices[part / parts_of_short_tile] + part % parts_of_short_tile * lanes * 4;
            }
            if (!is_ahead && first + chunk.num_slices == num_slices)
                fetch_outputs(task, first_tile * packed_tile_rows + step * parts_of_step * lanes, parts_of_step, first_x, rows);
            const auto fetch = [&] {
                for (NextTile& one : following) one.fetch_some();
            };
            add_short_chunk(chunk, x + first * words_of_slice, x_stride, rows, fetch, scratch.sums[step]);
        }
    }
    for (int64_t m = 0; m < rows; ++m)
        for (int64_t part = 0; part < num_parts; ++part)
            if (const int64_t row = first_tile * packed_tile_rows + part * lanes; row < task.weight.rows)
                put_outputs(task, row, first_x + m, scratch.sums[part / parts_of_step][m][part % parts_of_step]);
}

static void short_linear_by_vectors(const LinearPart& task, const uint32_t* x, ShortScratch& scratch) {
    // Few rows are bound by reading, which goes faster through one tile after the other.
    const int64_t together = task.num_x > rows_fetched_ahead ? short_tiles_together : 1;
    for (int64_t first_x = 0; first_x < task.num_x; first_x += short_pass_rows) {
        const int64_t rows = task.num_x - first_x < short_pass_rows ? task.num_x - first_x : short_pass_rows;
        const LinearPart pass = first_x + rows < task.num_x ? task.without_following() : task;
        int64_t tile = task.first_tile;
        if (together > 1)
            for (; tile + together <= task.last_tile; tile += together)
                multiply_short_tiles<short_tiles_together>(pass, x, tile, first_x, rows, scratch);
        for (; tile < task.last_tile; ++tile) multiply_short_tiles<1>(pass, x, tile, first_x, rows, scratch);
    }
}

}  // namespace trivium::TRIVIUM_ISA
