#include "program.h"

#ifdef __linux__
#include <malloc.h>
#endif

#include <algorithm>
#include <stdexcept>
#include <string>

namespace trivium {

namespace {

Tensor floats(float* data, std::initializer_list<int64_t> shape) {
    Tensor t = {};
    t.name = "a buffer of the program";
    t.data = data;
    t.dtype = DType::f32;
    t.ndim = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), t.shape);
    int64_t stride = 1;
    for (int i = t.ndim - 1; i >= 0; --i) {
        t.strides[i] = stride;
        stride *= t.shape[i];
    }
    return t;
}

template <typename T>
const T& at(const std::vector<T>& items, int64_t index, const char* what) {
    if (index < 0 || index >= static_cast<int64_t>(items.size()))
        throw std::out_of_range(std::string("the step has no ") + what + " " + std::to_string(index));
    return items[static_cast<size_t>(index)];
}

int64_t head_dim(const Tensor& key_cache) {
    if (key_cache.dtype == DType::i8) {
        key_cache.require_shape({-1, -1, -1, -1});
        return key_cache.shape[3] - 4;
    }
    key_cache.require_shape({-1, -1, -1, -1, -1});
    return key_cache.shape[2] * key_cache.shape[4];
}

// Vectors are loaded whole at the end of a row too; a cache line more keeps that inside.
constexpr int64_t padding_floats = 16;

}  // namespace

const StepTensors::Rotation& StepTensors::rotation(int64_t index) const { return at(rotations, index, "rotation"); }
const StepTensors::Group& StepTensors::group(int64_t index) const { return at(groups, index, "KV group"); }

Program::Program(Ops& ops, std::vector<int64_t> buffer_widths)
    : ops_(ops), widths_(std::move(buffer_widths)), buffers_(widths_.size()) {
    for (const int64_t width : widths_)
        if (width < 1) throw std::invalid_argument("a buffer must be at least one float wide");
}

int64_t Program::width(int64_t buffer) const { return at(widths_, buffer, "buffer"); }

Tensor Program::rows(int64_t buffer) {
    return floats(buffers_[static_cast<size_t>(buffer)].data(), {num_tokens_, width(buffer)});
}

Tensor Program::heads(int64_t buffer, int64_t dim) {
    return floats(buffers_[static_cast<size_t>(buffer)].data(), {num_tokens_, width(buffer) / dim, dim});
}

Program::Routed Program::routed(int64_t buffer) {
    const int64_t top_k = width(buffer) / 3;
    float* const data = buffers_[static_cast<size_t>(buffer)].data();
    Tensor ids = floats(data, {num_tokens_, top_k});
    ids.dtype = DType::i64;
    return {ids, floats(data + 2 * num_tokens_ * top_k, {num_tokens_, top_k})};
}

void Program::reserve(int64_t num_tokens) {
    num_tokens_ = num_tokens;
    const auto needed = [&](size_t i) { return static_cast<size_t>(num_tokens * widths_[i] + padding_floats); };
    bool grows = false;
    for (size_t i = 0; i < buffers_.size(); ++i) {
        if (buffers_[i].size() >= needed(i)) continue;
        buffers_[i] = {};
        grows = true;
    }
    if (!grows) return;
#ifdef __GLIBC__
    malloc_trim(0);  // the small buffers would stay with the allocator, beside the large ones
#endif
    for (size_t i = 0; i < buffers_.size(); ++i)
        if (buffers_[i].empty()) buffers_[i] = std::vector<float>(needed(i));
}

void Program::embed(const WeightTensor& weight, int64_t out) {
    width(out);
    steps_.push_back([=, this](const StepTensors& step) { ops_.embed(step.ids, weight, rows(out)); });
}

void Program::scale(int64_t x, float factor, int64_t out) {
    if (width(x) != width(out)) throw std::invalid_argument("scale: widths differ");
    steps_.push_back([=, this](const StepTensors&) { ops_.scale(rows(x), factor, rows(out)); });
}

void Program::rms_norm(int64_t x, const Tensor& weight, float eps, int64_t out) {
    const int64_t dim = weight.shape[0];
    if (width(x) % dim || width(out) != width(x)) throw std::invalid_argument("rms_norm: widths do not fit");
    steps_.push_back([=, this](const StepTensors&) { ops_.rms_norm(heads(x, dim), weight, eps, heads(out, dim)); });
}

void Program::packed_linears(int64_t x, std::vector<RecordedLayer> layers) {
    width(x);
    for (const RecordedLayer& layer : layers) width(layer.out);
    steps_.push_back([=, this, layers = std::move(layers)](const StepTensors&) {
        packed_layers_.clear();
        for (const RecordedLayer& layer : layers)
            packed_layers_.push_back({layer.packed, layer.bias, rows(layer.out), layer.adds});
        ops_.packed_linears(rows(x), packed_layers_);
    });
}

void Program::rotary(int64_t q, int64_t k, int64_t dim, int64_t rotation, int64_t q_out, int64_t k_out) {
    if (width(q) % dim || width(k) % dim || width(q_out) != width(q) || width(k_out) != width(k))
        throw std::invalid_argument("rotary: widths do not fit");
    steps_.push_back([=, this](const StepTensors& step) {
        const StepTensors::Rotation& turn = step.rotation(rotation);
        ops_.rotary(heads(q, dim), heads(k, dim), turn.cos, turn.sin, heads(q_out, dim), heads(k_out, dim));
    });
}

void Program::write_kv(int64_t k, int64_t v, const Tensor& key_cache, const Tensor& value_cache, int64_t group) {
    const int64_t dim = head_dim(key_cache);
    if (width(k) % dim || width(v) != width(k)) throw std::invalid_argument("write_kv: widths do not fit");
    steps_.push_back([=, this](const StepTensors& step) {
        ops_.write_kv(heads(k, dim), heads(v, dim), key_cache, value_cache, step.group(group).slots);
    });
}

void Program::paged_attention(int64_t q, const RecordedAttention& a, int64_t out) {
    const int64_t dim = head_dim(a.key_cache);
    if (width(q) % dim || width(out) != width(q)) throw std::invalid_argument("paged_attention: widths do not fit");
    steps_.push_back([=, this](const StepTensors& step) {
        ops_.paged_attention(heads(q, dim), a.key_cache, a.value_cache, step.group(a.group).attention, a.scale, a.window,
                             a.softcap, heads(out, dim));
    });
}

void Program::gated(int64_t gate, int64_t up, Activation activation, int64_t out) {
    if (width(gate) != width(up) || width(out) != width(gate)) throw std::invalid_argument("gated: widths differ");
    steps_.push_back([=, this](const StepTensors&) { ops_.gated(rows(gate), rows(up), activation, rows(out)); });
}

void Program::add(int64_t x, int64_t y, int64_t out) {
    if (width(x) != width(y) || width(out) != width(x)) throw std::invalid_argument("add: widths differ");
    steps_.push_back([=, this](const StepTensors&) { ops_.add(rows(x), rows(y), rows(out)); });
}

void Program::route(int64_t logits, int64_t top_k, bool normalized, int64_t out) {
    width(logits);
    if (width(out) != 3 * top_k) throw std::invalid_argument("route: widths do not fit");
    steps_.push_back([=, this](const StepTensors&) {
        const Routed to = routed(out);
        ops_.route(rows(logits), normalized, to.ids, to.shares);
    });
}

void Program::experts(int64_t x, int64_t routed, const ExpertTensors& weights, Activation activation, int64_t out) {
    if (width(x) != width(out) || width(routed) % 3) throw std::invalid_argument("experts: widths do not fit");
    steps_.push_back([=, this](const StepTensors&) {
        const Routed to = this->routed(routed);
        ops_.experts(rows(x), to.ids, to.shares, weights, activation, rows(out));
    });
}

void Program::run(const StepTensors& step, int64_t result, const Tensor& out) {
    step.ids.require_shape({-1});
    reserve(step.ids.shape[0]);
    for (const Recorded& op : steps_) op(step);
    out.require_dtype(DType::f32);
    out.require_shape({num_tokens_, width(result)});
    out.require_contiguous();
    const Tensor from = rows(result);
    std::copy_n(from.as<const float>(), from.num_elements(), out.as<float>());
}

}  // namespace trivium
