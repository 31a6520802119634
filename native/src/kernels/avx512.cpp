// AVX-512 F, BW, DQ and VL: Intel's servers from 2017 on.
#define TRIVIUM_ISA avx512
#include "table.h"

namespace trivium {

const Kernels& avx512_kernels() { return avx512::table; }

}  // namespace trivium
