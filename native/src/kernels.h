// What each instruction set provides: serial pieces of work, which ops.cpp and its siblings check the inputs of and spread
// over threads. Every piece gives one result in one fixed order of operations, whatever else is computed beside it; that is
// what makes a row's result the same to the last bit alone, in a batch, and however its prompt was cut.
//
// Activations are float32, rows of contiguous elements; strides are in elements.
#pragma once

#include <cstdint>

#include "packed.h"
#include "weight_type.h"

namespace trivium {

enum class Activation : uint8_t { silu, gelu_tanh };
// Of each element, without a gate.
enum class ElementFunction : uint8_t { gelu, gelu_tanh, relu, silu };

// What is at a linear layer's outputs before they come: they take its place, are added to it, or are multiplied by its
// activation.
enum class Held : uint8_t { nothing, summand, silu_gate, gelu_tanh_gate };
constexpr Held gate_of(Activation a) { return a == Activation::silu ? Held::silu_gate : Held::gelu_tanh_gate; }
constexpr bool is_gate(Held held) { return held == Held::silu_gate || held == Held::gelu_tanh_gate; }

struct WeightBytes {
    const uint8_t* data = nullptr;
    int64_t num_bytes = 0;
};

// What a worker multiplies after a part of a layer.
class Following {
public:
    // Where it begins. It may be settled by the first question: the later that comes, the better do workers end together.
    virtual WeightBytes weights() = 0;

protected:
    ~Following() = default;
};

// Tiles of a linear layer on packed weights: out[m][n] = x[m] . weight[n] + bias[n], joined with what `out` holds. The rows
// of x come beside it, in the form that weights of the type are multiplied with.
struct LinearPart {
    int64_t num_x;
    PackedMatrix weight;
    int64_t first_tile;
    int64_t last_tile;
    const float* bias;  // or null
    float* out;         // out[m][n] at m * out_stride + n
    int64_t out_stride;
    Held held;  // by `out`
    Following* following = nullptr;  // null: nothing that is known

    // For a pass over its tiles that is not the last one: they follow themselves.
    LinearPart without_following() const {
        LinearPart part = *this;
        part.following = nullptr;
        return part;
    }
};

// Elements of a KV cache.
enum class KVType : uint8_t { f32, bf16, int8 };

// A cache of keys or of values, in blocks. What a head has in a block lies together, in words of 4 bytes, so that 16 words
// beside each other are what one vector multiplies: an element (bfloat16: a pair of elements, int8: four) of 16 keys, or of
// 16 dimensions of a value.
//
//     float32   keys [dim][block_size]        values [block_size][dim]
//     bfloat16  keys [dim / 2][block_size][2] values [block_size / 2][dim][2]
//     int8      scales float32 [block_size], then keys [dim / 4][block_size][4], values [block_size / 4][dim][4]; an element is
//               a whole number times its token's scale, and its key is turned (kernels/head_bytes.h)
struct PagedCache {
    uint8_t* data;
    int64_t block_bytes;  // from a block to the next
    int64_t head_bytes;   // from a head to the next
};

constexpr int64_t max_kv_dim = 1024;

// Keys, or values, of one head that go into a cache.
struct KVWrite {
    const float* x;  // of the first token
    int64_t x_stride;
    int64_t num_tokens;
    const int64_t* slots;  // block * block_size + token of the block
    uint8_t* head;         // in block 0
    int64_t block_bytes;
    int64_t block_size;
    int64_t dim;  // at most max_kv_dim
    KVType type;
};

// What all pieces of one attention call share.
struct Attention {
    const float* q;  // first query, first head
    int64_t q_token_stride;
    int64_t q_head_stride;
    float* out;
    int64_t out_token_stride;
    int64_t out_head_stride;
    PagedCache keys;
    PagedCache values;
    KVType type;
    int64_t block_size;
    int64_t group;  // query heads per key head
    int64_t dim;
    float scale;     // above 0
    int64_t window;  // 0: none
    float softcap;   // 0: none
    bool both_ways = false;  // queries see keys after their own too, of a window as many as before it
};
constexpr int64_t attention_tile = 128;  // keys, cut at absolute positions

// Queries of one row that follow each other.
struct AttentionRow {
    int64_t token;  // the first query's place among all
    int64_t num_queries;
    int64_t position;      // of the first query
    const int32_t* table;  // the row's blocks; all that the queries see are valid
    int64_t first_tile;    // of those that the queries see
    int64_t last_tile;
    // Tiles that lie in the same blocks as those of the part's row before this one, and that all queries of both see
    // wholly.
    int64_t first_shared = 0;
    int64_t last_shared = 0;
    int64_t num_keys = 0;  // of the row, where queries see both ways
};

// Queries of some rows, in the heads of one group, against some tiles of keys of one key head.
struct AttentionPart {
    const AttentionRow* rows;
    int64_t num_rows;
    int64_t num_queries;  // of all rows
    int64_t key_head;
    int64_t first_tile;
    int64_t last_tile;
    float* results;  // AttentionSizes::tile_results floats for each of the tiles; null: the tiles are all, `out` is written
    float* scratch;  // AttentionSizes::scratch floats
    bool is_fetched = false;              // is the first tile in a cache near by
    const AttentionPart* next = nullptr;  // that the thread attends to after it; its first tile is fetched meanwhile
};
struct AttentionSizes {
    int64_t scratch;
    int64_t tile_results;
};

// The largest of a row of logits.
struct Largest {
    float value;
    int64_t index;   // the first that has it
    bool is_finite;  // and all others are numbers
};
constexpr int draw_weight_bits = 42;  // of the likeliest token's weight
struct WeightSum {
    int64_t count;
    int64_t mass;
};

// Linear layers on weights that are no floats.
struct PackedKernels {
    // `scratch`: scratch_bytes(...), aligned for vectors.
    void (*linear)(const LinearPart& part, const QuantizedRows& x, void* scratch);
    void (*byte_rows_linear)(const LinearPart& part, const TurnedRows& x, void* scratch);
    int64_t (*scratch_bytes)(WeightType type, int64_t columns);
    bool (*expands)(WeightType type);  // does `linear` make the weights ready anew for many rows
};

// Linear layers on float weights.
struct FloatKernels {
    // `x`: rows as lay_row lays them for the weight's type, laid_stride words from one to the next.
    // `scratch`: scratch_bytes(...), aligned for vectors.
    void (*linear)(const LinearPart& part, const uint32_t* x, void* scratch);
    // One row of activations for `linear`, padded_columns(columns) words that mean something to it alone.
    void (*lay_row)(WeightType type, const float* x, int64_t columns, uint32_t* out);
    int64_t (*scratch_bytes)(WeightType type, int64_t columns);
};

struct AttentionKernels {
    // Items, which are (query, head) pairs of a prompt, that are best attended to together: as many as pay for what it takes
    // to make a tile of keys ready for them.
    int64_t prompt_items_together;
    AttentionSizes (*sizes)(const Attention& attention, int64_t num_items);  // items: queries * group
    void (*attend)(const Attention& attention, const AttentionPart& part);
    // Of all tiles of a part, whose `results` other parts have filled, into its `out`.
    void (*merge)(const Attention& attention, const AttentionPart& part);
};

struct Kernels {
    const char* name;
    PackedKernels packed;
    FloatKernels floats;
    AttentionKernels attention;
    void (*quantize_row)(const float* x, const QuantizedRows& out);  // the first row of `out`
    // The first row of `out`, of weights and activations alike. `turned`: room for a row; it may be x.
    void (*turn_row)(const float* x, float* turned, const TurnedRows& out);
    void (*decode)(WeightType type, const uint8_t* blocks, float* out, int64_t num_elements);
    void (*rms_norm)(const float* x, const float* weight, float eps, float* out, int64_t dim);
    // One head: turns pairs (i, i + half), copies what lies beyond 2 * half.
    void (*rotary)(const float* x, const float* cos, const float* sin, float* out, int64_t half, int64_t dim);
    void (*gated)(const float* gate, const float* up, Activation activation, float* out, int64_t count);
    void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, float* out, int64_t dim);
    void (*activate)(const float* x, ElementFunction function, float* out, int64_t count);
    void (*exponentials)(const float* x, float largest, float* out, int64_t count);  // e^(x - largest)
    void (*add_scaled)(const float* x, float scale, float* sum, int64_t count);
    void (*write_keys)(const KVWrite& write);
    void (*write_values)(const KVWrite& write);
    Largest (*largest)(const float* x, int64_t count);
    // out[i] = 2^((x[i] - largest) * scale + draw_weight_bits), rounded, the same to the last bit on every machine.
    void (*draw_weights)(const float* x, int64_t count, float largest, float scale, int64_t* out);
    WeightSum (*weights_at_least)(const int64_t* weights, int64_t count, int64_t least);
    double (*sum_of_exponentials)(const float* x, int64_t count, float largest);  // of e^(x - largest)

    // Are weights of the type made ready anew for the rows that are multiplied together.
    bool expands(WeightType type) const { return is_float(type) ? is_short(type) : packed.expands(type); }
};

const Kernels& baseline_kernels();
#if defined(__x86_64__)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
// Each of these is the one before it (amx: avx512_vnni) but for what its instructions make faster.
const Kernels& avx512_vnni_kernels();
const Kernels& avx512_bf16_kernels();
const Kernels& amx_kernels();
#elif defined(__aarch64__)
const Kernels& neon_kernels();
#endif

}  // namespace trivium
