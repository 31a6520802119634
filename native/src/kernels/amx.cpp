// What tiles of bytes and of bfloat16 (AMX) make faster.
#define TRIVIUM_ISA amx
#include "added_kernels.h"
#include "amx_linears.h"
#include "attention.h"
#include "float_linears.h"

namespace trivium {

const PackedKernels& amx_packed_kernels() { return amx::packed_kernels; }
const FloatKernels& amx_float_kernels() { return amx::float_kernels; }
const AttentionKernels& amx_attention_kernels() { return amx::attention_kernels; }

}  // namespace trivium
