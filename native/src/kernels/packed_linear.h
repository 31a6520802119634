// Linear layers on packed weights (packed.h) and quantized activations. Products of bytes are summed as whole numbers,
// exactly; each group of 32 columns (or 16) then joins the output's float32 sum, in the order of the columns. So an
// output is the same to the bit for any number of rows, and for every instruction set that fuses multiply and add.
#pragma once

#include "../kernels.h"
#include "../packed.h"
#include "byte_products.h"
#include "next_tile.h"
#include "outputs.h"
#include "quantize.h"
#include "with_constant.h"

namespace trivium::TRIVIUM_ISA {

// The scales and the sums of `num_x` rows of x. Where registers are few, they are laid beside each other first, so that one
// address serves all of them: [groups of columns, scales and sums, rows].
template <int num_x>
struct RowFactors {
    QuantizedRows x;  // whose first rows they are of
    float* laid;

    static constexpr bool are_laid = lanes == 8 && num_x > 1;

    float scale(int m, int64_t g) const { return are_laid ? laid[2 * num_x * g + m] : x.scales[m * x.num_groups() + g]; }
    float sum(int m, int64_t g) const {
        return are_laid ? laid[2 * num_x * g + num_x + m] : x.sums[m * x.num_groups() + g];
    }

    void lay() const {
        for (int m = 0; m < num_x; ++m)
            for (int64_t g = 0; g < x.num_groups(); ++g) {
                laid[2 * num_x * g + m] = x.scales[m * x.num_groups() + g];
                laid[2 * num_x * g + num_x + m] = x.sums[m * x.num_groups() + g];
            }
    }
};

// A group of 32 columns of `lanes` rows, ready to be multiplied.
template <WeightType type>
struct Group {
    static constexpr PackedLayout p = packed_layout(type);
    static constexpr int num_scales = p.by_16 ? 2 : 1;
    // Quads of half bytes are made when they are multiplied, where there are few registers to keep them in.
    static constexpr bool keeps_quads = lanes != 8 || p.low_bits != 4 || p.high_bits != 0;
    ByteVec quads[8];       // if they are kept
    const uint8_t* halves;  // else
    Vec scales[num_scales];
    Vec minima[num_scales];  // added, where the type has them

    // `unit` and `group` point at the unit's and the group's beginning; rows part * lanes … of the tile.
    void load(const uint8_t* unit, const uint8_t* group, int part) {
        load_scales(unit, group, part * lanes);
        const int64_t at = part * 4 * lanes;
        const uint8_t* const low = group + p.scale_bytes + at;
        const uint8_t* const high = group + p.scale_bytes + bits_bytes(p.low_bits);
        halves = low;
        if constexpr (!keeps_quads) return;
        if constexpr (p.low_bits == 8) {
            for (int q = 0; q < 8; ++q) quads[q] = load_quad(low + q * quad_bytes);
        } else if constexpr (p.low_bits == 4) {
            for (int v = 0; v < 4; ++v) {
                const ByteVec both = load_quad(low + v * quad_bytes);
                quads[v] = both & 15;
                quads[v + 4] = shifted(both, 4, 15);
            }
        } else {
            for (int v = 0; v < 2; ++v) {
                const ByteVec four = load_quad(low + v * quad_bytes);
                for (int f = 0; f < 4; ++f) quads[4 * v + f] = shifted(four, 2 * f, 3);
            }
        }
        if constexpr (p.high_bits == 1) {
            for (int q = 0; q < 8; ++q) quads[q] |= bytes_where(high + q * 8 + at / 8, 1 << p.low_bits);
        } else if constexpr (p.high_bits == 2) {
            for (int v = 0; v < 2; ++v) {
                const ByteVec four = load_quad(high + v * quad_bytes + at);
                for (int f = 0; f < 4; ++f) quads[4 * v + f] |= shifted(four, 2 * f, 3) << p.low_bits;
            }
        }
    }

    ByteVec quad(int i) const {
        if constexpr (keeps_quads) return quads[i];
        const ByteVec both = load_quad(halves + i % 4 * quad_bytes);
        return i < 4 ? both & 15 : shifted(both, 4, 15);
    }

    void load_scales(const uint8_t* unit, const uint8_t* group, int row) {
        const Vec d = load_halves(unit + 2 * row);
        if constexpr (p.head_bytes == 0) {
            scales[0] = d;
            if constexpr (p.has_minima) minima[0] = load_halves(unit + 32 + 2 * row);
        } else if constexpr (type == WeightType::q2_k) {
            const Vec dmin = load_halves(unit + 32 + 2 * row);
            for (int s = 0; s < 2; ++s) {
                const IntVec both = load_unsigned(group + 16 * s + row);
                scales[s] = d * to_float(both & 15);
                minima[s] = -dmin * to_float(both >> 4);
            }
        } else if constexpr (p.by_16) {
            for (int s = 0; s < 2; ++s) scales[s] = d * to_float(load_signed(group + 16 * s + row));
        } else {
            scales[0] = d * to_float(load_unsigned(group + row));
            minima[0] = -load_halves(unit + 32 + 2 * row) * to_float(load_unsigned(group + 16 + row));
        }
    }

    // Adds the group `g` of the first `num_x` rows of x to an output vector of each.
    template <int num_x>
    void add_to(Vec* sums, const RowFactors<num_x>& factors, const int8_t* const* rows, int64_t g) const {
        constexpr int largest = (1 << (p.low_bits + p.high_bits)) - 1, count = 8 / num_scales;
        // Where registers are few, a quad meets all rows before the next does; else a row meets all quads.
        constexpr int together = lanes == 8 ? num_x : 1;
#pragma GCC unroll 8
        for (int first = 0; first < num_x; first += together)
            for (int s = 0; s < num_scales; ++s)
                sum_products<largest, count, !keeps_quads, together>(
                    [&](int i) { return quad(s * count + i); }, rows + first, g * packed_group_columns + 4 * s * count,
                    [&](int i) { return p.offset != 0 ? -p.offset * q_sum(s, factors.x, first + i, g) : 0; },
                    [&](int i, IntVec products) { join(sums[first + i], products, s, factors, first + i, g); });
    }

private:
    static int32_t q_sum(int s, const QuantizedRows& x, int64_t row, int64_t g) {
        const int32_t* const halves = x.q_sums + 2 * (row * x.num_groups() + g);
        return p.by_16 ? halves[s] : halves[0] + halves[1];
    }

    template <int num_x>
    void join(Vec& sum, IntVec products, int s, const RowFactors<num_x>& factors, int row, int64_t g) const {
        const float scale = factors.scale(row, g);
        sum = fma(scales[s] * scale, to_float(products), sum);
        if constexpr (p.has_minima && p.by_16)
            sum = fma(minima[s], splat(scale * static_cast<float>(q_sum(s, factors.x, row, g))), sum);
        else if constexpr (p.has_minima)
            sum = fma(minima[s], splat(factors.sum(row, g)), sum);
    }
};

// The outputs of `lanes` rows of a tile for the first `num_x` rows of x.
template <WeightType type, int num_x>
static inline void multiply_part(const RowFactors<num_x> factors, const uint8_t* tile, int part, NextTile& next, Vec* sums) {
    const QuantizedRows& x = factors.x;
    constexpr PackedLayout p = packed_layout(type);
    constexpr int64_t group_bytes = packed_group_bytes(p), groups = p.unit_columns / packed_group_columns;
    constexpr int64_t unit_bytes = p.head_bytes + groups * group_bytes;
    for (int m = 0; m < num_x; ++m) sums[m] = Vec{};
    const int8_t* rows[num_x];
    for (int m = 0; m < num_x; ++m) {
        rows[m] = x.q + m * x.stride;
        // A register for each row: of few vectors and many loads the compiler takes one for each load.
        if constexpr (lanes == 8) asm("" : "+r"(rows[m]));
    }
    const int64_t num_groups = x.num_groups();
#pragma GCC unroll 4
    for (int64_t g = 0; g < num_groups; ++g) {
        const uint8_t* const unit = tile + g / groups * unit_bytes;
        Group<type> group;
        group.load(unit, unit + p.head_bytes + g % groups * group_bytes, part);
        next.fetch_some();
        group.template add_to<num_x>(sums, factors, rows, g);
    }
}

// Not inlined: one function for all numbers of rows has too many values for its registers.
template <WeightType type, int num_x>
[[gnu::noinline]] static void multiply_rows(const LinearPart& task, const RowFactors<num_x>& factors, const uint8_t* tile,
                                            int64_t tile_row, int64_t first, NextTile& next) {
    for (int part = 0; part < tile_parts; ++part) {
        const int64_t row = tile_row + part * lanes;
        if (row >= task.weight.rows) return;
        Vec sums[num_x];
        multiply_part<type, num_x>(factors, tile, part, next, sums);
        for (int m = 0; m < num_x; ++m) put_outputs(task, row, first + m, sums[m]);
    }
}

// As many rows of x share the group's quads as there are registers for their sums.
constexpr int packed_rows_together = lanes == 16 ? 8 : lanes == 8 ? 6 : 4;

// Rows of x that all tiles of a task pass over before the next rows do, so that they are read from a cache near by: so many
// bytes of them, and so many rows at least, that reading the tiles again costs little.
constexpr int64_t packed_block_bytes = 128 << 10, packed_block_rows = 64;

static int64_t rows_of_block(int64_t columns) {
    const int64_t fitting = packed_block_bytes / columns / packed_rows_together * packed_rows_together;
    return fitting > packed_block_rows ? fitting : packed_block_rows;
}

// Floats of a row's scales and sums.
static int64_t row_factors(int64_t columns) { return 2 * columns / packed_group_columns; }

static int64_t factors_scratch(int64_t columns) {
    return RowFactors<packed_rows_together>::are_laid ? rows_of_block(columns) * row_factors(columns) * int64_t{sizeof(float)} : 0;
}

// `scratch`: factors_scratch(columns) bytes.
template <WeightType type>
static void packed_linear_of(const LinearPart& task, const QuantizedRows& x, void* scratch) {
    const int64_t tile_bytes = packed_tile_bytes(packed_layout(type), task.weight.columns);
    const int64_t block = rows_of_block(task.weight.columns);
    for (int64_t begin = 0; begin < task.num_x; begin += block) {
        const int64_t end = begin + block < task.num_x ? begin + block : task.num_x;
        const int64_t passes = (end - begin + packed_rows_together - 1) / packed_rows_together * tile_parts;
        const auto with_rows = [&](const auto& use) {
            for_near_equal_groups<packed_rows_together>(begin, end, [&]<int num_x>(int64_t first) {
                RowFactors<num_x> factors = {x.from_row(first), nullptr};
                if constexpr (RowFactors<num_x>::are_laid)
                    factors.laid = static_cast<float*>(scratch) + (first - begin) * row_factors(x.columns);
                use.template operator()<num_x>(factors, first);
            });
        };
        with_rows([&]<int num_x>(const RowFactors<num_x>& factors, int64_t) {
            if constexpr (RowFactors<num_x>::are_laid) factors.lay();
        });
        for (int64_t t = task.first_tile; t < task.last_tile; ++t) {
            const uint8_t* const tile = task.weight.data + t * tile_bytes;
            const int64_t row = t * packed_tile_rows;
            const bool fetches = t + 1 < task.last_tile && end - begin >= fewest_rows_to_fetch_for;
            NextTile next(tile + tile_bytes, fetches ? tile_bytes : 0, passes * x.num_groups());
            with_rows([&]<int num_x>(const RowFactors<num_x>& factors, int64_t first) {
                multiply_rows<type, num_x>(task, factors, tile, row, first, next);
            });
        }
    }
}

}  // namespace trivium::TRIVIUM_ISA
