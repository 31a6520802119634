// Linear layers on packed weights of K types with AMX tiles. A weight times its group's factor has up to 15 bits: a low byte and a
// high one, each of which is multiplied by tiles. So the products of a whole unit are summed before they leave the tiles, as the
// whole numbers that packed_linear.h has too.
#pragma once

#if defined(__AMX_INT8__)

#include "amx_tiles.h"
#include "packed_linear.h"

namespace trivium::TRIVIUM_ISA {

// With fewer rows the vector kernel is as fast: expanding the weights costs more than tiles save.
constexpr int64_t fewest_unit_tile_rows = 16;
// Bytes of first digits of x that all weight tiles meet before the next rows do: half of the 2 MiB of second-level cache that
// processors with AMX have. And so many rows at least, that expanding the weights again costs little.
constexpr int64_t unit_pass_bytes = 1 << 20, unit_pass_rows = 128;
constexpr int64_t tile_columns = 64;

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
            unit.num_digits = is_any_double<type>(x, num_x, u) ? 2 : 1;
            for (int64_t digit = 0; digit < unit.num_digits; ++digit)
                for (int64_t m = 0; m < num_x; ++m) {
                    const QuantizedRows row = x.from_row(m);
                    unit.digits[digit].scales[m] = U::scale_of(row, u, digit);
                    if constexpr (U::p.has_minima)
                        for (int i = 0; i < U::num_pairs; ++i) unit.digits[digit].pairs[i][m] = U::pair_of_sums(row, u, digit, i);
                }
        }
    }
};

// Adds a digit of a unit of `pairs` times 16 rows of x, which begins at `q`, to their outputs' sums.
template <WeightType type, int pairs>
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
        sums[m] = fma(values, splat(x.scales[m]), sums[m]);
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
    ExpandedUnit<type>* weight;
    Vec* sums;       // [blocks, 32]
    Joined* joined;  // [blocks, units]

    static constexpr int64_t bytes(int64_t columns) {
        const int64_t units = columns / Unit<type>::columns;
        return static_cast<int64_t>(sizeof(ExpandedUnit<type>) +
                                    unit_blocks_per_pass(columns) * (32 * sizeof(Vec) + units * sizeof(Joined)));
    }
    static UnitScratch in(void* memory, int64_t columns) {
        auto* const weight = static_cast<ExpandedUnit<type>*>(memory);
        Vec* const sums = reinterpret_cast<Vec*>(weight + 1);
        return {weight, sums, reinterpret_cast<Joined*>(sums + unit_blocks_per_pass(columns) * 32)};
    }
};

// At least 16 rows. `scratch`: UnitScratch::bytes.
template <WeightType type>
static void packed_linear_by_unit_tiles(const LinearPart& task, const QuantizedRows& x, void* memory) {
    using U = Unit<type>;
    const int64_t tile_bytes = packed_tile_bytes(packed_layout(type), x.columns), num_units = x.num_units();
    const int64_t num_passes = (task.num_x + unit_rows_per_pass(x.columns) - 1) / unit_rows_per_pass(x.columns);
    const UnitScratch<type> scratch = UnitScratch<type>::in(memory, x.columns);
    const uint8_t* const end_of_tiles = task.weight.data + task.last_tile * tile_bytes;
    shape_tiles(16, 16);
    for (int64_t pass = 0; pass < num_passes; ++pass) {
        const int64_t begin = task.num_x * pass / num_passes, end = task.num_x * (pass + 1) / num_passes;
        each_unit_block(begin, end, [&](const UnitBlock& block) {
            JoinedRows<type>{scratch.joined + block.number * num_units}.lay(x.from_row(block.first), block.num_x);
        });
        for (int64_t t = task.first_tile; t < task.last_tile; ++t) {
            memset(scratch.sums, 0, unit_blocks_per_pass(x.columns) * 32 * sizeof(Vec));
            for (int64_t u = 0; u < num_units; ++u) {
                const uint8_t* const tile = task.weight.data + t * tile_bytes;
                scratch.weight->expand(U(tile, u, 0));
                const uint8_t* const after = tile + (u + 1) * tile_bytes / num_units;
                NextTile next(after, after < end_of_tiles ? tile_bytes / num_units : 0, (end - begin + 31) / 32);
                each_unit_block(begin, end, [&](const UnitBlock& block) {
                    next.fetch_some();
                    const auto& joined = scratch.joined[block.number * num_units + u];
                    for (int64_t digit = 0; digit < joined.num_digits; ++digit) {
                        const int8_t* const q = x.q + block.first * x.stride + digit * x.columns + u * U::columns;
                        Vec* const sums = scratch.sums + 32 * block.number;
                        block.num_x == 32 ? add_unit_by_tiles<type, 2>(*scratch.weight, q, x.stride, joined.digits[digit], sums)
                                          : add_unit_by_tiles<type, 1>(*scratch.weight, q, x.stride, joined.digits[digit], sums);
                    }
                });
            }
            each_unit_block(begin, end, [&](const UnitBlock& block) {
                for (int64_t m = block.done - block.first; m < block.num_x; ++m)
                    put_outputs(task, t * packed_tile_rows, block.first + m, scratch.sums[32 * block.number + m]);
            });
        }
    }
    _tile_release();
}

}  // namespace trivium::TRIVIUM_ISA

#endif
