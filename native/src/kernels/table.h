// Included last by the translation units of instruction sets that stand by themselves.
#pragma once

#include "attention.h"
#include "elementwise.h"
#include "float_linears.h"
#include "packed_linears.h"
#include "sampling.h"

namespace trivium::TRIVIUM_ISA {

#define TRIVIUM_NAME_OF(isa) #isa
#define TRIVIUM_NAME(isa) TRIVIUM_NAME_OF(isa)

static constexpr Kernels table = {
    .name = TRIVIUM_NAME(TRIVIUM_ISA),
    .packed = packed_kernels,
    .floats = float_kernels,
    .attention = attention_kernels,
    .quantize_row = quantize_row,
    .turn_row = turn_row,
    .decode = decode,
    .rms_norm = rms_norm,
    .rotary = rotary,
    .gated = gated,
    .layer_norm = layer_norm,
    .activate = activate_row,
    .exponentials = exponentials,
    .add_scaled = add_scaled,
    .write_keys = write_keys,
    .write_values = write_values,
    .largest = largest,
    .draw_weights = draw_weights,
    .weights_at_least = weights_at_least,
    .sum_of_exponentials = sum_of_exponentials,
};

}  // namespace trivium::TRIVIUM_ISA
