// Linear layers on packed weights (packed.h) and quantized activations. Products of bytes are summed as whole numbers, exactly,
// over a unit of columns, which then joins the output's float32 sum, in the order of the columns (packed_group.h). So an output
// is the same to the bit for any number of rows, and for every instruction set that fuses multiply and add.
#pragma once

#include "../kernels.h"
#include "next_tile.h"
#include "outputs.h"
#include "packed_group.h"
#include "quantize.h"
#include "with_constant.h"

namespace trivium::TRIVIUM_ISA {

// Calls use(row of x, m) for the first `num_x` rows.
template <int num_x, typename Use>
static inline __attribute__((always_inline)) void each_row(const QuantizedRows& x, const Use& use) {
#pragma GCC unroll 16
    for (int m = 0; m < num_x; ++m) use(x.from_row(m), m);
}

// How many of the first `num_x` rows of x have two digits in unit u.
template <WeightType type>
static inline int64_t num_double(const QuantizedRows& x, int64_t num_x, int64_t u) {
    if constexpr (digits_of(Unit<type>::columns) == 1) return 0;
    int64_t count = 0;
    for (int64_t m = 0; m < num_x; ++m) count += x.is_double[m * x.stride + u];
    return count;
}

// Adds a digit of the unit u to an output vector of each of the first `num_x` rows of x. before_group() is called before each of
// its groups.
template <WeightType type, int num_x, typename Before>
static inline __attribute__((always_inline)) void add_digit(const Unit<type>& unit, const QuantizedRows& x, int64_t u,
                                                            int64_t digit, const Before& before_group,
                                                            Vec* sums) {
    using U = Unit<type>;
    using W = Group<type>;
    constexpr int count = W::quads_per_scale;
    const int64_t first_byte = digit * x.columns + u * U::columns;
    IntVec products[num_x], others[num_x];
    set_to_zero(products);
    set_to_zero(others);
    for (int g = 0; g < U::num_groups; ++g) {
        before_group();
        const W group = unit.group(g);
#pragma GCC unroll 2
        for (int s = 0; s < W::num_scales; ++s) {
            ByteVec quads[count];
            for (int q = 0; q < count; ++q) quads[q] = group.quad(s * count + q);
            const int64_t at = first_byte + g * packed_group_columns + 4 * s * count;
            if constexpr (U::has_factors) {
                const IntVec factors = as_factor(group.factor(s));
                each_row<num_x>(x, [&](const QuantizedRows& row, int m) {
                    products[m] = add_multiplied<W::largest, count>(products[m], factors, quads, row.q + at);
                });
            } else {
                each_row<num_x>(x, [&](const QuantizedRows& row, int m) {
                    const int32_t start = U::p.offset != 0 ? U::offset_sum(row, u) : 0;
                    products[m] = sum_products<W::largest, count>(quads, row.q + at, start);
                });
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < U::num_pairs; ++i) {
        const IntVec pair = unit.pair(i);
        each_row<num_x>(x, [&](const QuantizedRows& row, int m) {
            others[m] = add_word_products(others[m], pair, IntVec{} + U::pair_of_sums(row, u, digit, i));
        });
    }
    const Vec scale = unit.scale();
    Vec minimum{};
    if constexpr (U::p.has_minima) minimum = unit.minimum();
    each_row<num_x>(x, [&](const QuantizedRows& row, int m) {
        const float sum = U::p.has_minima && !U::has_factors ? row.sums[u] : 0.0f;
        const Vec values = U::joined(scale, minimum, products[m], others[m], sum);
        sums[m] = fma(values, splat(row.digit_scale(u, digit)), sums[m]);
    });
}

template <WeightType type, int num_x>
[[gnu::noinline]] static void add_second_digit(const Unit<type>& unit, const QuantizedRows& x, int64_t u, Vec* sums) {
    add_digit<type, num_x>(unit, x, u, 1, [] {}, sums);
}

template <WeightType type, int num_x, typename Before>
static inline __attribute__((always_inline)) void add_unit(const Unit<type>& unit, const QuantizedRows& x, int64_t u,
                                                           const Before& before_group, Vec* sums) {
    add_digit<type, num_x>(unit, x, u, 0, before_group, sums);
    const int64_t count = num_double<type>(x, num_x, u);
    if (count == 0) return;
    // A row by itself takes about a third of what eight take together.
    if (3 * count >= num_x) return add_second_digit<type, num_x>(unit, x, u, sums);
    for (int m = 0; m < num_x; ++m)
        if (x.is_double[m * x.stride + u]) add_second_digit<type, 1>(unit, x.from_row(m), u, sums + m);
}

// The outputs of a tile for the first row of x. All vectors of the tile's rows share what is read of x.
template <WeightType type>
[[gnu::noinline]] static void multiply_row(const LinearPart& task, const QuantizedRows& x, const uint8_t* tile,
                                           int64_t tile_row, int64_t first, NextTile& next) {
    const int64_t num_units = x.num_units();
    Vec sums[tile_parts];
    set_to_zero(sums);
#pragma GCC unroll 2
    for (int64_t u = 0; u < num_units; ++u) {
        add_unit<type, 1>(Unit<type>(tile, u, 0), x, u, [&] { next.fetch_some(); }, sums);
#pragma GCC unroll 4
        for (int part = 1; part < tile_parts; ++part) add_unit<type, 1>(Unit<type>(tile, u, part), x, u, [] {}, sums + part);
    }
    for (int part = 0; part < tile_parts; ++part)
        if (const int64_t row = tile_row + part * lanes; row < task.weight.rows) put_outputs(task, row, first, sums[part]);
}

// The outputs of a tile for the first `num_x` rows of x. Not inlined: one function for all numbers of rows has too many values
// for its registers.
template <WeightType type, int num_x>
[[gnu::noinline]] static void multiply_rows(const LinearPart& task, const QuantizedRows& x, const uint8_t* tile,
                                            int64_t tile_row, int64_t first, NextTile& next) {
    const int64_t num_units = x.num_units();
    for (int part = 0; part < tile_parts; ++part) {
        const int64_t row = tile_row + part * lanes;
        if (row >= task.weight.rows) return;
        Vec sums[num_x];
        set_to_zero(sums);
        fetch_outputs(task, row, 1, first, num_x);
        const auto add = [&](int64_t u) {
            add_unit<type, num_x>(Unit<type>(tile, u, part), x, u, [&] { next.fetch_some(); }, sums);
        };
        if constexpr (Unit<type>::num_groups == 1) {
#pragma GCC unroll 4
            for (int64_t u = 0; u < num_units; ++u) add(u);
        } else {
            for (int64_t u = 0; u < num_units; ++u) add(u);
        }
#pragma GCC unroll 8
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
    const int64_t num_groups = columns / packed_group_columns;
    for (int64_t begin = 0; begin < task.num_x; begin += block) {
        const int64_t end = begin + block < task.num_x ? begin + block : task.num_x;
        const int64_t passes = (end - begin + packed_rows_together - 1) / packed_rows_together * tile_parts;
        const LinearPart pass = end < task.num_x ? task.without_following() : task;
        for (int64_t t = task.first_tile; t < task.last_tile; ++t) {
            const uint8_t* const tile = task.weight.data + t * tile_bytes;
            const bool are_few = end - begin < fewest_rows_to_fetch_for;
            NextTile next = are_few ? NextTile::ahead_of(pass, tile_bytes, tile, num_groups)
                                    : NextTile::after_this(pass, tile_bytes, tile + tile_bytes, tile_bytes, passes * num_groups);
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
