// The ops of a step, recorded once and replayed for any number of tokens without Python in between.
//
// Values between ops live in buffers of the program, rows of `width` floats, one row per token. Weights and caches are
// the caller's tensors: they must outlive the program and stay where they are.
//
// The tokens of a step meet in attention only. What lies between two of its calls is done for some tokens after the other,
// so that what one op writes is still in a cache when the next one reads it; and where there are enough tokens for all
// threads, each thread takes some through all of these ops by itself, so that threads do not meet after every op.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "aligned.h"
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

// Tokens of a step that follow each other.
struct Tokens {
    int64_t first, count;
};

// Where ops find and leave the rows of the tokens that are taken now, and who computes them.
class Lane {
public:
    Lane(Ops& ops, const std::vector<int64_t>& widths)
        : ops(ops), own_(widths.size()), widths_(widths), data_(widths.size()) {}
    Lane(const Lane&) = delete;

    Ops& ops;
    std::vector<PackedLayer> packed_layers;  // of the op that runs

    // `kept` is what all lanes share, by buffer: rows of all tokens, or nothing where a buffer is the lane's own.
    void take(const Tokens& tokens, std::vector<AlignedFloats>& kept);

    Tensor rows(int64_t buffer) const;                // [tokens taken now, width]
    Tensor heads(int64_t buffer, int64_t dim) const;  // [tokens taken now, width / dim, dim]
    struct Routed {
        Tensor ids, shares;  // [tokens taken now, top_k]
    };
    Routed routed(int64_t buffer) const;

    std::vector<AlignedFloats>& own() { return own_; }

private:
    std::vector<AlignedFloats> own_;  // by buffer
    const std::vector<int64_t>& widths_;
    std::vector<float*> data_;  // by buffer, of the first token taken
    int64_t num_tokens_ = 0;
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
        Held held;
    };
    void packed_linears(int64_t x, std::optional<RowNorm> norm, std::vector<RecordedLayer> layers);
    void rotary(int64_t q, int64_t k, int64_t dim, int64_t rotation, int64_t q_out, int64_t k_out);
    void write_kv(int64_t k, int64_t v, const Tensor& key_cache, const Tensor& value_cache, int64_t group);
    void paged_attention(int64_t q, const RecordedAttention& attention, int64_t out);
    void gated(int64_t gate, int64_t up, Activation activation, int64_t out);
    void add(int64_t x, int64_t y, int64_t out);
    // `out` holds the ids of a token's experts and their shares: 3 * top_k floats wide.
    void route(int64_t logits, int64_t top_k, bool normalized, int64_t out);
    void experts(int64_t x, int64_t routed, const ExpertTensors& weights, Activation activation, int64_t out);

    int64_t num_ops() const { return static_cast<int64_t>(steps_.size()); }
    // Replays all ops; the buffer `result` is then copied to `out` [T, width]. With `wanted`, int64 [M] in rising order, it
    // is of those tokens alone, and what follows the last attention is not computed for the others.
    void run(const StepTensors& step, const std::optional<Tensor>& wanted, int64_t result, const Tensor& out);

private:
    enum class Takes { some_tokens, all_tokens };
    struct Recorded {
        Takes takes;
        std::vector<int64_t> reads, writes;  // buffers; what an op updates it reads too
        std::function<void(Lane&, const StepTensors&)> run;
        bool has_layers = false;
        FirstWeights first_weights = {};  // of its layers, once they were multiplied by all threads
    };
    // Ops that follow each other and take some tokens, or one that takes all.
    struct Segment {
        Takes takes;
        size_t first, last;
    };

    // A step's tokens, as they are taken: `by_threads` each part by one thread, else one after the other by all.
    struct Cut {
        std::vector<Tokens> parts;
        bool by_threads;
    };

    int64_t width(int64_t buffer) const;
    Cut cut(int64_t num_tokens) const;
    void cut_into_segments(int64_t result);
    std::vector<bool> read_before_written(size_t first, size_t last) const;  // in these ops, by buffer
    void reserve(int64_t num_tokens, const std::vector<Cut>& cuts);
    void run_segment(const Segment& segment, const Cut& cut, const std::vector<StepTensors>& parts);
    void run_by_all_threads(size_t op, const StepTensors& part);
    const FirstWeights& weights_from(size_t op) const;  // of the first layers from that op on; after the last ones the first
    void keep(const Tensor& wanted);  // of the rows that ops after the last attention read

    Ops& ops_;
    std::vector<int64_t> widths_;
    std::vector<AlignedFloats> kept_;  // by buffer, of all tokens; empty where it passes
    std::vector<Recorded> steps_;
    std::vector<Segment> segments_;  // of all steps, once they run
    int64_t result_ = -1;
    std::vector<bool> is_passing_;  // by buffer: nothing in it is read by another segment than the one that wrote it
    size_t after_last_attention_ = 0;  // op
    bool expands_ = false;             // weights of some layer, for each call
    Lane together_;  // of all threads
    std::vector<std::unique_ptr<Ops>> thread_ops_;  // one for each thread, once a step has tokens for all
    std::vector<std::unique_ptr<Lane>> thread_lanes_;
};

}  // namespace trivium
