// Where a linear layer's finished sums go.
#pragma once

#include "../kernels.h"
#include "activation.h"
#include "vector.h"

namespace trivium::TRIVIUM_ISA {

// Outputs that meet what is there already.
static inline Vec joined(Vec outputs, Vec held, Held what) {
    switch (what) {
        case Held::nothing: return outputs;
        case Held::summand: return outputs + held;
        case Held::silu_gate: return activate(held, Activation::silu) * outputs;
        default: return activate(held, Activation::gelu_tanh) * outputs;
    }
}

// `lanes` outputs, from weight row `row` on, of one row of x; those beyond the last weight row are dropped.
static inline void put_outputs(const LinearPart& task, int64_t row, int64_t x_row, Vec sum) {
    float* const out = task.out + x_row * task.out_stride + row;
    const int64_t count = task.weight.rows - row < lanes ? task.weight.rows - row : lanes;
    if (count == lanes) {
        if (task.bias) sum += load(task.bias + row);
        if (task.held != Held::nothing) sum = joined(sum, load(out), task.held);
        store(out, sum);
    } else {
        float bias[lanes] = {}, held[lanes] = {};
        if (task.bias) memcpy(bias, task.bias + row, 4 * count);
        if (task.held != Held::nothing) memcpy(held, out, 4 * count);
        if (task.bias) sum += load(bias);
        store(held, joined(sum, load(held), task.held));
        memcpy(out, held, 4 * count);
    }
}

}  // namespace trivium::TRIVIUM_ISA
