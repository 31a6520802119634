// What products of pairs of bfloat16 (AVX-512 BF16) make faster.
#define TRIVIUM_ISA avx512_bf16
#include "added_kernels.h"
#include "attention.h"
#include "float_linears.h"

namespace trivium {

const FloatKernels& avx512_bf16_float_kernels() { return avx512_bf16::float_kernels; }
const AttentionKernels& avx512_bf16_attention_kernels() { return avx512_bf16::attention_kernels; }

}  // namespace trivium
