// AVX2, FMA and F16C: x86 from about 2013 on.
#define TRIVIUM_ISA avx2
#include "table.h"

namespace trivium {

const Kernels& avx2_kernels() { return avx2::table; }

}  // namespace trivium
