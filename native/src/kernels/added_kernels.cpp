// Instruction sets that add to another one: its kernels, but for those that their instructions make faster. Compiled for every
// processor, since it runs before it is known which one this is.
#include "added_kernels.h"

namespace trivium {

const Kernels& avx512_vnni_kernels() {
    static const Kernels kernels = [] {
        Kernels all = avx512_kernels();
        all.name = "avx512_vnni";
        all.packed = avx512_vnni_packed_kernels();
        all.attention = avx512_vnni_attention_kernels();
        return all;
    }();
    return kernels;
}

const Kernels& avx512_bf16_kernels() {
    static const Kernels kernels = [] {
        Kernels all = avx512_vnni_kernels();
        all.name = "avx512_bf16";
        all.floats = avx512_bf16_float_kernels();
        all.attention = avx512_bf16_attention_kernels();
        return all;
    }();
    return kernels;
}

const Kernels& amx_kernels() {
    static const Kernels kernels = [] {
        Kernels all = avx512_vnni_kernels();
        all.name = "amx";
        all.packed = amx_packed_kernels();
        all.floats = amx_float_kernels();
        all.attention = amx_attention_kernels();
        return all;
    }();
    return kernels;
}

}  // namespace trivium
