// Linear layers on packed float weights (packed.h). Columns are summed in slices of 32: the even columns of a slice are
// one chain of fused multiply-adds from 0, the odd ones another, their sum joins the output's sum, and numbers too small
// to be normal count as 0. That is what one AMX instruction does with a slice of bfloat16, so that an output is the same
// to the bit for any number of rows, by vectors and by tiles, on every instruction set that fuses multiply and add.
//
// With bfloat16 weights activations are rounded to bfloat16 too; with float16 and float32 weights they are not.
#pragma once

#include "../kernels.h"
#include "decode.h"
#include "next_tile.h"
#include "outputs.h"

namespace trivium::TRIVIUM_ISA {

typedef uint32_t Word __attribute__((may_alias));
// How a slice of a weight's type is multiplied: in `num_steps` steps, each with a vector of weights and a word of x for the
// even chain (0) and for the odd one (1).
template <WeightType type>
struct Slice {
    static constexpr int num_steps = 16;

    static Vec load(const uint8_t* slice, int step, int chain) {
        if constexpr (type == WeightType::bf16) {
            const WordVec pairs = load_words_anew(slice + step * 64);
            return (Vec)(chain ? pairs & 0xffff0000 : pairs << 16);
        } else if constexpr (type == WeightType::f16) {
            return load_halves(slice + step * 64 + chain * 32);
        } else {
            return in_register((Vec)load_words(slice + step * 128 + chain * 64));
        }
    }
    static Vec multiply(Vec weights, Word x, Vec sum) { return fma(weights, splat(bits_to_float(x)), sum); }
    static void put_row(const float* x, int64_t columns, Word* out) {
        for (int64_t i = 0; i < columns; ++i) {
            uint32_t bits;
            memcpy(&bits, x + i, sizeof bits);
            out[i] = type == WeightType::bf16 ? uint32_t{float_to_bf16(x[i])} << 16 : bits;
        }
        for (int64_t i = columns; i < padded_columns(columns); ++i) out[i] = 0;
    }
};

#if defined(__AVX512BF16__)

// One instruction adds a pair of products to a sum, the upper half's first: a pair takes two columns of one chain.
template <>
struct Slice<WeightType::bf16> {
    static constexpr int num_steps = 8;

    static Vec load(const uint8_t* slice, int step, int chain) {
        const WordVec first = load_words(slice + step * 128), second = load_words(slice + step * 128 + 64);
        return (Vec)(chain ? (first & 0xffff0000) | second >> 16 : first << 16 | (second & 0xffff));
    }
    static Vec multiply(Vec weights, Word x, Vec sum) {
        return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)_mm512_set1_epi32(static_cast<int>(x)));
    }
    static void put_row(const float* x, int64_t columns, Word* out) {
        uint16_t* const halves = reinterpret_cast<uint16_t*>(out);
        constexpr int place[] = {1, 3, 0, 2};  // of a column among four
        for (int64_t i = 0; i < padded_columns(columns); ++i)
            halves[i / 4 * 4 + place[i % 4]] = i < columns ? float_to_bf16(x[i]) : 0;
#if defined(__AMX_BF16__)
        uint16_t* const in_order = halves + padded_columns(columns);  // for tiles
        for (int64_t i = 0; i < padded_columns(columns); ++i) in_order[i] = i < columns ? float_to_bf16(x[i]) : 0;
#endif
    }
};

#endif

// Made of its bytes (short_bf16.h): a vector has two columns of one chain.
template <>
struct Slice<WeightType::short_bf16> : Slice<WeightType::bf16> {
    static Vec load(const uint8_t* slice, int step, int chain) {
#if defined(__AVX512BF16__)
        return (Vec)load_words(slice + step * 128 + chain * 64);
#else
        const WordVec pairs = load_words_anew(slice + step / 2 * 128 + chain * 64);
        return (Vec)(step % 2 ? pairs << 16 : pairs & 0xffff0000);
#endif
    }
};

// Vectors of outputs computed together for several rows of x: as many as the registers hold two chains of.
constexpr int float_parts_together = 2;
constexpr int float_rows_together = lanes == 16 ? 6 : 3;

// Adds to the sums of `num_parts` vectors of weight rows, each a run of slices, for `num_x` rows of x.
// meanwhile() with each slice.
template <WeightType type, int num_x, int num_parts, typename Meanwhile>
static inline void add_float_slices(const uint8_t* const* parts, const Word* x, int64_t x_stride, int64_t num_slices,
                                    const Meanwhile& meanwhile, Vec (&sums)[num_x][num_parts]) {
    constexpr int64_t slice_bytes = float_slice_bytes(laid_type(type));
    constexpr int num_steps = Slice<type>::num_steps;
    const uint8_t* slices[num_parts];
    for (int p = 0; p < num_parts; ++p) slices[p] = parts[p];
    for (int64_t s = 0; s < num_slices; ++s, x += 2 * num_steps) {
        meanwhile();
        Vec chains[2][num_x][num_parts];
        set_to_zero(chains);
#pragma GCC unroll 2
        for (int step = 0; step < num_steps; ++step) {
#pragma GCC unroll 2
            for (int c = 0; c < 2; ++c) {
                Vec weights[num_parts];
                for (int p = 0; p < num_parts; ++p) weights[p] = Slice<type>::load(slices[p], step, c);
                for (int m = 0; m < num_x; ++m)
                    for (int p = 0; p < num_parts; ++p)
                        chains[c][m][p] = Slice<type>::multiply(weights[p], x[m * x_stride + 2 * step + c], chains[c][m][p]);
            }
        }
        for (int m = 0; m < num_x; ++m)
            for (int p = 0; p < num_parts; ++p) sums[m][p] += chains[0][m][p] + chains[1][m][p];
        for (int p = 0; p < num_parts; ++p) slices[p] += slice_bytes;
    }
}

// `num_parts` vectors of weight rows from `first_part` on, for `num_x` rows of x from `first_x` on.
template <WeightType type, int num_x, int num_parts>
static void multiply_float_rows(const LinearPart& task, const uint32_t* all_x, int64_t first_part, int64_t first_x) {
    constexpr int64_t parts_of_tile = packed_tile_rows / lanes, part_bytes = lanes * (type == WeightType::f16 ? 2 : 4);
    const int64_t tile_bytes = packed_tile_bytes(type, task.weight.columns);
    const uint8_t* parts[num_parts];
    for (int p = 0; p < num_parts; ++p)
        parts[p] = task.weight.data + (first_part + p) / parts_of_tile * tile_bytes +
                   (first_part + p) % parts_of_tile * part_bytes;
    const int64_t x_stride = laid_stride(task.weight.columns);
    const Word* const x = reinterpret_cast<const Word*>(all_x) + first_x * x_stride;
    Vec sums[num_x][num_parts];
    set_to_zero(sums);
    if constexpr (num_x > 2) fetch_outputs(task, first_part * lanes, num_parts, first_x, num_x);
    const int64_t num_slices = padded_columns(task.weight.columns) / float_slice_columns;
    const bool are_few = task.num_x < fewest_rows_to_fetch_for;
    NextTile next = are_few ? NextTile::ahead_of(task, tile_bytes, parts[0], num_slices) : NextTile();
    add_float_slices<type, num_x, num_parts>(parts, x, x_stride, num_slices, [&] { next.fetch_some(); }, sums);
    for (int m = 0; m < num_x; ++m)
        for (int p = 0; p < num_parts; ++p)
            if (const int64_t row = (first_part + p) * lanes; row < task.weight.rows)
                put_outputs(task, row, first_x + m, sums[m][p]);
}

// All rows of x: as many at a time as fit, then the rest at once.
template <WeightType type, int num_parts, int num_x = float_rows_together>
static void multiply_all_float_rows(const LinearPart& task, const uint32_t* x, int64_t first_part, int64_t first_x = 0) {
    if constexpr (num_x > 0) {
        for (; first_x + num_x <= task.num_x; first_x += num_x)
            multiply_float_rows<type, num_x, num_parts>(task, x, first_part, first_x);
        if (first_x < task.num_x) multiply_all_float_rows<type, num_parts, num_x - 1>(task, x, first_part, first_x);
    }
}

template <WeightType type>
static void float_linear_of(const LinearPart& task, const uint32_t* x) {
    constexpr int64_t parts_of_tile = packed_tile_rows / lanes;
    const int64_t last = task.last_tile * parts_of_tile;
    int64_t part = task.first_tile * parts_of_tile;
    // One or two rows are bound by reading, which goes faster through one tile after the other.
    if (task.num_x > 2 || parts_of_tile >= float_parts_together)
        for (; part + float_parts_together <= last; part += float_parts_together)
            multiply_all_float_rows<type, float_parts_together>(task, x, part);
    for (; part < last; ++part) multiply_all_float_rows<type, 1>(task, x, part);
}

}  // namespace trivium::TRIVIUM_ISA
