// Linear layers on packed weights of plain types with AMX tiles, for as many rows of x as fill them. A tile of 16 weight rows is
// expanded to bytes once and then meets all rows of x, 16 at a time. The whole-number sums of a unit join the float32 sums
// exactly as in packed_linear.h, so that both give the same bits.
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
// Products of this many units lie ready while the next are multiplied. Two times two are 4 KiB: with more, a load would
// share the low 12 bits of its address with a store that is still under way, and wait for it.
constexpr int units_together = 2;

// Weight tiles as signed bytes, unit by unit.
template <WeightType type>
struct Expanded {
    using U = Unit<type>;
    static_assert(U::num_groups == 1);
    struct alignas(64) ExpandedUnit {
        int8_t quads[8 * quad_bytes];
        float scales[16];
        float minima[U::p.has_minima ? 16 : 0];
    };
    ExpandedUnit* units;

    void expand(const uint8_t* tile, int64_t num_units) const {
        for (int64_t u = 0; u < num_units; ++u) {
            const U unit(tile, u, 0);
            ExpandedUnit& to = units[u];
            for (int q = 0; q < 8; ++q) {
                const ByteVec bytes = unit.group(0).quad(q) - static_cast<uint8_t>(U::p.offset);
                memcpy(to.quads + q * quad_bytes, &bytes, sizeof bytes);
            }
            store(to.scales, unit.scale());
            if constexpr (U::p.has_minima) store(to.minima, unit.minimum());
        }
    }
};

#define TRIVIUM_MULTIPLY_UNIT(sums, x_tile, weight_tile, u)            \
    _tile_zero(sums);                                                  \
    _tile_loadd(x_tile, x.q + (u) * packed_group_columns, x.stride);   \
    _tile_loadd(weight_tile, weight.units[u].quads, quad_bytes);       \
    _tile_dpbssd(sums, x_tile, weight_tile)

// products[i] [num_x, 16]: whole-number sums of unit first + i.
template <WeightType type>
static inline void unit_products(const Expanded<type>& weight, const QuantizedRows& x, int64_t first, int64_t count,
                                 int32_t* products) {
    TRIVIUM_MULTIPLY_UNIT(0, 4, 6, first);
    if (count > 1) {
        TRIVIUM_MULTIPLY_UNIT(1, 5, 7, first + 1);
        _tile_stored(1, products + 16 * 16, 4 * 16);
    }
    _tile_stored(0, products, 4 * 16);
}

#undef TRIVIUM_MULTIPLY_UNIT

template <WeightType type, int num_x>
static inline void add_products_of_unit(const Expanded<type>& weight, const QuantizedRows& x, int64_t u, const int32_t* products,
                                        Vec* sums) {
    using U = Unit<type>;
    const Vec scale = load(weight.units[u].scales);
    Vec minimum{};
    if constexpr (U::p.has_minima) minimum = load(weight.units[u].minima);
    each_row<num_x>(x, [&](const QuantizedRows& row, int m) {
        IntVec whole;
        memcpy(&whole, products + 16 * m, sizeof whole);
        sums[m] = fma(U::joined(scale, minimum, whole, IntVec{}, row.sums[u]), splat(row.scales[u]), sums[m]);
    });
}

// The outputs of one weight tile for `num_x` rows of x. Tiles multiply some units ahead of the vectors that take them in.
template <WeightType type, int num_x>
static inline void multiply_tile(const Expanded<type>& weight, const QuantizedRows& x, Vec* sums) {
    alignas(64) int32_t products[2][units_together * 16 * 16];
    const int64_t num_units = x.num_units();
    const auto count_from = [&](int64_t first) {
        return num_units - first < units_together ? num_units - first : int64_t{units_together};
    };
    for (int m = 0; m < num_x; ++m) sums[m] = Vec{};
    unit_products(weight, x, 0, count_from(0), products[0]);
    int now = 0;
    for (int64_t first = 0; first < num_units; first += units_together, now ^= 1) {
        const int64_t next = first + units_together;
        if (next < num_units) unit_products(weight, x, next, count_from(next), products[now ^ 1]);
        const int64_t count = count_from(first);
        for (int64_t i = 0; i < count; ++i)
            add_products_of_unit<type, num_x>(weight, x, first + i, products[now] + i * 16 * 16, sums);
    }
}

template <WeightType type>
static constexpr int64_t expanded_bytes(int64_t columns) {
    return columns / packed_group_columns * static_cast<int64_t>(sizeof(typename Expanded<type>::ExpandedUnit));
}

// Blocks of 16 rows; where the rows are no multiple, the last block begins earlier and leaves out what is done.
template <WeightType type>
static void packed_linear_by_tiles(const LinearPart& task, const QuantizedRows& x, void* scratch) {
    constexpr int num_x = 16;
    const int64_t tile_bytes = packed_tile_bytes(packed_layout(type), task.weight.columns);
    shape_tiles(num_x, 8);
    for (int64_t pass = 0; pass < task.num_x; pass += tile_rows_per_pass) {
        const int64_t pass_end = pass + tile_rows_per_pass < task.num_x ? pass + tile_rows_per_pass : task.num_x;
        for (int64_t t = task.first_tile; t < task.last_tile; t += weight_tiles_together) {
            const int64_t tiles = task.last_tile - t < weight_tiles_together ? task.last_tile - t : weight_tiles_together;
            Expanded<type> weights[weight_tiles_together];
            for (int64_t i = 0; i < tiles; ++i) {
                weights[i].units = reinterpret_cast<typename Expanded<type>::ExpandedUnit*>(
                    static_cast<char*>(scratch) + i * expanded_bytes<type>(task.weight.columns));
                weights[i].expand(task.weight.data + (t + i) * tile_bytes, x.num_units());
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
