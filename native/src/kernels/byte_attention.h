// Products of attention over a cache of bytes: rows of bytes (a query's, or softmax weights) times columns (keys, or
// dimensions of values) that lie in the cache as kernels.h says, four inner elements together. They are sums of whole
// numbers, exact, so that every way gives the same bits.
#pragma once

#include "../kernels.h"
#include "byte_products.h"
#include "products.h"
#include "with_constant.h"

namespace trivium::TRIVIUM_ISA {

#if defined(__AVX512VNNI__)

// By the instruction that adds four products of an unsigned and a signed byte to a sum.
struct FourProducts {
    typedef int32_t Word;                   // four bytes of a row
    static constexpr int64_t words_of_four = 1;

    static void put(IntVec bytes, Word* row, int64_t element) {
        _mm_storeu_si128((__m128i*)(row + element / 4), _mm512_maskz_cvtepi32_epi8(-1, (__m512i)bytes));
    }

    struct Columns {
        __m512i bytes;
    };
    template <bool are_signed>
    static Columns load(const uint8_t* p) {
        return {(__m512i)in_register((Vec)load_words(p))};
    }
    template <bool are_signed>
    static IntVec add(IntVec sum, const Columns& columns, const Word* four) {
        const __m512i row = _mm512_set1_epi32(*four);
        return (IntVec)(are_signed ? _mm512_dpbusd_epi32((__m512i)sum, row, columns.bytes)
                                   : _mm512_dpbusd_epi32((__m512i)sum, columns.bytes, row));
    }
};
typedef FourProducts ByteSteps;

#else

// By words of 16 bits, the even and the odd of four bytes apart: no instruction here sums four products of such bytes exactly.
struct TwoPairsOfProducts {
    typedef int32_t Word;                   // elements 0 and 2 of four, then 1 and 3; two more are not used
    static constexpr int64_t words_of_four = 4;

    static void put(IntVec bytes, Word* row, int64_t element) {
        IntVec upper;
#if defined(__AVX512BW__)
        upper = (IntVec)_mm512_bsrli_epi128((__m512i)bytes, 8);
#elif defined(__AVX2__)
        upper = (IntVec)_mm256_srli_si256((__m256i)bytes, 8);
#else
        upper = IntVec{bytes[2], bytes[3], 0, 0};
#endif
        const WordVec words = ((WordVec)bytes & 0xffff) | (WordVec)upper << 16;
        memcpy(row + element, &words, sizeof words);
    }

    struct Columns {
        IntVec even, odd;
    };
    template <bool are_signed>
    static Columns load(const uint8_t* p) {
        typedef uint16_t Halves __attribute__((vector_size(4 * lanes)));
        typedef int16_t SignedHalves __attribute__((vector_size(4 * lanes)));
        const Halves v = (Halves)load_words(p);
        if constexpr (are_signed) return {(IntVec)((SignedHalves)(v << 8) >> 8), (IntVec)((SignedHalves)v >> 8)};
        return {(IntVec)(v & 0xff), (IntVec)(v >> 8)};
    }
    template <bool are_signed>
    static IntVec add(IntVec sum, const Columns& columns, const Word* four) {
        return add_pairs(add_pairs(sum, columns.even, four[0]), columns.odd, four[1]);
    }

private:
    static IntVec add_pairs(IntVec sum, IntVec pairs, int32_t row) {
#if defined(TRIVIUM_SUMS_PAIRS_OF_BYTES)
        return add_word_pairs(sum, pairs, IntVec{} + row);
#else
        return sum + (pairs << 16 >> 16) * static_cast<int16_t>(row) + (pairs >> 16) * (row >> 16);
#endif
    }
};
typedef TwoPairsOfProducts ByteSteps;

#endif

struct ByteProducts {
    static constexpr int max_items = lanes == 16 ? 12 : 3;
    static constexpr bool needs_whole_slices = false;
    typedef NoSetup Setup;
    typedef ByteSteps::Word Word;

    // Few items leave time between what is read: then something else is done before each run of 16 elements. With many, which
    // have the registers, it is done once.
    static constexpr bool is_for_few(int64_t items) { return 2 * items <= max_items; }
    static int64_t steps_of(int64_t items, int64_t elements) { return is_for_few(items) && elements % 16 == 0 ? elements / 16 : 1; }

    static constexpr int64_t words_of(int64_t elements) { return elements / 4 * ByteSteps::words_of_four; }

    // `columns(run, group)`: 16 columns of the first four elements of a run; from four to the next it is `stride` bytes.
    // Calls put(item, group, vector of the group, sums), and meanwhile() in each of steps_of() steps.
    template <bool are_signed, typename RowWords, typename ColumnsOf, typename Meanwhile, typename Put>
    static void multiply(int items, int num_groups, const Word* rows, RowWords row_words, int64_t first_run, int64_t last_run,
                         int64_t fours_of_a_run, const ColumnsOf& columns, int64_t stride, const Meanwhile& meanwhile,
                         const Put& put) {
        with_constant<max_items>(items, [&]<int n>() {
            int group = 0;
            if constexpr (lanes == 16)
                for (; group + 1 < num_groups; group += 2)
                    multiply_groups<n, 2, are_signed>(group, rows, row_words, first_run, last_run, fours_of_a_run, columns, stride,
                                                      meanwhile, put);
            for (; group < num_groups; ++group)
                multiply_groups<n, 1, are_signed>(group, rows, row_words, first_run, last_run, fours_of_a_run, columns, stride,
                                                  meanwhile, put);
        });
    }

private:
    template <int items, int groups, bool are_signed, typename RowWords, typename ColumnsOf, typename Meanwhile, typename Put>
    static inline void multiply_groups(int first_group, const Word* rows, RowWords row_words, int64_t first_run, int64_t last_run,
                                       int64_t fours_of_a_run, const ColumnsOf& columns, int64_t stride, const Meanwhile& meanwhile,
                                       const Put& put) {
        constexpr int vectors = groups * group_vectors;
        if constexpr (!is_for_few(items)) meanwhile();
        IntVec sums[items][vectors];
        set_to_zero(sums);
        for (int64_t run = first_run; run < last_run; ++run) {
            if constexpr (is_for_few(items)) meanwhile();
            const uint8_t* at[groups];
            for (int g = 0; g < groups; ++g) at[g] = columns(run, first_group + g);
            const Word* four = rows + run * fours_of_a_run * ByteSteps::words_of_four;
#pragma GCC unroll 4
            for (int64_t i = 0; i < fours_of_a_run; ++i) {
                ByteSteps::Columns taken[vectors];
#pragma GCC unroll 4
                for (int v = 0; v < vectors; ++v) {
                    const uint8_t* const p = at[v / group_vectors] + v % group_vectors * 4 * lanes;
                    taken[v] = ByteSteps::load<are_signed>(p + i * stride);
                }
#pragma GCC unroll 12
                for (int m = 0; m < items; ++m)
#pragma GCC unroll 4
                    for (int v = 0; v < vectors; ++v)
                        sums[m][v] = ByteSteps::add<are_signed>(sums[m][v], taken[v], four + m * row_words);
                four += ByteSteps::words_of_four;
            }
        }
#pragma GCC unroll 12
        for (int m = 0; m < items; ++m)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) put(m, first_group + v / group_vectors, v % group_vectors, sums[m][v]);
    }
};

}  // namespace trivium::TRIVIUM_ISA
