// Packed weights of one group of columns, as they are multiplied.
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

    // The group g of rows part * lanes … of the tile.
    Group(const uint8_t* tile, int64_t g, int part)
        : unit_(tile + g / groups_per_unit * unit_bytes),
          group_(unit_ + p.head_bytes + g % groups_per_unit * packed_group_bytes(p)),
          row_(part * lanes) {}

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

    Vec scale(int s) const {
        const Vec d = load_halves(unit_ + 2 * row_);
        if constexpr (p.head_bytes == 0)
            return d;
        else if constexpr (type == WeightType::q2_k)
            return d * to_float(load_unsigned(group_ + 16 * s + row_) & 15);
        else if constexpr (p.by_16)
            return d * to_float(load_signed(group_ + 16 * s + row_));
        else
            return d * to_float(load_unsigned(group_ + row_));
    }

    // What is added to each value, where the type has it.
    Vec minimum(int s) const {
        const Vec d = load_halves(unit_ + 32 + 2 * row_);
        if constexpr (p.head_bytes == 0)
            return d;
        else if constexpr (type == WeightType::q2_k)
            return -(d * to_float(load_unsigned(group_ + 16 * s + row_) >> 4));
        else
            return -(d * to_float(load_unsigned(group_ + 16 + row_)));
    }

    // Of the columns of scale s of group g of a row of x: what a minimum is multiplied by, and what the offset adds to the
    // whole-number sum of products.
    static float minimum_factor(int s, const QuantizedRows& x, int64_t row, int64_t g) {
        const int64_t at = row * x.num_groups() + g;
        return p.by_16 ? x.scales[at] * static_cast<float>(x.q_sums[2 * at + s]) : x.sums[at];
    }
    static int32_t offset_sum(int s, const QuantizedRows& x, int64_t row, int64_t g) {
        const int32_t* const halves = x.q_sums + 2 * (row * x.num_groups() + g);
        return -p.offset * (p.by_16 ? halves[s] : halves[0] + halves[1]);
    }

private:
    static constexpr int64_t groups_per_unit = p.unit_columns / packed_group_columns;
    static constexpr int64_t unit_bytes = p.head_bytes + groups_per_unit * packed_group_bytes(p);

    const uint8_t* unit_;
    const uint8_t* group_;
    int64_t row_;
};

}  // namespace trivium::TRIVIUM_ISA
