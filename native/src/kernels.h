// What each instruction set provides: serial pieces of work, which ops.cpp checks the inputs of and spreads over
// threads. Every piece gives one result in one fixed order of operations, whatever else is computed beside it; that is
// what makes a row's result the same to the last bit alone, in a batch, and however its prompt was cut.
//
// Activations are float32, rows of contiguous elements; strides are in elements.
#pragma once

#include <cstdint>

#include "packed.h"
#include "weight_type.h"

namespace trivium {

enum class Activation : uint8_t { silu, gelu_tanh };

// Rows of a linear layer: out[m][n] = x[m] . weight[n] + bias[n] for m in [0, num_x) and n in [first, last).
struct LinearPart {
    const float* x;
    int64_t x_stride;
    int64_t num_x;  // at most linear_max_x
    Matrix weight;
    int64_t first;
    int64_t last;
    const float* bias;  // or null
    float* out;         // out[m][n] at m * out_stride + n
    int64_t out_stride;
    float* scratch;  // linear_scratch floats
};
constexpr int64_t linear_max_x = 64;
constexpr int64_t linear_tile = 8;     // weight rows expanded at a time
constexpr int64_t linear_chunk = 512;  // elements of a row expanded at a time: 16 KiB per tile, half of an L1 cache
constexpr int64_t linear_max_lanes = 16;
constexpr int64_t linear_row = linear_chunk + linear_max_lanes;  // not a power of two: rows fall into different sets
constexpr int64_t linear_scratch = linear_tile * linear_row + linear_max_x * linear_tile * linear_max_lanes;

// Tiles of a linear layer on packed weights: out[m][n] (+)= x[m] . weight[n] + bias[n].
struct PackedPart {
    QuantizedRows x;
    int64_t num_x;
    PackedMatrix weight;
    int64_t first_tile;
    int64_t last_tile;
    const float* bias;  // or null
    float* out;         // out[m][n] at m * out_stride + n
    int64_t out_stride;
    bool adds;  // to what `out` holds
};

// The same on packed float weights.
struct FloatPart {
    const uint32_t* x;  // rows as lay_float_row lays them for the weight's type
    int64_t num_x;
    PackedMatrix weight;
    int64_t first_tile;
    int64_t last_tile;
    const float* bias;  // or null
    float* out;         // out[m][n] at m * out_stride + n
    int64_t out_stride;
    bool adds;  // to what `out` holds
};

// A paged cache of keys or of values, [num_blocks, block_size, heads, dim]; elements of a head are contiguous.
struct PagedCache {
    const void* data;
    int64_t block_stride;
    int64_t token_stride;
    int64_t head_stride;
};

// What all pieces of one attention call share.
struct Attention {
    PagedCache keys;
    PagedCache values;
    bool bf16;  // else float32
    int64_t block_size;
    int64_t group;  // query heads per key head
    int64_t dim;
    float scale;
    int64_t window;  // 0: none
    float softcap;   // 0: none
};

// Queries of one row against one key head.
struct AttentionPart {
    const float* q;  // first query, first head of the group
    int64_t q_token_stride;
    int64_t q_head_stride;
    float* out;
    int64_t out_token_stride;
    int64_t out_head_stride;
    int64_t num_queries;
    int64_t position;  // of the first query
    int64_t key_head;
    const int32_t* table;  // the row's blocks; all that the queries see are valid
    float* scratch;        // attention_scratch(...) floats
};
constexpr int64_t attention_tile = 32;   // keys at a time, cut at absolute positions
constexpr int64_t attention_items = 64;  // (query, head) pairs that share one pass over the keys, where a group allows

static constexpr int64_t attention_scratch(int64_t num_items, int64_t padded_dim) {
    return num_items * (2 * padded_dim + 2) + (2 * attention_tile + 1) * padded_dim;
}

struct Kernels {
    const char* name;
    int64_t lanes;  // float32 in a vector; a linear layer's columns are padded to a multiple where they are not one

    void (*linear)(const LinearPart& part);
    void (*packed_linear)(const PackedPart& part);
    void (*float_linear)(const FloatPart& part);
    // One row of activations for `float_linear`, padded_columns(columns) words that mean something to it alone.
    void (*lay_float_row)(WeightType type, const float* x, int64_t columns, uint32_t* out);
    void (*quantize_row)(const float* x, const QuantizedRows& out);  // the first row of `out`
    void (*decode)(WeightType type, const uint8_t* blocks, float* out, int64_t num_elements);
    void (*rms_norm)(const float* x, const float* weight, float eps, float* out, int64_t dim);
    // One head: turns pairs (i, i + half), copies what lies beyond 2 * half.
    void (*rotary)(const float* x, const float* cos, const float* sin, float* out, int64_t half, int64_t dim);
    void (*gated)(const float* gate, const float* up, Activation activation, float* out, int64_t count);
    void (*add_scaled)(const float* x, float scale, float* sum, int64_t count);
    void (*to_bf16)(const float* x, uint16_t* out, int64_t count);
    void (*attention)(const Attention& attention, const AttentionPart& part);
};

const Kernels& baseline_kernels();
#if defined(__x86_64__)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& avx512_bf16_kernels();
#endif

}  // namespace trivium
