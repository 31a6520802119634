// Linear layers on packed weights of K types with AMX tiles. A weight times its group's factor has up to 15 bits: a low byte and a
// high one, each of which is multiplied by tiles. So the products of a whole unit are summed before they leave the tiles, as the
// whole numbers that packed_linear.h has too.
#pragma once

#if defined(__AMX_INT8__)

#include "amx_tiles.h"
#include "packed_linear.h"

namespace trivium::TRIVIUM_ISA {

// As many as fill a tile. Billions of multiply-adds a second on an Intel Xeon, 15 rows by vectors and 16 by tiles: Q4_K 147 and 193,
// Q6_K 103 and 122.
constexpr int64_t fewest_unit_tile_rows = 16;
// Bytes of first digits of x that all weight tiles meet before the next rows do: half of the 2 MiB of second-level cache that
// processors with AMX have. And so many rows at least, that expanding the weights again costs little.
constexpr int64_t unit_pass_bytes = 1 << 20, unit_pass_rows = 128;
constexpr int64_t tile_columns = 64;
constexpr int64_t unit_weight_tiles = 2;  // that meet a block of rows while it is in the first-level cache

// A unit of a weight tile, which stays in the first-level cache while it meets all rows of x.
template <WeightType type>
struct alignas(64) ExpandedUnit {
    using U = Unit<type>;
    using W = Group<type>;
    static constexpr int largest_factor = type == WeightType::q2_k ? 15 : 63;  // of types without an offset
    static constexpr bool has_high = U::p.offset != 0 || W::largest * largest_factor > 255;
    static constexpr int64_t num_tiles = U::columns / tile_columns;

    uint8_t low[num_tiles][16 * quad_bytes];
    int8_t high[has_high ? num_tiles : 0][16 * quad_bytes];
    IntVec pairs[U::p.has_minima ? U::num_pairs : 0];
    Vec scale;
    Vec minimum;

    void expand(const U& unit) {
        for (int g = 0; g < U::num_groups; ++g)
            expand_group(unit.group(g), low[0] + g * group_bytes, has_high ? high[0] + g * group_bytes : nullptr);
        scale = unit.scale();
        if constexpr (U::p.has_minima) {
            for (int i = 0; i < U::num_pairs; ++i) pairs[i] = unit.pair(i);
            minimum = unit.minimum();
        }
    }

private:
    static constexpr int64_t group_bytes = 8 * quad_bytes;
    typedef uint16_t Words __attribute__((vector_size(4 * lanes)));
    typedef int16_t SignedWords __attribute__((vector_size(4 * lanes)));

    static inline void expand_group(const W& group, uint8_t* low, [[maybe_unused]] int8_t* high) {
        for (int s = 0; s < W::num_scales; ++s) {
            const IntVec factor = group.factor(s);
            const Words factors = (Words)words_beside(factor, factor);
#pragma GCC unroll 8
            for (int i = s * W::quads_per_scale; i < (s + 1) * W::quads_per_scale; ++i) {
                const Words quad = (Words)(group.quad(i) - static_cast<uint8_t>(U::p.offset));
                Words even, odd;  // bytes of words
                if constexpr (U::p.offset != 0) {
                    even = (Words)((SignedWords)(quad << 8) >> 8);
                    odd = (Words)((SignedWords)quad >> 8);
                } else {
                    even = quad & 255;
                    odd = quad >> 8;
                }
                even *= factors;
                odd *= factors;
                const Words lows = (even & 255) | odd << 8;
                memcpy(low + i * quad_bytes, &lows, sizeof lows);
                if constexpr (has_high) {
                    const Words highs = even >> 8 | (odd & 0xff00);
                    memcpy(high + i * quad_bytes, &highs, sizeof highs);
                }
            }
        }
    }
};

// A digit of a unit of `pairs` times 16 rows of x: sums [pairs, low and high, 16, 16].
template <WeightType type, int pairs>
static inline void multiply_unit_tiles(const ExpandedUnit<type>& unit, const int8_t* x, int64_t stride,
                                       int32_t* sums) {
    constexpr bool has_high = ExpandedUnit<type>::has_high;
    _tile_zero(0);
    if constexpr (has_high) _tile_zero(1);
    if constexpr (pairs > 1) _tile_zero(2);
    if constexpr (pairs > 1 && has_high) _tile_zero(3);
#pragma GCC unroll 4
    for (int64_t i = 0; i < ExpandedUnit<type>::num_tiles; ++i) {
        _tile_stream_loadd(4, x + i * tile_columns, stride);
        _tile_loadd(6, unit.low[i], quad_bytes);
        _tile_dpbsud(0, 4, 6);
        if constexpr (has_high) {
            _tile_loadd(7, unit.high[i], quad_bytes);
            _tile_dpbssd(1, 4, 7);
        }
        if constexpr (pairs > 1) {
            _tile_stream_loadd(5, x + 16 * stride + i * tile_columns, stride);
            _tile_dpbsud(2, 5, 6);
            if constexpr (has_high) _tile_dpbssd(3, 5, 7);
        }
    }
    _tile_stored(0, sums, 64);
    if constexpr (has_high) _tile_stored(1, sums + 256, 64);
    if constexpr (pairs > 1) _tile_stored(2, sums + 512, 64);
    if constexpr (pairs > 1 && has_high) _tile_stored(3, sums + 768, 64);
}

// What sums of 32 rows of x are joined with, unit by unit: from the rows themselves it would be a line of each.
template <WeightType type>
struct JoinedRows {
    using U = Unit<type>;
    struct Digit {
        float scales[32];
        int32_t pairs[U::p.has_minima ? U::num_pairs : 0][32];
    };
    struct alignas(64) JoinedUnit {
        Digit digits[2];
        int64_t num_digits;  // of all rows
    };
    JoinedUnit* units;

    void lay(const QuantizedRows& x, int64_t num_x) const {
        for (int64_t u = 0; u < x.num_units(); ++u) {
            JoinedUnit& unit = units[u];
            unit.num_digits = num_double<type>(x, num_x, u) != 0 ? 2 : 1;
            for (int64_t digit = 0; digit < unit.num_digits; ++digit)
                for (int64_t m = 0; m < num_x; ++m) {
                    const QuantizedRows row = x.from_row(m);
                    unit.digits[digit].scales[m] = row.digit_scale(u, digit);
                    if constexpr (U::p.has_minima)
                        for (int i = 0; i < U::num_pairs; ++i) unit.digits[digit].pairs[i][m] = U::pair_of_sums(row, u, digit, i);
                }
        }
    }
};

// Adds a digit of a unit of `pairs` times 16 rows of x, which begins at `q`, to their outputs' sums, which begin with the first.
template <WeightType type, int pairs, bool is_first>
[[gnu::noinline]] static void add_unit_by_tiles(const ExpandedUnit<type>& unit, const int8_t* q, int64_t stride,
                                                const typename JoinedRows<type>::Digit& x, Vec* sums) {
    using U = Unit<type>;
    alignas(64) int32_t whole[pairs * 2 * 256];
    multiply_unit_tiles<type, pairs>(unit, q, stride, whole);
    const Vec scale = unit.scale, minimum = unit.minimum;
#pragma GCC unroll 4
    for (int m = 0; m < 16 * pairs; ++m) {
        IntVec low, high{};
        memcpy(&low, whole + m / 16 * 512 + m % 16 * 16, sizeof low);
        if constexpr (ExpandedUnit<type>::has_high) memcpy(&high, whole + m / 16 * 512 + 256 + m % 16 * 16, sizeof high);
        Vec values = scale * to_float(low + (high << 8));
        if constexpr (U::p.has_minima) {
            IntVec others = IntVec{};
#pragma GCC unroll 8
            for (int i = 0; i < U::num_pairs; ++i) others = add_word_products(others, unit.pairs[i], IntVec{} + x.pairs[i][m]);
            values = fma(minimum, to_float(others), values);
        }
        sums[m] = fma(values, splat(x.scales[m]), is_first ? Vec{} : sums[m]);
    }
}

static constexpr int64_t unit_rows_per_pass(int64_t columns) {
    const int64_t fitting = unit_pass_bytes / columns / 32 * 32;
    return fitting > unit_pass_rows ? fitting : unit_pass_rows;
}
static constexpr int64_t unit_blocks_per_pass(int64_t columns) {
    return unit_rows_per_pass(columns) / 32 + 1;  // the last one may have 16 rows
}

// Rows first … first + num_x - 1 of x, which meet weights together; of those before `done` others see to the outputs.
struct UnitBlock {
    int64_t number;
    int64_t first, num_x, done;
};

// Calls use(block) for rows begin … end - 1: blocks of 32 rows and of 16; where there are fewer, the block begins earlier.
template <typename Use>
static inline void each_unit_block(int64_t begin, int64_t end, const Use& use) {
    int64_t number = 0, done = begin;
    for (; done + 32 <= end; done += 32) use(UnitBlock{number++, done, 32, done});
    for (; done < end; done += 16) use(UnitBlock{number++, done + 16 <= end ? done : end - 16, 16, done});
}

// Memory of one worker.
template <WeightType type>
struct UnitScratch {
    using Joined = typename JoinedRows<type>::JoinedUnit;
    ExpandedUnit<type>* weights;  // [weight tiles]
    Vec* sums;                    // [weight tiles, blocks, 32]
    Joined* joined;               // [blocks, units]
    int64_t num_blocks;

    static constexpr int64_t bytes(int64_t columns) {
        const int64_t blocks = unit_blocks_per_pass(columns), units = columns / Unit<type>::columns;
        const int64_t sums = blocks * 32 * static_cast<int64_t>(sizeof(Vec));
        return unit_weight_tiles * (static_cast<int64_t>(sizeof(ExpandedUnit<type>)) + sums) +
               blocks * units * static_cast<int64_t>(sizeof(Joined));
    }
    static UnitScratch in(void* memory, int64_t columns) {
        const int64_t blocks = unit_blocks_per_pass(columns);
        auto* const weights = static_cast<ExpandedUnit<type>*>(memory);
        Vec* const sums = reinterpret_cast<Vec*>(weights + unit_weight_tiles);
        return {weights, sums, reinterpret_cast<Joined*>(sums + unit_weight_tiles * blocks * 32), blocks};
    }
    Vec* sums_of(int64_t tile, const UnitBlock& block) const { return sums + (tile * num_blocks + block.number) * 32; }
};

// Adds a unit of one weight tile to the sums of a block of rows, which begins at `q`.
template <WeightType type, int pairs>
static inline void add_unit_of_block(const ExpandedUnit<type>& weight, const QuantizedRows& x, const int8_t* q, bool is_first,
                                     const typename JoinedRows<type>::JoinedUnit& joined, Vec* sums) {
    if (is_first)
        add_unit_by_tiles<type, pairs, true>(weight, q, x.stride, joined.digits[0], sums);
    else
        add_unit_by_tiles<type, pairs, false>(weight, q, x.stride, joined.digits[0], sums);
    if (joined.num_digits > 1) add_unit_by_tiles<type, pairs, false>(weight, q + x.columns, x.stride, joined.digits[1], sums);
}

// At least 16 rows. `memory`: UnitScratch::bytes.
template <WeightType type>
static void packed_linear_by_unit_tiles(const LinearPart& task, const QuantizedRows& x, void* memory) {
    using U = Unit<type>;
    const int64_t tile_bytes = packed_tile_bytes(packed_layout(type), x.columns), num_units = x.num_units();
    const int64_t num_passes = (task.num_x + unit_rows_per_pass(x.columns) - 1) / unit_rows_per_pass(x.columns);
    const int64_t unit_bytes = tile_bytes / num_units;
    const UnitScratch<type> scratch = UnitScratch<type>::in(memory, x.columns);
    shape_tiles(16, 16);
    for (int64_t pass = 0; pass < num_passes; ++pass) {
        const int64_t begin = task.num_x * pass / num_passes, end = task.num_x * (pass + 1) / num_passes;
        // What is expanded after the unit u of tile t: the next one, or the first of a tile.
        const auto after = [&](int64_t t, int64_t u) -> NextTile {
            const int64_t next_tile = u + 1 < num_units ? t : t + unit_weight_tiles, next_unit = (u + 1) % num_units;
            const uint8_t* const unit = task.weight.data + next_tile * tile_bytes + next_unit * unit_bytes;
            return {unit, next_tile < task.last_tile ? unit_bytes : 0, (end - begin + 31) / 32};
        };
        each_unit_block(begin, end, [&](const UnitBlock& block) {
            JoinedRows<type>{scratch.joined + block.number * num_units}.lay(x.from_row(block.first), block.num_x);
        });
        for (int64_t t = task.first_tile; t < task.last_tile; t += unit_weight_tiles) {
            const int64_t num_tiles = task.last_tile - t < unit_weight_tiles ? task.last_tile - t : unit_weight_tiles;
            for (int64_t u = 0; u < num_units; ++u) {
                for (int64_t i = 0; i < num_tiles; ++i)
                    scratch.weights[i].expand(U(task.weight.data + (t + i) * tile_bytes, u, 0));
                NextTile next[unit_weight_tiles] = {after(t, u), after(t + 1, u)};
                each_unit_block(begin, end, [&](const UnitBlock& block) {
                    for (NextTile& one : next) one.fetch_some();
                    const auto& joined = scratch.joined[block.number * num_units + u];
                    const int8_t* const q = x.q + block.first * x.stride + u * U::columns;
                    for (int64_t i = 0; i < num_tiles; ++i) {
                        Vec* const sums = scratch.sums_of(i, block);
                        block.num_x == 32 ? add_unit_of_block<type, 2>(scratch.weights[i], x, q, u == 0, joined, sums)
                                          : add_unit_of_block<type, 1>(scratch.weights[i], x, q, u == 0, joined, sums);
                    }
                });
            }
            each_unit_block(begin, end, [&](const UnitBlock& block) {
                const int64_t skipped = block.done - block.first;
                put_many_outputs(task, t * packed_tile_rows, static_cast<int>(num_tiles), block.done, block.num_x - skipped,
                                 [&](int64_t m, int tile) { return scratch.sums_of(tile, block)[skipped + m]; });
            });
        }
    }
    _tile_release();
}

}  // namespace trivium::TRIVIUM_ISA

#endif
