// Paged attention. A query's keys are cut at absolute positions into tiles of `attention_tile`. Each tile gives a softmax
// of its own; the tiles' results are then merged from the first to the last. So a query's result depends on its own
// position and keys only: not on who else is computed, nor on which thread computed which tile.
//
// Queries of a row's heads that read one key head are "items"; a block of items shares each pass over a tile. Unless
// the cache is float32, queries and softmax weights are rounded to bfloat16 (products.h).
#pragma once

#include <math.h>

#include "../kernels.h"
#if defined(__AMX_BF16__)
#include "amx_attention.h"
#endif
#include "denormals.h"
#include "paged_kv.h"
#include "products.h"

namespace trivium::TRIVIUM_ISA {

// 2^x for x up to about 1, and 0 below -127. 2^x = 2^n 2^r with n whole and |r| <= 1/2, and 2^r by a polynomial of least
// relative error among those that are 1 at 0: 1.0e-4 of degree 3, 9.1e-8 of degree 5.
template <int degree>
static inline Vec exp2(Vec x) {
    const Vec lowest = splat(-127.0f), rounder = splat(12582912.0f);  // 1.5 * 2^23: the sum's low bits are n
    const Vec clamped = lowest > x ? lowest : x;
    const Vec shifted = clamped + rounder, r = clamped - (shifted - rounder);
    Vec p;
    if constexpr (degree == 3) {
        p = fma(splat(0.0550089329f), r, splat(0.242210954f));
        p = fma(p, r, splat(0.693282902f));
    } else {
        static_assert(degree == 5);
        p = fma(splat(0.00132647273f), r, splat(0.00967151299f));
        p = fma(p, r, splat(0.0555073358f));
        p = fma(p, r, splat(0.240222424f));
        p = fma(p, r, splat(0.693147004f));
    }
    p = fma(p, r, splat(1.0f));
    return (Vec)((IntVec)p + ((IntVec)shifted << 23));  // at -127 all bits become 0
}

constexpr float log2_e = 1.44269504f;

// limit * tanh(x / limit), from tanh(y) = 1 - 2 / (e^2y + 1).
static inline Vec soft_cap(Vec x, float limit) {
    const Vec doubled = x * (2.0f * log2_e / limit), highest = splat(126.0f);
    const Vec e = exp2<5>(doubled > highest ? highest : doubled);
    return limit * (1.0f - 2.0f / (e + 1.0f));
}

// To the nearest bfloat16, ties away from 0.
static inline Vec to_nearest_bf16(Vec x) { return (Vec)(((WordVec)x + 0x8000) & 0xffff0000); }

// The softmax of a block of items over some of their keys: sum over keys of weight * value, not divided by the sum of the
// weights yet. A weight is 2^(score - largest), with scores in units of log2.
template <typename Products>
struct Mixed {
    static constexpr int64_t max_items = Products::max_items;
    static constexpr int64_t padded_items = (max_items + 15) / 16 * 16;

    float* largest;  // [padded_items]
    float* weights;  // [max_items, 16]: sums of the weights of keys 0, 16, …, of keys 1, 17, …
    float* values;   // [slices of the head, max_items, 32]

    static int64_t num_floats(int64_t padded_dim) { return padded_items + max_items * (16 + padded_dim); }
    static Mixed in(float* memory) { return {memory, memory + padded_items, memory + padded_items + 16 * max_items}; }
};

// Less than any score; its difference to itself is 0, which that of -infinity is not.
constexpr float nothing_seen = -1e30f;

template <typename Products>
static void clear(const Mixed<Products>& mixed, int64_t padded_dim) {
    for (int64_t i = 0; i < Mixed<Products>::padded_items; ++i) mixed.largest[i] = nothing_seen;
    memset(mixed.weights, 0, 4 * Products::max_items * (16 + padded_dim));
}

// `all` becomes the softmax over its keys and over those of `more`.
template <typename Products>
static void merge(const Mixed<Products>& all, const Mixed<Products>& more, int64_t items, int64_t padded_dim) {
    constexpr int64_t max_items = Products::max_items;
    float keep[Mixed<Products>::padded_items], add[Mixed<Products>::padded_items];
    for (int64_t i = 0; i < items; i += lanes) {
        const Vec a = load(all.largest + i), b = load(more.largest + i), largest = max(a, b);
        store(keep + i, exp2<5>(a - largest));
        store(add + i, exp2<5>(b - largest));
        store(all.largest + i, largest);
    }
    for (int64_t i = 0; i < items; ++i) {
        const Vec kept = splat(keep[i]), added = splat(add[i]);
        const auto join = [&](float* into, const float* from) {
            store(into, fma(load(from), added, load(into) * kept));
        };
        for (int64_t j = 0; j < 16; j += lanes) join(all.weights + 16 * i + j, more.weights + 16 * i + j);
        for (int64_t d = 0; d < padded_dim; d += panel_columns) {
            const int64_t panel = d * max_items + i * panel_columns;
            for (int64_t j = panel; j < panel + panel_columns; j += lanes) join(all.values + j, more.values + j);
        }
    }
}

template <KVType type, typename Products>
class Attender {
    static constexpr int64_t max_items = Products::max_items;
    static constexpr int64_t tile_slices = attention_tile / slice_elements;
    static constexpr bool in_bf16 = type != KVType::f32;  // are products computed
    typedef typename Products::Word Word;

public:
    static AttentionSizes sizes(const Attention& a, int64_t num_items) {
        const int64_t dim = padded_dim(a), blocks = num_blocks(num_items), mixed = Mixed<Products>::num_floats(dim);
        const int64_t queries = blocks * max_items * dim, tile = tile_slices * max_items * slice_elements;
        constexpr int64_t to_align = 6 * vector_floats;
        return {queries + (blocks + 1) * mixed + 2 * tile + copied_tile_floats(dim) + to_align, blocks * mixed};
    }

    Attender(const Attention& a, const AttentionPart& part)
        : a_(a),
          part_(part),
          dim_(padded_dim(a)),
          num_items_(part.num_queries * a.group),
          num_blocks_(num_blocks(num_items_)),
          block_items_((num_items_ + num_blocks_ - 1) / num_blocks_),
          fetches_(num_blocks_ == 1 && !Stored<type>::has_scales),
          mixed_floats_(Mixed<Products>::num_floats(dim_)) {
        float* memory = part.scratch;
        const auto take = [&](int64_t num_floats) {
            float* const taken = memory;
            memory += (num_floats + vector_floats - 1) / vector_floats * vector_floats;
            return taken;
        };
        queries_ = reinterpret_cast<Word*>(take(num_blocks_ * max_items * dim_));
        totals_ = take(num_blocks_ * mixed_floats_);
        tile_result_ = take(mixed_floats_);
        scores_ = take(tile_slices * max_items * slice_elements);
        weights_ = reinterpret_cast<Word*>(take(tile_slices * max_items * slice_elements));
        copies_ = take(copied_tile_floats(dim_));
    }

    // Tiles first_tile … last_tile - 1: into part.results where there are such, else into part.out.
    void attend() {
        const typename Products::Setup setup(block_items_);
        lay_queries();
        if (!part_.results) clear_totals();
        TileReader<type> reader(a_, part_, oldest_seen(part_.position), end_of_seen(part_.position + part_.num_queries - 1),
                                dim_, Products::needs_whole_slices, copies_);
        KeyTile tile;
        for (int64_t t = part_.first_tile; t < part_.last_tile; ++t) {
            reader.read(t * attention_tile, tile);
            for (int64_t block = 0; block < num_blocks_; ++block) {
                const Mixed<Products> result = result_of(t, block);
                if (attend_tile(tile, t * attention_tile, block, result)) {
                    if (!part_.results) merge(total(block), result, items_of(block), dim_);
                } else if (part_.results) {
                    clear(result, dim_);
                }
            }
        }
        if (!part_.results) write_out();
    }

    // Results of tiles first_tile … last_tile - 1, in this order, into part.out.
    void merge_results() {
        clear_totals();
        for (int64_t t = part_.first_tile; t < part_.last_tile; ++t)
            for (int64_t block = 0; block < num_blocks_; ++block)
                merge(total(block), result_of(t, block), items_of(block), dim_);
        write_out();
    }

private:
    static constexpr int64_t vector_floats = 16;
    static constexpr int64_t line_bytes = 64;
    static constexpr int64_t groups_ahead = 2;  // keys are fetched before they are multiplied

    static int64_t padded_dim(const Attention& a) {
        return (a.dim + slice_elements - 1) / slice_elements * slice_elements;
    }
    static int64_t num_blocks(int64_t num_items) { return (num_items + max_items - 1) / max_items; }

    int64_t first_item(int64_t block) const { return block * block_items_; }
    int64_t items_of(int64_t block) const {
        const int64_t rest = num_items_ - first_item(block);
        return rest < block_items_ ? (rest > 0 ? rest : 0) : block_items_;
    }
    Mixed<Products> total(int64_t block) const { return Mixed<Products>::in(totals_ + block * mixed_floats_); }
    Mixed<Products> result_of(int64_t tile, int64_t block) const {
        if (!part_.results) return Mixed<Products>::in(tile_result_);
        return Mixed<Products>::in(part_.results + ((tile - part_.first_tile) * num_blocks_ + block) * mixed_floats_);
    }
    int64_t oldest_seen(int64_t position) const {
        return a_.window && position >= a_.window ? position - a_.window + 1 : 0;
    }
    // One more than the last key that a query sees.
    int64_t end_of_seen(int64_t position) const {
        if (!a_.both_ways) return position + 1;
        return a_.window && position + a_.window < part_.num_keys ? position + a_.window : part_.num_keys;
    }
    int64_t position_of(int64_t item) const { return part_.position + item / a_.group; }
    Word* queries(int64_t block) const {
        return queries_ + block * (dim_ / slice_elements) * max_items * Products::row_words;
    }

    void clear_totals() {
        for (int64_t block = 0; block < num_blocks_; ++block) clear(total(block), dim_);
    }

    void lay_queries() {
        for (int64_t block = 0; block < num_blocks_; ++block) {
            for (int64_t i = 0; i < items_of(block); ++i) {
                const int64_t item = first_item(block) + i;
                const float* const q =
                    part_.q + item / a_.group * part_.q_token_stride + item % a_.group * part_.q_head_stride;
                for (int64_t d = 0; d < dim_; d += slice_elements) {
                    const int64_t count = a_.dim - d < slice_elements ? a_.dim - d : slice_elements;
                    float elements[slice_elements] = {};
                    for (int64_t j = 0; j < count; ++j)
                        elements[j] = in_bf16 ? bf16_to_float(float_to_bf16(q[d + j])) : q[d + j];
                    put(elements, queries(block) + (d / slice_elements * max_items + i) * Products::row_words);
                }
            }
        }
    }

    static void put(const float* elements, Word* row) {
        Vec vectors[panel_vectors];
        for (int v = 0; v < panel_vectors; ++v) vectors[v] = load(elements + v * lanes);
        Products::put(vectors, row);
    }

    // False where no item of the block sees a key of the tile.
    bool attend_tile(const KeyTile& tile, int64_t base, int64_t block, const Mixed<Products>& result) {
        const int64_t items = items_of(block);
        if (items == 0) return false;
        const Range seen = range(base, oldest_seen(position_of(first_item(block))),
                                 end_of_seen(position_of(first_item(block) + items - 1)));
        if (seen.first >= seen.last) return false;
        score(tile, block, items, seen);
        const Range slices = {seen.first / slice_elements, (seen.last + slice_elements - 1) / slice_elements};
        for (int64_t i = 0; i < items; ++i) {
            const int64_t position = position_of(first_item(block) + i);
            weigh(tile, range(base, oldest_seen(position), end_of_seen(position)), slices, i, result);
        }
        mix(tile, items, slices, seen.last, result);
        return true;
    }

    // Of a tile's keys, counted from its first.
    struct Range {
        int64_t first;
        int64_t last;
    };

    static Range range(int64_t base, int64_t first, int64_t last) {
        return {first > base ? first - base : 0, last - base < attention_tile ? last - base : attention_tile};
    }

    float* scores_of(int64_t slice, int64_t item) { return scores_ + (slice * max_items + item) * slice_elements; }

    // Into the second-level cache: the first has too few places for lines that are under way.
    static void fetch(const uint8_t* p) { __builtin_prefetch(p, 0, 2); }

    void fetch_keys(const KeyTile& tile, int64_t group) const {
        for (int64_t row = 0; row < rows_per_pair(type) * a_.dim / 2; ++row)
            fetch(tile.keys[group] + row * tile.key_row_bytes);
    }

    void fetch_values(const KeyTile& tile, int64_t group) const {
        const int64_t num_rows = rows_per_pair(type) * group_columns / 2;
        for (int64_t i = 0; i < num_rows * tile.value_row_bytes; i += line_bytes) fetch(tile.values[group] + i);
    }

    void score(const KeyTile& tile, int64_t block, int64_t items, Range seen) {
        const int64_t per_slice = rows_per_pair(type) * slice_pairs * tile.key_row_bytes;
        const int64_t num_pairs = (a_.dim + 1) / 2, num_slices = dim_ / slice_elements;
        const Slices slices = {0, num_slices, num_pairs - (num_slices - 1) * slice_pairs};
        const int64_t first_group = seen.first / group_columns;
        const int64_t last_group = (seen.last + group_columns - 1) / group_columns;
        for (int64_t g = first_group; fetches_ && g < last_group && g < first_group + groups_ahead; ++g)
            fetch_keys(tile, g);
        for (int64_t group = first_group; group < last_group;) {
            const int together = group % 2 == 0 && group + 1 < last_group ? 2 : 1;
            if (fetches_) {
                for (int64_t g = group; g < group + together; ++g) {
                    if (g + groups_ahead < last_group) fetch_keys(tile, g + groups_ahead);
                    fetch_values(tile, g);
                }
            }
            Products::multiply(static_cast<int>(items), together, queries(block), slices,
                               KeyColumns{tile.keys + group, tile.key_row_bytes, per_slice},
                               scores_of(group / 2, 0) + group % 2 * group_columns);
            group += together;
        }
    }

    // Turns an item's scores into weights, which are 0 for keys outside `seen`.
    void weigh(const KeyTile& tile, Range seen, Range slices, int64_t item, const Mixed<Products>& result) {
        const auto scores = [&](int64_t key) { return scores_of(key / slice_elements, item) + key % slice_elements; };
        const int64_t begin = slices.first * slice_elements, end = slices.last * slice_elements;
        if constexpr (Stored<type>::has_scales)
            for (int64_t key = begin; key < end; key += lanes)
                store(scores(key), load(scores(key)) * load(tile.key_scales + key));
        for (int64_t key = begin; key < seen.first && key < end; ++key) *scores(key) = -INFINITY;
        for (int64_t key = seen.last > begin ? seen.last : begin; key < end; ++key) *scores(key) = -INFINITY;

        float scale = a_.scale * log2_e;
        if (a_.softcap != 0.0f) {
            for (int64_t key = begin; key < end; key += lanes)
                store(scores(key), cap(load(scores(key))));
            scale = log2_e;
        }
        Vec largest = load(scores(begin));
        for (int64_t key = begin + lanes; key < end; key += lanes) largest = max(largest, load(scores(key)));
        const float highest = lane_max(largest) * scale, shift = highest > nothing_seen ? highest : nothing_seen;
        result.largest[item] = shift;

        constexpr int degree = in_bf16 ? 3 : 5;
        Vec sums[group_vectors] = {};
        for (int64_t slice = slices.first; slice < slices.last; ++slice) {
            const float* const row = scores_of(slice, item);
            Vec weights[panel_vectors];
            for (int v = 0; v < panel_vectors; ++v) {
                weights[v] = exp2<degree>(fma(load(row + v * lanes), splat(scale), splat(-shift)));
                if constexpr (in_bf16) weights[v] = to_nearest_bf16(weights[v]);
                sums[v % group_vectors] += weights[v];
                if constexpr (Stored<type>::has_scales) {
                    const Vec scales = load(tile.value_scales + slice * slice_elements + v * lanes);
                    weights[v] = to_nearest_bf16(weights[v] * scales);
                }
            }
            Products::put(weights, weights_ + (slice * max_items + item) * Products::row_words);
        }
        for (int v = 0; v < group_vectors; ++v) store(result.weights + 16 * item + v * lanes, sums[v]);
    }

    Vec cap(Vec scores) const {
        const Vec capped = soft_cap(scores * a_.scale, a_.softcap);
        return scores == splat(-INFINITY) ? scores : capped;
    }

    void mix(const KeyTile& tile, int64_t items, Range slices, int64_t last_key, const Mixed<Products>& result) {
        const int64_t last_pairs = (last_key - (slices.last - 1) * slice_elements + 1) / 2;
        for (int64_t d = 0; d < a_.dim; d += panel_columns)
            Products::multiply(static_cast<int>(items), a_.dim - d > group_columns ? 2 : 1, weights_,
                               Slices{slices.first, slices.last, last_pairs},
                               ValueColumns{tile.values, tile.value_row_bytes, d},
                               result.values + d * max_items);
    }

    void write_out() {
        for (int64_t block = 0; block < num_blocks_; ++block) {
            const Mixed<Products> all = total(block);
            for (int64_t i = 0; i < items_of(block); ++i) {
                const int64_t item = first_item(block) + i;
                float* const out =
                    part_.out + item / a_.group * part_.out_token_stride + item % a_.group * part_.out_head_stride;
                Vec sums[group_vectors];
                for (int v = 0; v < group_vectors; ++v) sums[v] = load(all.weights + 16 * i + v * lanes);
                const float share = 1.0f / sum_of_16(sums);
                for (int64_t d = 0; d < a_.dim; d += panel_columns) {
                    const float* const panel = all.values + d * max_items + i * panel_columns;
                    const int64_t count = a_.dim - d < panel_columns ? a_.dim - d : panel_columns;
                    for (int64_t j = 0; j < count; ++j) out[d + j] = panel[j] * share;
                }
            }
        }
    }

    // As one tree of neighbours, whatever the lanes.
    static float sum_of_16(Vec (&v)[group_vectors]) {
        float sum[group_vectors];
        for (int i = 0; i < group_vectors; ++i) sum[i] = lane_sum(v[i]);
        for (int n = group_vectors; n > 1; n /= 2)
            for (int i = 0; i < n / 2; ++i) sum[i] = sum[2 * i] + sum[2 * i + 1];
        return sum[0];
    }

    const Attention& a_;
    const AttentionPart& part_;
    const int64_t dim_;  // padded to whole slices
    const int64_t num_items_, num_blocks_, block_items_;
    const bool fetches_;  // keys and values before their use; with more blocks of items computing takes longer than reading
    const int64_t mixed_floats_;
    Word* queries_;        // [blocks, slices, max_items, row_words]
    float* totals_;        // [blocks] of Mixed
    float* tile_result_;   // one Mixed
    float* scores_;        // [slices of a tile, max_items, 32]
    Word* weights_;        // [slices of a tile, max_items, row_words]
    float* copies_;        // of keys and values that cannot be read where they lie
};

// Calls use.operator()<Way>() with the fastest way there is for such a cache and so many items.
template <typename Use>
static auto with_attender(KVType type, [[maybe_unused]] int64_t num_items, const Use& use) {
    return with_kv_type(type, [&]<KVType stored>() {
        if constexpr (stored == KVType::f32) {
            return use.template operator()<Attender<stored, VectorProducts<KVType::f32, MultiplyAdds<KVType::f32>>>>();
        } else {
#if defined(__AMX_BF16__)
            if (num_items >= TileProducts::fewest_items)
                return use.template operator()<Attender<stored, TileProducts>>();
#endif
#if defined(__AVX512BF16__)
            return use.template operator()<Attender<stored, VectorProducts<KVType::bf16, MultiplyAddPairs>>>();
#else
            using Steps = MultiplyAdds<KVType::bf16>;
            return use.template operator()<Attender<stored, VectorProducts<KVType::bf16, Steps>>>();
#endif
        }
    });
}

static AttentionSizes attention_sizes(const Attention& a, int64_t num_items) {
    return with_attender(a.type, num_items, [&]<typename Way>() { return Way::sizes(a, num_items); });
}

static void attention(const Attention& a, const AttentionPart& part) {
    const FlushDenormals flushing;
    with_attender(a.type, part.num_queries * a.group, [&]<typename Way>() { Way(a, part).attend(); });
}

static void merge_attention(const Attention& a, const AttentionPart& part) {
    const FlushDenormals flushing;
    with_attender(a.type, part.num_queries * a.group, [&]<typename Way>() { Way(a, part).merge_results(); });
}

}  // namespace trivium::TRIVIUM_ISA
