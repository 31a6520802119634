// Linear layers on quantized weights by AMX tiles on a processor without them: the tile instructions are modelled, and what
// they give is compared with the vector kernel to the bit. Prints one line for each case that differs, and the count.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "modelled_tiles.h"

#define __AMX_INT8__ 1
#define TRIVIUM_ISA tile_model
#include "../src/kernels/packed_linears.h"

using namespace trivium;
using namespace trivium::tile_model;

struct Count {
    int differing = 0, cases = 0;

    void compare(const std::vector<float>& by_tiles, const std::vector<float>& by_vectors, WeightType type, int64_t num_x,
                 int64_t rows, int64_t columns) {
        ++cases;
        if (memcmp(by_tiles.data(), by_vectors.data(), 4 * by_tiles.size()) == 0) return;
        ++differing;
        std::printf("%s, %d rows, %d x %d\n", layout(type).name, int(num_x), int(rows), int(columns));
    }
};

void* at_line(std::vector<char>& memory) { return memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64); }

void compare_byte_rows(std::mt19937& random, Count& count) {
    std::normal_distribution<float> normal;
    for (const int64_t num_x : {16, 17, 31, 32, 33, 47, 530}) {
        for (const auto [rows, columns] : {std::pair<int64_t, int64_t>{16, 64}, {40, 576}, {9, 1024}, {33, 128}}) {
            const int64_t tiles = packed_tiles(rows), tile_bytes = byte_rows_tile_bytes(columns);
            std::vector<float> x(columns), turned(columns), scales(num_x), bias(rows);
            std::vector<int8_t> q(num_x * turned_stride(columns)), bytes(columns);
            std::vector<int32_t> sums(num_x);
            std::vector<uint8_t> packed(tiles * tile_bytes);
            const auto drawn = [&] {
                for (float& value : x) value = normal(random);
                return x.data();
            };
            for (int64_t row = 0; row < 16 * tiles; ++row) {
                float scale;
                int32_t sum;
                turn_row(drawn(), turned.data(), {bytes.data(), &scale, &sum, columns, columns});
                put_byte_row(bytes.data(), scale, columns, int(row % 16), packed.data() + row / 16 * tile_bytes);
            }
            const TurnedRows all = {q.data(), scales.data(), sums.data(), columns, turned_stride(columns)};
            for (int64_t m = 0; m < num_x; ++m) turn_row(drawn(), turned.data(), all.from_row(m));
            for (float& value : bias) value = normal(random);
            std::vector<float> by_tiles(num_x * rows, 0.5f), by_vectors(num_x * rows, 0.5f);
            LinearPart part = {num_x, {WeightType::byte_rows, packed.data(), rows, columns}, 0, tiles,
                               bias.data(), by_tiles.data(), rows, Held::summand};
            byte_rows_by_tiles(part, all);
            part.out = by_vectors.data();
            byte_rows_by_vectors(part, all);
            count.compare(by_tiles, by_vectors, WeightType::byte_rows, num_x, rows, columns);
        }
    }
}

int main(int, char** arguments) {
    std::mt19937 random(static_cast<unsigned>(std::atoi(arguments[1])));
    std::normal_distribution<float> normal;
    Count count;
    compare_byte_rows(random, count);
    for (int t = 0; t < num_weight_types; ++t) {
        const WeightType type = static_cast<WeightType>(t);
        if (is_float(type)) continue;
        for (const int64_t num_x : {24, 31, 32, 33, 530}) {
            for (const auto [rows, columns] : {std::pair<int64_t, int64_t>{16, 256}, {40, 768}, {9, 1024}}) {
                std::vector<uint8_t> blocks(rows * bytes_of(type, columns));
                for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random() % 60);  // as float16: small and finite
                const Matrix matrix = {type, blocks.data(), rows, columns};
                const int64_t tiles = packed_tiles(rows), tile_bytes = packed_tile_bytes(type, columns);
                std::vector<uint8_t> packed(packed_bytes(type, rows, columns));
                for (int64_t i = 0; i < tiles; ++i) pack_tile(matrix, 16 * i, packed.data() + i * tile_bytes);

                std::vector<float> x(columns), bias(rows);
                const int64_t unit_columns = packed_layout(type).unit_columns;
                std::vector<char> x_memory(num_x * quantized_row_bytes(columns, unit_columns) + 64);
                const QuantizedRows quantized = quantized_rows_in(at_line(x_memory), columns, unit_columns);
                for (int64_t m = 0; m < num_x; ++m) {
                    for (float& value : x) value = normal(random);
                    if (m % 3 == 1) x[random() % columns] = 30.0f;  // a unit of two digits
                    quantize_row(x.data(), quantized.from_row(m));
                }
                for (float& value : bias) value = normal(random);
                std::vector<float> by_tiles(num_x * rows), by_vectors(num_x * rows);
                std::vector<char> memory(static_cast<size_t>(packed_scratch(type, columns)) + 64);
                void* const scratch = at_line(memory);
                LinearPart part = {num_x, {type, packed.data(), rows, columns}, 0, tiles,
                                   bias.data(), by_tiles.data(), rows, Held::summand};
                packed_linear(part, quantized, scratch);
                part.out = by_vectors.data();
                for_packed_type(type, [&]<WeightType type>() { packed_linear_of<type>(part, quantized); });
                count.compare(by_tiles, by_vectors, type, num_x, rows, columns);
            }
        }
    }
    std::printf("%d of %d differ\n", count.differing, count.cases);
    return count.differing != 0;
}
