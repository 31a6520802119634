// Linear layers on rows of bytes where no instruction sums four products of bytes exactly: bytes are widened to words of 16
// bits, and pairs of products of words are summed. The sums are those of byte_rows.h.
#pragma once

#include "byte_rows.h"

#if defined(TRIVIUM_SUMS_PAIRS_OF_BYTES)

namespace trivium::TRIVIUM_ISA {

// Rows of x that meet two vectors of weights together, of one tile or of two: as many as there are registers for their sums.
constexpr int word_rows_together = lanes == 16 ? 12 : 6;
constexpr int word_tiles_together = 2 / tile_parts;
// Rows of x that all tiles of a task pass over before the next rows do, so that they are read from a cache near by.
constexpr int64_t word_rows_block_bytes = 192 << 10;

static constexpr int64_t word_rows_block(int64_t columns) {
    const int64_t fitting = word_rows_block_bytes / (2 * columns) / word_rows_together * word_rows_together;
    return fitting > word_rows_together ? fitting : word_rows_together;
}

static constexpr int64_t word_rows_scratch(int64_t columns) { return word_rows_block(columns) * 2 * columns; }

// Of each four bytes the first and the third, then the second and the fourth: the words that lie at even bytes of a quad of
// weights, and those at odd ones.
static inline void widen_row(const int8_t* q, int64_t columns, int16_t* words) {
    constexpr int evens_first = 0 | 2 << 2 | 1 << 4 | 3 << 6;
    for (int64_t c = 0; c < columns; c += 16) {
        const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(q + c)));
        const __m256i parted = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(wide, evens_first), evens_first);
        _mm256_storeu_si256((__m256i*)(words + c), parted);
    }
}

// The words of a vector of quads that lie at even or at odd bytes.
static inline IntVec words_at(WordVec quads, int odd) {
    typedef uint16_t Words __attribute__((vector_size(4 * lanes)));
    return (IntVec)(odd ? (WordVec)((Words)quads >> 8) : quads & 0x00ff00ff);
}

// The outputs of `vectors` times `lanes` weight rows from tile t on for `num_x` rows of x from `first` on, whose words are
// `words`.
template <int num_x, int vectors>
static void multiply_word_rows(const LinearPart& task, const TurnedRows& x, const int16_t* words, int64_t t, int64_t first,
                               NextTile& next) {
    const int64_t columns = x.columns, tile_bytes = byte_rows_tile_bytes(columns);
    const uint8_t* const tile = task.weight.data + t * tile_bytes;
    const int64_t vector_bytes = tile_parts == 1 ? tile_bytes : 4 * lanes;
    typedef uint32_t Pair __attribute__((may_alias));
    IntVec sums[num_x][vectors];
    set_to_zero(sums);
    if constexpr (num_x > 1) fetch_outputs(task, t * packed_tile_rows, vectors, first, num_x);
    for (int64_t begin = 0; begin < columns / 4; begin += packed_group_columns / 4) {
        next.fetch_some();
#pragma GCC unroll 2
        for (int64_t q = begin; q < begin + packed_group_columns / 4; ++q) {
#pragma GCC unroll 2
            for (int odd = 0; odd < 2; ++odd) {
                IntVec weights[vectors];
#pragma GCC unroll 2
                for (int v = 0; v < vectors; ++v)
                    weights[v] = words_at(load_words_anew(tile + v * vector_bytes + q * quad_bytes), odd);
#pragma GCC unroll 12
                for (int m = 0; m < num_x; ++m) {
                    const IntVec pair = (IntVec)(WordVec{} + reinterpret_cast<const Pair*>(words + m * columns)[2 * q + odd]);
#pragma GCC unroll 2
                    for (int v = 0; v < vectors; ++v) sums[m][v] = add_word_pairs(sums[m][v], weights[v], pair);
                }
            }
        }
    }
    Vec outputs[num_x][vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
        const Vec scales = byte_row_scales(task, t + v / tile_parts, v % tile_parts);
#pragma GCC unroll 12
        for (int m = 0; m < num_x; ++m) outputs[m][v] = scaled_sum(sums[m][v], x, first + m, scales);
    }
    put_scaled_sums(task, t * packed_tile_rows, vectors, first, num_x, outputs[0]);
}

template <int vectors>
static void multiply_word_block(const LinearPart& task, const TurnedRows& x, const int16_t* words, int64_t t, int64_t begin,
                                int64_t end, NextTile& next) {
    for_near_equal_groups<word_rows_together>(begin, end, [&]<int num_x>(int64_t first) {
        multiply_word_rows<num_x, vectors>(task, x, words + (first - begin) * x.columns, t, first, next);
    });
}

// `scratch`: word_rows_scratch bytes.
static void byte_rows_by_words(const LinearPart& task, const TurnedRows& x, int16_t* scratch) {
    const int64_t columns = x.columns, block = word_rows_block(columns), tile_bytes = byte_rows_tile_bytes(columns);
    for (int64_t begin = 0; begin < task.num_x; begin += block) {
        const int64_t end = begin + block < task.num_x ? begin + block : task.num_x;
        for (int64_t m = begin; m < end; ++m) widen_row(x.q + m * x.stride, columns, scratch + (m - begin) * columns);
        const int64_t passes = (end - begin + word_rows_together - 1) / word_rows_together;
        const LinearPart pass = end < task.num_x ? task.without_following() : task;
        for (int64_t t = task.first_tile; t < task.last_tile;) {
            // Few rows are bound by reading, which goes faster through one tile after the other.
            const bool are_few = end - begin < fewest_rows_to_fetch_for, is_alone = are_few || t + word_tiles_together > task.last_tile;
            const int64_t after = t + (is_alone ? 1 : word_tiles_together), num_steps = passes * columns / packed_group_columns;
            const uint8_t* const tile = task.weight.data + t * tile_bytes;
            NextTile next = are_few ? NextTile::ahead_of(pass, tile_bytes, tile, num_steps)
                                    : NextTile::after_this(pass, tile_bytes, task.weight.data + after * tile_bytes,
                                                           word_tiles_together * tile_bytes, num_steps);
            is_alone ? multiply_word_block<tile_parts>(task, x, scratch, t, begin, end, next)
                     : multiply_word_block<2>(task, x, scratch, t, begin, end, next);
            t = after;
        }
    }
}

}  // namespace trivium::TRIVIUM_ISA

#endif
