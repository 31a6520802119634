// Where a linear layer's finished sums go.
#pragma once

#include "../kernels.h"
#include "vector.h"

namespace trivium::TRIVIUM_ISA {

// `lanes` outputs, from weight row `row` on, of one row of x; those beyond the last weight row are dropped.
static inline void put_outputs(const LinearPart& task, int64_t row, int64_t x_row, Vec sum) {
    float* const out = task.out + x_row * task.out_stride + row;
    const int64_t count = task.weight.rows - row < lanes ? task.weight.rows - row : lanes;
    if (count == lanes) {
        if (task.bias) sum += load(task.bias + row);
        if (task.adds) sum += load(out);
        store(out, sum);
    } else {
        for (int64_t i = 0; i < count; ++i) {
            float value = sum[i] + (task.bias ? task.bias[row + i] : 0.0f);
            out[i] = task.adds ? out[i] + value : value;
        }
    }
}

}  // namespace trivium::TRIVIUM_ISA
