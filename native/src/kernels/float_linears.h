// Which kernel multiplies float weights of which type, and what it wants of x.
#pragma once

#include "denormals.h"
#include "float_linear.h"
#include "short_linear.h"
#if defined(__AMX_BF16__)
#include "amx_float_linear.h"
#endif

namespace trivium::TRIVIUM_ISA {

static void float_linear(const LinearPart& task, const uint32_t* x, [[maybe_unused]] void* scratch) {
    const FlushDenormals flushed;
#if defined(__AMX_BF16__)
    if (task.num_x >= fewest_float_tile_rows) {
        if (task.weight.type == WeightType::bf16) return float_linear_by_tiles(task, x, scratch);
        if (is_short(task.weight.type)) return short_linear_by_tiles(task, x, scratch);
    }
#endif
    switch (task.weight.type) {
        case WeightType::bf16: return float_linear_of<WeightType::bf16>(task, x);
        case WeightType::f16: return float_linear_of<WeightType::f16>(task, x);
        case WeightType::f32: return float_linear_of<WeightType::f32>(task, x);
        case WeightType::short_bf16: return short_linear_by_vectors(task, x, *static_cast<ShortScratch*>(scratch));
        default: return;
    }
}

// One row of x as `float_linear` takes it for weights of `type`: padded_columns(columns) words.
static void lay_float_row(WeightType type, const float* x, int64_t columns, uint32_t* out) {
    switch (laid_type(type)) {
        case WeightType::bf16: return Slice<WeightType::bf16>::put_row(x, columns, out);
        case WeightType::f16: return Slice<WeightType::f16>::put_row(x, columns, out);
        case WeightType::f32: return Slice<WeightType::f32>::put_row(x, columns, out);
        default: return;
    }
}

static int64_t float_scratch(WeightType type, [[maybe_unused]] int64_t columns) {
    const int64_t by_vectors = is_short(type) ? int64_t{sizeof(ShortScratch)} : 0;
#if defined(__AMX_BF16__)
    const int64_t by_tiles = float_tile_scratch + (is_short(type) ? short_tile_scratch(columns) : 0);
    return by_tiles > by_vectors ? by_tiles : by_vectors;
#else
    return by_vectors;
#endif
}

static constexpr FloatKernels float_kernels = {float_linear, lay_float_row, float_scratch};

}  // namespace trivium::TRIVIUM_ISA
