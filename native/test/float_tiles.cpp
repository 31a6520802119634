// Linear layers on bfloat16 weights by AMX tiles on a processor without them: the tile instructions are modelled, and what
// they give is compared with the vector kernel to the bit. Prints one line for each case that differs, and the count.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "modelled_tiles.h"

#define __AMX_BF16__ 1  // rows of x are laid for tiles too
#define TRIVIUM_ISA tile_model
#include "../src/kernels/float_linears.h"

using namespace trivium;
using namespace trivium::tile_model;

int main(int, char** arguments) {
    std::mt19937 random(static_cast<unsigned>(std::atoi(arguments[1])));
    std::normal_distribution<float> normal;
    int differing = 0, cases = 0;
    for (const int64_t num_x : {8, 13, 16, 17, 31, 32, 33, 48, 77}) {
        for (const auto [rows, columns] : {std::pair<int64_t, int64_t>{16, 32}, {40, 96}, {33, 70}, {8, 16384}}) {
            for (const float size : {1.0f, 1e-19f}) {  // the second: products too small to be normal
                const int64_t stride = laid_stride(columns);
                std::vector<uint16_t> weight(rows * columns);
                std::vector<float> x(num_x * columns), bias(rows), by_tiles(num_x * rows), by_vectors(num_x * rows);
                std::vector<uint32_t> laid(num_x * stride);
                for (uint16_t& w : weight) w = float_to_bf16(size * normal(random));
                for (float& value : x) value = size * normal(random);
                for (float& value : bias) value = size * size * normal(random);
                const Matrix matrix = {WeightType::bf16, reinterpret_cast<const uint8_t*>(weight.data()), rows, columns};
                const int64_t tiles = packed_tiles(rows);
                const auto packed_as = [&](WeightType type) {
                    std::vector<uint8_t> packed(packed_bytes(type, rows, columns));
                    for (int64_t t = 0; t < tiles; ++t)
                        if (!pack_tile(matrix, type, 16 * t, packed.data() + t * packed_tile_bytes(type, columns))) std::abort();
                    return packed;
                };
                for (int64_t m = 0; m < num_x; ++m)
                    lay_float_row(WeightType::bf16, x.data() + m * columns, columns, laid.data() + m * stride);
                const std::vector<uint8_t> whole = packed_as(WeightType::bf16);
                LinearPart part = {num_x, {WeightType::bf16, whole.data(), rows, columns}, 0, tiles,
                                   bias.data(), by_vectors.data(), rows, Held::summand};
                {
                    const FlushDenormals flushed;
                    float_linear_of<WeightType::bf16>(part, laid.data());
                }
                part.out = by_tiles.data();
                for (const WeightType type : {WeightType::bf16, WeightType::short_bf16}) {
                    const std::vector<uint8_t> packed = packed_as(type);
                    std::vector<FloatTileSums> scratch(float_scratch(type, columns) / sizeof(FloatTileSums) + 1);
                    std::fill(by_tiles.begin(), by_tiles.end(), 0.0f);  // they are added to
                    part.weight.type = type;
                    part.weight.data = packed.data();
                    float_linear(part, laid.data(), scratch.data());
                    ++cases;
                    if (memcmp(by_tiles.data(), by_vectors.data(), 4 * by_tiles.size()) == 0) continue;
                    ++differing;
                    std::printf("%s, %d rows, %d x %d, size %g\n", layout(type).name, int(num_x), int(rows), int(columns), size);
                }
            }
        }
    }
    std::printf("%d of %d differ\n", differing, cases);
    return differing != 0;
}
