// Stands in for instruction sets whose processor lies: one refuses an instruction, the others compute wrong results.
// Prints what the probe finds, one "name usable reason" a line.
#include <cstdio>

#include "../src/cpu.h"

namespace trivium {

const Kernels& avx2_kernels() {
    static Kernels kernels = baseline_kernels();
    kernels.name = "avx2";
    kernels.rms_norm = [](const float*, const float*, float, float* out, int64_t dim) {
        for (int64_t i = 0; i < dim; ++i) out[i] = 7.0f;
    };
    return kernels;
}

const Kernels& avx512_kernels() {
    static Kernels kernels = baseline_kernels();
    kernels.name = "avx512";
    kernels.packed.linear = [](const LinearPart&, const QuantizedRows&, void*) { __builtin_trap(); };
    return kernels;
}

const Kernels& avx512_vnni_kernels() {
    static Kernels kernels = baseline_kernels();
    kernels.name = "avx512_vnni";
    kernels.packed.byte_rows_linear = [](const LinearPart& part, const TurnedRows&, void*) { part.out[0] = 7.0f; };
    return kernels;
}

const Kernels& avx512_bf16_kernels() {
    static Kernels kernels = baseline_kernels();
    kernels.name = "avx512_bf16";
    kernels.floats.linear = [](const LinearPart& part, const uint32_t*, void*) { part.out[0] = 7.0f; };
    return kernels;
}

const Kernels& amx_kernels() {
    static Kernels kernels = baseline_kernels();
    kernels.name = "amx";
    kernels.packed.linear = [](const LinearPart& part, const QuantizedRows&, void*) { part.out[0] = 7.0f; };
    return kernels;
}

}  // namespace trivium

int main() {
    for (const trivium::Probe& probe : trivium::probe_instruction_sets())
        std::printf("%s %d %s\n", probe.kernels->name, probe.usable, probe.reason.c_str());
}
