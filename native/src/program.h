// The ops of a step, recorded once and replayed for any number of tokens without Python in between.
//
// Values between ops live in buffers of the program, rows of `width` floats, one row per token. Weights and caches are
// the caller's tensors: they must outlive the program and stay where they are.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "ops.h"

namespace trivium {

// What changes from step to step.
struct StepTensors {
    Tensor ids;  // int64 [T]
    struct Rotation {
        Tensor cos, sin;  // float32 [T, half]
    };
    std::vector<Rotation> rotations;
    struct Group {
        AttentionTensors attention;
        Tensor slots;  // int64 [T]
    };
    std::vector<Group> groups;  // of KV blocks

    const Rotation& rotation(int64_t index) const;
    const Group& group(int64_t index) const;
};

// Caches and numbers of one layer's attention.
struct RecordedAttention {
    Tensor key_cache, value_cache;
    int64_t group;  // whose tables it reads
    float scale;
    int64_t window;  // 0: none
    float softcap;   // 0: none
};

class Program {
public:
    Program(Ops& ops, std::vector<int64_t> buffer_widths);

    void embed(const WeightTensor& weight, int64_t out);
    void scale(int64_t x, float factor, int64_t out);
    void rms_norm(int64_t x, const Tensor& weight, float eps, int64_t out);  // of each `weight` floats of a row
    struct RecordedLayer {
        WeightTensor packed;
        std::optional<Tensor> bias;
        int64_t out;
        bool adds;
    };
    void packed_linears(int64_t x, std::vector<RecordedLayer> layers);
    void rotary(int64_t q, int64_t k, int64_t dim, int64_t rotation, int64_t q_out, int64_t k_out);
    void write_kv(int64_t k, int64_t v, const Tensor& key_cache, const Tensor& value_cache, int64_t group);
    void paged_attention(int64_t q, const RecordedAttention& attention, int64_t out);
    void gated(int64_t gate, int64_t up, Activation activation, int64_t out);
    void add(int64_t x, int64_t y, int64_t out);
    // `out` holds the ids of a token's experts and their shares: 3 * top_k floats wide.
    void route(int64_t logits, int64_t top_k, bool normalized, int64_t out);
    void experts(int64_t x, int64_t routed, const ExpertTensors& weights, Activation activation, int64_t out);

    int64_t num_ops() const { return static_cast<int64_t>(steps_.size()); }
    // Replays all ops; the buffer `result` is then copied to `out` [T, width].
    void run(const StepTensors& step, int64_t result, const Tensor& out);

private:
    using Recorded = std::function<void(const StepTensors&)>;

    Tensor rows(int64_t buffer);                                // [T, width]
    Tensor heads(int64_t buffer, int64_t dim);                  // [T, width / dim, dim]
    struct Routed {
        Tensor ids, shares;  // [T, top_k]
    };
    Routed routed(int64_t buffer);
    int64_t width(int64_t buffer) const;
    void reserve(int64_t num_tokens);

    Ops& ops_;
    std::vector<int64_t> widths_;
    std::vector<std::vector<float>> buffers_;
    std::vector<Recorded> steps_;
    std::vector<PackedLayer> packed_layers_;
    int64_t num_tokens_ = 0;
};

}  // namespace trivium
