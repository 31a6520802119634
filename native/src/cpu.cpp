#include "cpu.h"

#include <setjmp.h>
#include <signal.h>

#include <cmath>
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace trivium {

namespace {

#if defined(__x86_64__)

uint64_t saved_by_system() {
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<uint64_t>(high) << 32 | low;
}

struct Claims {
    bool avx2 = false;
    bool avx512 = false;
    bool avx512_vnni = false;
    bool avx512_bf16 = false;
    bool amx = false;
};

// The system gives a process the state that tiles need only if asked.
bool may_use_tiles() {
#if defined(__linux__)
    constexpr long ask_for_state = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, ask_for_state, tile_data) == 0;
#else
    return false;
#endif
}

Claims claims_of_processor() {
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return {};
    const bool osxsave = c & bit_OSXSAVE, fma = c & bit_FMA, f16c = c & bit_F16C;
    if (!osxsave || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return {};
    constexpr uint64_t ymm_state = 0x6, zmm_state = 0xe6, tile_state = 0x60000;
    constexpr uint32_t amx_bf16 = 1u << 22, amx_tile = 1u << 24, amx_int8 = 1u << 25, amx_all = amx_bf16 | amx_tile | amx_int8;
    const uint64_t saved = saved_by_system();
    Claims claims;
    claims.avx2 = (saved & ymm_state) == ymm_state && (b & bit_AVX2) && fma && f16c;
    claims.avx512 = claims.avx2 && (saved & zmm_state) == zmm_state && (b & bit_AVX512F) && (b & bit_AVX512BW) &&
                    (b & bit_AVX512DQ) && (b & bit_AVX512VL);
    claims.avx512_vnni = claims.avx512 && (c & bit_AVX512VNNI);
    const bool tiles = (saved & tile_state) == tile_state && (d & amx_all) == amx_all;
    claims.avx512_bf16 = claims.avx512_vnni && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & bit_AVX512BF16);
    claims.amx = claims.avx512_bf16 && tiles && may_use_tiles();
    return claims;
}

#elif defined(__aarch64__)

bool claims_products_of_bytes() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#elif defined(__APPLE__)
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has;
#else
    return false;
#endif
}

#endif

// `memory` grown to hold that many bytes from a vector's boundary on.
float* aligned(std::vector<float>& memory, int64_t bytes) {
    memory.resize(static_cast<size_t>(bytes / 4 + 16));
    float* p = memory.data();
    while (reinterpret_cast<uintptr_t>(p) % 64) ++p;
    return p;
}

// What every kind of kernel computes from small inputs that have no special numbers in them.
std::vector<float> sample_results(const Kernels& kernels) {
    constexpr int64_t columns = 256, rows = 9, num_x = 35;
    std::vector<float> x(num_x * columns), results;
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(0.7f * static_cast<float>(i));
    x[3 * columns + 7] = 40.0f;  // a unit of two digits (packed.h)

    std::vector<float> packed_scratch, out(num_x * rows);
    std::vector<int8_t> q(num_x * columns);
    std::vector<float> quantized_memory;
    std::vector<uint32_t> laid(num_x * laid_stride(columns));
    for (int t = 0; t < num_packed_types; ++t) {
        const WeightType type = static_cast<WeightType>(t), stored = stored_type(type);
        if (is_byte_rows(type)) continue;
        // 0x2c 0x2c … is a small positive number as a float32, float16, bfloat16, scale and quantized value alike.
        std::vector<uint8_t> data(rows * bytes_of(stored, columns), 0x2c);
        std::vector<uint8_t> packed(packed_bytes(type, rows, columns));
        if (!pack_tile({stored, data.data(), rows, columns}, type, 0, packed.data())) return {};
        const LinearPart part = {num_x, {type, packed.data(), rows, columns}, 0, 1, nullptr, out.data(), rows, Held::nothing};
        if (is_float(type)) {
            for (int64_t m = 0; m < num_x; ++m)
                kernels.floats.lay_row(type, x.data() + m * columns, columns, laid.data() + m * laid_stride(columns));
            kernels.floats.linear(part, laid.data(), aligned(packed_scratch, kernels.floats.scratch_bytes(type, columns)));
        } else {
            const int64_t unit_columns = packed_layout(type).unit_columns;
            const QuantizedRows quantized = quantized_rows_in(
                aligned(quantized_memory, num_x * quantized_row_bytes(columns, unit_columns)), columns, unit_columns);
            for (int64_t m = 0; m < num_x; ++m) kernels.quantize_row(x.data() + m * columns, quantized.from_row(m));
            kernels.packed.linear(part, quantized, aligned(packed_scratch, kernels.packed.scratch_bytes(type, columns)));
        }
        results.insert(results.end(), out.begin(), out.end());
    }

    // Rows of bytes: the first rows of x are the weights.
    std::vector<uint8_t> tile(byte_rows_tile_bytes(columns));
    std::vector<float> turned(columns), row_scales(num_x);
    std::vector<int32_t> row_sums(num_x);
    const TurnedRows rows_of_x = {q.data(), row_scales.data(), row_sums.data(), columns, columns};
    for (int64_t m = 0; m < num_x; ++m)
        kernels.turn_row(x.data() + m * columns, turned.data(), rows_of_x.from_row(m));
    for (int i = 0; i < packed_tile_rows; ++i)
        put_byte_row(q.data() + i * columns, row_scales[static_cast<size_t>(i)], columns, i, tile.data());
    const PackedMatrix byte_rows = {WeightType::byte_rows, tile.data(), rows, columns};
    kernels.packed.byte_rows_linear({num_x, byte_rows, 0, 1, nullptr, out.data(), rows, Held::nothing}, rows_of_x,
                             aligned(packed_scratch, kernels.packed.scratch_bytes(byte_rows.type, columns)));
    results.insert(results.end(), out.begin(), out.end());

    std::vector<float> y(columns);
    kernels.rms_norm(x.data(), x.data() + columns, 1e-5f, y.data(), columns);
    results.insert(results.end(), y.begin(), y.end());
    kernels.rotary(x.data(), x.data() + columns, x.data() + 2 * columns, y.data(), columns / 4, columns);
    results.insert(results.end(), y.begin(), y.end());
    for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
        kernels.gated(x.data(), x.data() + columns, activation, y.data(), columns);
        results.insert(results.end(), y.begin(), y.end());
    }

    kernels.exponentials(x.data(), 1.0f, y.data(), columns);
    results.insert(results.end(), y.begin(), y.end());
    kernels.layer_norm(x.data(), x.data() + columns, x.data() + 2 * columns, 1e-5f, y.data(), columns);
    results.insert(results.end(), y.begin(), y.end());
    for (const ElementFunction function : {ElementFunction::gelu, ElementFunction::gelu_tanh, ElementFunction::relu,
                                           ElementFunction::silu}) {
        kernels.activate(x.data(), function, y.data(), columns);
        results.insert(results.end(), y.begin(), y.end());
    }

    constexpr int64_t dim = 64, num_queries = 12, num_keys = 16;  // items enough for tiles
    const int64_t slots[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int32_t table[] = {0};
    for (const KVType type : {KVType::f32, KVType::bf16, KVType::int8}) {
        std::vector<float> keys(num_keys * dim), values(num_keys * dim), attended(num_queries * dim);
        const auto cache = [](std::vector<float>& v) -> PagedCache {
            return {reinterpret_cast<uint8_t*>(v.data()), 0, 0};
        };
        KVWrite write = {x.data(), dim, num_keys, slots, cache(keys).data, 0, num_keys, dim, type};
        kernels.write_keys(write);
        write.head = cache(values).data;
        kernels.write_values(write);
        const Attention attention = {x.data() + columns, dim, dim, attended.data(), dim, dim, cache(keys), cache(values),
                                     type, num_keys, 1, dim, 0.125f, 0, 30.0f};
        std::vector<float> memory(kernels.attention.sizes(attention, num_queries).scratch + 16);
        float* attention_scratch = memory.data();
        while (reinterpret_cast<uintptr_t>(attention_scratch) % 64) ++attention_scratch;
        const AttentionRow row = {0, num_queries, num_keys - num_queries, table, 0, 1};
        kernels.attention.attend(attention, {&row, 1, num_queries, 0, 0, 1, nullptr, attention_scratch});
        results.insert(results.end(), attended.begin(), attended.end());
    }
    return results;
}

// What is jumped back to when an instruction is not one.
thread_local sigjmp_buf before_trial;
thread_local volatile sig_atomic_t on_trial = 0;

void on_illegal_instruction(int signal_number) {
    if (on_trial) siglongjmp(before_trial, 1);
    signal(signal_number, SIG_DFL);  // not ours: the instruction is met again, and the process ends as it should
}

// Empty where an instruction was refused. May leak the vectors of the broken-off run, once.
std::vector<float> try_results(const Kernels& kernels) {
    struct sigaction trial = {}, before = {};
    trial.sa_handler = on_illegal_instruction;
    sigemptyset(&trial.sa_mask);
    sigaction(SIGILL, &trial, &before);
    std::vector<float> results;
    if (sigsetjmp(before_trial, 1) == 0) {
        on_trial = 1;
        results = sample_results(kernels);
    }
    on_trial = 0;
    sigaction(SIGILL, &before, nullptr);
    return results;
}

[[maybe_unused]] Probe try_out(const Kernels& kernels, const std::vector<float>& wanted) {
    const std::vector<float> got = try_results(kernels);
    if (got.empty()) return {&kernels, false, "the processor claims it, but refused an instruction"};
    for (size_t i = 0; i < wanted.size(); ++i)
        if (!(std::fabs(got[i] - wanted[i]) <= 1e-4f * (1.0f + std::fabs(wanted[i]))))
            return {&kernels, false, "the processor claims it, but computes wrong results"};
    return {&kernels, true, "the processor has it, and a trial was right"};
}

}  // namespace

bool tells_shape_of_tiles() {
#if defined(__x86_64__)
    constexpr uint32_t tile_palettes = 0x1d, first_palette = 1;
    uint32_t a, b, c, d;
    return __get_cpuid_count(tile_palettes, first_palette, &a, &b, &c, &d) && a != 0;
#else
    return false;
#endif
}

std::vector<Probe> probe_instruction_sets() {
    const Kernels& baseline = baseline_kernels();
    std::vector<Probe> probes = {{&baseline, true, "every processor has it"}};
#if defined(__x86_64__) || defined(__aarch64__)
    const std::vector<float> wanted = sample_results(baseline);
    const auto probe = [&](const Kernels& kernels, bool claimed) {
        probes.push_back(claimed ? try_out(kernels, wanted)
                                 : Probe{&kernels, false, "the processor or the system does not offer it"});
    };
#endif
#if defined(__x86_64__)
    const Claims claims = claims_of_processor();
    probe(avx2_kernels(), claims.avx2);
    probe(avx512_kernels(), claims.avx512);
    probe(avx512_vnni_kernels(), claims.avx512_vnni);
    probe(avx512_bf16_kernels(), claims.avx512_bf16);
    probe(amx_kernels(), claims.amx);
#elif defined(__aarch64__)
    probe(neon_kernels(), claims_products_of_bytes());
#endif
    return probes;
}

}  // namespace trivium
