// Linear layers on quantized weights by AMX tiles on a processor without them: the tile instructions are modelled, and what
// they give is compared with the vector kernel to the bit. Prints one line for each case that differs, and the count.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "modelled_tiles.h"

#define __AMX_INT8__ 1
#define TRIVIUM_ISA tile_model
#include "../src/kernels/amx_linears.h"
#include "packed_cases.h"

using namespace trivium;
using namespace trivium::tile_model;

// Asked for their scratch; too few rows for tiles are in no case.
const Kernels& trivium::avx512_vnni_kernels() {
    static constexpr Kernels vectors = {
        .name = "vectors",
        .packed = {.scratch_bytes = [](WeightType, int64_t) { return int64_t{0}; }},
    };
    return vectors;
}

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
    Count count;
    compare_byte_rows(random, count);
    const auto compare = [&]<WeightType type>() { compare_packed_layers<type>(random, count, packed_linear); };
    for (int t = 0; t < num_packed_types; ++t) {
        const WeightType type = static_cast<WeightType>(t);
        if (is_float(type) || is_byte_rows(type)) continue;
        is_units(type) ? for_units_type(type, compare) : for_packed_type(type, compare);
    }
    return count.tell();
}
