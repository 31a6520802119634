// Linear layers on packed weights with AMX tiles, for as many rows of x as fill them. A tile of 16 weight rows is expanded
// to bytes once and then meets all rows of x, 16 at a time. The whole-number sums of a slice (the columns that share a
// scale) join the float32 sums exactly as in packed_linear.h, so that both give the same bits.
#pragma once

#if defined(__AMX_INT8__)

#include "amx_tiles.h"
#include "packed_linear.h"

namespace trivium::TRIVIUM_ISA {

// With fewer rows the vector kernel is as fast: expanding the weights costs more than tiles save.
constexpr int64_t fewest_tile_rows = 24;
// Rows of x that meet a pair of weight tiles before the next pair is expanded: with 1,536 columns they fill 0.8 MiB, less
// than the 2 MiB of second-level cache that processors with AMX have.
constexpr int64_t tile_rows_per_pass = 512;
constexpr int64_t weight_tiles_together = 2;  // while one block of x rows is in the first-level cache
// Products of this many slices lie ready while the next are multiplied. Two times two are 4 KiB: with more, a load would
// share the low 12 bits of its address with a store that is still under way, and wait for it.
constexpr int slices_together = 2;

// Weight tiles as signed bytes, slice by slice.
template <WeightType type>
struct Expanded {
    static constexpr PackedLayout p = packed_layout(type);
    static constexpr int scales_per_group = p.by_16 ? 2 : 1;
    static constexpr int slice_quads = 8 / scales_per_group;
    struct alignas(64) Slice {
        int8_t quads[slice_quads * quad_bytes];
        float scales[16];
        float minima[p.has_minima ? 16 : 0];
    };
    Slice* slices;

    static int64_t slices_of(int64_t columns) { return columns / packed_group_columns * scales_per_group; }

    void expand(const uint8_t* tile, int64_t num_groups) const {
        for (int64_t g = 0; g < num_groups; ++g) {
            const Group<type> group(tile, g, 0);
            for (int s = 0; s < scales_per_group; ++s) {
                Slice& slice = slices[g * scales_per_group + s];
                for (int q = 0; q < slice_quads; ++q) {
                    const ByteVec bytes = group.quad(s * slice_quads + q) - static_cast<uint8_t>(p.offset);
                    memcpy(slice.quads + q * quad_bytes, &bytes, sizeof bytes);
                }
                store(slice.scales, group.scale(s));
                if constexpr (p.has_minima) store(slice.minima, group.minimum(s));
            }
        }
    }
};

#define TRIVIUM_MULTIPLY_SLICE(sums, x_tile, weight_tile, slice)       \
    _tile_zero(sums);                                                  \
    _tile_loadd(x_tile, x.q + (slice) * 4 * slice_quads, x.stride);    \
    _tile_loadd(weight_tile, weight.slices[slice].quads, quad_bytes);  \
    _tile_dpbssd(sums, x_tile, weight_tile)

// products[i] [num_x, 16]: whole-number sums of slice first + i.
template <WeightType type>
static inline void slice_products(const Expanded<type>& weight, const QuantizedRows& x, int64_t first, int64_t count,
                                  int32_t* products) {
    constexpr int slice_quads = Expanded<type>::slice_quads;
    TRIVIUM_MULTIPLY_SLICE(0, 4, 6, first);
    if (count > 1) {
        TRIVIUM_MULTIPLY_SLICE(1, 5, 7, first + 1);
        _tile_stored(1, products + 16 * 16, 4 * 16);
    }
    _tile_stored(0, products, 4 * 16);
}

#undef TRIVIUM_MULTIPLY_SLICE

template <WeightType type, int num_x>
static inline void add_slice(const Expanded<type>& weight, const QuantizedRows& x, int64_t slice, const int32_t* products,
                             Vec* sums) {
    constexpr PackedLayout p = packed_layout(type);
    constexpr int scales_per_group = Expanded<type>::scales_per_group;
    const int64_t num_groups = x.num_groups(), g = slice / scales_per_group;
    const Vec scales = load(weight.slices[slice].scales);
    Vec minima{};
    if constexpr (p.has_minima) minima = load(weight.slices[slice].minima);
#pragma GCC unroll 16
    for (int m = 0; m < num_x; ++m) {
        const float scale = x.scales[m * num_groups + g];
        IntVec whole;
        memcpy(&whole, products + 16 * m, sizeof whole);
        sums[m] = fma(scales * scale, to_float(whole), sums[m]);
        if constexpr (p.has_minima && p.by_16) {
            const int32_t q_sum = x.q_sums[2 * m * num_groups + slice];
            sums[m] = fma(minima, splat(scale * static_cast<float>(q_sum)), sums[m]);
        } else if constexpr (p.has_minima) {
            sums[m] = fma(minima, splat(x.sums[m * num_groups + g]), sums[m]);
        }
    }
}

// The outputs of one weight tile for `num_x` rows of x. Tiles multiply some slices ahead of the vectors that take them in.
template <WeightType type, int num_x>
static inline void multiply_tile(const Expanded<type>& weight, const QuantizedRows& x, Vec* sums) {
    alignas(64) int32_t products[2][slices_together * 16 * 16];
    const int64_t num_slices = Expanded<type>::slices_of(x.columns);
    const auto count_from = [&](int64_t first) {
        return num_slices - first < slices_together ? num_slices - first : int64_t{slices_together};
    };
    for (int m = 0; m < num_x; ++m) sums[m] = Vec{};
    slice_products(weight, x, 0, count_from(0), products[0]);
    int now = 0;
    for (int64_t first = 0; first < num_slices; first += slices_together, now ^= 1) {
        const int64_t next = first + slices_together;
        if (next < num_slices) slice_products(weight, x, next, count_from(next), products[now ^ 1]);
        const int64_t count = count_from(first);
        for (int64_t i = 0; i < count; ++i)
            add_slice<type, num_x>(weight, x, first + i, products[now] + i * 16 * 16, sums);
    }
}

template <WeightType type>
static constexpr int64_t expanded_bytes(int64_t columns) {
    return Expanded<type>::slices_of(columns) * static_cast<int64_t>(sizeof(typename Expanded<type>::Slice));
}

// Blocks of 16 rows; where the rows are no multiple, the last block begins earlier and leaves out what is done.
template <WeightType type>
static void packed_linear_by_tiles(const LinearPart& task, const QuantizedRows& x, void* scratch) {
    constexpr int num_x = 16;
    const int64_t tile_bytes = packed_tile_bytes(packed_layout(type), task.weight.columns);
    shape_tiles(num_x, Expanded<type>::slice_quads);
    for (int64_t pass = 0; pass < task.num_x; pass += tile_rows_per_pass) {
        const int64_t pass_end = pass + tile_rows_per_pass < task.num_x ? pass + tile_rows_per_pass : task.num_x;
        for (int64_t t = task.first_tile; t < task.last_tile; t += weight_tiles_together) {
            const int64_t tiles = task.last_tile - t < weight_tiles_together ? task.last_tile - t : weight_tiles_together;
            Expanded<type> weights[weight_tiles_together];
            for (int64_t i = 0; i < tiles; ++i) {
                weights[i].slices = reinterpret_cast<typename Expanded<type>::Slice*>(
                    static_cast<char*>(scratch) + i * expanded_bytes<type>(task.weight.columns));
                weights[i].expand(task.weight.data + (t + i) * tile_bytes, x.num_groups());
            }
            for (int64_t done = pass; done < pass_end;) {
                const int64_t first = done + num_x <= task.num_x ? done : task.num_x - num_x;
                for (int64_t i = 0; i < tiles; ++i) {
                    Vec sums[num_x];
                    multiply_tile<type, num_x>(weights[i], x.from_row(first), sums);
#pragma GCC unroll 16
                    for (int m = 0; m < num_x; ++m)
                        if (first + m >= done) put_outputs(task, (t + i) * packed_tile_rows, first + m, sums[m]);
                }
                done = first + num_x;
            }
        }
    }
    _tile_release();
}

}  // namespace trivium::TRIVIUM_ISA

#endif
