// AVX-512 F, BW, DQ and VL.
#define TRIVIUM_ISA avx512
#include "table.h"

namespace trivium {

const Kernels& avx512_kernels() { return avx512::table; }

}  // namespace trivium
