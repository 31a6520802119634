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

// Whether programs that ask the processor for the shape of its tiles are told one. A virtual machine may offer tiles and hide
// their shape; our own kernels do not ask.
bool tells_shape_of_tiles();

}  // namespace trivium
