// Layers on quantized weights, computed in two ways that must give the same bits. Included after packed_linears.h.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

namespace trivium::TRIVIUM_ISA {

struct Count {
    int differing = 0, cases = 0;

    void compare(const std::vector<float>& one_way, const std::vector<float>& by_vectors, WeightType type, int64_t num_x,
                 int64_t rows, int64_t columns) {
        ++cases;
        if (memcmp(one_way.data(), by_vectors.data(), 4 * one_way.size()) == 0) return;
        ++differing;
        std::printf("%s, %d rows, %d x %d\n", layout(type).name, int(num_x), int(rows), int(columns));
    }

    int tell() const {
        std::printf("%d of %d differ\n", differing, cases);
        return differing != 0;
    }
};

inline void* at_line(std::vector<char>& memory) {
    return memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
}

// `way(part, x, scratch)` beside the vector kernel, on awkward shapes; some rows of x have units of two digits.
template <WeightType type, typename Way>
void compare_packed_layers(std::mt19937& random, Count& count, const Way& way) {
    std::normal_distribution<float> normal;
    for (const int64_t num_x : {24, 31, 32, 33, 530}) {
        for (const auto [rows, columns] : {std::pair<int64_t, int64_t>{16, 256}, {40, 768}, {9, 1024}}) {
            std::vector<uint8_t> blocks(rows * bytes_of(stored_type(type), columns));
            for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random() % 60);  // as float16: small and finite
            const Matrix matrix = {stored_type(type), blocks.data(), rows, columns};
            const int64_t tiles = packed_tiles(rows), tile_bytes = packed_tile_bytes(type, columns);
            std::vector<uint8_t> packed(packed_bytes(type, rows, columns));
            for (int64_t i = 0; i < tiles; ++i)
                if (!pack_tile(matrix, type, 16 * i, packed.data() + i * tile_bytes)) std::abort();

            std::vector<float> x(columns), bias(rows);
            const int64_t unit_columns = packed_layout(type).unit_columns;
            std::vector<char> x_memory(num_x * quantized_row_bytes(columns, unit_columns) + 64);
            const QuantizedRows quantized = quantized_rows_in(at_line(x_memory), columns, unit_columns);
            for (int64_t m = 0; m < num_x; ++m) {
                for (float& value : x) value = normal(random);
                if (m % 3 == 1) x[random() % columns] = 30.0f;
                quantize_row(x.data(), quantized.from_row(m));
            }
            for (float& value : bias) value = normal(random);
            std::vector<float> one_way(num_x * rows), by_vectors(num_x * rows);
            std::vector<char> memory(static_cast<size_t>(packed_scratch(type, columns)) + 64);
            LinearPart part = {num_x, {type, packed.data(), rows, columns}, 0, tiles,
                               bias.data(), one_way.data(), rows, Held::summand};
            way(part, quantized, at_line(memory));
            part.out = by_vectors.data();
            if constexpr (is_units(type)) {
                for (int64_t m = 0; m < num_x; ++m) {  // one after the other
                    LinearPart alone = part;
                    alone.num_x = 1;
                    alone.out += m * rows;
                    units_of_few_rows<type>(alone, quantized.from_row(m));
                }
            } else {
                packed_linear_of<type>(part, quantized);
            }
            count.compare(one_way, by_vectors, type, num_x, rows, columns);
        }
    }
}

}  // namespace trivium::TRIVIUM_ISA
