// Linear layers on rows of bytes where no instruction sums four products of bytes exactly: bytes are widened to words of 16
// bits, and pairs of products of words are summed. The sums are those of byte_rows.h.
#pragma once

#include "byte_rows.h"

#if defined(TRIVIUM_SUMS_PAIRS_OF_BYTES)

namespace trivium::TRIVIUM_ISA {

// Rows of x that meet a whole tile together: as many as there are registers for their sums.
constexpr int word_rows_together = 6;
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

// The sum and the two products of each lane. Left to itself the compiler adds products to each other first, for which there
// are no registers left.
static inline IntVec add_word_products(IntVec sum, WordVec weights, WordVec pair) {
    WordVec products;
    asm("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(products) : "x"(weights), "x"(pair));
    return sum;
}

// The outputs of tile t for `num_x` rows of x from `first` on, whose words are `words`.
template <int num_x>
static void multiply_word_rows(const LinearPart& task, const TurnedRows& x, const int16_t* words, int64_t t, int64_t first,
                               NextTile& next) {
    const int64_t columns = x.columns;
    const uint8_t* const tile = task.weight.data + t * byte_rows_tile_bytes(columns);
    typedef uint32_t Pair __attribute__((may_alias));
    IntVec sums[num_x][tile_parts] = {};
    for (int64_t begin = 0; begin < columns / 4; begin += packed_group_columns / 4) {
        next.fetch_some();
#pragma GCC unroll 2
        for (int64_t q = begin; q < begin + packed_group_columns / 4; ++q) {
#pragma GCC unroll 2
            for (int odd = 0; odd < 2; ++odd) {
                WordVec weights[tile_parts];
                for (int part = 0; part < tile_parts; ++part) {
                    const WordVec quads = load_words_anew(tile + q * quad_bytes + part * 4 * lanes);
                    weights[part] = odd ? (WordVec)_mm256_srli_epi16((__m256i)quads, 8) : quads & 0x00ff00ff;
                }
#pragma GCC unroll 6
                for (int m = 0; m < num_x; ++m) {
                    const WordVec pair = WordVec{} + reinterpret_cast<const Pair*>(words + m * columns)[2 * q + odd];
#pragma GCC unroll 2
                    for (int part = 0; part < tile_parts; ++part)
                        sums[m][part] = add_word_products(sums[m][part], weights[part], pair);
                }
            }
        }
    }
#pragma GCC unroll 2
    for (int part = 0; part < tile_parts; ++part) {
        const int64_t row = t * packed_tile_rows + part * lanes;
        if (row >= task.weight.rows) return;
        const Vec scales = byte_row_scales(task, t, part);
#pragma GCC unroll 6
        for (int m = 0; m < num_x; ++m)
            put_outputs(task, row, first + m, scaled_sum(sums[m][part], x, first + m, scales));
    }
}

// `scratch`: word_rows_scratch bytes.
static void byte_rows_by_words(const LinearPart& task, const TurnedRows& x, int16_t* scratch) {
    const int64_t columns = x.columns, block = word_rows_block(columns), tile_bytes = byte_rows_tile_bytes(columns);
    for (int64_t begin = 0; begin < task.num_x; begin += block) {
        const int64_t end = begin + block < task.num_x ? begin + block : task.num_x;
        for (int64_t m = begin; m < end; ++m) widen_row(x.q + m * x.stride, columns, scratch + (m - begin) * columns);
        const int64_t passes = (end - begin + word_rows_together - 1) / word_rows_together;
        for (int64_t t = task.first_tile; t < task.last_tile; ++t) {
            const bool fetches = t + 1 < task.last_tile && end - begin >= fewest_rows_to_fetch_for;
            NextTile next(task.weight.data + (t + 1) * tile_bytes, fetches ? tile_bytes : 0,
                          passes * columns / packed_group_columns);
            for_near_equal_groups<word_rows_together>(begin, end, [&]<int num_x>(int64_t first) {
                multiply_word_rows<num_x>(task, x, scratch + (first - begin) * columns, t, first, next);
            });
        }
    }
}

}  // namespace trivium::TRIVIUM_ISA

#endif
