// Products of panels, the arithmetic of attention: rows of 32 inner elements (of queries, or of softmax weights) times
// columns (keys, or dimensions of values) that lie in the cache as kernels.h says.
//
// Inner elements are summed in slices of 32: the even ones of a slice are one chain of fused multiply-adds from 0, the odd
// ones another, their sum joins the sum of the slices before, and numbers too small to be normal count as 0. That is what
// an AMX instruction does with a slice of bfloat16. Products of bfloat16 are exact in float32, so that every way below
// gives the same bits.
#pragma once

#include "../kernels.h"
#include "vector.h"
#include "with_constant.h"

namespace trivium::TRIVIUM_ISA {

constexpr int64_t slice_elements = 32;
constexpr int64_t slice_pairs = slice_elements / 2;
constexpr int64_t panel_columns = 32;
constexpr int64_t group_columns = 16;  // that lie together in the cache: 64 bytes of words
constexpr int group_vectors = group_columns / lanes;

// An item's 32 elements, or 32 columns of its result, as vectors.
constexpr int panel_vectors = panel_columns / lanes;

// Rows of words in the cache that hold a pair of inner elements.
static constexpr int64_t rows_per_pair(KVType type) { return type == KVType::f32 ? 2 : 1; }

// Where the columns of a panel lie. `at(slice, group, half)` is the first word of 16 columns for the first or the last 8
// pairs of inner elements of a slice; from a row of words to the next it is `row_bytes`.
struct KeyColumns {
    const uint8_t* const* groups;  // of 16 keys
    int64_t row_bytes;
    int64_t slice_bytes;

    const uint8_t* at(int64_t slice, int64_t group, int half) const {
        return groups[group] + slice * slice_bytes + half * (slice_bytes / 2);
    }
};

struct ValueColumns {
    const uint8_t* const* halves;  // of 16 keys
    int64_t row_bytes;
    int64_t first_column;

    const uint8_t* at(int64_t slice, int64_t group, int half) const {
        return halves[2 * slice + half] + 4 * (first_column + group * group_columns);
    }
};

// Slices first … last - 1 are multiplied; the last one has `last_pairs` pairs, what lies beyond them is not read.
struct Slices {
    int64_t first;
    int64_t last;
    int64_t last_pairs;
};

// An item's elements of a slice, as words that mean something to a way of multiplying alone, have the room that they have
// as float32.
constexpr int64_t row_bytes = 4 * slice_elements;
template <typename Word>
constexpr int64_t row_words = row_bytes / int64_t{sizeof(Word)};

// Where rows of items lie, as [slices][items][words of a row].
template <typename Word>
struct Rows {
    const Word* first;
    int64_t slice_words;

    const Word* slice(int64_t index) const { return first + index * slice_words; }
};

struct NoSetup {
    void shape_for(int64_t) {}
};

// By fused multiply-adds, for elements of any type: a step takes a pair of inner elements.
template <KVType type>
struct MultiplyAdds {
    static constexpr int64_t pairs = 1;  // of a step

    typedef float Word;
    static void put(const Vec (&elements)[panel_vectors], Word* row) {
        for (int i = 0; i < panel_vectors; ++i) store(row + i * lanes, elements[i]);
    }

    // Columns of a step's elements of the even chain (0) or the odd one (1).
    static Vec load(const uint8_t* p, int64_t row_bytes, int chain) {
        if constexpr (type == KVType::f32) return in_register((Vec)load_words(p + chain * row_bytes));
        const WordVec words = load_words_anew(p);
        return (Vec)(chain ? words & 0xffff0000 : words << 16);
    }
    static Vec multiply(Vec columns, Word x, Vec sum) { return fma(columns, splat(x), sum); }
};

#if defined(__AVX512BF16__)

// By the instruction that adds two products of bfloat16 to a sum, the upper half's first: a step takes two pairs, and a
// product's two elements are of one chain.
struct MultiplyAddPairs {
    static constexpr int64_t pairs = 2;

    typedef uint32_t Word;
    // Words 2 i and 2 i + 1 hold elements 4 i … 4 i + 3: (lower 2, upper 0), (lower 3, upper 1).
    static void put(const Vec (&elements)[panel_vectors], Word* row) {
        alignas(64) static constexpr uint16_t upper_halves[32] = {
            5,  1,  7,  3,  13, 9,  15, 11, 21, 17, 23, 19, 29, 25, 31, 27,
            37, 33, 39, 35, 45, 41, 47, 43, 53, 49, 55, 51, 61, 57, 63, 59};
        _mm512_storeu_si512(row, _mm512_permutex2var_epi16((__m512i)elements[0], _mm512_load_si512(upper_halves),
                                                           (__m512i)elements[1]));
    }

    static Vec load(const uint8_t* p, int64_t row_bytes, int chain) {
        const WordVec first = (WordVec)in_register((Vec)load_words(p));
        const WordVec second = (WordVec)in_register((Vec)load_words(p + row_bytes));
        return (Vec)(chain ? (first & 0xffff0000) | second >> 16 : first << 16 | (second & 0xffff));
    }
    static Vec multiply(Vec columns, Word x, Vec sum) {
        return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)columns, (__m512bh)_mm512_set1_epi32(static_cast<int>(x)));
    }
};

#endif

template <KVType type, typename Steps>
struct VectorProducts {
    // Sums of chains that the registers hold beside columns, and items multiplied together: so many that they have sums of one
    // chain for all columns (of eight lanes for half of them), which then goes through a slice by itself.
    static constexpr int most_sums = lanes == 8 ? 12 : 24;
    static constexpr int max_items = lanes == 16 ? 12 : lanes == 8 ? 6 : 3;
    static constexpr bool needs_whole_slices = false;
    typedef NoSetup Setup;

    typedef typename Steps::Word Word;
    static void put(const Vec (&elements)[panel_vectors], Word* row) { Steps::put(elements, row); }

    // Few items leave time between what is read: then something else is done before each half of a slice. With many, which have
    // the registers, it is done once.
    static constexpr bool is_for_few(int64_t items) { return 2 * items <= max_items; }
    static int64_t steps_of(int64_t items, int64_t elements) {
        return is_for_few(items) ? 2 * ((elements + slice_elements - 1) / slice_elements) : 1;
    }

    // out [items, 32] = the product of `items` rows and `num_groups` groups of columns.
    template <typename Columns, typename Meanwhile>
    static void multiply(int items, int num_groups, const Rows<Word>& rows, const Slices& slices, const Columns& columns,
                         const Meanwhile& meanwhile, float* out) {
        with_constant<max_items>(items, [&]<int n>() {
            if constexpr (lanes == 16 || 2 * n * panel_vectors <= most_sums)
                if (num_groups == 2) return multiply_groups<n, 2>(0, rows, slices, columns, meanwhile, out);
            for (int group = 0; group < num_groups; ++group)
                multiply_groups<n, 1>(group, rows, slices, columns, meanwhile, out + group * group_columns);
        });
    }

private:
    // Adds the products of the first `num_pairs` pairs of a slice's elements to their chains, the first of which is `chain`.
    template <int chain, int chains, int items, int groups, typename Columns, typename Meanwhile>
    static inline __attribute__((always_inline)) void add_slice(
        int64_t slice, int first_group, int64_t num_pairs, const Word* row, const Columns& columns,
        [[maybe_unused]] const Meanwhile& meanwhile, Vec (&sums)[chains][items][groups * group_vectors]) {
        constexpr int vectors = groups * group_vectors, vector_bytes = 4 * lanes;
        const int64_t row_bytes = columns.row_bytes, step_bytes = Steps::pairs * rows_per_pair(type) * row_bytes;
        for (int half = 0; half < 2; ++half) {
            if constexpr (is_for_few(items)) meanwhile();
            const uint8_t* at[groups];
            for (int g = 0; g < groups; ++g) at[g] = columns.at(slice, first_group + g, half);
            const auto add_step = [&] {
#pragma GCC unroll 2
                for (int c = 0; c < chains; ++c) {
                    Vec taken[vectors];
#pragma GCC unroll 4
                    for (int v = 0; v < vectors; ++v)
                        taken[v] = Steps::load(at[v / group_vectors] + v % group_vectors * vector_bytes, row_bytes, chain + c);
#pragma GCC unroll 12
                    for (int i = 0; i < items; ++i)
#pragma GCC unroll 4
                        for (int v = 0; v < vectors; ++v)
                            sums[c][i][v] = Steps::multiply(taken[v], row[i * row_words<Word> + chain + c], sums[c][i][v]);
                }
                for (int g = 0; g < groups; ++g) at[g] += step_bytes;
                row += 2;
            };
            constexpr int64_t most = slice_pairs / 2;
            if (const int64_t left = num_pairs - half * most; left >= most) {
#pragma GCC unroll 2
                for (int64_t pair = 0; pair < most; pair += Steps::pairs) add_step();
            } else {
                for (int64_t pair = 0; pair < left; pair += Steps::pairs) add_step();
            }
        }
    }

    template <int items, int groups, typename Columns, typename Meanwhile>
    static inline void multiply_groups(int first_group, const Rows<Word>& rows, const Slices& slices,
                                       const Columns& columns, const Meanwhile& meanwhile, float* out) {
        constexpr int vectors = groups * group_vectors;
        constexpr bool is_by_chain = 2 * items * vectors > most_sums;
        if constexpr (!is_for_few(items)) meanwhile();
        for (int64_t s = slices.first; s < slices.last; ++s) {
            const int64_t num_pairs = s + 1 < slices.last ? slice_pairs : slices.last_pairs;
            const auto add = [&]<int chain, int chains>(Vec (&sums)[chains][items][vectors]) {
                set_to_zero(sums);
                add_slice<chain, chains, items, groups>(s, first_group, num_pairs, rows.slice(s), columns, meanwhile,
                                                        sums);
            };
            const auto put_all = [&](const auto& sum_of) {
#pragma GCC unroll 12
                for (int i = 0; i < items; ++i)
#pragma GCC unroll 4
                    for (int v = 0; v < vectors; ++v) {
                        float* const sum = out + i * panel_columns + v * lanes;
                        store(sum, s == slices.first ? sum_of(i, v) : load(sum) + sum_of(i, v));
                    }
            };
            if constexpr (is_by_chain) {
                Vec even[1][items][vectors], odd[1][items][vectors];
                add.template operator()<0, 1>(even);
                float kept[items * vectors * lanes];
#pragma GCC unroll 12
                for (int i = 0; i < items; ++i)
#pragma GCC unroll 4
                    for (int v = 0; v < vectors; ++v) store(kept + (i * vectors + v) * lanes, even[0][i][v]);
                add.template operator()<1, 1>(odd);
                put_all([&](int i, int v) { return load(kept + (i * vectors + v) * lanes) + odd[0][i][v]; });
            } else {
                Vec sums[2][items][vectors];
                add.template operator()<0, 2>(sums);
                put_all([&](int i, int v) { return sums[0][i][v] + sums[1][i][v]; });
            }
        }
    }
};

}  // namespace trivium::TRIVIUM_ISA
