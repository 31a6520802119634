// The ops of trivium/kernels on CPU tensors: each checks its inputs wholly before it touches memory, then spreads
// pieces of the work over threads. Shapes and meaning: the Python file of the op's name.
#pragma once

#include <functional>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "aligned.h"
#include "checks.h"
#include "kernels.h"
#include "tensor.h"
#include "thread_pool.h"

namespace trivium {

struct AttentionTensors {
    Tensor query_starts;
    Tensor context_lens;
    Tensor block_table;
};

struct PackedLayer {
    WeightTensor packed;
    std::optional<Tensor> bias;
    Tensor out;
    Held held = Held::nothing;  // by `out`; gates are the outputs of the layer before
};

// Rows are normed by their squares before they are multiplied.
struct RowNorm {
    Tensor weight;
    float eps;
};

// How the tokens of rows of logits are chosen; trivium/kernels/sample.py has the same names.
struct SampleTensors {
    struct Penalties {
        Tensor rows, amounts, history, spans;
    };
    struct Biases {
        Tensor starts, tokens, values;
    };
    struct Masks {
        Tensor rows, bits;
    };
    std::optional<Tensor> draws;
    std::optional<Penalties> penalties;
    std::optional<Biases> biases;
    std::optional<Masks> masks;
};

// Memory of one worker for one row of V tokens.
struct SampleScratch {
    struct Candidate {
        int64_t weight;
        int64_t token;
    };
    std::vector<float> logits;
    std::vector<int64_t> weights;
    std::vector<int64_t> head_weights, head_tokens;  // of the likeliest, by id
    std::vector<int32_t> counts;  // all 0 between rows
    std::vector<Candidate> candidates;
};

// Rows of x in each form that weights of some type are multiplied with.
struct Activations {
    int64_t columns;
    std::optional<QuantizedRows> quantized[2];  // by digits of their units
    std::optional<TurnedRows> turned;
    const uint32_t* laid[3] = {};  // by the float type of the weights

    std::optional<QuantizedRows>& quantized_for(WeightType type) {
        return quantized[digits_of(packed_layout(type).unit_columns) - 1];
    }
    const std::optional<QuantizedRows>& quantized_for(WeightType type) const {
        return quantized[digits_of(packed_layout(type).unit_columns) - 1];
    }
    const uint32_t* laid_for(WeightType type) const { return laid[static_cast<size_t>(laid_type(type))]; }
};

// A part of some layers' weights for each thread.
struct FirstWeights {
    std::vector<WeightBytes> parts;
};

// Experts' packed matrices, one after the other.
struct ExpertTensors {
    WeightTensor gate, up, down;
    int64_t wide;  // rows of gate and up
};

// Elements of cheap work (a norm, a copy) that are worth handing to another thread.
constexpr int64_t cheap_elements_per_task = 4096;

class Ops {
public:
    Ops(const Kernels& kernels, int num_threads);

    const Kernels& kernels() const { return kernels_; }
    int num_threads() const { return pool_.num_threads(); }
    // work(task, worker) for each of `count` tasks, on all threads. What the first of those that throw throws, it throws.
    void spread(int64_t count, const std::function<void(int64_t, int)>& work);

    // `out` uint8 [tiles, bytes of a tile]: `weight` as packed.h lays it, in its own type, as units of bytes or as short bfloat16 (stacks
    // of matrices too), or as rows of bytes.
    // False: the weight cannot be in that form, and `out` holds nothing.
    [[nodiscard]] bool pack(const WeightTensor& weight, const WeightTensor& out);
    uint64_t checksum(const Tensor& bytes);
    // Layers of the same x, which is normed, and quantized or laid out for float weights, once.
    void packed_linears(const Tensor& x, const std::optional<RowNorm>& norm, const std::vector<PackedLayer>& layers);
    // The weights that threads took first in the last call of packed_linears; of many the first.
    FirstWeights first_weights() const;
    // Threads that wait fetch weights into their caches: these until the next layers are multiplied, and then those of the layers
    // after them.
    void fetch_while_waiting(const FirstWeights& coming, const FirstWeights& after);
    void scale(const Tensor& x, float factor, const Tensor& out);
    void add(const Tensor& x, const Tensor& y, const Tensor& out);
    void embed(const Tensor& ids, const WeightTensor& weight, const Tensor& out);
    void rms_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out);
    void rotary(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin, const Tensor& q_out,
                const Tensor& k_out);
    void gated(const Tensor& gate, const Tensor& up, Activation activation, const Tensor& out);
    void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out);
    void activate(const Tensor& x, ElementFunction function, const Tensor& out);
    // `reach`: keys that a query sees on either side; negative: all.
    void text_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& starts, float scale,
                        int64_t reach, const Tensor& out);
    void write_kv(const Tensor& k, const Tensor& v, const Tensor& key_cache, const Tensor& value_cache,
                  const Tensor& slots);
    void paged_attention(const Tensor& q, const Tensor& key_cache, const Tensor& value_cache,
                         const AttentionTensors& batch, float scale, int64_t window, float softcap, const Tensor& out);
    // The `ids.shape[1]` likeliest experts of each token, likeliest first, and their shares of its result.
    void route(const Tensor& logits, bool normalized, const Tensor& ids, const Tensor& shares);
    void experts(const Tensor& x, const Tensor& ids, const Tensor& shares, const ExpertTensors& weights,
                 Activation activation, const Tensor& out);
    void sample(const Tensor& logits, const SampleTensors& batch, const Tensor& out);
    void logprobs(const Tensor& logits, const Tensor& tokens, const Tensor& scores, const Tensor& places);

private:
    // Memory for intermediate values, aligned for vectors; grows and is kept.
    class Buffer {
    public:
        float* at_least(int64_t num_floats);

    private:
        AlignedFloats memory_;
    };

    std::vector<float*> scratch(int64_t num_floats);  // one for each worker
    void pack_turned_tile(const Matrix& weight, int64_t first_row, float* scratch, uint8_t* out) const;
    static QuantizedRows room_for_quantized(int64_t rows, int64_t columns, int64_t unit_columns, Buffer& buffer);
    TurnedRows room_for_turned(int64_t rows, int64_t columns, Buffer& buffer);
    // Rows of x for weights of all `types`; they live until the next call.
    Activations prepared(const float* x, int64_t stride, int64_t rows, int64_t columns,
                         std::initializer_list<WeightType> types);
    void prepare(const float* x, int64_t stride, int64_t rows, const std::optional<RowNorm>& norm, WeightType type,
                 Activations& all);
    // Of rows of x from `first_row` on. `scratch`: linear_scratch(weight) bytes of the worker.
    void multiply(const LinearPart& part, const Activations& x, int64_t first_row, void* scratch) const;
    int64_t linear_scratch(const PackedMatrix& weight) const;
    struct LinearTask;
    void cut_linear_tasks(int64_t all_tiles);
    bool has_gates(int32_t layer) const;  // of `linear_layers_`: are its outputs gates
    LinearPart tiles_of(const LinearTask& task, int32_t layer) const;
    WeightBytes weights_of(const LinearTask& task) const;
    // The rows of `from` that pairs of a token and a choice need, in the order of `pairs`.
    Activations gathered(const Activations& from, const std::vector<int64_t>& pairs, int64_t choices);
    void attend(const Attention& attention, int64_t key_heads);  // all of attention_rows_
    int64_t cheap_rows_per_task(int64_t rows, int64_t width) const;
    void fetch(const FirstWeights& weights);
    // work(first, count) over `num_elements` cheap elements.
    template <typename Work>
    void each_range(int64_t num_elements, const Work& work);

    const Kernels& kernels_;
    ThreadPool pool_;
    std::mutex one_call_;  // the pool and the buffers serve one call at a time
    std::vector<Buffer> scratch_;
    Buffer quantized_x_[2], turned_x_;  // as Activations has them
    Buffer laid_x_[3];  // by the float type of the weights
    // Tiles of a layer, and the same of the next one, if their outputs are its gates. All threads read all tasks, so they are short.
    struct LinearTask {
        int32_t layer, first_tile, last_tile;
    };
    std::vector<LinearPart> linear_layers_;  // of the call, whole
    std::vector<LinearTask> linear_tasks_;
    FirstWeights after_next_layers_;
    std::vector<AttentionRow> attention_rows_;
    std::vector<AttentionPart> attention_parts_;
    struct alignas(64) FetchedPiece {
        int64_t index = ThreadPool::none;
    };
    std::vector<FetchedPiece> fetched_pieces_;  // of attention, by worker
    Buffer attention_results_;
    Buffer text_keys_, text_values_;
    std::vector<SampleScratch> sample_scratch_;  // one for each worker
    Buffer expert_quantized_[2], expert_laid_[3], expert_gated_, expert_out_;
};

}  // namespace trivium
