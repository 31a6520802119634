// What every processor of this architecture runs.
#define TRIVIUM_ISA baseline
#include "table.h"

namespace trivium {

const Kernels& baseline_kernels() { return baseline::table; }

}  // namespace trivium
