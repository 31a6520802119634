// What kernels do differently on processors with the same instructions.
#pragma once

namespace trivium::TRIVIUM_ISA {

#if defined(__x86_64__)
static inline bool is_made_by_amd() {
    static const bool by_amd = __builtin_cpu_is("amd");
    return by_amd;
}
#else
static inline bool is_made_by_amd() { return false; }
#endif

// Processors of AMD have two units that multiply vectors and two more that add them; in those of Intel the same two do both.
static inline bool adds_beside_products() { return is_made_by_amd(); }

// Lines that are fetched to be read once (prefetchnta) leave their first-level cache without a trace. Otherwise each line of weights
// displaces one of the second-level cache, which is written to the third-level one.
static inline bool keeps_lines_out_of_lower_caches() { return is_made_by_amd(); }

}  // namespace trivium::TRIVIUM_ISA
