// How a weight's elements lie in memory: the plain types, and the block types of GGUF.
#pragma once

#include <cstdint>

namespace trivium {

// From byte_rows on they are no types of files: weights of other types are turned into them when they are packed (packed.h).
enum class WeightType : uint8_t {
    f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, q6_k, byte_rows, short_bf16, q4_k_units, q5_k_units,
    q6_k_units
};

struct WeightLayout {
    const char* name;  // as GGUF spells it
    int block_elements;
    int block_bytes;
};

// Indexed by WeightType.
constexpr WeightLayout weight_layouts[] = {
    {"F32", 1, 4},     {"F16", 1, 2},     {"BF16", 1, 2},    {"Q8_0", 32, 34},   {"Q4_0", 32, 18},
    {"Q4_1", 32, 20},  {"Q5_0", 32, 22},  {"Q5_1", 32, 24},  {"Q2_K", 256, 84},  {"Q3_K", 256, 110},
    {"Q4_K", 256, 144}, {"Q5_K", 256, 176}, {"Q6_K", 256, 210}, {"BYTE_ROWS", 64, 64},
    {"SHORT_BF16", 1, 2}, {"Q4_K_UNITS", 256, 148}, {"Q5_K_UNITS", 256, 180}, {"Q6_K_UNITS", 256, 212},
};
constexpr int num_packed_types = sizeof(weight_layouts) / sizeof(weight_layouts[0]);
constexpr int num_weight_types = static_cast<int>(WeightType::byte_rows);  // of files

static constexpr const WeightLayout& layout(WeightType type) { return weight_layouts[static_cast<int>(type)]; }

static constexpr bool is_float(WeightType type) { return layout(type).block_elements == 1; }

// A weight [rows, columns]; each row is a run of whole blocks.
struct Matrix {
    WeightType type;
    const uint8_t* data;
    int64_t rows;
    int64_t columns;
};

static constexpr int64_t bytes_of(WeightType type, int64_t num_elements) {
    return num_elements / layout(type).block_elements * layout(type).block_bytes;
}

}  // namespace trivium
