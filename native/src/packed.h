// Weights as the kernels want them: tiles of 16 rows that run along the columns, so that one vector holds the same columns
// of 16 rows and one multiply-add serves 16 outputs.
//
// A tile of float weights is a run of slices of 32 columns, the last filled up with zeros:
//     float32, float16: [32 columns][16 rows]
//     bfloat16:         [16 pairs of columns][16 rows][2]       a slice is also an AMX tile
//
// A tile of quantized weights is a run of units, of 32 columns for the plain block types and 256 for the K types:
//
//     unit  = head (K types: float16 scales of the unit, one per row, then of the minima) + groups
//     group = scales, minima | low bits | high bits             of 16 rows x 32 columns
//
// A "quad" is 64 bytes: byte 4 * row + c is column 4 * quad + c of a group, which has 8 quads. Values are unsigned.
//     8 bits: quads 0 … 7 in order
//     4 bits: vector v (64 bytes) holds quad v in its low nibbles and quad v + 4 in its high ones
//     2 bits: vector v holds quads 4 * v … 4 * v + 3, from the lowest bits up
//     1 bit:  quad q is 64 bits, bit i for byte i
//
// Rows of bytes are a form that weights of any block type can be packed into. Each run of 64 columns is turned by a Hadamard
// matrix, which spreads what is large in one column over 64, so that bytes with one scale for a whole row are enough; the
// activations are turned alike, and products of turned rows are those of the rows themselves. A sum of products then needs
// no scale before it is whole. A tile is its quads, in order, and then 16 scales (float32). A byte is 128 more than the
// value.
#pragma once

#include <cstdint>

#include "weight_type.h"

namespace trivium {

constexpr int64_t packed_tile_rows = 16;
constexpr int64_t packed_group_columns = 32;
constexpr int64_t quad_bytes = 64;

struct PackedLayout {
    int unit_columns;
    int head_bytes;
    int scale_bytes;  // of a group: scales and minima
    int low_bits;
    int high_bits;
    int offset;      // subtracted from the unsigned values
    bool has_minima;
    bool by_16;      // scales are of 16 columns, else of 32
};

static constexpr PackedLayout packed_layout(WeightType type) {
    switch (type) {
        case WeightType::q8_0: return {32, 0, 32, 8, 0, 128, false, false};
        case WeightType::q4_0: return {32, 0, 32, 4, 0, 8, false, false};
        case WeightType::q4_1: return {32, 0, 64, 4, 0, 0, true, false};
        case WeightType::q5_0: return {32, 0, 32, 4, 1, 16, false, false};
        case WeightType::q5_1: return {32, 0, 64, 4, 1, 0, true, false};
        case WeightType::q2_k: return {256, 64, 32, 2, 0, 0, true, true};
        case WeightType::q3_k: return {256, 32, 32, 2, 1, 4, false, true};
        case WeightType::q4_k: return {256, 64, 32, 4, 0, 0, true, false};
        case WeightType::q5_k: return {256, 64, 32, 4, 1, 0, true, false};
        case WeightType::q6_k: return {256, 32, 32, 4, 2, 32, false, true};
        default: return {};
    }
}

static constexpr int64_t bits_bytes(int bits) { return packed_tile_rows * packed_group_columns * bits / 8; }

static constexpr int64_t packed_group_bytes(const PackedLayout& p) {
    return p.scale_bytes + bits_bytes(p.low_bits) + bits_bytes(p.high_bits);
}

static constexpr int64_t packed_tile_bytes(const PackedLayout& p, int64_t columns) {
    return columns / p.unit_columns * (p.head_bytes + p.unit_columns / packed_group_columns * packed_group_bytes(p));
}

constexpr int64_t float_slice_columns = 32;

static constexpr int64_t padded_columns(int64_t columns) {
    return (columns + float_slice_columns - 1) / float_slice_columns * float_slice_columns;
}

static constexpr int64_t float_slice_bytes(WeightType type) {
    return packed_tile_rows * bytes_of(type, float_slice_columns);
}

constexpr int64_t turned_columns = 64;  // together
constexpr int64_t byte_rows_columns = 65536;  // at most: sums of 255 * 127 then fit into 32 bits

static constexpr bool can_be_byte_rows(int64_t columns) {
    return columns > 0 && columns % turned_columns == 0 && columns <= byte_rows_columns;
}

static constexpr bool is_byte_rows(WeightType type) { return type == WeightType::byte_rows; }

static constexpr int64_t byte_rows_tile_bytes(int64_t columns) { return packed_tile_rows * (columns + 4); }

static constexpr int64_t packed_tile_bytes(WeightType type, int64_t columns) {
    if (is_byte_rows(type)) return byte_rows_tile_bytes(columns);
    return is_float(type) ? padded_columns(columns) / float_slice_columns * float_slice_bytes(type)
                          : packed_tile_bytes(packed_layout(type), columns);
}

static constexpr int64_t packed_tiles(int64_t rows) { return (rows + packed_tile_rows - 1) / packed_tile_rows; }

static constexpr int64_t packed_bytes(WeightType type, int64_t rows, int64_t columns) {
    return packed_tiles(rows) * packed_tile_bytes(type, columns);
}

// A weight [rows, columns] in tiles; rows beyond the last are zeros.
struct PackedMatrix {
    WeightType type;
    const uint8_t* data;
    int64_t rows;
    int64_t columns;
};

// One tile, `first_row` a multiple of 16. `out` has packed_tile_bytes bytes.
void pack_tile(const Matrix& weight, int64_t first_row, uint8_t* out);

// The row `row` of a tile of rows of bytes, from its values and their scale.
void put_byte_row(const int8_t* values, float scale, int64_t columns, int row, uint8_t* tile);

// Of activations in whole numbers. Less than 127, so that the range of a row and of a weight of four bits fit into one byte
// together (kernels/halved_linear.h); values are rounded 6 % coarser for it.
constexpr int largest_quantized = 120;

// Rows of activations, each group of 32 columns with a scale of its own: x is about scale * q, |q| <= largest_quantized.
struct QuantizedRows {
    int8_t* q;         // [rows, columns], a row every `stride` bytes
    float* scales;     // [rows, columns / 32]
    float* sums;       // [rows, columns / 32]: scale * sum of q
    int32_t* q_sums;   // [rows, columns / 16]: sum of q
    int64_t columns;
    int64_t stride;

    int64_t num_groups() const { return columns / packed_group_columns; }
    QuantizedRows from_row(int64_t row) const {
        return {q + row * stride, scales + row * num_groups(), sums + row * num_groups(), q_sums + 2 * row * num_groups(),
                columns,          stride};
    }
};
// Rows that lie a power of two apart fall into the same few sets of a cache; a line between them keeps them apart.
static constexpr int64_t quantized_stride(int64_t columns) { return columns % 1024 == 0 ? columns + 64 : columns; }
static constexpr int64_t quantized_row_bytes(int64_t columns) {
    return quantized_stride(columns) + columns / 32 * (4 + 4 + 8);
}

// Rows that were turned, each with one scale: a turned x is about scale * q, |q| <= 127.
struct TurnedRows {
    int8_t* q;        // [rows, columns], a row every `stride` bytes
    float* scales;    // [rows]
    int32_t* q_sums;  // [rows]: sum of q
    int64_t columns;
    int64_t stride;

    TurnedRows from_row(int64_t row) const { return {q + row * stride, scales + row, q_sums + row, columns, stride}; }
};

}  // namespace trivium
