// The tile instructions of AMX, modelled as the manual defines them, for processors without them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace model {

struct Tile {
    alignas(64) uint8_t bytes[16][64];
    int rows, row_bytes;
};
inline Tile tiles[8];

inline void load_config(const void* config) {
    const uint8_t* const bytes = static_cast<const uint8_t*>(config);
    for (int t = 0; t < 8; ++t) {
        memset(tiles[t].bytes, 0, sizeof tiles[t].bytes);
        uint16_t row_bytes;
        memcpy(&row_bytes, bytes + 16 + 2 * t, sizeof row_bytes);
        tiles[t].row_bytes = row_bytes;
        tiles[t].rows = bytes[48 + t];
    }
}
inline void zero(int t) { memset(tiles[t].bytes, 0, sizeof tiles[t].bytes); }
inline void load(int t, const void* from, int64_t stride) {
    zero(t);
    for (int row = 0; row < tiles[t].rows; ++row)
        memcpy(tiles[t].bytes[row], static_cast<const uint8_t*>(from) + row * stride, tiles[t].row_bytes);
}
inline void save(int t, void* to, int64_t stride) {
    for (int row = 0; row < tiles[t].rows; ++row)
        memcpy(static_cast<uint8_t*>(to) + row * stride, tiles[t].bytes[row], tiles[t].row_bytes);
}
inline float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
inline float bf16(const uint8_t* row, int index) {
    uint16_t half;
    memcpy(&half, row + 2 * index, sizeof half);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return flushed(x);
}
// TDPBF16PS: even and odd elements in chains of their own, from 0, and their sum added to what was there.
inline void multiply(int sums, int left, int right) {
    for (int m = 0; m < tiles[sums].rows; ++m) {
        for (int n = 0; n < tiles[sums].row_bytes / 4; ++n) {
            float chain[2] = {};
            for (int k = 0; k < tiles[left].row_bytes / 4; ++k)
                for (int parity = 0; parity < 2; ++parity)
                    chain[parity] = flushed(std::fma(bf16(tiles[left].bytes[m], 2 * k + parity),
                                                     bf16(tiles[right].bytes[k], 2 * n + parity), chain[parity]));
            float sum;
            memcpy(&sum, tiles[sums].bytes[m] + 4 * n, sizeof sum);
            sum = flushed(flushed(sum) + flushed(chain[0] + chain[1]));
            memcpy(tiles[sums].bytes[m] + 4 * n, &sum, sizeof sum);
        }
    }
}

// TDPBSSD, TDPBSUD: four products of bytes for each sum; those of `left` are signed.
template <typename Right>
inline void multiply_bytes(int sums, int left, int right) {
    for (int m = 0; m < tiles[sums].rows; ++m) {
        for (int n = 0; n < tiles[sums].row_bytes / 4; ++n) {
            int32_t sum;
            memcpy(&sum, tiles[sums].bytes[m] + 4 * n, sizeof sum);
            for (int k = 0; k < tiles[left].row_bytes; ++k)
                sum += static_cast<int8_t>(tiles[left].bytes[m][k]) *
                       static_cast<Right>(tiles[right].bytes[k / 4][4 * n + k % 4]);
            memcpy(tiles[sums].bytes[m] + 4 * n, &sum, sizeof sum);
        }
    }
}

}  // namespace model

#include <immintrin.h>  // before its names are taken
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_dpbsud
#define _tile_loadconfig(config) model::load_config(config)
#define _tile_release()
#define _tile_zero(t) model::zero(t)
#define _tile_loadd(t, from, stride) model::load(t, from, stride)
#define _tile_stream_loadd(t, from, stride) model::load(t, from, stride)
#define _tile_stored(t, to, stride) model::save(t, to, stride)
#define _tile_dpbf16ps(sums, left, right) model::multiply(sums, left, right)
#define _tile_dpbssd(sums, left, right) model::multiply_bytes<int8_t>(sums, left, right)
#define _tile_dpbsud(sums, left, right) model::multiply_bytes<uint8_t>(sums, left, right)
