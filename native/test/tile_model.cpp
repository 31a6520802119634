// Attention by AMX tiles on a processor without them: the tile instructions are modelled as the manual defines them, and
// what they give is compared to the bit with the vector kernels, and with what they give rows that share tiles. Prints one
// line for each case that differs, and the count.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "modelled_tiles.h"

#define TRIVIUM_ISA tile_model
#include "../src/kernels/amx_attention.h"
#include "../src/kernels/attention.h"

using namespace trivium;
using namespace trivium::tile_model;

struct Shape {
    int64_t queries, context, group, heads, dim, block_size, window;
    float softcap;
};

// All queries as one row, or the last ones as rows of their own, which share the tiles that all of them see wholly.
enum class As { one_row, sharing_rows };
constexpr int64_t num_sharing = 5;

template <typename Products>
void attend(const Shape& s, const Attention& a, const std::vector<int32_t>& table, As as) {
    const int64_t first = s.context - s.queries, count = as == As::one_row ? 1 : std::min(num_sharing, s.queries);
    const int64_t start = as == As::one_row ? first : s.context - count;
    const auto oldest_seen = [&](int64_t position) { return s.window && position >= s.window ? position - s.window + 1 : 0; };
    std::vector<AttentionRow> rows;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t position = start + i, end = as == As::one_row ? s.context : position + 1;
        rows.push_back({position - first, end - position, position, table.data(), oldest_seen(position) / attention_tile,
                        (end + attention_tile - 1) / attention_tile,
                        (oldest_seen(position) + attention_tile - 1) / attention_tile, position / attention_tile});
    }
    std::vector<float> memory(Attender<KVType::bf16, Products>::sizes(a, (s.context - start) * s.group).scratch + 16);
    float* scratch = memory.data();
    while (reinterpret_cast<uintptr_t>(scratch) % 64) ++scratch;
    for (int64_t head = 0; head < s.heads; ++head) {
        const AttentionPart part = {rows.data(), count, s.context - start, head, rows.front().first_tile,
                                    rows.back().last_tile, nullptr, scratch};
        const FlushDenormals flushing;
        Attender<KVType::bf16, Products>(a, part).attend();
    }
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
            const int64_t q_row = s.heads * s.group * s.dim;
            const auto attended = [&]<typename Products>(As as, const std::vector<float>& before) {
                std::vector<float> out = before;
                const Attention a = {q.data(), q_row, s.dim, out.data(), q_row, s.dim, {keys.data(), block_bytes, head_bytes},
                                     {values.data(), block_bytes, head_bytes}, KVType::bf16, s.block_size, s.group, s.dim,
                                     0.125f, s.window, s.softcap};
                attend<Products>(s, a, table, as);
                return out;
            };
            const std::vector<float> nothing(q.size());
            const std::vector<float> tiles = attended.operator()<TileProducts>(As::one_row, nothing);
            const auto compare = [&](const std::vector<float>& other, const char* name) {
                ++cases;
                if (memcmp(tiles.data(), other.data(), 4 * tiles.size()) == 0) return;
                ++differing;
                std::printf("%s: %d queries of %d, heads of %d, size %g\n", name, int(s.queries), int(s.context), int(s.dim), size);
            };
            compare(attended.operator()<VectorProducts<KVType::bf16, MultiplyAdds<KVType::bf16>>>(As::one_row, nothing),
                    "multiply-adds");
#if defined(__AVX512BF16__)
            compare(attended.operator()<VectorProducts<KVType::bf16, MultiplyAddPairs>>(As::one_row, nothing), "pairs");
#endif
            std::vector<float> without_last = tiles;
            std::fill(without_last.end() - std::min(num_sharing, s.queries) * q_row, without_last.end(), 0.0f);
            compare(attended.operator()<TileProducts>(As::sharing_rows, without_last), "rows that share");
        }
    }
    std::printf("%d of %d differ\n", differing, cases);
    return differing != 0;
}
