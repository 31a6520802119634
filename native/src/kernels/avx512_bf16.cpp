// AVX-512 as in avx512.cpp, and products of pairs of bfloat16.
#define TRIVIUM_ISA avx512_bf16
#include "table.h"

namespace trivium {

const Kernels& avx512_bf16_kernels() { return avx512_bf16::table; }

}  // namespace trivium
