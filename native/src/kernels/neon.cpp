// NEON with products of bytes (the dot product extension): 64-bit Arm from about 2018 on.
#define TRIVIUM_ISA neon
#include "table.h"

namespace trivium {

const Kernels& neon_kernels() { return neon::table; }

}  // namespace trivium
