// Which kernel multiplies float weights of which type, and what it wants of x.
#pragma once

#include "denormals.h"
#include "float_linear.h"
#if defined(__AMX_BF16__)
#include "amx_float_linear.h"
#endif

namespace trivium::TRIVIUM_ISA {

static void float_linear(const LinearPart& task, const uint32_t* x, [[maybe_unused]] void* scratch) {
    const FlushDenormals flushed;
#if defined(__AMX_BF16__)
    if (task.weight.type == WeightType::bf16 && task.num_x >= fewest_float_tile_rows) return float_linear_by_tiles(task, x, scratch);
#endif
    switch (task.weight.type) {
        case WeightType::bf16: return float_linear_of<WeightType::bf16>(task, x);
        case WeightType::f16: return float_linear_of<WeightType::f16>(task, x);
        case WeightType::f32: return float_linear_of<WeightType::f32>(task, x);
        default: return;
    }
}

// One row of x as `float_linear` takes it for weights of `type`: padded_columns(columns) words.
static void lay_float_row(WeightType type, const float* x, int64_t columns, uint32_t* out) {
    switch (type) {
        case WeightType::bf16: return Slice<WeightType::bf16>::put_row(x, columns, out);
        case WeightType::f16: return Slice<WeightType::f16>::put_row(x, columns, out);
        case WeightType::f32: return Slice<WeightType::f32>::put_row(x, columns, out);
        default: return;
    }
}

#if defined(__AMX_BF16__)
constexpr int64_t float_scratch_bytes = float_tile_scratch;
#else
constexpr int64_t float_scratch_bytes = 0;
#endif

static constexpr FloatKernels float_kernels = {float_linear, lay_float_row, float_scratch_bytes};

}  // namespace trivium::TRIVIUM_ISA
