// AVX-512 as in avx512.cpp, and AMX tiles of bytes and of bfloat16.
#define TRIVIUM_ISA amx
#include "table.h"

namespace trivium {

const Kernels& amx_kernels() { return amx::table; }

}  // namespace trivium
