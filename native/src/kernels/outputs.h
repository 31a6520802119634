// Where a linear layer's finished sums go.
#pragma once

#include "../kernels.h"
#include "activation.h"
#include "vector.h"

namespace trivium::TRIVIUM_ISA {

// Outputs that meet what is there already.
template <Held what>
static inline Vec joined(Vec outputs, Vec held) {
    if constexpr (what == Held::nothing) return outputs;
    if constexpr (what == Held::summand) return outputs + held;
    return activate(held, what == Held::silu_gate ? Activation::silu : Activation::gelu_tanh) * outputs;
}

// Calls use.operator()<held>().
template <typename Use>
static inline auto with_held(Held held, const Use& use) {
    switch (held) {
        case Held::nothing: return use.template operator()<Held::nothing>();
        case Held::summand: return use.template operator()<Held::summand>();
        case Held::silu_gate: return use.template operator()<Held::silu_gate>();
        default: return use.template operator()<Held::gelu_tanh_gate>();
    }
}

// Places of put_many_outputs, before the products are summed: what is there is wanted with them, or has to come before it can be
// written over.
static inline void fetch_outputs(const LinearPart& task, int64_t row, int vectors, int64_t first_x, int64_t num_x) {
    const float* const out = task.out + first_x * task.out_stride + row;
    for (int64_t m = 0; m < num_x; ++m)
        for (int v = 0; v < vectors; ++v) __builtin_prefetch(out + m * task.out_stride + v * lanes, 1, 3);
}

// `lanes` outputs, from weight row `row` on, of one row of x; those beyond the last weight row are dropped.
static inline void put_outputs(const LinearPart& task, int64_t row, int64_t x_row, Vec sum) {
    float* const out = task.out + x_row * task.out_stride + row;
    const auto join = [&](Vec outputs, const float* held) {
        return with_held(task.held, [&]<Held what>() { return joined<what>(outputs, load(held)); });
    };
    const int64_t count = task.weight.rows - row < lanes ? task.weight.rows - row : lanes;
    if (count == lanes) {
        if (task.bias) sum += load(task.bias + row);
        if (task.held != Held::nothing) sum = join(sum, out);
        store(out, sum);
    } else {
        float bias[lanes] = {}, held[lanes] = {};
        if (task.bias) memcpy(bias, task.bias + row, 4 * count);
        if (task.held != Held::nothing) memcpy(held, out, 4 * count);
        if (task.bias) sum += load(bias);
        store(held, join(sum, held));
        memcpy(out, held, 4 * count);
    }
}

// As put_outputs for `vectors` (at most 2) times `lanes` outputs of many rows of x: sum_of(m, v) are those of row first_x + m.
// What is known of all of them is asked once, and a row's outputs are written together, since they lie beside each other.
template <typename SumOf>
static inline void put_many_outputs(const LinearPart& task, int64_t row, int vectors, int64_t first_x, int64_t num_x,
                                    const SumOf& sum_of) {
    const auto put_whole = [&]<Held held, bool has_bias>() {
        Vec bias[2];
        for (int v = 0; has_bias && v < 2; ++v) bias[v] = load(task.bias + row + v * lanes);
        for (int64_t m = 0; m < num_x; ++m) {
            float* const out = task.out + (first_x + m) * task.out_stride + row;
            for (int v = 0; v < 2; ++v) {
                Vec sum = sum_of(m, v);
                if constexpr (has_bias) sum += bias[v];
                if constexpr (held != Held::nothing) sum = joined<held>(sum, load(out + v * lanes));
                store(out + v * lanes, sum);
            }
        }
    };
    if (vectors == 2 && row + 2 * lanes <= task.weight.rows) {
        with_held(task.held, [&]<Held held>() {
            task.bias ? put_whole.template operator()<held, true>() : put_whole.template operator()<held, false>();
        });
    } else {
        for (int64_t m = 0; m < num_x; ++m)
            for (int v = 0; v < vectors; ++v)
                if (row + v * lanes < task.weight.rows) put_outputs(task, row + v * lanes, first_x + m, sum_of(m, v));
    }
}

}  // namespace trivium::TRIVIUM_ISA
