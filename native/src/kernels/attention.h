// Paged attention: keys in tiles of `attention_tile`, cut at absolute positions, with a running softmax. What a query
// computes depends on its own position and keys only: a tile's part that it does not see has weight 0 and is skipped.
#pragma once

#include <math.h>

#include "../kernels.h"
#include "decode.h"

namespace trivium::TRIVIUM_ISA {

static_assert(attention_tile % lanes == 0);

// The heads of one tile's positions, as float32 rows that are zero from `dim` to a multiple of `lanes`.
struct KeyTile {
    const float* keys[attention_tile];
    const float* values[attention_tile];
};

static inline const float* head_in_block(const Attention& a, const PagedCache& cache, int64_t block, int64_t token,
                                         int64_t key_head, float* staging) {
    const int64_t offset = block * cache.block_stride + token * cache.token_stride + key_head * cache.head_stride;
    const float* const plain = static_cast<const float*>(cache.data) + offset;
    if (!a.bf16 && a.dim % lanes == 0) return plain;
    if (a.bf16) {
        const uint16_t* const packed = static_cast<const uint16_t*>(cache.data) + offset;
        for (int64_t i = 0; i < a.dim; ++i) staging[i] = bf16_to_float(packed[i]);
    } else {
        memcpy(staging, plain, 4 * a.dim);
    }
    for (int64_t i = a.dim; i < padded(a.dim); ++i) staging[i] = 0.0f;
    return staging;
}

// scores[j] = q . keys[j] for the `lanes` keys from `keys` on.
static inline Vec scores_of(const float* q, const float* const* keys, int64_t padded_dim) {
    constexpr int together = 4;
    Vec sums[lanes];
    for (int j = 0; j < lanes; j += together) {
        Vec s[together] = {};
        const float* k[together];
        for (int i = 0; i < together; ++i) k[i] = keys[j + i];
        for (int64_t d = 0; d < padded_dim; d += lanes) {
            const Vec a = load(q + d);
            for (int i = 0; i < together; ++i) s[i] = fma(a, load(k[i] + d), s[i]);
        }
        for (int i = 0; i < together; ++i) sums[j + i] = s[i];
    }
    return lane_sums<lanes>(sums);
}

// out[d] = out[d] * keep + sum over j of weights[j] * values[j][d], for `count` vectors from element d on.
template <int count>
static inline void weigh_values(const float* weights, const float* const* values, int64_t first, int64_t last,
                                int64_t d, float keep, float* out) {
    Vec s[count];
    for (int i = 0; i < count; ++i) s[i] = load(out + d + i * lanes) * keep;
    for (int64_t j = first; j < last; ++j) {
        const Vec weight = splat(weights[j]);
        for (int i = 0; i < count; ++i) s[i] = fma(weight, load(values[j] + d + i * lanes), s[i]);
    }
    for (int i = 0; i < count; ++i) store(out + d + i * lanes, s[i]);
}

// One query's running softmax.
struct Running {
    float largest;
    float sum;
};

// Takes keys first … last - 1 of a tile into a query's softmax and output.
static void attend_tile(const Attention& a, const float* q, const KeyTile& tile, int64_t first, int64_t last,
                        Running& running, float* out) {
    const int64_t dim = padded(a.dim);
    float weights[attention_tile];
    for (int64_t j = 0; j < attention_tile; j += lanes)
        if (j < last && j + lanes > first) store(weights + j, scores_of(q, tile.keys + j, dim) * a.scale);
    if (a.softcap != 0.0f)
        for (int64_t j = first; j < last; ++j) weights[j] = a.softcap * tanhf(weights[j] / a.softcap);
    for (int64_t j = 0; j < first; ++j) weights[j] = -INFINITY;
    for (int64_t j = last; j < attention_tile; ++j) weights[j] = -INFINITY;

    Vec largest = load(weights);
    for (int64_t j = lanes; j < attention_tile; j += lanes) largest = max(largest, load(weights + j));
    const float new_largest = fmaxf(running.largest, lane_max(largest));
    const float keep = exp(running.largest - new_largest);
    Vec sum{};
    for (int64_t j = 0; j < attention_tile; j += lanes) {
        const Vec weight = exp(load(weights + j) - new_largest);
        store(weights + j, weight);
        sum += weight;
    }
    running = {new_largest, running.sum * keep + lane_sum(sum)};

    int64_t d = 0;
    for (; d + 8 * lanes <= dim; d += 8 * lanes) weigh_values<8>(weights, tile.values, first, last, d, keep, out);
    for (; d + 4 * lanes <= dim; d += 4 * lanes) weigh_values<4>(weights, tile.values, first, last, d, keep, out);
    for (; d < dim; d += lanes) weigh_values<1>(weights, tile.values, first, last, d, keep, out);
}

static void attention(const Attention& a, const AttentionPart& part) {
    const int64_t dim = padded(a.dim), num_items = part.num_queries * a.group;
    float* const queries = part.scratch;  // [items, dim], like the sums
    float* const sums = queries + num_items * dim;
    float* const staged_keys = sums + num_items * dim;
    float* const staged_values = staged_keys + attention_tile * dim;
    float* const zeros = staged_values + attention_tile * dim;  // the key of positions that no query here sees
    Running* const running = reinterpret_cast<Running*>(zeros + dim);

    memset(queries, 0, 4 * 2 * num_items * dim);
    memset(zeros, 0, 4 * dim);
    for (int64_t item = 0; item < num_items; ++item) {
        const int64_t query = item / a.group, head = item % a.group;
        memcpy(queries + item * dim, part.q + query * part.q_token_stride + head * part.q_head_stride, 4 * a.dim);
        running[item] = {-INFINITY, 0.0f};
    }

    const int64_t end = part.position + part.num_queries;
    const int64_t begin = a.window && part.position >= a.window ? part.position - a.window + 1 : 0;
    for (int64_t base = begin / attention_tile * attention_tile; base < end; base += attention_tile) {
        const int64_t first = begin > base ? begin - base : 0;
        const int64_t last = end - base < attention_tile ? end - base : attention_tile;
        KeyTile tile;
        for (int64_t j = 0; j < attention_tile; ++j) tile.keys[j] = tile.values[j] = zeros;
        int64_t logical = (base + first) / a.block_size, token = (base + first) % a.block_size;
        for (int64_t j = first; j < last; ++j) {
            const int64_t block = part.table[logical];
            tile.keys[j] = head_in_block(a, a.keys, block, token, part.key_head, staged_keys + j * dim);
            tile.values[j] = head_in_block(a, a.values, block, token, part.key_head, staged_values + j * dim);
            if (++token == a.block_size) {
                token = 0;
                ++logical;
            }
        }
        for (int64_t item = 0; item < num_items; ++item) {
            const int64_t position = part.position + item / a.group - base;  // counted from the tile's first
            const int64_t oldest = a.window ? position - a.window + 1 : first;
            const int64_t item_first = oldest > first ? oldest : first;
            const int64_t item_last = position + 1 < last ? position + 1 : last;
            if (item_first < item_last)
                attend_tile(a, queries + item * dim, tile, item_first, item_last, running[item], sums + item * dim);
        }
    }
    for (int64_t item = 0; item < num_items; ++item) {
        float* const out = part.out + item / a.group * part.out_token_stride + item % a.group * part.out_head_stride;
        const float total = running[item].sum;
        for (int64_t d = 0; d < a.dim; ++d) out[d] = sums[item * dim + d] / total;
    }
}

}  // namespace trivium::TRIVIUM_ISA
