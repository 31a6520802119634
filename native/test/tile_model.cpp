// Attention by AMX tiles on a processor without them: the tile instructions are modelled as the manual defines them, and
// what they give is compared with the vector kernels to the bit. Prints one line for each case that differs, and the count.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

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

}  // namespace model

#include <immintrin.h>  // before its names are taken
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) model::load_config(config)
#define _tile_release()
#define _tile_zero(t) model::zero(t)
#define _tile_loadd(t, from, stride) model::load(t, from, stride)
#define _tile_stored(t, to, stride) model::save(t, to, stride)
#define _tile_dpbf16ps(sums, left, right) model::multiply(sums, left, right)
#define TRIVIUM_ISA tile_model
#include "../src/kernels/amx_attention.h"
#include "../src/kernels/attention.h"

using namespace trivium;
using namespace trivium::tile_model;

struct Shape {
    int64_t queries, context, group, heads, dim, block_size, window;
    float softcap;
};

template <typename Products>
std::vector<float> attend(const Shape& s, const Attention& a, const std::vector<float>& q, const std::vector<int32_t>& table) {
    std::vector<float> out(q.size()), memory(Attender<KVType::bf16, Products>::sizes(a, s.queries * s.group).scratch + 16);
    float* scratch = memory.data();
    while (reinterpret_cast<uintptr_t>(scratch) % 64) ++scratch;
    const int64_t row = s.heads * s.group * s.dim, position = s.context - s.queries;
    const int64_t oldest = s.window && position >= s.window ? position - s.window + 1 : 0;
    for (int64_t head = 0; head < s.heads; ++head) {
        const int64_t at = head * s.group * s.dim;
        const AttentionPart part = {q.data() + at, row, s.dim, out.data() + at, row, s.dim, s.queries, position, head,
                                    table.data(), oldest / attention_tile, (s.context + attention_tile - 1) / attention_tile,
                                    nullptr, scratch};
        const FlushDenormals flushing;
        Attender<KVType::bf16, Products>(a, part).attend();
    }
    return out;
}

int main(int, char** arguments) {
    std::mt19937 random(static_cast<unsigned>(std::atoi(arguments[1])));
    std::normal_distribution<float> normal;
    int differing = 0, cases = 0;
    for (const Shape& s : {Shape{1, 1, 1, 1, 64, 16, 0, 0}, {3, 40, 3, 3, 64, 16, 0, 0}, {17, 300, 8, 1, 80, 16, 20, 30},
                           {40, 270, 3, 1, 64, 16, 0, 0}, {5, 150, 7, 2, 128, 32, 3, 0}, {33, 290, 1, 2, 96, 48, 0, 0},
                           {4, 131, 2, 1, 10, 2, 0, 0}, {12, 140, 2, 1, 256, 64, 100, 0}}) {
        for (const float size : {1.0f, 30.0f, 1e-18f}) {  // the last: products too small to be normal
            const int64_t blocks = (s.context + s.block_size - 1) / s.block_size;
            const int64_t head_bytes = 2 * s.block_size * s.dim, block_bytes = s.heads * head_bytes;
            std::vector<float> q(s.queries * s.heads * s.group * s.dim), kv(s.context * s.heads * s.dim);
            std::vector<uint8_t> keys(blocks * block_bytes + 64), values(blocks * block_bytes + 64);
            std::vector<int64_t> slots(s.context);
            std::vector<int32_t> table(blocks);
            for (int64_t i = 0; i < blocks; ++i) table[i] = static_cast<int32_t>(blocks - 1 - i);
            for (int64_t i = 0; i < s.context; ++i)
                slots[i] = table[i / s.block_size] * s.block_size + i % s.block_size;
            for (float& x : q) x = size * normal(random);
            for (uint8_t* cache : {keys.data(), values.data()}) {
                for (float& x : kv) x = size * normal(random);
                for (int64_t head = 0; head < s.heads; ++head) {
                    const KVWrite write = {kv.data() + head * s.dim, s.heads * s.dim, s.context, slots.data(),
                                           cache + head * head_bytes, block_bytes, s.block_size, s.dim, KVType::bf16};
                    cache == keys.data() ? write_keys(write) : write_values(write);
                }
            }
            const Attention a = {{keys.data(), block_bytes, head_bytes}, {values.data(), block_bytes, head_bytes},
                                 KVType::bf16, s.block_size, s.group, s.dim, 0.125f, s.window, s.softcap};
            const std::vector<float> tiles = attend<TileProducts>(s, a, q, table);
            const auto compare = [&](const std::vector<float>& vectors, const char* name) {
                ++cases;
                if (memcmp(tiles.data(), vectors.data(), 4 * tiles.size()) == 0) return;
                ++differing;
                std::printf("%s: %d queries of %d, heads of %d, size %g\n", name, int(s.queries), int(s.context), int(s.dim), size);
            };
            compare(attend<VectorProducts<KVType::bf16, MultiplyAdds<KVType::bf16>>>(s, a, q, table), "multiply-adds");
#if defined(__AVX512BF16__)
            compare(attend<VectorProducts<KVType::bf16, MultiplyAddPairs>>(s, a, q, table), "pairs");
#endif
        }
    }
    std::printf("%d of %d differ\n", differing, cases);
    return differing != 0;
}
