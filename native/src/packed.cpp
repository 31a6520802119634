#include "packed.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace trivium {

namespace {

// A block of GGUF taken apart: unsigned values, and what scales them.
struct Unpacked {
    uint8_t values[256];
    uint16_t d, dmin;         // float16
    uint8_t scales[16];       // of 16 or 32 columns, K types only
    uint8_t minima[16];
};

uint16_t read_u16(const uint8_t* p) {
    uint16_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

void nibbles(const uint8_t* bytes, uint8_t* values) {
    for (int i = 0; i < 16; ++i) {
        values[i] = bytes[i] & 15;
        values[16 + i] = bytes[i] >> 4;
    }
}

void add_bits(const uint8_t* bits, uint8_t* values) {
    for (int i = 0; i < 32; ++i) values[i] |= (bits[i / 8] >> (i % 8) & 1) << 4;
}

void k_scales(const uint8_t* packed, Unpacked& out) {
    for (int sub = 0; sub < 8; ++sub) {
        if (sub < 4) {
            out.scales[sub] = packed[sub] & 63;
            out.minima[sub] = packed[sub + 4] & 63;
        } else {
            out.scales[sub] = (packed[sub + 4] & 15) | (packed[sub - 4] >> 6) << 4;
            out.minima[sub] = (packed[sub + 4] >> 4) | (packed[sub] >> 6) << 4;
        }
    }
}

// Which bits lie where: trivium/kernels/dequantize.py says it in fewer words.
void unpack(WeightType type, const uint8_t* block, Unpacked& out) {
    out.d = out.dmin = 0;
    switch (type) {
        case WeightType::q8_0:
            out.d = read_u16(block);
            for (int i = 0; i < 32; ++i) out.values[i] = block[2 + i] ^ 0x80;
            return;
        case WeightType::q4_0:
            out.d = read_u16(block);
            return nibbles(block + 2, out.values);
        case WeightType::q4_1:
            out.d = read_u16(block);
            out.dmin = read_u16(block + 2);
            return nibbles(block + 4, out.values);
        case WeightType::q5_0:
            out.d = read_u16(block);
            nibbles(block + 6, out.values);
            return add_bits(block + 2, out.values);
        case WeightType::q5_1:
            out.d = read_u16(block);
            out.dmin = read_u16(block + 2);
            nibbles(block + 8, out.values);
            return add_bits(block + 4, out.values);
        case WeightType::q2_k:
            out.d = read_u16(block + 80);
            out.dmin = read_u16(block + 82);
            for (int i = 0; i < 256; ++i)
                out.values[i] = block[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
            for (int sub = 0; sub < 16; ++sub) {
                out.scales[sub] = block[sub] & 15;
                out.minima[sub] = block[sub] >> 4;
            }
            return;
        case WeightType::q3_k:
            out.d = read_u16(block + 108);
            for (int i = 0; i < 256; ++i)
                out.values[i] = (block[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) |
                                (block[i % 32] >> (i / 32) & 1) << 2;
            for (int sub = 0; sub < 16; ++sub) {
                const uint8_t* const packed = block + 96;
                const int low = sub < 8 ? packed[sub] & 15 : packed[sub - 8] >> 4;
                const int high = packed[8 + sub % 4] >> (sub / 4 * 2) & 3;
                out.scales[sub] = static_cast<uint8_t>((low | high << 4) - 32);
            }
            return;
        case WeightType::q4_k:
        case WeightType::q5_k: {
            const bool five = type == WeightType::q5_k;
            out.d = read_u16(block);
            out.dmin = read_u16(block + 2);
            k_scales(block + 4, out);
            const uint8_t* const low = block + (five ? 48 : 16);
            for (int i = 0; i < 256; ++i) {
                out.values[i] = low[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
                if (five) out.values[i] |= (block[16 + i % 32] >> (i / 32) & 1) << 4;
            }
            return;
        }
        case WeightType::q6_k:
            out.d = read_u16(block + 208);
            for (int i = 0; i < 256; ++i) {
                const int half = i / 128, r = i % 128;
                const int low = block[half * 64 + r % 64] >> (r / 64 * 4) & 15;
                const int high = block[128 + half * 32 + r % 32] >> (r / 32 * 2) & 3;
                out.values[i] = static_cast<uint8_t>(low | high << 4);
            }
            std::memcpy(out.scales, block + 192, 16);
            return;
        default: return;
    }
}

// Bits `shift` … `shift` + bits - 1 of a value, in the place that packed.h gives them. `out` was zeroed.
void put_bits(uint8_t* out, int bits, int row, int column, int value) {
    const int quad = column / 4, byte = 4 * row + column % 4;
    switch (bits) {
        case 8: out[quad * quad_bytes + byte] = static_cast<uint8_t>(value); return;
        case 4: out[quad % 4 * quad_bytes + byte] |= static_cast<uint8_t>((value & 15) << (quad / 4 * 4)); return;
        case 2: out[quad / 4 * quad_bytes + byte] |= static_cast<uint8_t>((value & 3) << (quad % 4 * 2)); return;
        case 1: out[quad * 8 + byte / 8] |= static_cast<uint8_t>((value & 1) << (byte % 8)); return;
        default: return;
    }
}

void put_u16(uint8_t* out, int index, uint16_t value) { std::memcpy(out + 2 * index, &value, sizeof value); }

// Words of 32 bits, a float32 or a pair of bfloat16, and float16 values: column by column, 16 rows each.
template <typename Element>
void pack_columns(const Matrix& weight, int64_t first_row, int num_rows, uint8_t* out) {
    const int64_t row_bytes = bytes_of(weight.type, weight.columns), count = row_bytes / sizeof(Element);
    constexpr int64_t block = 64 / sizeof(Element);  // a cache line of each row at a time
    const uint8_t* const rows = weight.data + first_row * row_bytes;
    for (int64_t first = 0; first < count; first += block)
        for (int row = 0; row < num_rows; ++row)
            for (int64_t i = first; i < std::min(count, first + block); ++i)
                std::memcpy(out + (i * packed_tile_rows + row) * sizeof(Element), rows + row * row_bytes + i * sizeof(Element),
                            sizeof(Element));
}

void pack_float_tile(const Matrix& weight, int64_t first_row, int num_rows, uint8_t* out) {
    if (weight.type == WeightType::f16) return pack_columns<uint16_t>(weight, first_row, num_rows, out);
    pack_columns<uint32_t>(weight, first_row, num_rows, out);
    if (weight.type == WeightType::f32 || weight.columns % 2 == 0) return;
    for (int row = 0; row < num_rows; ++row)  // half of the last pair
        std::memcpy(out + (weight.columns / 2 * packed_tile_rows + row) * 4,
                    weight.data + ((first_row + row + 1) * weight.columns - 1) * 2, 2);
}

float half_value(uint16_t half) {
    const int exponent = half >> 10 & 31, mantissa = half & 0x3ff;
    const float magnitude = exponent == 31  ? (mantissa ? NAN : INFINITY)
                            : exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                            : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
    return half & 0x8000 ? -magnitude : magnitude;
}

// What makes bytes of a unit's bits, of one row.
struct UnitNumbers {
    float scale;
    int factors[16];
    int floors[8];
};

// Of q * factor / steps, over all q, on average.
float dropped(int factor, int bits) {
    const int steps = 1 << bits;
    int sum = 0;
    for (int q = 0; q < steps; ++q) sum += q * factor % steps;
    return static_cast<float>(sum) / static_cast<float>(steps * steps);
}

// With tables for all factors: there are as many weights as make that worth it.
struct Dropped {
    float four[256], five[256];
    Dropped() {
        for (int factor = 0; factor < 256; ++factor) {
            four[factor] = dropped(factor, 4);
            five[factor] = dropped(factor, 5);
        }
    }
};

// A scale at which no value of four or five bits gets a byte beyond 127 or a factor beyond 255: what rounding the two and dropping
// does to a byte is less than 1.5. Of this scale and some larger ones the one is taken at which rounding costs least. On SmolLM2
// and WikiText, as units of 192 columns, that divides the divergence from unrounded weights by 1.8 (0.0055 nats to 0.0031).
UnitNumbers numbers_with_floors(const Unpacked& u, int bits) {
    constexpr int num_scales = 8;
    constexpr float from_scale_to_scale = 0.01f;
    static const Dropped tables;
    const float* const all_dropped = bits == 4 ? tables.four : tables.five;
    const float d = half_value(u.d), dmin = half_value(u.dmin), steps = static_cast<float>(1 << bits), largest_q = steps - 1.0f;
    float largest = 0.0f, steepest = 0.0f;
    for (int g = 0; g < 8; ++g) {
        const float floor = -dmin * u.minima[g], top = d * u.scales[g] * largest_q + floor;
        largest = std::max({largest, std::fabs(floor), std::fabs(top)});
        steepest = std::max(steepest, std::fabs(d) * u.scales[g]);
    }
    const float least = std::copysign(std::max(largest / 126.0f, steepest * steps / 255.0f), d);
    if (!std::isfinite(d) || !std::isfinite(dmin)) return {NAN, {}, {}};
    if (least == 0.0f) return {};
    UnitNumbers best = {};
    float least_cost = INFINITY;
    for (int i = 0; i < num_scales; ++i) {
        UnitNumbers tried = {};
        tried.scale = least * (1.0f + static_cast<float>(i) * from_scale_to_scale);
        const float inverse = 1.0f / tried.scale;
        float cost = 0.0f;  // the mean square, over all q, of how far a byte is from its weight
        for (int g = 0; g < 8; ++g) {
            const float factor = d * inverse * u.scales[g] * steps, rounded_factor = std::nearbyint(factor);
            tried.factors[g] = static_cast<int>(rounded_factor);
            const float floor = -dmin * inverse * u.minima[g] + all_dropped[tried.factors[g]];
            const float rounded_floor = std::nearbyint(floor);
            tried.floors[g] = static_cast<int>(rounded_floor);
            const float slope = (rounded_factor - factor) / steps, shift = rounded_floor - floor;
            cost += slope * slope * largest_q * (2.0f * largest_q + 1.0f) / 6.0f + slope * shift * largest_q + shift * shift;
        }
        cost *= tried.scale * tried.scale;
        if (cost < least_cost) {
            least_cost = cost;
            best = tried;
        }
    }
    return best;
}

UnitNumbers numbers_of_six_bits(const Unpacked& u) {
    const float d = half_value(u.d);
    float steepest = 0.0f;
    for (int i = 0; i < 16; ++i) steepest = std::max(steepest, std::fabs(d * static_cast<int8_t>(u.scales[i])));
    UnitNumbers out = {};
    out.scale = std::isfinite(d) ? steepest * 32.0f / 127.0f : NAN;
    if (!(out.scale > 0.0f)) return out;
    for (int i = 0; i < 16; ++i)
        out.factors[i] = static_cast<int>(std::lrint(d * static_cast<int8_t>(u.scales[i]) * 32.0f / out.scale));
    return out;
}

// A value of a group of units, in the place that packed.h gives it. `low` and `high` were zeroed.
void put_units_value(WeightType type, uint8_t* low, uint8_t* high, int row, int column, int q) {
    const int r = row % 4, at = r * static_cast<int>(quad_bytes) + row / 4 * 16;
    if (type == WeightType::q6_k_units) {
        const int value = (q - 32) & 63, k = column % 8, field = column / 8;
        low[at + 2 * k + field / 2] |= static_cast<uint8_t>((value & 15) << field % 2 * 4);
        high[r / 2 * quad_bytes + row / 4 * 16 + 2 * k + r % 2] |= static_cast<uint8_t>(value >> 4 << 2 * field);
        return;
    }
    const int turned = (q << 1 & 14) | (q >> 3 & 1);
    low[at + column % 16] |= static_cast<uint8_t>(turned << column / 16 * 4);
    const int bit = row / 4 * 16 + column % 16;
    if (type == WeightType::q5_k_units) high[(2 * r + column / 16) * 8 + bit / 8] |= static_cast<uint8_t>(q >> 4 << bit % 8);
}

void pack_block_tile(const Matrix& weight, int64_t first_row, uint8_t* out) {
    std::memset(out, 0, packed_tile_bytes(weight.type, weight.columns));
    const int64_t left = weight.rows - first_row;
    const int num_rows = static_cast<int>(left < packed_tile_rows ? left : packed_tile_rows);
    if (is_float(weight.type)) return pack_float_tile(weight, first_row, num_rows, out);
    const PackedLayout p = packed_layout(weight.type);
    const int64_t block_bytes = layout(weight.type).block_bytes, row_bytes = bytes_of(weight.type, weight.columns);
    const int groups = p.unit_columns / static_cast<int>(packed_group_columns);
    const int64_t group_bytes = packed_group_bytes(p), unit_bytes = p.head_bytes + groups * group_bytes;
    const int rows_per_tile = static_cast<int>(packed_tile_rows);
    for (int row = 0; row < num_rows; ++row) {
        const uint8_t* block = weight.data + (first_row + row) * row_bytes;
        uint8_t* unit = out;
        for (int64_t column = 0; column < weight.columns; column += p.unit_columns) {
            Unpacked u;
            unpack(weight.type, block, u);
            // The float16 scales begin the unit: a head of its own in the K types, the first group's scales in the plain.
            put_u16(unit, row, u.d);
            if (p.has_minima) put_u16(unit, rows_per_tile + row, u.dmin);
            for (int g = 0; g < groups; ++g) {
                uint8_t* const group = unit + p.head_bytes + g * group_bytes;
                if (p.head_bytes) {
                    if (weight.type == WeightType::q2_k) {
                        group[row] = static_cast<uint8_t>(u.scales[2 * g] | u.minima[2 * g] << 4);
                        group[16 + row] = static_cast<uint8_t>(u.scales[2 * g + 1] | u.minima[2 * g + 1] << 4);
                    } else if (p.by_16) {
                        group[row] = u.scales[2 * g];
                        group[16 + row] = u.scales[2 * g + 1];
                    } else {
                        group[row] = u.scales[g];
                        group[16 + row] = u.minima[g];
                    }
                }
                uint8_t* const low = group + p.scale_bytes;
                uint8_t* const high = low + bits_bytes(p.low_bits);
                for (int c = 0; c < packed_group_columns; ++c) {
                    const int value = u.values[g * packed_group_columns + c];
                    put_bits(low, p.low_bits, row, c, value);
                    if (p.high_bits) put_bits(high, p.high_bits, row, c, value >> p.low_bits);
                }
            }
            block += block_bytes;
            unit += unit_bytes;
        }
    }
}

void pack_units_tile(const Matrix& weight, int64_t first_row, uint8_t* out) {
    const WeightType type = in_units(weight.type);
    std::memset(out, 0, packed_tile_bytes(type, weight.columns));
    const PackedLayout p = packed_layout(type);
    const int64_t block_bytes = layout(weight.type).block_bytes, row_bytes = bytes_of(weight.type, weight.columns);
    const int64_t group_bytes = packed_group_bytes(p), unit_bytes = packed_tile_bytes(p, p.unit_columns);
    const int64_t num_rows = std::min(packed_tile_rows, weight.rows - first_row);
    for (int row = 0; row < num_rows; ++row) {
        for (int64_t i = 0; i < weight.columns / p.unit_columns; ++i) {
            uint8_t* const unit = out + i * unit_bytes;
            Unpacked u;
            unpack(weight.type, weight.data + (first_row + row) * row_bytes + i * block_bytes, u);
            const UnitNumbers numbers = p.has_minima ? numbers_with_floors(u, p.low_bits + p.high_bits) : numbers_of_six_bits(u);
            std::memcpy(unit + 4 * row, &numbers.scale, 4);
            for (int g = 0; g < p.unit_columns / packed_group_columns; ++g) {
                uint8_t* const of_group = unit + 64 + 32 * g;
                of_group[row] = static_cast<uint8_t>(numbers.factors[p.by_16 ? 2 * g : g]);
                of_group[16 + row] = static_cast<uint8_t>(p.by_16 ? numbers.factors[2 * g + 1] : numbers.floors[g]);
                uint8_t* const low = unit + p.head_bytes + g * group_bytes;
                for (int c = 0; c < packed_group_columns; ++c)
                    put_units_value(type, low, low + bits_bytes(p.low_bits), row, c, u.values[g * packed_group_columns + c]);
            }
        }
    }
}

// Upper bytes of weights, without sign, that have numbers.
struct NumberedUppers {
    uint8_t table[ShortLayout::table_entries] = {};
    uint8_t numbers[256];  // of an upper byte, with its sign; `none`: it has none

    static constexpr uint8_t none = 0x80;

    NumberedUppers() { std::fill(std::begin(numbers), std::end(numbers), none); }

    // Those that most of a slice's weights have.
    static NumberedUppers of(const uint16_t* weights) {
        std::array<uint16_t, 128> counts = {};
        for (int64_t i = 0; i < ShortLayout::slice_weights; ++i) ++counts[weights[i] >> 8 & 127];
        NumberedUppers most;
        for (uint8_t entry = 0; entry < ShortLayout::table_entries; ++entry) {
            const auto commonest = std::max_element(counts.begin(), counts.end());
            if (*commonest == 0) break;
            *commonest = 0;
            const uint8_t upper = static_cast<uint8_t>(commonest - counts.begin());
            most.table[entry] = upper;
            most.numbers[upper] = entry;
            most.numbers[upper | 128] = entry | 8;
        }
        return most;
    }
};

// A slice's weights by their places (packed.h); what lies beyond the last row or column is 0.
void read_slice(const Matrix& weight, int64_t first_row, int64_t first_column, uint16_t (&out)[ShortLayout::slice_weights]) {
    uint16_t rows[packed_tile_rows][float_slice_columns] = {};
    const int64_t num_rows = std::min(packed_tile_rows, weight.rows - first_row);
    const int64_t num_columns = std::min(float_slice_columns, weight.columns - first_column);
    for (int64_t row = 0; row < num_rows; ++row)
        std::memcpy(rows[row], weight.data + 2 * ((first_row + row) * weight.columns + first_column),
                    static_cast<size_t>(2 * num_columns));
    for (int place = 0; place < ShortLayout::slice_weights; ++place)
        out[place] = rows[ShortLayout::row(place)][ShortLayout::column(place)];
}

// Whether all of a slice's weights have numbers; those that have none get 0.
bool put_short_slice(const uint16_t* weights, const NumberedUppers& uppers, uint8_t* slice) {
    constexpr int half = ShortLayout::run_weights / 2;
    uint8_t all = 0;
    for (int64_t run = 0; run < ShortLayout::slice_weights / ShortLayout::run_weights; ++run, slice += ShortLayout::run_bytes)
        for (int h = 0; h < 2; ++h, weights += half)
            for (int byte = 0; byte < half; ++byte) {
                // Of the two vectors of 32 weights 8 of the first, then 8 of the second, have 16 lower bytes.
                const uint16_t weight = weights[byte % 16 / 8 * 32 + byte / 16 * 8 + byte % 8];
                const uint8_t number = uppers.numbers[weight >> 8];
                all |= number;
                slice[ShortLayout::number_bytes + h * half + byte] = static_cast<uint8_t>(weight);
                slice[byte] = static_cast<uint8_t>(h ? slice[byte] | (number & 15) << 4 : number & 15);
            }
    return all < NumberedUppers::none;
}

bool pack_short_tile(const Matrix& weight, int64_t first_row, uint8_t* out) {
    if (weight.columns > ShortLayout::most_columns) return false;
    const ShortLayout layout = {padded_columns(weight.columns) / float_slice_columns};
    std::memset(out, 0, static_cast<size_t>(layout.tile_bytes()));
    int64_t num_exceptions = 0;
    const auto put_exception = [&](uint32_t exception) {
        std::memcpy(out + layout.first_exception() + 4 * num_exceptions++, &exception, sizeof exception);
    };
    NumberedUppers uppers;
    for (int64_t s = 0; s < layout.num_slices; ++s) {
        uint16_t weights[ShortLayout::slice_weights];
        read_slice(weight, first_row, s * float_slice_columns, weights);
        uint8_t* const slice = out + layout.first_slice() + s * ShortLayout::slice_bytes;
        if (!put_short_slice(weights, uppers, slice)) {  // the table of the slice before mostly does
            uppers = NumberedUppers::of(weights);
            if (!put_short_slice(weights, uppers, slice))
                for (int64_t i = 0; i < ShortLayout::slice_weights; ++i) {
                    if (uppers.numbers[weights[i] >> 8] != NumberedUppers::none) continue;
                    if (num_exceptions == layout.most_exceptions()) return false;
                    put_exception(static_cast<uint32_t>(s * ShortLayout::slice_weights + i) << 8 | weights[i] >> 8);
                }
        }
        std::memcpy(out + s * ShortLayout::table_entries, uppers.table, sizeof uppers.table);
    }
    put_exception(ShortLayout::no_place << 8);
    return true;
}

}  // namespace

void put_byte_row(const int8_t* values, float scale, int64_t columns, int row, uint8_t* tile) {
    constexpr uint32_t to_unsigned = 0x80808080;  // of four bytes
    for (int64_t quad = 0; quad < columns / 4; ++quad) {
        uint32_t four;
        std::memcpy(&four, values + 4 * quad, sizeof four);
        four ^= to_unsigned;
        std::memcpy(tile + quad * quad_bytes + 4 * row, &four, sizeof four);
    }
    std::memcpy(tile + packed_tile_rows * columns + 4 * row, &scale, sizeof scale);
}

bool pack_tile(const Matrix& weight, WeightType type, int64_t first_row, uint8_t* out) {
    if (is_short(type)) return pack_short_tile(weight, first_row, out);
    is_units(type) ? pack_units_tile(weight, first_row, out) : pack_block_tile(weight, first_row, out);
    return true;
}

}  // namespace trivium
