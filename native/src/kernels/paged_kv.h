// The cache's blocks: how a step's keys and values come in, and how a tile of them comes out where a kernel cannot read
// them where they lie. The layout: kernels.h.
#pragma once

#include "../kernels.h"
#include "decode.h"
#include "products.h"

namespace trivium::TRIVIUM_ISA {

// How an element is stored. A "word" is what lies together: one element of float32, else a pair.
template <KVType type>
struct Stored;

template <>
struct Stored<KVType::f32> {
    typedef float Element;
    typedef uint32_t Word;
    static constexpr bool has_scales = false;
    static void store_row(const float* x, int64_t dim, float, Element* out) { memcpy(out, x, 4 * dim); }
    static uint32_t expanded(Word word) { return word; }
};

template <>
struct Stored<KVType::bf16> {
    typedef uint16_t Element;
    typedef uint32_t Word;
    static constexpr bool has_scales = false;
    static void store_row(const float* x, int64_t dim, float, Element* out) {
        for (int64_t d = 0; d < dim; ++d) out[d] = float_to_bf16(x[d]);
    }
    static uint32_t expanded(Word word) { return word; }
};

// Whole numbers of up to 127, which bfloat16 holds exactly. A token's head has a scale of its own.
template <>
struct Stored<KVType::int8> {
    typedef uint8_t Element;
    typedef uint16_t Word;
    static constexpr bool has_scales = true;
    static void store_row(const float* x, int64_t dim, float scale, Element* out) {
        const Vec inverse = splat(1.0f / scale), rounder = splat(12582912.0f);  // 1.5 * 2^23: the sum's low bits are n
        for (int64_t d = 0; d < dim; d += lanes) {
            const int64_t count = dim - d < lanes ? dim - d : lanes;
            float part[lanes] = {};
            memcpy(part, x + d, 4 * count);
            const WordVec whole = (WordVec)fma(load(part), inverse, rounder);
            for (int64_t i = 0; i < count; ++i) out[d + i] = static_cast<uint8_t>(whole[i]);
        }
    }
    static uint32_t expanded(Word word) {
        const float lower = static_cast<int8_t>(word & 255), upper = static_cast<int8_t>(word >> 8);
        uint32_t lower_bits, upper_bits;
        memcpy(&lower_bits, &lower, sizeof lower_bits);
        memcpy(&upper_bits, &upper, sizeof upper_bits);
        return lower_bits >> 16 | upper_bits;
    }
};

template <KVType type>
constexpr int64_t elements_per_word = sizeof(typename Stored<type>::Word) / sizeof(typename Stored<type>::Element);

// A head's part of a block: scales of its tokens, where there are such, and then its words.
template <KVType type>
struct HeadBlock {
    typedef typename Stored<type>::Element Element;
    typedef typename Stored<type>::Word Word;
    static constexpr int64_t pair = elements_per_word<type>;

    uint8_t* memory;
    int64_t block_size;
    int64_t dim;

    float* scales() const { return reinterpret_cast<float*>(memory); }
    uint8_t* words() const { return memory + (Stored<type>::has_scales ? 4 * block_size : 0); }
    // A token's words: of its key, one in each `block_size` words; of its value and its neighbour's, `dim` words.
    Word* key_words(int64_t token) const { return reinterpret_cast<Word*>(words()) + token; }
    Word* value_words(int64_t token) const { return reinterpret_cast<Word*>(words()) + token / pair * dim; }

    void write_key(int64_t token, const Element* row) const {
        Word* const column = key_words(token);
        for (int64_t i = 0; i < dim / pair; ++i) memcpy(column + i * block_size, row + i * pair, sizeof(Word));
    }
    void write_value(int64_t token, const Element* row) const {
        Element* const out = reinterpret_cast<Element*>(value_words(token)) + token % pair;
        for (int64_t d = 0; d < dim; ++d) out[d * pair] = row[d];
    }
    // Of `token`, which is even, and of the one after it.
    void write_values(int64_t token, const Element* first, const Element* second) const {
        Element* const out = reinterpret_cast<Element*>(value_words(token));
        for (int64_t d = 0; d < dim; ++d) {
            out[2 * d] = first[d];
            out[2 * d + 1] = second[d];
        }
    }
};

// The elements of a token's head, and their scale.
template <KVType type>
struct StoredRow {
    static constexpr float nothing = 1e-30f;  // a scale of less would have no inverse

    typename Stored<type>::Element elements[max_kv_dim];
    float scale;

    StoredRow(const float* x, int64_t dim) : scale(1.0f) {
        if constexpr (Stored<type>::has_scales) {
            float largest = 0.0f;
            for (int64_t d = 0; d < dim; ++d) {
                const float size = x[d] < 0 ? -x[d] : x[d];
                largest = size > largest || size != size ? size : largest;  // what is not a number stays
            }
            if (!(largest < nothing)) scale = largest / 127.0f;
        }
        Stored<type>::store_row(x, dim, scale, elements);
    }
};

template <KVType type>
static HeadBlock<type> block_of_slot(const KVWrite& w, int64_t slot) {
    return {w.head + slot / w.block_size * w.block_bytes, w.block_size, w.dim};
}

#if defined(__AVX512F__)

// Sixteen rows of sixteen words become their columns.
static inline void transpose(__m512i (&rows)[16]) {
    __m512i by_two[16], by_four[16], by_eight[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        by_two[i] = _mm512_maskz_unpacklo_epi32(-1, rows[i], rows[i + 1]);
        by_two[i + 1] = _mm512_maskz_unpackhi_epi32(-1, rows[i], rows[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
            by_four[i + 2 * j] = _mm512_maskz_unpacklo_epi64(-1, by_two[i + j], by_two[i + j + 2]);
            by_four[i + 2 * j + 1] = _mm512_maskz_unpackhi_epi64(-1, by_two[i + j], by_two[i + j + 2]);
        }
    // Now the quarters of by_four[i + c] are columns c, c + 4, c + 8 and c + 12 of rows i … i + 3.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            by_eight[8 * half + c] = _mm512_maskz_shuffle_i32x4(-1, by_four[8 * half + c], by_four[8 * half + c + 4], 0x88);
            by_eight[8 * half + c + 4] = _mm512_maskz_shuffle_i32x4(-1, by_four[8 * half + c], by_four[8 * half + c + 4], 0xdd);
        }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        rows[c] = _mm512_maskz_shuffle_i32x4(-1, by_eight[c], by_eight[c + 8], 0x88);
        rows[c + 8] = _mm512_maskz_shuffle_i32x4(-1, by_eight[c], by_eight[c + 8], 0xdd);
        rows[c + 4] = _mm512_maskz_shuffle_i32x4(-1, by_eight[c + 4], by_eight[c + 12], 0x88);
        rows[c + 12] = _mm512_maskz_shuffle_i32x4(-1, by_eight[c + 4], by_eight[c + 12], 0xdd);
    }
}

// Keys of bfloat16 of sixteen tokens that lie beside each other.
static void write_key_group(const float* x, int64_t x_stride, const HeadBlock<KVType::bf16>& block, int64_t token) {
    for (int64_t d = 0; d < block.dim; d += 2 * lanes) {
        __m512i words[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i)
            words[i] = upper_halves(rounded_to_bf16(load(x + i * x_stride + d)), rounded_to_bf16(load(x + i * x_stride + d + lanes)));
        transpose(words);
        uint32_t* const row = block.key_words(token) + d / 2 * block.block_size;
        for (int i = 0; i < 16; ++i) _mm512_storeu_si512(row + i * block.block_size, words[i]);
    }
}

#endif

// How many tokens from `first` on are written at once: those of a group of columns, or one.
template <KVType type>
static int64_t keys_together([[maybe_unused]] const KVWrite& w, [[maybe_unused]] int64_t first) {
#if defined(__AVX512F__)
    if constexpr (type == KVType::bf16) {
        const int64_t slot = w.slots[first];
        if (w.num_tokens - first < group_columns || w.block_size % group_columns || slot % group_columns || w.dim % (2 * lanes))
            return 1;
        for (int64_t i = 1; i < group_columns; ++i)
            if (w.slots[first + i] != slot + i) return 1;
        return group_columns;
    }
#endif
    return 1;
}

template <KVType type>
static void write_keys_of(const KVWrite& w) {
    for (int64_t i = 0, together; i < w.num_tokens; i += together) {
        together = keys_together<type>(w, i);
#if defined(__AVX512F__)
        if constexpr (type == KVType::bf16)
            if (together > 1) {
                write_key_group(w.x + i * w.x_stride, w.x_stride, block_of_slot<type>(w, w.slots[i]), w.slots[i] % w.block_size);
                continue;
            }
#endif
        const StoredRow<type> row(w.x + i * w.x_stride, w.dim);
        const HeadBlock<type> block = block_of_slot<type>(w, w.slots[i]);
        const int64_t token = w.slots[i] % w.block_size;
        if constexpr (Stored<type>::has_scales) block.scales()[token] = row.scale;
        block.write_key(token, row.elements);
    }
}

template <KVType type>
static void write_values_of(const KVWrite& w) {
    for (int64_t i = 0; i < w.num_tokens; ++i) {
        const StoredRow<type> row(w.x + i * w.x_stride, w.dim);
        const HeadBlock<type> block = block_of_slot<type>(w, w.slots[i]);
        const int64_t token = w.slots[i] % w.block_size;
        if constexpr (Stored<type>::has_scales) block.scales()[token] = row.scale;
        if constexpr (HeadBlock<type>::pair == 2) {
            if (token % 2 == 0 && i + 1 < w.num_tokens && w.slots[i + 1] == w.slots[i] + 1) {
                ++i;
                const StoredRow<type> next(w.x + i * w.x_stride, w.dim);
                if constexpr (Stored<type>::has_scales) block.scales()[token + 1] = next.scale;
                block.write_values(token, row.elements, next.elements);
                continue;
            }
        }
        block.write_value(token, row.elements);
    }
}

// Calls use.operator()<type>().
template <typename Use>
static auto with_kv_type(KVType type, const Use& use) {
    switch (type) {
        case KVType::f32: return use.template operator()<KVType::f32>();
        case KVType::bf16: return use.template operator()<KVType::bf16>();
        default: return use.template operator()<KVType::int8>();
    }
}

static void write_keys(const KVWrite& w) {
    with_kv_type(w.type, [&]<KVType type>() { write_keys_of<type>(w); });
}

static void write_values(const KVWrite& w) {
    with_kv_type(w.type, [&]<KVType type>() { write_values_of<type>(w); });
}

// Keys and values of `attention_tile` positions, as pointers to groups of 16: into the cache, or to copies.
struct KeyTile {
    static constexpr int64_t num_groups = attention_tile / group_columns;
    const uint8_t* keys[num_groups];
    const uint8_t* values[num_groups];
    int64_t key_row_bytes;
    int64_t value_row_bytes;
    alignas(64) float key_scales[attention_tile];  // where the cache has them
    alignas(64) float value_scales[attention_tile];
};

// A copy has the elements of a head padded to whole slices, and zeros for positions outside begin … end - 1.
static constexpr int64_t copied_tile_floats(int64_t padded_dim) { return 2 * attention_tile * padded_dim; }

template <KVType type>
class TileReader {
    typedef HeadBlock<type> Block;
    typedef typename Block::Word Word;

public:
    // `copies` has room for copied_tile_floats. With `needs_whole_slices` every slice of 32 must lie together.
    TileReader(const Attention& a, int64_t key_head, int64_t padded_dim, bool needs_whole_slices, float* copies)
        : a_(a),
          key_head_(key_head),
          padded_dim_(padded_dim),
          has_whole_groups_(a.block_size % group_columns == 0),
          reads_keys_(has_whole_groups_ && sizeof(Word) == 4 && a.dim % (needs_whole_slices ? slice_elements : 4) == 0),
          reads_values_(has_whole_groups_ && sizeof(Word) == 4 && a.dim % group_columns == 0 && !needs_whole_slices),
          key_copies_(reinterpret_cast<uint32_t*>(copies)),
          value_copies_(key_copies_ + attention_tile * padded_dim / Block::pair) {}

    // The tile of positions base … of the row that has the table; those in begin … end - 1 may be read.
    void read(const int32_t* table, int64_t begin, int64_t end, int64_t base, KeyTile& tile) {
        table_ = table;
        begin_ = begin;
        end_ = end;
        tile.key_row_bytes = reads_keys_ ? 4 * a_.block_size : 4 * group_columns;
        tile.value_row_bytes = 4 * (reads_values_ ? a_.dim : padded_dim_);
        for (int64_t g = 0; g < KeyTile::num_groups; ++g) {
            const int64_t first = base + g * group_columns, last = first + group_columns;
            const bool seen = first < end_ && last > begin_, wholly = first >= begin_ && last <= end_;
            const int64_t slice = first / slice_elements * slice_elements;
            if (slice >= end_ || slice + slice_elements <= begin_) continue;  // no item sees any of its keys
            if (seen) tile.keys[g] = reads_keys_ ? bytes(key_words(first)) : copy_keys(first, g);
            tile.values[g] = reads_values_ && wholly ? bytes(value_words(first))
                                                     : copy_values(first, g, wholly, tile.value_row_bytes / 4);
        }
        if constexpr (Stored<type>::has_scales) {
            for (int64_t i = 0; i < attention_tile; ++i) {
                tile.key_scales[i] = is_seen(base + i) ? block(a_.keys, base + i).scales()[token(base + i)] : 1.0f;
                tile.value_scales[i] = is_seen(base + i) ? block(a_.values, base + i).scales()[token(base + i)] : 0.0f;
            }
        }
    }

    // Keys and values of a group of positions of the row that was read last come into the second-level cache.
    void fetch_group(int64_t first) const {
        if (!has_whole_groups_) return;
        for (int64_t row = 0; row < a_.dim / Block::pair; ++row) __builtin_prefetch(key_words(first) + row * a_.block_size, 0, 2);
        const uint8_t* const values = bytes(value_words(first));
        for (int64_t i = 0; i < group_columns / Block::pair * a_.dim * int64_t{sizeof(Word)}; i += line_bytes)
            __builtin_prefetch(values + i, 0, 2);
    }

private:
    static constexpr int64_t line_bytes = 64;
    static const uint8_t* bytes(const void* words) { return static_cast<const uint8_t*>(words); }
    bool is_seen(int64_t position) const { return position >= begin_ && position < end_; }
    int64_t token(int64_t position) const { return position % a_.block_size; }
    Block block(const PagedCache& cache, int64_t position) const {
        const int64_t index = table_[position / a_.block_size];
        return {cache.data + index * cache.block_bytes + key_head_ * cache.head_bytes, a_.block_size, a_.dim};
    }
    const Word* key_words(int64_t position) const { return block(a_.keys, position).key_words(token(position)); }
    const Word* value_words(int64_t position) const { return block(a_.values, position).value_words(token(position)); }

    const uint8_t* copy_keys(int64_t first, int64_t group) {
        const int64_t num_rows = padded_dim_ / Block::pair, rows = a_.dim / Block::pair;
        uint32_t* const copy = key_copies_ + group * group_columns * num_rows;
        if (has_whole_groups_) {
            const Word* const words = key_words(first);
            for (int64_t row = 0; row < rows; ++row)
                for (int64_t i = 0; i < group_columns; ++i)
                    copy[row * group_columns + i] = Stored<type>::expanded(words[row * a_.block_size + i]);
        } else {
            for (int64_t i = 0; i < group_columns; ++i) {
                const Word* const words = is_seen(first + i) ? key_words(first + i) : nullptr;
                for (int64_t row = 0; row < rows; ++row)
                    copy[row * group_columns + i] = words ? Stored<type>::expanded(words[row * a_.block_size]) : 0;
            }
        }
        memset(copy + rows * group_columns, 0, 4 * (num_rows - rows) * group_columns);
        return bytes(copy);
    }

    const uint8_t* copy_values(int64_t first, int64_t group, bool wholly, int64_t row_words) {
        const int64_t num_rows = group_columns / Block::pair;
        uint32_t* const copy = value_copies_ + group * num_rows * row_words;
        for (int64_t row = 0; row < num_rows; ++row) {
            uint32_t* const to = copy + row * row_words;
            const int64_t position = first + row * Block::pair;
            const bool lower = wholly || is_seen(position), upper = wholly || is_seen(position + Block::pair - 1);
            if (!lower && !upper) {
                memset(to, 0, 4 * row_words);
                continue;
            }
            const Word* const from = value_words(lower ? position : position + 1);
            const uint32_t mask = (lower ? 0x0000ffff : 0) | (upper ? 0xffff0000 : 0);
            for (int64_t d = 0; d < a_.dim; ++d) to[d] = Stored<type>::expanded(from[d]) & mask;
            for (int64_t d = a_.dim; d < row_words; ++d) to[d] = 0;
        }
        return bytes(copy);
    }

    const Attention& a_;
    const int64_t key_head_, padded_dim_;
    const int32_t* table_ = nullptr;
    int64_t begin_ = 0, end_ = 0;
    const bool has_whole_groups_, reads_keys_, reads_values_;
    uint32_t* const key_copies_;
    uint32_t* const value_copies_;
};

}  // namespace trivium::TRIVIUM_ISA
