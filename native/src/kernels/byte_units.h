// Linear layers on units of bytes (packed.h) and quantized activations. Products are summed as whole numbers over a unit, exactly;
// the sum, scaled, then joins the output's float32 sum, in the order of the columns. So an output is the same to the bit for any
// number of rows, by vectors and by tiles, and for every instruction set that fuses multiply and add.
#pragma once

#include "../kernels.h"
#include "next_tile.h"
#include "outputs.h"
#include "unit_bytes.h"
#include "with_constant.h"
#if defined(__AMX_INT8__)
#include "amx_tiles.h"
#endif

namespace trivium::TRIVIUM_ISA {

static inline const int16_t* group_sums(const QuantizedRows& x, int64_t u, int64_t digit) {
    return x.sums_of_32 + (digit * x.columns + u * unit_columns) / packed_group_columns;
}

// What bytes that are 128 too large add to a unit's sum of products, taken away beforehand.
static inline int32_t start_of(const QuantizedRows& x, int64_t u, int64_t digit) {
    const int16_t* const sums = group_sums(x, u, digit);
    int32_t sum = 0;
    for (int g = 0; g < unit_groups; ++g) sum += sums[g];
    return -128 * sum;
}

// The sums of a unit, whole numbers, join those of its output.
static inline Vec joined_unit(IntVec products, Vec weight_scales, Vec x_scale, Vec sums) {
    return fma(weight_scales * to_float(products), x_scale, sums);
}

#if defined(__AVX512VNNI__)

// So many rows meet bytes as they are made; for more it pays to keep these for all.
constexpr int unit_rows_together = 4;

// Words of four vectors r, each of which holds four sums of a row beside each other, as one sum of each of 16 rows.
static inline IntVec row_sums(const IntVec* r) {
    const auto sum_32 = [](__m512i a, __m512i b) {
        return _mm512_add_epi32(_mm512_maskz_unpacklo_epi32(-1, a, b), _mm512_maskz_unpackhi_epi32(-1, a, b));
    };
    const __m512i low = sum_32((__m512i)r[0], (__m512i)r[1]), high = sum_32((__m512i)r[2], (__m512i)r[3]);
    return (IntVec)_mm512_add_epi32(_mm512_maskz_unpacklo_epi64(-1, low, high), _mm512_maskz_unpackhi_epi64(-1, low, high));
}

// Adds a digit of unit u to the outputs of the first `num_x` rows of x. before_group() is called before each of its groups.
template <WeightType type, int num_x, typename Before>
static inline __attribute__((always_inline)) void add_unit_digit(const ByteUnit<type>& unit, const QuantizedRows& x, int64_t u,
                                                                 int64_t digit, const Before& before_group, Vec* sums) {
    IntVec products[num_x][4];
    set_to_zero(products);
    const int8_t* const q = x.q + digit * x.columns + u * unit_columns;
    for (int g = 0; g < unit_groups; ++g) {
        before_group();
        __m512i halves_of_x[num_x][2];
#pragma GCC unroll 4
        for (int m = 0; m < num_x; ++m)
            for (int half = 0; half < 2; ++half)
                halves_of_x[m][half] = in_each_lane(q + m * x.stride + g * packed_group_columns + 16 * half);
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
            GroupHalves bytes = halves_of(unit, g, r);
            if constexpr (!ByteUnit<type>::has_floors)
                for (__m512i& half : bytes.at) half = _mm512_xor_si512(half, _mm512_set1_epi8(-128));
#pragma GCC unroll 4
            for (int m = 0; m < num_x; ++m)
                for (int half = 0; half < 2; ++half)
                    products[m][r] = (IntVec)_mm512_dpbusd_epi32((__m512i)products[m][r], bytes.at[half], halves_of_x[m][half]);
        }
    }
    IntVec all[num_x];
#pragma GCC unroll 4
    for (int m = 0; m < num_x; ++m) all[m] = row_sums(products[m]);
    if constexpr (ByteUnit<type>::has_floors) {
#pragma GCC unroll 4
        for (int g = 0; g < unit_groups; g += 2) {
            const IntVec pair = words_beside(unit.floors(g, 0), unit.floors(g + 1, 0));
#pragma GCC unroll 4
            for (int m = 0; m < num_x; ++m) {
                int32_t pair_of_sums;
                memcpy(&pair_of_sums, group_sums(x.from_row(m), u, digit) + g, sizeof pair_of_sums);
                all[m] = add_word_products(all[m], pair, IntVec{} + pair_of_sums);
            }
        }
    } else {
#pragma GCC unroll 4
        for (int m = 0; m < num_x; ++m) all[m] += start_of(x.from_row(m), u, digit);
    }
    const Vec scales = unit.scales(0);
#pragma GCC unroll 4
    for (int m = 0; m < num_x; ++m)
        sums[m] = joined_unit(all[m], scales, splat(x.from_row(m).digit_scale(u, digit)), sums[m]);
}

template <WeightType type, int num_x>
[[gnu::noinline]] static void add_second_unit_digit(const ByteUnit<type>& unit, const QuantizedRows& x, int64_t u, Vec* sums) {
    add_unit_digit<type, num_x>(unit, x, u, 1, [] {}, sums);
}

template <WeightType type, int num_x>
[[gnu::noinline]] static void multiply_few_rows(const LinearPart& task, const QuantizedRows& x, const uint8_t* tile,
                                                int64_t tile_row, NextTile& next) {
    Vec sums[num_x];
    set_to_zero(sums);
    for (int64_t u = 0; u < x.num_units(); ++u) {
        const ByteUnit<type> unit(tile + u * ByteUnit<type>::bytes);
        add_unit_digit<type, num_x>(unit, x, u, 0, [&] { next.fetch_some(); }, sums);
        bool is_any_double = false;
        for (int m = 0; m < num_x; ++m) is_any_double |= x.is_double[m * x.stride + u] != 0;
        if (is_any_double) add_second_unit_digit<type, num_x>(unit, x, u, sums);
    }
#pragma GCC unroll 4
    for (int m = 0; m < num_x; ++m) put_outputs(task, tile_row, m, sums[m]);
}

template <WeightType type>
static void units_of_few_rows(const LinearPart& task, const QuantizedRows& x) {
    const int64_t tile_bytes = packed_tile_bytes(type, x.columns), num_groups = x.columns / packed_group_columns;
    with_constant<unit_rows_together>(static_cast<int>(task.num_x), [&]<int num_x>() {
        for (int64_t t = task.first_tile; t < task.last_tile; ++t) {
            const uint8_t* const tile = task.weight.data + t * tile_bytes;
            NextTile next = NextTile::ahead_of(task, tile_bytes, tile, num_groups);
            multiply_few_rows<type, num_x>(task, x, tile, t * packed_tile_rows, next);
        }
    });
}

#endif

// Bytes of first digits of x that all weights meet before the next rows do, so that they are read from the second-level cache
// (1 MiB on many processors, 2 on those with AMX); and so many rows at least, that making bytes anew costs little.
#if defined(__AMX_INT8__)
constexpr int64_t pass_bytes = 1 << 20;
#else
constexpr int64_t pass_bytes = 512 << 10;
#endif
constexpr int64_t fewest_pass_rows = 128;
constexpr int64_t unit_tiles_together = 2;  // that rows of x meet while these are in the first-level cache

static constexpr int64_t rows_of_a_pass(int64_t columns) {
    const int64_t fitting = pass_bytes / columns / 32 * 32;
    return fitting > fewest_pass_rows ? fitting : fewest_pass_rows;
}

// Memory of one worker, for one pass.
struct PassScratch {
    struct alignas(64) Bytes {
        uint8_t quads[unit_quads * quad_bytes];
    };
    Bytes* bytes;          // [tiles together]
    Vec* sums;             // [tiles together, rows and 16 more, parts]
    float* scales;         // of x: [units, digits, rows]
    int32_t* starts;       // likewise
    int32_t* double_rows;  // [units, rows]: those that have a second digit of a unit
    int32_t* num_double;   // [units]: as many
    int64_t num_rows;      // of a pass

    static constexpr int64_t size(int64_t columns) {
        const int64_t rows = rows_of_a_pass(columns), units = columns / unit_columns;
        const int64_t sums = (rows + 16) * packed_tile_rows * 4;
        return unit_tiles_together * (static_cast<int64_t>(sizeof(Bytes)) + sums) + units * rows * (2 * 8 + 4) + units * 4;
    }
    static PassScratch in(void* memory, int64_t columns) {
        PassScratch s;
        s.num_rows = rows_of_a_pass(columns);
        const int64_t laid = columns / unit_columns * s.num_rows;
        s.bytes = static_cast<Bytes*>(memory);
        s.sums = reinterpret_cast<Vec*>(s.bytes + unit_tiles_together);
        s.scales = reinterpret_cast<float*>(s.sums + unit_tiles_together * (s.num_rows + 16) * tile_parts);
        s.starts = reinterpret_cast<int32_t*>(s.scales + 2 * laid);
        s.double_rows = s.starts + 2 * laid;
        s.num_double = s.double_rows + laid;
        return s;
    }

    void lay(const QuantizedRows& x, int64_t num_x) const {
        for (int64_t u = 0; u < x.num_units(); ++u) {
            num_double[u] = 0;
            for (int64_t m = 0; m < num_x; ++m) {
                const QuantizedRows row = x.from_row(m);
                const bool is_double = row.is_double[u];
                for (int64_t digit = 0; digit <= is_double; ++digit) {
                    scales[(2 * u + digit) * num_rows + m] = row.digit_scale(u, digit);
                    starts[(2 * u + digit) * num_rows + m] = start_of(row, u, digit);
                }
                if (is_double) double_rows[u * num_rows + num_double[u]++] = static_cast<int32_t>(m);
            }
        }
    }
    Vec& sum(int64_t tile, int64_t row, int64_t part) const { return sums[(tile * (num_rows + 16) + row) * tile_parts + part]; }
};

// A digit of a unit of some rows of x, which meets bytes of some tiles.
struct UnitOfRows {
    const int8_t* q;  // of the first row
    int64_t stride;
    const float* scales;
    const int32_t* starts;
};

// Rows of a pass that are multiplied together, and where their sums begin.
struct GroupOfRows {
    int64_t first, num_x, sums;
};

// Rows of a pass that have a second digit of a unit, at most 16 of them, brought together.
struct SecondDigits {
    alignas(64) int8_t q[16][unit_columns];
    float scales[16];
    int32_t starts[16];
    int64_t sums[16];  // their places

    UnitOfRows unit() const { return {q[0], unit_columns, scales, starts}; }
};

struct UnitsByVectors {
    static constexpr int rows_beside = lanes == 16 ? 12 : 4;  // as many as there are registers for their sums

    // Calls use.operator()<rows>(group).
    template <typename Use>
    static inline void each_group(int64_t num_x, const Use& use) {
        for_near_equal_groups<rows_beside>(0, num_x, [&]<int count>(int64_t first) {
            use.template operator()<count>(GroupOfRows{first, count, first});
        });
    }
    // Calls use.operator()<rows>(first, rows) for rows that lie anywhere.
    template <typename Use>
    static inline void each_group_of_some(int64_t num_x, const Use& use) {
        for_near_equal_groups<rows_beside>(0, num_x, [&]<int count>(int64_t first) { use.template operator()<count>(first, count); });
    }
    static int64_t sum_of_row(int64_t row, int64_t) { return row; }

    // To the sums at place_of(row).
    template <int num_x, int num_tiles, bool is_first, typename PlaceOf>
    [[gnu::noinline]] static void add(const PassScratch& scratch, const Vec* weight_scales, const UnitOfRows& x, int64_t,
                                      const PlaceOf& place_of) {
        for (int part = 0; part < tile_parts; ++part) {
            IntVec products[num_x][num_tiles];
#pragma GCC unroll 12
            for (int m = 0; m < num_x; ++m)
#pragma GCC unroll 2
                for (int tile = 0; tile < num_tiles; ++tile) products[m][tile] = IntVec{} + x.starts[m];
            const uint8_t* quads[num_tiles];
            for (int tile = 0; tile < num_tiles; ++tile) quads[tile] = scratch.bytes[tile].quads + part * 4 * lanes;
            add_products_of(products, quads, x);
#pragma GCC unroll 2
            for (int tile = 0; tile < num_tiles; ++tile)
#pragma GCC unroll 12
                for (int m = 0; m < num_x; ++m) {
                    Vec& sum = scratch.sum(tile, place_of(m), part);
                    const Vec scales = weight_scales[tile * tile_parts + part];
                    sum = joined_unit(products[m][tile], scales, splat(x.scales[m]), is_first ? Vec{} : sum);
                }
        }
    }

private:
    template <int num_x, int num_tiles>
    static inline __attribute__((always_inline)) void add_products_of(IntVec (&products)[num_x][num_tiles],
                                                                      const uint8_t* const* quads, const UnitOfRows& x) {
        for (int64_t begin = 0; begin < unit_quads; begin += 8) {
#if defined(TRIVIUM_SUMS_PAIRS_OF_BYTES)
            for (int tile = 0; tile < num_tiles; ++tile) {
                ByteVec eight[8];
                for (int q = 0; q < 8; ++q) eight[q] = load_quad(quads[tile] + (begin + q) * quad_bytes);
                for (int m = 0; m < num_x; ++m) products[m][tile] += sum_products<255, 8>(eight, x.q + m * x.stride + 4 * begin, 0);
            }
#else
#pragma GCC unroll 8
            for (int64_t q = begin; q < begin + 8; ++q) {
                ByteVec quad[num_tiles];
                for (int tile = 0; tile < num_tiles; ++tile) quad[tile] = load_quad(quads[tile] + q * quad_bytes);
#pragma GCC unroll 12
                for (int m = 0; m < num_x; ++m) {
                    const FourBytes a = reinterpret_cast<const FourBytes*>(x.q + m * x.stride)[q];
                    const IntVec fours = in_register(IntVec{} + a);
#pragma GCC unroll 2
                    for (int tile = 0; tile < num_tiles; ++tile)
                        products[m][tile] = add_products<255>(products[m][tile], quad[tile], fours);
                }
            }
#endif
        }
    }
};

#if defined(__AMX_INT8__)

constexpr int64_t fewest_rows_for_tiles_of_units = 16;

class UnitsByTiles {
public:
    UnitsByTiles() { shape_tiles(16, 16); }
    ~UnitsByTiles() { _tile_release(); }
    UnitsByTiles(const UnitsByTiles&) = delete;

    // Calls use.operator()<blocks>(group), of 32 or 16 rows; where fewer are left, they begin earlier, with sums of their own.
    template <typename Use>
    static inline void each_group(int64_t num_x, const Use& use) {
        int64_t done = 0;
        for (; done + 32 <= num_x; done += 32) use.template operator()<2>(GroupOfRows{done, 32, done});
        for (; done < num_x; done += 16) use.template operator()<1>(GroupOfRows{done + 16 <= num_x ? done : num_x - 16, 16, done});
    }
    template <typename Use>
    static inline void each_group_of_some(int64_t num_x, const Use& use) {
        for (int64_t first = 0; first < num_x; first += 16)
            use.template operator()<1>(first, num_x - first < 16 ? num_x - first : 16);
    }
    static int64_t sum_of_row(int64_t row, int64_t num_x) { return row < num_x / 16 * 16 ? row : row + 16 - num_x % 16; }

    // The first `count` of the rows.
    template <int blocks, int num_tiles, bool is_first, typename PlaceOf>
    [[gnu::noinline]] static void add(const PassScratch& scratch, const Vec* weight_scales, const UnitOfRows& x, int64_t count,
                                      const PlaceOf& place_of) {
        alignas(64) int32_t whole[blocks * num_tiles * 256];
        multiply<blocks, num_tiles>(scratch.bytes, x, whole);
#pragma GCC unroll 2
        for (int tile = 0; tile < num_tiles; ++tile) {
#pragma GCC unroll 8
            for (int64_t m = 0; m < count; ++m) {
                IntVec products;
                memcpy(&products, whole + (m / 16 * num_tiles + tile) * 256 + m % 16 * 16, sizeof products);
                Vec& sum = scratch.sum(tile, place_of(m), 0);
                sum = joined_unit(products + x.starts[m], weight_scales[tile], splat(x.scales[m]), is_first ? Vec{} : sum);
            }
        }
    }

private:
    // Sums [blocks, num_tiles, 16, 16].
    template <int blocks, int num_tiles>
    static inline void multiply(const PassScratch::Bytes* bytes, const UnitOfRows& x, int32_t* sums) {
        _tile_zero(0);
        if constexpr (num_tiles > 1) _tile_zero(1);
        if constexpr (blocks > 1) _tile_zero(2);
        if constexpr (blocks > 1 && num_tiles > 1) _tile_zero(3);
#pragma GCC unroll 4
        for (int64_t c = 0; c < unit_columns; c += 64) {
            _tile_stream_loadd(4, x.q + c, x.stride);
            _tile_loadd(6, bytes[0].quads + 16 * c, quad_bytes);
            _tile_dpbsud(0, 4, 6);
            if constexpr (num_tiles > 1) {
                _tile_loadd(7, bytes[1].quads + 16 * c, quad_bytes);
                _tile_dpbsud(1, 4, 7);
            }
            if constexpr (blocks > 1) {
                _tile_stream_loadd(5, x.q + 16 * x.stride + c, x.stride);
                _tile_dpbsud(2, 5, 6);
                if constexpr (num_tiles > 1) _tile_dpbsud(3, 5, 7);
            }
        }
        _tile_stored(0, sums, 64);
        if constexpr (num_tiles > 1) _tile_stored(1, sums + 256, 64);
        if constexpr (blocks > 1) _tile_stored(2, sums + 256 * num_tiles, 64);
        if constexpr (blocks > 1 && num_tiles > 1) _tile_stored(3, sums + 768, 64);
    }
};

#endif

// The unit u of some tiles, which are made ready, and all rows of a pass, which begin with the first of x. Calls
// before_group(group) for each group of rows.
template <typename Way, int num_tiles, typename Before>
static inline void multiply_unit(const PassScratch& scratch, const Vec* weight_scales, const QuantizedRows& x, int64_t u,
                                 int64_t num_x, const Before& before_group) {
    Way::each_group(num_x, [&]<int size>(const GroupOfRows& group) {
        before_group(group);
        const int64_t laid = 2 * u * scratch.num_rows + group.first;
        const int8_t* const q = x.q + group.first * x.stride + u * unit_columns;
        const UnitOfRows digits = {q, x.stride, scratch.scales + laid, scratch.starts + laid};
        const auto place_of = [first = group.sums](int64_t m) { return first + m; };
        u == 0 ? Way::template add<size, num_tiles, true>(scratch, weight_scales, digits, group.num_x, place_of)
               : Way::template add<size, num_tiles, false>(scratch, weight_scales, digits, group.num_x, place_of);
    });
    const int32_t* const rows = scratch.double_rows + u * scratch.num_rows;
    Way::each_group_of_some(scratch.num_double[u], [&]<int size>(int64_t first, int64_t count) {
        SecondDigits second;
        for (int64_t i = 0; i < count; ++i) {
            const int64_t row = rows[first + i], laid = (2 * u + 1) * scratch.num_rows + row;
            memcpy(second.q[i], x.q + row * x.stride + x.columns + u * unit_columns, unit_columns);
            second.scales[i] = scratch.scales[laid];
            second.starts[i] = scratch.starts[laid];
            second.sums[i] = Way::sum_of_row(row, num_x);
        }
        Way::template add<size, num_tiles, false>(scratch, weight_scales, second.unit(), count,
                                                  [&](int64_t m) { return second.sums[m]; });
    });
}

template <typename Way>
static inline void put_unit_sums(const LinearPart& task, const PassScratch& scratch, int64_t t, int num_tiles, int64_t begin,
                                 int64_t num_x) {
    if constexpr (lanes == 16) {
        put_many_outputs(task, t * packed_tile_rows, num_tiles, begin, num_x,
                         [&](int64_t m, int tile) { return scratch.sum(tile, Way::sum_of_row(m, num_x), 0); });
    } else {
        for (int tile = 0; tile < num_tiles; ++tile)
            for (int64_t m = 0; m < num_x; ++m)
                for (int part = 0; part < tile_parts; ++part)
                    if (const int64_t row = (t + tile) * packed_tile_rows + part * lanes; row < task.weight.rows)
                        put_outputs(task, row, begin + m, scratch.sum(tile, m, part));
    }
}

// `memory`: PassScratch::size bytes.
template <typename Way, WeightType type>
static void units_of_many_rows(const LinearPart& task, const QuantizedRows& x, void* memory) {
    using U = ByteUnit<type>;
    const PassScratch scratch = PassScratch::in(memory, x.columns);
    const int64_t tile_bytes = packed_tile_bytes(type, x.columns), num_units = x.num_units();
    const int64_t num_passes = (task.num_x + scratch.num_rows - 1) / scratch.num_rows;
    [[maybe_unused]] const Way way;
    for (int64_t pass = 0; pass < num_passes; ++pass) {
        const int64_t begin = task.num_x * pass / num_passes, num_x = task.num_x * (pass + 1) / num_passes - begin;
        const QuantizedRows rows = x.from_row(begin);
        scratch.lay(rows, num_x);
        // What is made ready after the unit u of tile t: the next one, or the first of a tile.
        const LinearPart last_pass = pass + 1 < num_passes ? task.without_following() : task;
        const auto after = [&](int64_t t, int64_t u) {
            const int64_t tile = u + 1 < num_units ? t : t + unit_tiles_together, unit = (u + 1) % num_units;
            const uint8_t* const data = task.weight.data + tile * tile_bytes + unit * U::bytes;
            return NextTile::after_this(last_pass, tile_bytes, data, U::bytes, (num_x + 31) / 32);
        };
        for (int64_t t = task.first_tile; t < task.last_tile; t += unit_tiles_together) {
            const int num_tiles = task.last_tile - t < unit_tiles_together ? 1 : unit_tiles_together;
            for (int64_t u = 0; u < num_units; ++u) {
                Vec weight_scales[unit_tiles_together * tile_parts];
                for (int tile = 0; tile < num_tiles; ++tile) {
                    const U unit(task.weight.data + (t + tile) * tile_bytes + u * U::bytes);
                    unit.expand(scratch.bytes[tile].quads);
                    for (int part = 0; part < tile_parts; ++part) weight_scales[tile * tile_parts + part] = unit.scales(part);
                }
                NextTile next[unit_tiles_together] = {after(t, u), after(t + 1, u)};
                const auto fetch = [&](const GroupOfRows& group) {
                    for (NextTile& one : next) one.fetch_some();
                    if (lanes == 16 && u + 1 == num_units)
                        fetch_outputs(task, t * packed_tile_rows, num_tiles, begin + group.first, group.num_x);
                };
                num_tiles == 1 ? multiply_unit<Way, 1>(scratch, weight_scales, rows, u, num_x, fetch)
                               : multiply_unit<Way, 2>(scratch, weight_scales, rows, u, num_x, fetch);
            }
            put_unit_sums<Way>(task, scratch, t, num_tiles, begin, num_x);
        }
    }
}

template <WeightType type>
static void units_linear(const LinearPart& task, const QuantizedRows& x, void* scratch) {
#if defined(__AVX512VNNI__)
    if (task.num_x <= unit_rows_together) return units_of_few_rows<type>(task, x);
#endif
    units_of_many_rows<UnitsByVectors, type>(task, x, scratch);
}

}  // namespace trivium::TRIVIUM_ISA
