// Kernels of instruction sets that add to another one (kernels.h).
#pragma once

#include "../kernels.h"

namespace trivium {

const PackedKernels& avx512_vnni_packed_kernels();
const AttentionKernels& avx512_vnni_attention_kernels();
const FloatKernels& avx512_bf16_float_kernels();
const AttentionKernels& avx512_bf16_attention_kernels();
const PackedKernels& amx_packed_kernels();
const FloatKernels& amx_float_kernels();
const AttentionKernels& amx_attention_kernels();

}  // namespace trivium
