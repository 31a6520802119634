// The shapes of AMX tiles. Tiles 0 … 3 are sums, 4 and 5 rows of x (of items), 6 and 7 weights (or keys, or values).
#pragma once

#include "vector.h"

namespace trivium::TRIVIUM_ISA {

struct alignas(64) TileShapes {
    uint8_t palette = 1;
    uint8_t first_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// For `num_x` rows of x, of `inner` words of 4 bytes each.
static inline void shape_tiles(int64_t num_x, int64_t inner) {
    TileShapes shapes;
    for (int t = 0; t < 8; ++t) {
        shapes.row_bytes[t] = static_cast<uint16_t>(t == 4 || t == 5 ? 4 * inner : 64);
        shapes.rows[t] = static_cast<uint8_t>(t < 6 ? num_x : inner);
    }
    asm volatile("" : : "m"(shapes));  // of the shapes GCC's intrinsic names the first 8 bytes only as what it reads
    _tile_loadconfig(&shapes);
}

}  // namespace trivium::TRIVIUM_ISA
