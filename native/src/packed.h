// Weights as the kernels want them: tiles of 16 rows that run along the columns, so that one vector holds the same columns
// of 16 rows and one multiply-add serves 16 outputs.
//
// A tile of float weights is a run of slices of 32 columns, the last filled up with zeros:
//     float32, float16: [32 columns][16 rows]
//     bfloat16:         [16 pairs of columns][16 rows][2]       a slice is also an AMX tile
//
// Short bfloat16 is a form of bfloat16 that keeps every bit in about 12.2: the upper byte of a value, which is its sign and the
// upper seven bits of its exponent, has in 512 weights that lie together few values but for the sign. Each slice has a table of
// eight, its commonest or, where these are all it has, those of the slice before; and a number of four bits for each of its
// weights: the sign, and a place in the table. Weights whose upper byte is not in the table are listed behind the slices.
//
//     tile    = tables [slices][8 bytes, without sign], up to a whole line | slices | exceptions
//     slice   = four times: 64 bytes of numbers | 128 lower bytes           of 16 rows x 8 columns
//     numbers: byte i has those of lower bytes i (low nibble) and 64 + i (high nibble); the sign is the upper bit
//     lower bytes: 16 bytes are of 4 rows, 4 columns: [2: even columns, odd][4 rows][2: the second, the first]
//     exceptions: 32 bits each, in the order of their places in the tile: place << 8 | upper byte; then the end
//
// Slices that are made of it are [8 times 4 columns][2: even columns, odd][16 rows][2: the second, the first]: a vector has two
// columns of one of the two chains in which they are summed (kernels/float_linear.h). A place is a weight's number in that order.
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
//
// Units of bytes are a form for K types of four to six bits. A weight is a scale, which 256 columns of a row share, times a whole
// number that fits into a byte, so that a sum of products over a unit needs no scale either. What is kept is the weight's own
// bits q; the byte is made of them when it is multiplied, with two small numbers of its group:
//
//     four bits: byte = q * factor / 16 + floor       five: q * factor / 32 + floor       factor unsigned, of 32 columns
//     six bits:  byte = ((q - 32) * factor + 16) / 32                                     factor signed, of 16 columns
//
// where what is left of a division is dropped (towards smaller numbers). Factors and floors are rounded, floors with what is
// dropped on average in them (docs/performance.md says what that costs).
//
//     unit  = 16 scales (float32), 16 factors and 16 floors (or 16 factors more) for each group + groups
//     group = low bits | high bits             of 16 rows x 32 columns
//
// A vector r (64 bytes) of low bits has rows r, 4 + r, 8 + r and 12 + r, 16 bytes each, so that 16 values of q find their bytes in
// a table of a row.
//     four and five bits: byte c has column c in its low nibble and column 16 + c in its high one; their fourth bit comes first,
//                         since entries 8 … 15 of a table lie between those before them
//     the fifth bit:      vector r has 64 bits of columns 0 … 15, then 64 of columns 16 … 31, in the order of its bytes
//     six bits:           word k (16 bits) has columns k, 8 + k, 16 + k and 24 + k, from the lowest nibble up, of q - 32
//     their high bits:    vector r / 2, word k: the same columns, from the lowest bits of its byte r % 2 up
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
        case WeightType::q4_k_units: return {256, 320, 0, 4, 0, 0, true, false};
        case WeightType::q5_k_units: return {256, 320, 0, 4, 1, 0, true, false};
        case WeightType::q6_k_units: return {256, 320, 0, 4, 2, 32, false, true};
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

// From a row of activations, laid for float weights, to the next, in words of 4 bytes: an odd number of cache lines, since rows
// that are a power of two apart meet in few sets of a cache.
static constexpr int64_t laid_stride(int64_t columns) { return 16 * (padded_columns(columns) / 16 | 1); }

static constexpr int64_t float_slice_bytes(WeightType type) {
    return packed_tile_rows * bytes_of(type, float_slice_columns);
}

static constexpr bool is_short(WeightType type) { return type == WeightType::short_bf16; }
// That activations are laid for.
static constexpr WeightType laid_type(WeightType type) { return is_short(type) ? WeightType::bf16 : type; }

// Of short bfloat16.
struct ShortLayout {
    static constexpr int64_t slice_weights = packed_tile_rows * float_slice_columns;
    static constexpr int64_t run_weights = 128, number_bytes = 64, run_bytes = number_bytes + run_weights;
    static constexpr int64_t slice_bytes = slice_weights / run_weights * run_bytes;
    static constexpr int64_t table_entries = 8;
    static constexpr uint32_t no_place = 0xffffff;
    static constexpr int64_t most_columns = 1 << 19;  // places then have 23 bits

    // Of the weight with that place in a slice.
    static constexpr int row(int place) { return place % 32 / 2; }
    static constexpr int column(int place) { return place / 64 * 4 + place / 32 % 2 + 2 * (1 - place % 2); }

    int64_t num_slices;

    constexpr int64_t first_slice() const { return (table_entries * num_slices + 63) / 64 * 64; }
    constexpr int64_t first_exception() const { return first_slice() + slice_bytes * num_slices; }
    // One for a slice, where one slice in fifty to five hundred was seen to have one.
    constexpr int64_t most_exceptions() const { return num_slices + 15; }
    constexpr int64_t tile_bytes() const { return (first_exception() + 4 * (most_exceptions() + 1) + 63) / 64 * 64; }
};

constexpr int64_t turned_columns = 64;  // together
constexpr int64_t byte_rows_columns = 65536;  // at most: sums of 255 * 127 then fit into 32 bits

static constexpr bool can_be_byte_rows(int64_t columns) {
    return columns > 0 && columns % turned_columns == 0 && columns <= byte_rows_columns;
}

static constexpr bool is_byte_rows(WeightType type) { return type == WeightType::byte_rows; }

// The form in units of bytes of a type; the type itself, where there is none.
static constexpr WeightType in_units(WeightType type) {
    switch (type) {
        case WeightType::q4_k: return WeightType::q4_k_units;
        case WeightType::q5_k: return WeightType::q5_k_units;
        case WeightType::q6_k: return WeightType::q6_k_units;
        default: return type;
    }
}
static constexpr bool is_units(WeightType type) { return type >= WeightType::q4_k_units; }
// The type of files that weights of the type are made from.
static constexpr WeightType stored_type(WeightType type) {
    if (is_short(type)) return WeightType::bf16;
    return is_units(type) ? static_cast<WeightType>(static_cast<int>(type) - static_cast<int>(WeightType::q4_k_units) +
                                                    static_cast<int>(WeightType::q4_k))
                          : type;
}
static_assert(stored_type(in_units(WeightType::q6_k)) == WeightType::q6_k);

static constexpr int64_t byte_rows_tile_bytes(int64_t columns) { return packed_tile_rows * (columns + 4); }

static constexpr int64_t packed_tile_bytes(WeightType type, int64_t columns) {
    if (is_byte_rows(type)) return byte_rows_tile_bytes(columns);
    if (is_short(type)) return ShortLayout{padded_columns(columns) / float_slice_columns}.tile_bytes();
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

// One tile in the weight's own type, as units of bytes or as short bfloat16; `first_row` is a multiple of 16. `out` has
// packed_tile_bytes bytes. False: short bfloat16 has no room for all of its exceptions, or no numbers for so many columns.
[[nodiscard]] bool pack_tile(const Matrix& weight, WeightType type, int64_t first_row, uint8_t* out);

// The row `row` of a tile of rows of bytes, from its values and their scale.
void put_byte_row(const int8_t* values, float scale, int64_t columns, int row, uint8_t* tile);

// Of activations in whole numbers. Less than 127, so that the range of a row and of a weight of four bits fit into one byte
// together (kernels/halved_linear.h); values are rounded 6 % coarser for it.
constexpr int largest_quantized = 120;
// A digit of activations has so many steps of the next one.
constexpr int steps_of_a_digit = 2 * largest_quantized;
// Units of activations whose first digits have a smaller mean of squares have a second digit: their largest is more than eight
// times the root of their mean square, and what is rounded away matters beside the many that are small.
constexpr int least_mean_square = largest_quantized * largest_quantized / 64;

static constexpr int64_t digits_of(int64_t unit_columns) { return unit_columns > packed_group_columns ? 2 : 1; }
static_assert(largest_quantized * largest_quantized >= least_mean_square * packed_group_columns);  // so one digit is enough

// Rows of activations in whole numbers, for weights whose units have as many columns. Each unit has one scale: x is about
// scale * (digit 0 + digit 1 / steps_of_a_digit), |digit| <= largest_quantized; where a unit has no second digit, it is 0.
// All that belongs to a row lies together.
struct QuantizedRows {
    int8_t* q;            // [digits, columns]
    float* scales;        // [units]
    float* sums;          // [units]: of a unit's digits, if it has one digit
    int16_t* sums_of_16;  // [digits, columns / 16], else; of so many columns
    int16_t* sums_of_32;  // [digits, columns / 32]
    uint8_t* is_double;   // [units]: has it a second digit
    int64_t columns;
    int64_t unit_columns;
    int64_t stride;  // bytes from what belongs to a row to that of the next

    int64_t num_units() const { return columns / unit_columns; }
    // Of the first row.
    float digit_scale(int64_t unit, int64_t digit) const {
        return digit == 0 ? scales[unit] : scales[unit] * (1.0f / steps_of_a_digit);
    }
    QuantizedRows from_row(int64_t row) const {
        const auto moved = [bytes = row * stride](auto* p) { return reinterpret_cast<decltype(p)>(reinterpret_cast<char*>(p) + bytes); };
        return {moved(q),         moved(scales), moved(sums),  moved(sums_of_16), moved(sums_of_32),
                moved(is_double), columns,       unit_columns, stride};
    }
};

// Rows that lie a power of two apart would fall into the same few sets of a cache: they are an odd number of lines apart.
static constexpr int64_t quantized_row_bytes(int64_t columns, int64_t unit_columns) {
    const int64_t units = columns / unit_columns, digits = digits_of(unit_columns);
    const int64_t sums = digits == 1 ? 4 * units : digits * (columns / 16 + columns / 32) * 2;
    const int64_t lines = (digits * columns + 4 * units + sums + units + 63) / 64;
    return 64 * (lines | 1);
}

// In memory for as many rows of quantized_row_bytes.
static inline QuantizedRows quantized_rows_in(void* memory, int64_t columns, int64_t unit_columns) {
    const int64_t units = columns / unit_columns, digits = digits_of(unit_columns);
    QuantizedRows rows = {};
    rows.columns = columns;
    rows.unit_columns = unit_columns;
    rows.stride = quantized_row_bytes(columns, unit_columns);
    rows.q = static_cast<int8_t*>(memory);
    rows.scales = reinterpret_cast<float*>(rows.q + digits * columns);
    rows.sums = rows.scales + units;
    rows.sums_of_16 = reinterpret_cast<int16_t*>(rows.sums);
    rows.sums_of_32 = rows.sums_of_16 + digits * columns / 16;
    rows.is_double = digits == 1 ? reinterpret_cast<uint8_t*>(rows.sums + units)
                                 : reinterpret_cast<uint8_t*>(rows.sums_of_32 + digits * columns / 32);
    return rows;
}

static constexpr int64_t turned_stride(int64_t columns) { return columns % 1024 == 0 ? columns + 64 : columns; }

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
