// What every kernel computes with NEON, or on x86 with AVX2, as one fingerprint a case: both must print the same lines.
// Arguments: a seed. Prints "case fingerprint".
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../src/cpu.h"

using namespace trivium;

namespace {

// The standard's distributions differ from library to library; these do not.
struct Draw {
    std::mt19937 bits;
    float number() {  // about normal: a sum of twelve
        float sum = -6.0f;
        for (int i = 0; i < 12; ++i) sum += static_cast<float>(bits() >> 8) * 0x1p-24f;
        return sum;
    }
    std::vector<float> numbers(int64_t count) {
        std::vector<float> v(static_cast<size_t>(count));
        for (float& x : v) x = number();
        return v;
    }
};

template <typename T>
unsigned long long fingerprint(const std::vector<T>& v) {
    unsigned long long hash = 1469598103934665603ull;
    const unsigned char* const bytes = reinterpret_cast<const unsigned char*>(v.data());
    for (size_t i = 0; i < v.size() * sizeof(T); ++i) hash = (hash ^ bytes[i]) * 1099511628211ull;
    return hash;
}

template <typename T>
void tell(const std::string& name, const std::vector<T>& result) {
    std::printf("%s %016llx\n", name.c_str(), fingerprint(result));
}

template <typename T>
T* at_vector(std::vector<char>& memory, int64_t bytes) {
    memory.resize(static_cast<size_t>(bytes) + 64);
    return reinterpret_cast<T*>(memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64));
}

void linears(const Kernels& kernels, Draw draw) {
    for (int t = 0; t < num_packed_types; ++t) {
        const WeightType type = static_cast<WeightType>(t), stored = stored_type(type);
        if (is_byte_rows(type)) continue;
        for (const int64_t num_x : {1, 3, 8, 33}) {
            const int64_t rows = 40, columns = 768;
            std::vector<uint8_t> blocks(rows * bytes_of(stored, columns));
            // As float16: small and finite. Short bfloat16 takes eight upper bytes and some more.
            for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(draw.bits() % (is_short(type) ? 8 : 60));
            if (is_short(type)) blocks[1] = 40;
            const int64_t tiles = packed_tiles(rows), tile_bytes = packed_tile_bytes(type, columns);
            std::vector<uint8_t> packed(packed_bytes(type, rows, columns));
            for (int64_t i = 0; i < tiles; ++i)
                if (!pack_tile({stored, blocks.data(), rows, columns}, type, 16 * i, packed.data() + i * tile_bytes)) std::abort();
            std::vector<float> x = draw.numbers(num_x * columns);
            x[columns / 2] = 30.0f;  // a unit of two digits
            const std::vector<float> bias = draw.numbers(rows);
            std::vector<float> out(num_x * rows);
            const LinearPart part = {num_x, {type, packed.data(), rows, columns}, 0, tiles, bias.data(), out.data(), rows, Held::nothing};
            const std::string name = std::string(layout(type).name) + "/" + std::to_string(num_x);
            if (is_float(type)) {
                std::vector<uint32_t> laid(num_x * laid_stride(columns));
                for (int64_t m = 0; m < num_x; ++m)
                    kernels.floats.lay_row(type, x.data() + m * columns, columns, laid.data() + m * laid_stride(columns));
                std::vector<char> memory;
                kernels.floats.linear(part, laid.data(), at_vector<void>(memory, kernels.floats.scratch_bytes(type, columns)));
            } else {
                const int64_t unit_columns = packed_layout(type).unit_columns;
                std::vector<char> x_memory;
                const QuantizedRows quantized = quantized_rows_in(
                    at_vector<void>(x_memory, num_x * quantized_row_bytes(columns, unit_columns)), columns, unit_columns);
                for (int64_t m = 0; m < num_x; ++m) kernels.quantize_row(x.data() + m * columns, quantized.from_row(m));
                std::vector<char> memory;
                void* const scratch = at_vector<void>(memory, kernels.packed.scratch_bytes(type, columns));
                kernels.packed.linear(part, quantized, scratch);
            }
            tell(name, out);
            if (num_x == 1 && stored == type) {
                std::vector<float> decoded(rows * columns);
                kernels.decode(type, blocks.data(), decoded.data(), rows * columns);
                tell(std::string("decode/") + layout(type).name, decoded);
            }
        }
    }
}

void byte_rows(const Kernels& kernels, Draw draw) {
    const int64_t rows = 40, columns = 576, tiles = packed_tiles(rows), tile_bytes = byte_rows_tile_bytes(columns);
    std::vector<uint8_t> packed(tiles * tile_bytes);
    std::vector<float> turned(columns);
    std::vector<int8_t> bytes(columns);
    for (int64_t row = 0; row < 16 * tiles; ++row) {
        float scale;
        int32_t sum;
        kernels.turn_row(draw.numbers(columns).data(), turned.data(), {bytes.data(), &scale, &sum, columns, columns});
        put_byte_row(bytes.data(), scale, columns, int(row % 16), packed.data() + row / 16 * tile_bytes);
    }
    tell("turned", packed);
    for (const int64_t num_x : {1, 3, 8, 33}) {
        const std::vector<float> x = draw.numbers(num_x * columns), bias = draw.numbers(rows);
        std::vector<float> scales(num_x), out(num_x * rows);
        std::vector<int32_t> sums(num_x);
        std::vector<int8_t> q(num_x * columns);
        const TurnedRows all = {q.data(), scales.data(), sums.data(), columns, columns};
        for (int64_t m = 0; m < num_x; ++m) kernels.turn_row(x.data() + m * columns, turned.data(), all.from_row(m));
        const PackedMatrix matrix = {WeightType::byte_rows, packed.data(), rows, columns};
        std::vector<char> memory;
        kernels.packed.byte_rows_linear({num_x, matrix, 0, tiles, bias.data(), out.data(), rows, Held::nothing}, all,
                                 at_vector<void>(memory, kernels.packed.scratch_bytes(matrix.type, columns)));
        tell("byte_rows/" + std::to_string(num_x), out);
    }
}

void attentions(const Kernels& kernels, Draw draw) {
    const int64_t block_size = 16, dim = 64, num_blocks = 12, num_keys = 150, group = 3;
    for (const KVType type : {KVType::f32, KVType::bf16, KVType::int8})
        for (const int64_t num_queries : {1, 5, 40}) {
            std::vector<float> keys(num_blocks * block_size * (dim + 1)), values(keys.size());
            const int64_t block_bytes = 4 * block_size * (dim + 1);
            std::vector<int64_t> slots;
            for (int64_t i = 0; i < num_keys; ++i) slots.push_back((num_blocks - 1 - i / block_size) * block_size + i % block_size);
            std::vector<int32_t> table;
            for (int64_t i = 0; i < num_blocks; ++i) table.push_back(static_cast<int32_t>(num_blocks - 1 - i));
            const std::vector<float> k = draw.numbers(num_keys * dim), v = draw.numbers(num_keys * dim);
            const std::vector<float> q = draw.numbers(num_queries * group * dim);
            KVWrite write = {k.data(), dim, num_keys, slots.data(), reinterpret_cast<uint8_t*>(keys.data()), block_bytes,
                             block_size, dim, type};
            kernels.write_keys(write);
            write.x = v.data();
            write.head = reinterpret_cast<uint8_t*>(values.data());
            kernels.write_values(write);
            std::vector<float> out(q.size());
            const Attention attention = {q.data(), group * dim, dim, out.data(), group * dim, dim,
                                         {reinterpret_cast<uint8_t*>(keys.data()), block_bytes, 0},
                                         {reinterpret_cast<uint8_t*>(values.data()), block_bytes, 0},
                                         type, block_size, group, dim, 0.125f, 0, 0.0f};
            std::vector<char> memory;
            float* const scratch = at_vector<float>(memory, 4 * kernels.attention.sizes(attention, num_queries * group).scratch);
            const int64_t last_tile = (num_keys + attention_tile - 1) / attention_tile;
            const AttentionRow row = {0, num_queries, num_keys - num_queries, table.data(), 0, last_tile};
            kernels.attention.attend(attention, {&row, 1, num_queries, 0, 0, last_tile, nullptr, scratch});
            tell("attention/" + std::to_string(int(type)) + "/" + std::to_string(num_queries), out);
        }
}

void others(const Kernels& kernels, Draw draw) {
    const int64_t count = 517;
    const std::vector<float> x = draw.numbers(count), y = draw.numbers(count), z = draw.numbers(count);
    std::vector<float> out(count);
    kernels.rms_norm(x.data(), y.data(), 1e-5f, out.data(), count);
    tell("rms_norm", out);
    kernels.rotary(x.data(), y.data(), z.data(), out.data(), 100, count);
    tell("rotary", out);
    for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
        kernels.gated(x.data(), y.data(), activation, out.data(), count);
        tell("gated/" + std::to_string(int(activation)), out);
    }
    kernels.add_scaled(x.data(), 0.3f, out.data(), count);
    tell("add_scaled", out);
    const Largest largest = kernels.largest(x.data(), count);
    tell("largest", std::vector<int64_t>{largest.index});
    std::vector<int64_t> weights(count);
    kernels.draw_weights(x.data(), count, largest.value, 1.4f, weights.data());
    tell("draw_weights", weights);
}

}  // namespace

int main(int, char** arguments) {
    const Draw draw{std::mt19937(static_cast<unsigned>(std::atoi(arguments[1])))};
#if defined(__aarch64__)
    const Probe probe = probe_instruction_sets().back();
    std::fprintf(stderr, "%s: %s\n", probe.kernels->name, probe.reason.c_str());
    if (!probe.usable) return 1;
    const Kernels& kernels = neon_kernels();
#else
    const Kernels& kernels = avx2_kernels();
#endif
    linears(kernels, draw);
    byte_rows(kernels, draw);
    attentions(kernels, draw);
    others(kernels, draw);
}
