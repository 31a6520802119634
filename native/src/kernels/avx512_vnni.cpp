// What sums of four products of bytes (AVX-512 VNNI) make faster.
#define TRIVIUM_ISA avx512_vnni
#include "added_kernels.h"
#include "attention.h"
#include "packed_linears.h"

namespace trivium {

const PackedKernels& avx512_vnni_packed_kernels() { return avx512_vnni::packed_kernels; }
const AttentionKernels& avx512_vnni_attention_kernels() { return avx512_vnni::attention_kernels; }

}  // namespace trivium
