// What every op asks of its inputs before it touches memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tensor.h"
#include "weight_type.h"

namespace trivium {

// A weight's tensor, and GGUF's name of its type where it is bytes.
struct WeightTensor {
    Tensor tensor;
    std::optional<std::string_view> type;
};

// Each throws std::invalid_argument, or std::out_of_range for an index, unless it holds.
void require(bool condition, const std::string& message);
void require_index(int64_t index, int64_t limit, const char* what);
// [tokens, heads, dim] float32 whose heads are dense.
void require_heads(const Tensor& t, int64_t tokens, int64_t heads, int64_t dim);

// Forms that no file has among them.
WeightType packed_type_named(std::string_view name);
WeightType type_of(const WeightTensor& weight);
WeightType packed_type_of(const WeightTensor& packed);

static constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace trivium
