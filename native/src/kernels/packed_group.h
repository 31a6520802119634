// Packed weights of one unit of columns, as they are multiplied. With w a weight's bits and x a row's digits, a unit's part of an
// output is
//
//     x's scale * (scale * sum of w x + minimum * sum of x)                                          of a plain type
//     x's scale * (scale * sum over groups of factor * sum of w x + minimum * sum over groups of floor * sum of x)      of a K type
//
// where all sums are of whole numbers, and exact. (Types have minima or offsets of w; the latter are in the sums.)
#pragma once

#include "../packed.h"
#include "byte_products.h"

namespace trivium::TRIVIUM_ISA {

// A group of 32 columns of `lanes` rows of a tile. What it is asked for it makes from its bits.
template <WeightType type>
class Group {
public:
    static constexpr PackedLayout p = packed_layout(type);
    static constexpr int num_scales = p.by_16 ? 2 : 1;
    static constexpr int quads_per_scale = 8 / num_scales;
    static constexpr int largest = (1 << (p.low_bits + p.high_bits)) - 1;

    // Rows from `row` on of the group that begins there.
    Group(const uint8_t* group, int64_t row) : group_(group), row_(row) {}

    ByteVec quad(int i) const {
        const uint8_t* const low = group_ + p.scale_bytes + row_ * 4;
        const uint8_t* const high = group_ + p.scale_bytes + bits_bytes(p.low_bits);
        ByteVec bytes;
        if constexpr (p.low_bits == 8)
            bytes = load_quad(low + i * quad_bytes);
        else if constexpr (p.low_bits == 4)
            bytes = shifted(load_quad(low + i % 4 * quad_bytes), i / 4 * 4, 15);
        else
            bytes = shifted(load_quad(low + i / 4 * quad_bytes), i % 4 * 2, 3);
        if constexpr (p.high_bits == 1)
            bytes |= bytes_where(high + i * 8 + row_ / 2, 1 << p.low_bits);
        else if constexpr (p.high_bits == 2)
            bytes |= shifted(load_quad(high + i / 4 * quad_bytes + row_ * 4), i % 4 * 2 - p.low_bits, 3 << p.low_bits);
        return bytes;
    }

    // Of K types: whole numbers that the sums of scale s are multiplied by, those of w x and those of x.
    IntVec factor(int s) const {
        if constexpr (type == WeightType::q2_k)
            return load_unsigned(group_ + 16 * s + row_) & 15;
        else if constexpr (p.by_16)
            return load_signed(group_ + 16 * s + row_);
        else
            return load_unsigned(group_ + row_);
    }
    IntVec floor(int s) const {
        static_assert(p.has_minima);
        if constexpr (type == WeightType::q2_k)
            return load_unsigned(group_ + 16 * s + row_) >> 4;
        else
            return load_unsigned(group_ + 16 + row_);
    }

private:
    const uint8_t* group_;
    int64_t row_;
};

template <WeightType type>
class Unit {
public:
    static constexpr PackedLayout p = packed_layout(type);
    static constexpr int columns = p.unit_columns, num_groups = columns / packed_group_columns;
    static constexpr bool has_factors = num_groups > 1;
    // Sums of x are multiplied by pairs of words: the sums of 16 columns, or of 32.
    static constexpr int num_pairs = !has_factors ? 0 : p.by_16 ? num_groups : num_groups / 2;

    // The unit u of rows part * lanes … of the tile.
    Unit(const uint8_t* tile, int64_t u, int part) : unit_(tile + u * bytes), row_(part * lanes) {}

    Group<type> group(int g) const { return {unit_ + head_bytes + g * packed_group_bytes(p), row_}; }

    Vec scale() const { return load_halves(unit_ + 2 * row_); }
    Vec minimum() const {
        const Vec m = load_halves(unit_ + 32 + 2 * row_);
        return has_factors ? -m : m;
    }

    // What the i-th pair of sums of x is multiplied by, a word each: floors, or what an offset is multiplied by.
    IntVec pair(int i) const {
        const auto of = [&](int g, int s) {
            if constexpr (p.has_minima)
                return group(g).floor(s);
            else
                return group(g).factor(s);
        };
        return p.by_16 ? words_beside(of(i, 0), of(i, 1)) : words_beside(of(2 * i, 0), of(2 * i + 1, 0));
    }
    // Of a row of x, whose sums lie there.
    static int32_t pair_of_sums(const QuantizedRows& x, int64_t u, int64_t digit, int i) {
        const int16_t* const sums = p.by_16 ? x.sums_of_16 + (digit * x.columns + u * columns) / 16
                                            : x.sums_of_32 + (digit * x.columns + u * columns) / 32;
        int32_t pair;
        memcpy(&pair, sums + 2 * i, sizeof pair);
        return pair;
    }
    // What the offset of a plain type adds to the sum of w x.
    static int32_t offset_sum(const QuantizedRows& x, int64_t u) { return -p.offset * static_cast<int32_t>(x.sums[u]); }

    // The unit's part of outputs, without x's scale: `products` is the sum of w x, `others` that over pairs of sums.
    static Vec joined(Vec scale, Vec minimum, IntVec products, [[maybe_unused]] IntVec others, [[maybe_unused]] float sum) {
        if constexpr (has_factors && p.offset != 0) products -= p.offset * others;
        const Vec values = scale * to_float(products);
        if constexpr (!p.has_minima)
            return values;
        else if constexpr (has_factors)
            return fma(minimum, to_float(others), values);
        else
            return fma(minimum, splat(sum), values);
    }

private:
    static constexpr int64_t head_bytes = p.head_bytes, bytes = head_bytes + num_groups * packed_group_bytes(p);

    const uint8_t* unit_;
    int64_t row_;
};

}  // namespace trivium::TRIVIUM_ISA
