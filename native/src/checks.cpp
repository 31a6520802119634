#include "checks.h"

#include <stdexcept>

namespace trivium {

void require(bool condition, const std::string& message) {
    if (!condition) throw std::invalid_argument(message);
}

void require_index(int64_t index, int64_t limit, const char* what) {
    if (index < 0 || index >= limit)
        throw std::out_of_range(std::string(what) + " " + std::to_string(index) + " is outside 0 to " +
                                std::to_string(limit - 1));
}

void require_heads(const Tensor& t, int64_t tokens, int64_t heads, int64_t dim) {
    t.require_dtype(DType::f32);
    t.require_shape({tokens, heads, dim});
    t.require_contiguous_tail(2);
}

namespace {

WeightType type_named(std::string_view name, int num_types) {
    for (int i = 0; i < num_types; ++i)
        if (name == weight_layouts[i].name) return static_cast<WeightType>(i);
    throw std::invalid_argument("no kernel for weights of type " + std::string(name));
}

}  // namespace

WeightType packed_type_named(std::string_view name) { return type_named(name, num_packed_types); }

WeightType type_of(const WeightTensor& weight) {
    const Tensor& t = weight.tensor;
    if (!weight.type) {
        if (t.dtype == DType::f32) return WeightType::f32;
        if (t.dtype == DType::f16) return WeightType::f16;
        if (t.dtype == DType::bf16) return WeightType::bf16;
        throw std::invalid_argument(std::string(t.name) + " must be a floating point tensor or have a block type");
    }
    t.require_dtype(DType::u8);
    return type_named(*weight.type, num_weight_types);
}

WeightType packed_type_of(const WeightTensor& packed) {
    if (!packed.type) return type_of(packed);
    packed.tensor.require_dtype(DType::u8);
    return packed_type_named(*packed.type);
}

}  // namespace trivium
