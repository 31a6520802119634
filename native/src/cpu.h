// Which instruction sets this machine really runs.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace trivium {

struct Probe {
    const Kernels* kernels;
    bool usable;
    std::string reason;
};

// Best last. The baseline is always usable; each other one is asked for by cpuid, by what the system saves on a
// switch of tasks, and then by running it: a machine that lies about itself loses speed, not the process.
std::vector<Probe> probe_instruction_sets();

}  // namespace trivium
