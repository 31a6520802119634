// The cache's blocks: how a step's keys and values come in, and how a tile of them comes out where a kernel cannot read
// them where they lie. The layout: kernels.h.
#pragma once

#include "../kernels.h"
#include "decode.h"
#include "products.h"

namespace trivium::TRIVIUM_ISA {

static inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline int64_t elements_per_word(KVType type) { return type == KVType::bf16 ? 2 : 1; }

// Word `index` of a head's keys of one token, or a pair of values: elements 2 * index and 2 * index + 1, or element `index`.
static inline uint32_t word_of(KVType type, const float* x, int64_t index) {
    if (type == KVType::f32) return bits_of(x[index]);
    return float_to_bf16(x[2 * index]) | static_cast<uint32_t>(float_to_bf16(x[2 * index + 1])) << 16;
}

static void write_keys(const KVWrite& w) {
    const int64_t num_words = w.dim / elements_per_word(w.type);
    for (int64_t i = 0; i < w.num_tokens; ++i) {
        const float* const x = w.x + i * w.x_stride;
        uint8_t* const block = w.head + w.slots[i] / w.block_size * w.block_bytes;
        uint32_t* const column = reinterpret_cast<uint32_t*>(block) + w.slots[i] % w.block_size;
        for (int64_t j = 0; j < num_words; ++j) column[j * w.block_size] = word_of(w.type, x, j);
    }
}

static void write_values(const KVWrite& w) {
    for (int64_t i = 0; i < w.num_tokens; ++i) {
        const float* const x = w.x + i * w.x_stride;
        uint8_t* const block = w.head + w.slots[i] / w.block_size * w.block_bytes;
        const int64_t token = w.slots[i] % w.block_size;
        if (w.type == KVType::f32) {
            memcpy(block + 4 * token * w.dim, x, 4 * w.dim);
        } else {
            uint16_t* const row = reinterpret_cast<uint16_t*>(block + 4 * (token / 2) * w.dim) + token % 2;
            for (int64_t d = 0; d < w.dim; ++d) row[2 * d] = float_to_bf16(x[d]);
        }
    }
}

// A row's keys and values of one head.
struct HeadBlocks {
    const Attention& a;
    const int32_t* table;
    int64_t key_head;

    const uint8_t* keys(int64_t position) const { return block(a.keys, position); }
    const uint8_t* values(int64_t position) const { return block(a.values, position); }

private:
    const uint8_t* block(const PagedCache& cache, int64_t position) const {
        return cache.data + table[position / a.block_size] * cache.block_bytes + key_head * cache.head_bytes;
    }
};

// Keys and values of `attention_tile` positions, as pointers to groups of 16: into the cache, or to copies.
struct KeyTile {
    static constexpr int64_t num_groups = attention_tile / group_columns;
    const uint8_t* keys[num_groups];
    const uint8_t* values[num_groups];
    int64_t key_row_bytes;
    int64_t value_row_bytes;
};

// A copy has the elements of a head padded to whole slices, and zeros for positions outside begin … end - 1.
static constexpr int64_t copied_tile_floats(int64_t padded_dim) { return 2 * attention_tile * padded_dim; }

class TileReader {
public:
    // `copies` has room for copied_tile_floats. With `needs_whole_slices` every slice of 32 must lie together.
    TileReader(const HeadBlocks& blocks, int64_t begin, int64_t end, int64_t padded_dim, bool needs_whole_slices,
               float* copies)
        : blocks_(blocks),
          begin_(begin),
          end_(end),
          padded_dim_(padded_dim),
          key_copies_(reinterpret_cast<uint8_t*>(copies)),
          value_copies_(key_copies_ + attention_tile * padded_dim * element_bytes()),
          reads_keys_(a().block_size % group_columns == 0 && a().dim % (needs_whole_slices ? slice_elements : 4) == 0),
          reads_values_(a().block_size % group_columns == 0 && a().dim % group_columns == 0 && !needs_whole_slices) {}

    // The tile of positions base …, of which those in begin … end - 1 may be read.
    KeyTile tile(int64_t base) {
        KeyTile tile = {};
        tile.key_row_bytes = reads_keys_ ? 4 * a().block_size : 4 * group_columns;
        tile.value_row_bytes = reads_values_ ? 4 * a().dim : 4 * padded_dim_;
        for (int64_t g = 0; g < KeyTile::num_groups; ++g) {
            const int64_t first = base + g * group_columns, last = first + group_columns;
            const bool seen = first < end_ && last > begin_, wholly = first >= begin_ && last <= end_;
            if (seen) tile.keys[g] = reads_keys_ ? blocks_.keys(first) + 4 * (first % a().block_size) : copy_keys(first, g);
            if (reads_values_ && wholly) {
                tile.values[g] = blocks_.values(first) + value_words(first % a().block_size) * 4;
            } else {
                tile.values[g] = copy_values(first, g, tile.value_row_bytes);
            }
        }
        return tile;
    }

private:
    const Attention& a() const { return blocks_.a; }
    int64_t element_bytes() const { return a().type == KVType::bf16 ? 2 : 4; }
    int64_t value_words(int64_t token) const { return token / elements_per_word(a().type) * a().dim; }
    bool is_seen(int64_t position) const { return position >= begin_ && position < end_; }

    const uint8_t* copy_keys(int64_t first, int64_t group) {
        const int64_t num_rows = padded_dim_ / elements_per_word(a().type), rows = a().dim / elements_per_word(a().type);
        uint32_t* const copy = reinterpret_cast<uint32_t*>(key_copies_) + group * group_columns * num_rows;
        memset(copy, 0, 4 * group_columns * num_rows);
        for (int64_t i = 0; i < group_columns; ++i) {
            if (!is_seen(first + i)) continue;
            const uint32_t* const column =
                reinterpret_cast<const uint32_t*>(blocks_.keys(first + i)) + (first + i) % a().block_size;
            for (int64_t row = 0; row < rows; ++row) copy[row * group_columns + i] = column[row * a().block_size];
        }
        return reinterpret_cast<const uint8_t*>(copy);
    }

    const uint8_t* copy_values(int64_t first, int64_t group, int64_t row_bytes) {
        const int64_t per_word = elements_per_word(a().type), num_rows = group_columns / per_word;
        uint8_t* const copy = value_copies_ + group * num_rows * row_bytes;
        for (int64_t row = 0; row < num_rows; ++row) {
            uint32_t* const to = reinterpret_cast<uint32_t*>(copy + row * row_bytes);
            const int64_t position = first + row * per_word;
            const bool lower = is_seen(position), upper = per_word == 2 ? is_seen(position + 1) : lower;
            memset(to, 0, row_bytes);
            if (!lower && !upper) continue;
            const int64_t token = position % a().block_size;
            const uint32_t* const from = reinterpret_cast<const uint32_t*>(
                blocks_.values(lower ? position : position + 1)) + value_words(token);
            const uint32_t mask = (lower ? 0x0000ffff : 0) | (upper ? 0xffff0000 : 0);
            for (int64_t d = 0; d < a().dim; ++d) to[d] = from[d] & mask;
        }
        return copy;
    }

    const HeadBlocks blocks_;
    const int64_t begin_, end_, padded_dim_;
    uint8_t* const key_copies_;
    uint8_t* const value_copies_;
    const bool reads_keys_, reads_values_;
};

}  // namespace trivium::TRIVIUM_ISA
