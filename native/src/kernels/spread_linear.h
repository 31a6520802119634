// Linear layers on packed weights for several rows of x, where registers are few. An instruction can take one factor from
// memory, but only a whole vector; so what all lanes share (four bytes of a row of x, its scale) is written to memory once for
// each lane. Spread like that, some columns of a few rows fill the first-level cache, where they meet many tiles of weights. The
// sums are those of packed_linear.h, to the bit.
#pragma once

#include "packed_linear.h"

#if defined(TRIVIUM_SUMS_PAIRS_OF_BYTES) && !defined(__AVX512F__)
#define TRIVIUM_SPREADS_ROWS

namespace trivium::TRIVIUM_ISA {

constexpr int64_t fewest_spread_rows = 2;
// Rows of x that meet a vector of weights together: as many as there are registers for their sums.
constexpr int spread_rows_together = 6;
// Groups of columns that are spread together, at most. Twelve of six rows take 23 KiB where weights have one scale a group; of K
// types one unit is taken.
constexpr int64_t spread_groups_together = 12;
// Rows of x and tiles whose sums are kept while one run of groups after the other is added to them; and the tiles' weights of
// one run stay in the second-level cache meanwhile (of Q4_1 120 KiB).
constexpr int64_t spread_rows_block = 64, spread_tiles_block = 32;
// From the sums of a vector of weight rows to those of the next: not a power of two of bytes, which would meet in few sets of a
// cache.
constexpr int64_t spread_sums_stride = spread_rows_block + 2;

// A digit of some units of `num_x` rows of x: [units, vectors of a unit, num_x]. The vectors of a unit are its quads, its scale,
// and its pairs of sums, or of a plain type what the minimum is multiplied by or the offset adds to whole-number sums.
template <WeightType type, int num_x>
struct SpreadRows {
    using U = Unit<type>;
    static constexpr int scale_at = 8 * U::num_groups, sums_at = scale_at + 1;
    static constexpr int vectors_per_unit = sums_at + (U::has_factors ? U::num_pairs : 1);

    IntVec* vectors;

    const IntVec& at(int64_t u, int vector, int m) const { return vectors[(u * vectors_per_unit + vector) * num_x + m]; }
    IntVec& at(int64_t u, int vector, int m) { return vectors[(u * vectors_per_unit + vector) * num_x + m]; }

    void spread(const QuantizedRows& x, const int32_t* rows, int64_t first_unit, int64_t num_units, int64_t digit) {
        for (int64_t i = 0; i < num_units; ++i)
            for (int m = 0; m < num_x; ++m) {
                const int64_t u = first_unit + i;
                const QuantizedRows row = x.from_row(rows[m]);
                const auto* const quads = reinterpret_cast<const FourBytes*>(row.q + digit * x.columns + u * U::columns);
                for (int q = 0; q < scale_at; ++q) at(i, q, m) = IntVec{} + quads[q];
                at(i, scale_at, m) = (IntVec)splat(row.digit_scale(u, digit));
                for (int pair = 0; pair < U::num_pairs; ++pair)
                    at(i, sums_at + pair, m) = IntVec{} + U::pair_of_sums(row, u, digit, pair);
                if constexpr (!U::has_factors)
                    at(i, sums_at, m) = U::p.has_minima ? (IntVec)splat(row.sums[u]) : IntVec{} + U::offset_sum(row, u);
            }
    }
};

// Sums of 16 bits and the products of pairs of bytes. Left to itself the compiler adds products to each other first, for which
// there are no registers left.
static inline ShortVec add_pairs(ShortVec pairs, ByteVec w, const IntVec& x) {
    ShortVec products;
    asm("vpmaddubsw %2, %3, %1\n\tvpaddw %1, %0, %0" : "+x"(pairs), "=&x"(products) : "m"(x), "x"(w));
    return pairs;
}

// Adds the products of the quads of scale s of group g of unit u, times `factors`, to a whole-number sum of each row.
template <int largest, WeightType type, int num_x, typename Quad>
static inline void add_spread_products(const Quad& quad, const SpreadRows<type, num_x>& x, int64_t u, int g, int s, IntVec factors,
                                       IntVec (&sums)[num_x]) {
    constexpr int fitting = pairs_that_fit<largest>, count = Group<type>::quads_per_scale;
    ShortVec pairs[num_x];
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
        const ByteVec w = quad(s * count + i);
#pragma GCC unroll 6
        for (int m = 0; m < num_x; ++m) {
            const IntVec& fours = x.at(u, 8 * g + s * count + i, m);
            pairs[m] = i % fitting == 0 ? byte_pairs(w, fours) : add_pairs(pairs[m], w, fours);
            if (i % fitting == fitting - 1 || i == count - 1) sums[m] += word_pairs((IntVec)pairs[m], factors);
        }
    }
}

// Adds the units first_unit … of `lanes` rows of a tile to an output vector of each row of x.
template <WeightType type, int num_x>
static inline void add_spread_units(const SpreadRows<type, num_x>& x, const uint8_t* tile, int part, int64_t first_unit,
                                    int64_t num_units, NextTile& next, Vec (&sums)[num_x]) {
    using X = SpreadRows<type, num_x>;
    using U = Unit<type>;
    using W = Group<type>;
    for (int64_t u = 0; u < num_units; ++u) {
        const U unit(tile, first_unit + u, part);
        IntVec products[num_x], others[num_x];
        set_to_zero(products);
        set_to_zero(others);
        if constexpr (!U::has_factors && !U::p.has_minima)
            for (int m = 0; m < num_x; ++m) products[m] = x.at(u, X::sums_at, m);
        for (int g = 0; g < U::num_groups; ++g) {
            next.fetch_some();
            const W group = unit.group(g);
#pragma GCC unroll 2
            for (int s = 0; s < W::num_scales; ++s) {
                IntVec factors = words_of(1);
                if constexpr (U::has_factors) factors = as_factor(group.factor(s));
                if constexpr (W::largest <= 127) {
                    add_spread_products<W::largest>([&](int i) { return group.quad(i); }, x, u, g, s, factors, products);
                } else {
                    add_spread_products<15>([&](int i) { return group.quad(i) & 15; }, x, u, g, s, factors, products);
                    add_spread_products<15>([&](int i) { return shifted(group.quad(i), 4, 15); }, x, u, g, s, words_of(16), products);
                }
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < U::num_pairs; ++i) {
            const IntVec pair = unit.pair(i);
#pragma GCC unroll 6
            for (int m = 0; m < num_x; ++m) others[m] = add_word_products(others[m], pair, x.at(u, X::sums_at + i, m));
        }
        const Vec scale = unit.scale();
        Vec minimum{};
        if constexpr (U::p.has_minima) minimum = unit.minimum();
#pragma GCC unroll 6
        for (int m = 0; m < num_x; ++m) {
            const float sum = U::p.has_minima && !U::has_factors ? ((Vec)x.at(u, X::sums_at, m))[0] : 0.0f;
            sums[m] = fma(U::joined(scale, minimum, products[m], others[m], sum), (Vec)x.at(u, X::scale_at, m), sums[m]);
        }
    }
}

// Columns of a block of rows of x that meet some tiles.
struct SpreadBlock {
    int64_t first_row;
    int64_t first_unit;
    int64_t num_units;
    int64_t digit;
    bool is_first, is_last;  // of the columns
    int64_t first_tile;
    int64_t last_tile;

    // Calls use(weight row, number among the sums of a row of x) for each vector of the tiles' outputs.
    template <typename Use>
    void each_part(const LinearPart& task, const Use& use) const {
        for (int64_t t = first_tile, i = 0; t < last_tile; ++t)
            for (int part = 0; part < tile_parts; ++part, ++i)
                if (const int64_t row = t * packed_tile_rows + part * lanes; row < task.weight.rows) use(row, i);
    }
};

// Adds the products with `num_x` rows of a block, `rows` of it, to `sums` [tiles, tile_parts, rows of the block], which become
// outputs with the last columns.
template <WeightType type, int num_x, bool are_neighbours>
[[gnu::noinline]] static void multiply_spread(const LinearPart& task, const QuantizedRows& all_x, const SpreadBlock& block,
                                              const int32_t* rows, bool fetches, IntVec* spread, Vec* sums) {
    SpreadRows<type, num_x> x = {spread};
    x.spread(all_x.from_row(block.first_row), rows, block.first_unit, block.num_units, block.digit);
    const int64_t tile_bytes = packed_tile_bytes(packed_layout(type), task.weight.columns);
    const int64_t unit_bytes = tile_bytes / all_x.num_units(), num_steps = tile_parts * block.num_units * Unit<type>::num_groups;
    const auto place = [&](int m) -> int64_t { return are_neighbours ? rows[0] + m : rows[m]; };
    NextTile next;
    block.each_part(task, [&](int64_t row, int64_t i) {
        const int64_t t = row / packed_tile_rows;
        const int part = static_cast<int>(i % tile_parts);
        const uint8_t* const tile = task.weight.data + t * tile_bytes;
        if (part == 0) {
            const int64_t next_bytes = fetches && t + 1 < block.last_tile ? block.num_units * unit_bytes : 0;
            next = NextTile(tile + tile_bytes + block.first_unit * unit_bytes, next_bytes, num_steps);
        }
        Vec now[num_x];
        set_to_zero(now);
        if (block.is_last)
            for (int m = 0; m < num_x; ++m) fetch_outputs(task, row, 1, block.first_row + place(m), 1);
        if (!block.is_first) {
#pragma GCC unroll 6
            for (int m = 0; m < num_x; ++m) now[m] = sums[i * spread_sums_stride + place(m)];
        }
        add_spread_units<type, num_x>(x, tile, part, block.first_unit, block.num_units, next, now);
#pragma GCC unroll 6
        for (int m = 0; m < num_x; ++m) {
            if (block.is_last)
                put_outputs(task, row, block.first_row + place(m), now[m]);
            else
                sums[i * spread_sums_stride + place(m)] = now[m];
        }
    });
}

// Rows of a block.
struct BlockRows {
    int32_t rows[spread_rows_block];
    int64_t count = 0;

    void add(int64_t row) { rows[count++] = static_cast<int32_t>(row); }
};

template <WeightType type, bool are_neighbours>
static void multiply_spread_rows(const LinearPart& task, const QuantizedRows& x, const SpreadBlock& block, const BlockRows& some,
                                 bool fetches, IntVec* spread, Vec* sums) {
    for_near_equal_groups<spread_rows_together>(0, some.count, [&]<int num_x>(int64_t first) {
        multiply_spread<type, num_x, are_neighbours>(task, x, block, some.rows + first, fetches && first == 0, spread, sums);
    });
}

// Those that have a second digit of the unit.
template <WeightType type>
static BlockRows double_rows(const QuantizedRows& x, int64_t num_rows, int64_t u) {
    BlockRows found;
    if constexpr (digits_of(Unit<type>::columns) > 1)
        for (int64_t m = 0; m < num_rows; ++m)
            if (x.is_double[m * x.stride + u]) found.add(m);
    return found;
}

constexpr int64_t spread_units_of(int64_t num_groups) {
    return num_groups < spread_groups_together ? spread_groups_together / num_groups : 1;
}

template <WeightType type>
constexpr int64_t spread_vectors = spread_units_of(Unit<type>::num_groups) * SpreadRows<type, 1>::vectors_per_unit;
static_assert(spread_vectors<WeightType::q4_1> >= spread_vectors<WeightType::q6_k>);

constexpr int64_t spread_scratch = sizeof(IntVec) * spread_rows_together * spread_vectors<WeightType::q4_1> +
                                   sizeof(Vec) * spread_tiles_block * tile_parts * spread_sums_stride;

// `scratch`: spread_scratch bytes.
template <WeightType type>
static void packed_linear_by_spread_rows(const LinearPart& task, const QuantizedRows& x, void* scratch) {
    Vec* const sums = static_cast<Vec*>(scratch);
    IntVec* const spread = reinterpret_cast<IntVec*>(sums + spread_tiles_block * tile_parts * spread_sums_stride);
    constexpr int64_t together = spread_units_of(Unit<type>::num_groups);
    static_assert(together == 1 || digits_of(Unit<type>::columns) == 1);
    const int64_t num_units = x.num_units(), num_runs = (num_units + together - 1) / together;
    for (int64_t begin = 0; begin < task.num_x; begin += spread_rows_block) {
        const int64_t num_rows = task.num_x - begin < spread_rows_block ? task.num_x - begin : spread_rows_block;
        BlockRows all;
        for (int64_t m = 0; m < num_rows; ++m) all.add(m);
        for (int64_t t = task.first_tile; t < task.last_tile; t += spread_tiles_block) {
            const int64_t last = t + spread_tiles_block < task.last_tile ? t + spread_tiles_block : task.last_tile;
            for (int64_t i = 0; i < num_runs; ++i) {
                const int64_t first = num_units * i / num_runs, count = num_units * (i + 1) / num_runs - first;
                const BlockRows twice = double_rows<type>(x.from_row(begin), num_rows, first);
                const bool is_last = i == num_runs - 1;
                const SpreadBlock block = {begin, first, count, 0, i == 0, is_last && twice.count == 0, t, last};
                multiply_spread_rows<type, true>(task, x, block, all, true, spread, sums);
                if (twice.count == 0) continue;
                const SpreadBlock second = {begin, first, count, 1, false, false, t, last};
                multiply_spread_rows<type, false>(task, x, second, twice, false, spread, sums);
                if (!is_last) continue;
                second.each_part(task, [&](int64_t row, int64_t part) {
                    for (int64_t m = 0; m < num_rows; ++m) put_outputs(task, row, begin + m, sums[part * spread_sums_stride + m]);
                });
            }
        }
    }
}

}  // namespace trivium::TRIVIUM_ISA

#endif
