// The cache's blocks: how a step's keys and values come in, and how a tile of them comes out where a kernel cannot read
// them where they lie. The layout: kernels.h.
#pragma once

#include "../kernels.h"
#include "decode.h"
#include "head_bytes.h"
#include "products.h"

namespace trivium::TRIVIUM_ISA {

// How an element is stored. What lies together is a "word" of 4 bytes: one element, a pair, or four.
template <KVType type>
struct Stored;

template <>
struct Stored<KVType::f32> {
    typedef float Element;
    static constexpr bool has_scales = false;
};

template <>
struct Stored<KVType::bf16> {
    typedef uint16_t Element;
    static constexpr bool has_scales = false;
};

// A token's head has a scale of its own. Bytes of keys are 128 more than they are.
template <>
struct Stored<KVType::int8> {
    typedef uint8_t Element;
    static constexpr bool has_scales = true;
};

template <KVType type>
constexpr int64_t elements_per_word = 4 / int64_t{sizeof(typename Stored<type>::Element)};

// A head's part of a block: scales of its tokens, where there are such, and then its words.
template <KVType type>
struct HeadBlock {
    typedef typename Stored<type>::Element Element;
    typedef uint32_t Word;
    static constexpr int64_t together = elements_per_word<type>;

    uint8_t* memory;
    int64_t block_size;
    int64_t dim;

    float* scales() const { return reinterpret_cast<float*>(memory); }
    uint8_t* words() const { return memory + (Stored<type>::has_scales ? 4 * block_size : 0); }
    // A token's words: of its key, one in each `block_size` words; of its value and its neighbours', `dim` words.
    Word* key_words(int64_t token) const { return reinterpret_cast<Word*>(words()) + token; }
    Word* value_words(int64_t token) const { return reinterpret_cast<Word*>(words()) + token / together * dim; }

    void write_key(int64_t token, const Element* row) const {
        Word* const column = key_words(token);
        for (int64_t i = 0; i < dim / together; ++i) memcpy(column + i * block_size, row + i * together, sizeof(Word));
    }
    void write_value(int64_t token, const Element* row) const {
        Element* const out = reinterpret_cast<Element*>(value_words(token)) + token % together;
        for (int64_t d = 0; d < dim; ++d) out[d * together] = row[d];
    }
    // Of `token`, which is the first of its words, and of those after it.
    void write_values(int64_t token, const Element* const (&rows)[together]) const {
        Element* const out = reinterpret_cast<Element*>(value_words(token));
        for (int64_t d = 0; d < dim; ++d)
            for (int64_t i = 0; i < together; ++i) out[together * d + i] = rows[i][d];
    }
};

// The elements of a token's head, and their scale where they have one.
template <KVType type>
struct StoredRow {
    alignas(64) typename Stored<type>::Element elements[max_kv_dim];
    float scale;

    void take_key(const float* x, int64_t dim) {
        if constexpr (type == KVType::int8) {
            HeadBytes head;
            take_turned(x, dim, head);
            scale = head.scale;
            for (int64_t d = 0; d < dim; ++d) elements[d] = static_cast<uint8_t>(head.bytes[d]) ^ 0x80;
        } else {
            take_value(x, dim);
        }
    }
    void take_value(const float* x, int64_t dim) {
        if constexpr (type == KVType::int8) {
            HeadBytes head;
            take_as_it_is(x, dim, head);
            scale = head.scale;
            memcpy(elements, head.bytes, dim);
        } else if constexpr (type == KVType::bf16) {
            for (int64_t d = 0; d < dim; ++d) elements[d] = float_to_bf16(x[d]);
        } else {
            memcpy(elements, x, 4 * dim);
        }
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

// Keys of sixteen tokens that lie beside each other.
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

static void write_key_group(const float* x, int64_t x_stride, const HeadBlock<KVType::int8>& block, int64_t token) {
    StoredRow<KVType::int8> rows[group_columns];
    for (int i = 0; i < group_columns; ++i) {
        rows[i].take_key(x + i * x_stride, block.dim);
        block.scales()[token + i] = rows[i].scale;
    }
    for (int64_t d = 0; d < block.dim; d += 4 * lanes) {
        __m512i words[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) words[i] = _mm512_load_si512(rows[i].elements + d);
        transpose(words);
        uint32_t* const row = block.key_words(token) + d / 4 * block.block_size;
        for (int i = 0; i < 16; ++i) _mm512_storeu_si512(row + i * block.block_size, words[i]);
    }
}

#endif

// Do tokens from `first` on lie beside each other, `count` of them, the first at a multiple of that?
static bool lie_together(const KVWrite& w, int64_t first, int64_t count) {
    const int64_t slot = w.slots[first];
    if (w.num_tokens - first < count || w.block_size % count || slot % count) return false;
    for (int64_t i = 1; i < count; ++i)
        if (w.slots[first + i] != slot + i) return false;
    return true;
}

template <KVType type>
static void write_keys_of(const KVWrite& w) {
    for (int64_t i = 0; i < w.num_tokens; ++i) {
        const HeadBlock<type> block = block_of_slot<type>(w, w.slots[i]);
        const int64_t token = w.slots[i] % w.block_size;
#if defined(__AVX512F__)
        if constexpr (type != KVType::f32)
            if (w.dim % (lanes * elements_per_word<type>) == 0 && lie_together(w, i, group_columns)) {
                write_key_group(w.x + i * w.x_stride, w.x_stride, block, token);
                i += group_columns - 1;
                continue;
            }
#endif
        StoredRow<type> row;
        row.take_key(w.x + i * w.x_stride, w.dim);
        if constexpr (Stored<type>::has_scales) block.scales()[token] = row.scale;
        block.write_key(token, row.elements);
    }
}

template <KVType type>
static void write_values_of(const KVWrite& w) {
    constexpr int64_t together = elements_per_word<type>;
    StoredRow<type> rows[together];
    for (int64_t i = 0; i < w.num_tokens;) {
        const HeadBlock<type> block = block_of_slot<type>(w, w.slots[i]);
        const int64_t token = w.slots[i] % w.block_size, count = lie_together(w, i, together) ? together : 1;
        const typename Stored<type>::Element* elements[together];
        for (int64_t j = 0; j < count; ++j, ++i) {
            rows[j].take_value(w.x + i * w.x_stride, w.dim);
            elements[j] = rows[j].elements;
            if constexpr (Stored<type>::has_scales) block.scales()[token + j] = rows[j].scale;
        }
        if (count == together)
            block.write_values(token, elements);
        else
            block.write_value(token, elements[0]);
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

// Positions first … last - 1 of a row that has the table.
struct CachedPositions {
    const int32_t* table = nullptr;
    int64_t key_head = 0, first = 0, last = 0;

    int64_t first_group() const { return first / group_columns; }
    int64_t num_groups() const { return first < last ? (last + group_columns - 1) / group_columns - first_group() : 0; }
};

// The lines of some positions' keys and values, fetched one after the other into the second-level cache.
template <KVType type>
class CacheLines {
    typedef HeadBlock<type> Block;

public:
    explicit CacheLines(const Attention& a)
        : a_(a), num_word_lines_(a.block_size % group_columns ? 0 : 4 * group_columns / Block::together * a.dim / line_bytes) {}

    void set(const CachedPositions& positions) {
        const int64_t first = positions.first_group() * group_columns;
        block_ = positions.table + first / a_.block_size;
        token_ = first % a_.block_size;
        key_head_ = positions.key_head;
        halves_left_ = num_word_lines_ ? 2 * positions.num_groups() : 0;
    }
    int64_t count(const CachedPositions& positions) const { return 2 * positions.num_groups() * num_word_lines_; }

    // At most so many: how many they were.
    int64_t fetch(int64_t most) {
        if (left_ == 0) {
            if (halves_left_ == 0) return 0;
            take_half();
        }
        const int64_t taken = most < left_ ? most : left_;
        for (int64_t i = 0; i < taken; ++i) {
            prefetch(at_);
            at_ += stride_;
        }
        left_ -= taken;
        return taken;
    }

private:
    static constexpr int64_t line_bytes = 64;
    static void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

    // Of a group the words of keys and then those of values, before each the line of their scales, which is not counted.
    [[gnu::noinline]] void take_half() {
        const bool are_keys = halves_left_ % 2 == 0;
        const PagedCache& cache = are_keys ? a_.keys : a_.values;
        const Block block = {cache.data + *block_ * cache.block_bytes + key_head_ * cache.head_bytes, a_.block_size, a_.dim};
        if constexpr (Stored<type>::has_scales) prefetch(block.scales() + token_);
        at_ = reinterpret_cast<const uint8_t*>(are_keys ? block.key_words(token_) : block.value_words(token_));
        stride_ = are_keys ? 4 * a_.block_size : line_bytes;
        left_ = num_word_lines_;
        --halves_left_;
        if (are_keys) return;
        token_ += group_columns;
        if (token_ < a_.block_size) return;
        token_ = 0;
        ++block_;
    }

    const Attention& a_;
    const int64_t num_word_lines_;  // of a group's keys, or of its values; 0 where groups do not lie together
    const int32_t* block_ = nullptr;
    int64_t token_ = 0, key_head_ = 0, halves_left_ = 0;
    const uint8_t* at_ = nullptr;
    int64_t stride_ = 0, left_ = 0;
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
          reads_keys_(has_whole_groups_ && a.dim % (needs_whole_slices ? slice_elements : 4) == 0),
          reads_values_(has_whole_groups_ && a.dim % group_columns == 0 && !needs_whole_slices),
          key_copies_(reinterpret_cast<uint32_t*>(copies)),
          value_copies_(key_copies_ + attention_tile * padded_dim / Block::together) {}

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
            const Place place = seen && has_whole_groups_ ? place_of(first) : Place{};
            if (seen) tile.keys[g] = reads_keys_ ? bytes(place.keys.key_words(place.token)) : copy_keys(first, place, g);
            tile.values[g] = reads_values_ && wholly ? bytes(place.values.value_words(place.token))
                                                     : copy_values(first, place, g, wholly, tile.value_row_bytes / 4);
            if constexpr (Stored<type>::has_scales) read_scales(first, place, wholly, tile, g * group_columns);
        }
    }

private:
    static const uint8_t* bytes(const void* words) { return static_cast<const uint8_t*>(words); }
    bool is_seen(int64_t position) const { return position >= begin_ && position < end_; }

    // Of a position, and where groups lie in one block of those behind it in its group.
    struct Place {
        Block keys, values;
        int64_t token;
    };
    Place place_of(int64_t position) const {
        const uint32_t at = static_cast<uint32_t>(position), block_size = static_cast<uint32_t>(a_.block_size);
        const int64_t index = table_[at / block_size];
        return {block(a_.keys, index), block(a_.values, index), at % block_size};
    }
    Block block(const PagedCache& cache, int64_t index) const {
        return {cache.data + index * cache.block_bytes + key_head_ * cache.head_bytes, a_.block_size, a_.dim};
    }

    void read_scales(int64_t first, const Place& place, bool wholly, KeyTile& tile, int64_t to) const {
        if (wholly && has_whole_groups_) {
            memcpy(tile.key_scales + to, place.keys.scales() + place.token, 4 * group_columns);
            memcpy(tile.value_scales + to, place.values.scales() + place.token, 4 * group_columns);
            return;
        }
        for (int64_t i = 0; i < group_columns; ++i) {
            const bool seen = is_seen(first + i);
            const Place at = seen ? place_of(first + i) : Place{};
            tile.key_scales[to + i] = seen ? at.keys.scales()[at.token] : 1.0f;
            tile.value_scales[to + i] = seen ? at.values.scales()[at.token] : 0.0f;
        }
    }

    const uint8_t* copy_keys(int64_t first, const Place& place, int64_t group) {
        const int64_t num_rows = padded_dim_ / Block::together, rows = a_.dim / Block::together;
        uint32_t* const copy = key_copies_ + group * group_columns * num_rows;
        if (has_whole_groups_) {
            const Word* const words = place.keys.key_words(place.token);
            for (int64_t row = 0; row < rows; ++row)
                memcpy(copy + row * group_columns, words + row * a_.block_size, 4 * group_columns);
        } else {
            for (int64_t i = 0; i < group_columns; ++i) {
                const bool seen = is_seen(first + i);
                const Place at = seen ? place_of(first + i) : Place{};
                const Word* const words = seen ? at.keys.key_words(at.token) : nullptr;
                for (int64_t row = 0; row < rows; ++row)
                    copy[row * group_columns + i] = words ? words[row * a_.block_size] : 0;
            }
        }
        memset(copy + rows * group_columns, 0, 4 * (num_rows - rows) * group_columns);
        return bytes(copy);
    }

    // The bits of a word that belong to tokens that may be read, of those from `position` on.
    uint32_t seen_of_word(int64_t position) const {
        constexpr uint32_t element = 0xffffffff >> (32 - 32 / Block::together);
        uint32_t mask = 0;
        for (int64_t i = 0; i < Block::together; ++i)
            if (is_seen(position + i)) mask |= element << i * (32 / Block::together);
        return mask;
    }

    const uint8_t* copy_values(int64_t first, const Place& place, int64_t group, bool wholly, int64_t row_words) {
        const int64_t num_rows = group_columns / Block::together;
        uint32_t* const copy = value_copies_ + group * num_rows * row_words;
        for (int64_t row = 0; row < num_rows; ++row) {
            uint32_t* const to = copy + row * row_words;
            const int64_t position = first + row * Block::together;
            const uint32_t mask = wholly ? 0xffffffff : seen_of_word(position);
            if (!mask) {
                memset(to, 0, 4 * row_words);
                continue;
            }
            const Place at = has_whole_groups_ ? place : place_of(position);
            const int64_t token = has_whole_groups_ ? place.token + row * Block::together : at.token;
            const Word* const from = at.values.value_words(token);
            for (int64_t d = 0; d < a_.dim; ++d) to[d] = from[d] & mask;
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
