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

// Taken together by ops that need not take all: enough that weights come from caches most often, few enough that values
// stay there.
constexpr int64_t tokens_together = 128;

struct Tokens {
    int64_t first, count;
};

// About as many in each.
std::vector<Tokens> cut(int64_t num_tokens) {
    std::vector<Tokens> parts;
    const int64_t num_parts = ceil_div(num_tokens, tokens_together);
    for (int64_t i = 0; i < num_parts; ++i) {
        const int64_t first = num_tokens * i / num_parts / 8 * 8;  // rows are multiplied eight at a time
        const int64_t last = i + 1 == num_parts ? num_tokens : num_tokens * (i + 1) / num_parts / 8 * 8;
        parts.push_back({first, last - first});
    }
    return parts;
}

Tensor of_tokens(const Tensor& t, const Tokens& tokens) {
    const int64_t element_bytes = t.dtype == DType::i64 ? 8 : 4;
    Tensor part = t;
    part.data = t.as<uint8_t>() + tokens.first * t.strides[0] * element_bytes;
    part.shape[0] = tokens.count;
    return part;
}

// Groups keep the tables of all.
StepTensors of_tokens(const StepTensors& step, const Tokens& tokens) {
    StepTensors part;
    part.ids = of_tokens(step.ids, tokens);
    for (const StepTensors::Rotation& turn : step.rotations)
        part.rotations.push_back({of_tokens(turn.cos, tokens), of_tokens(turn.sin, tokens)});
    for (const StepTensors::Group& group : step.groups)
        part.groups.push_back({group.attention, of_tokens(group.slots, tokens)});
    return part;
}

// Wholly, before parts of them are taken.
void require_tokens(const StepTensors& step) {
    step.ids.require_dtype(DType::i64);
    step.ids.require_shape({-1});
    const int64_t tokens = step.ids.shape[0];
    for (const StepTensors::Rotation& turn : step.rotations) {
        for (const Tensor* t : {&turn.cos, &turn.sin}) {
            t->require_dtype(DType::f32);
            t->require_shape({tokens, -1});
        }
    }
    for (const StepTensors::Group& group : step.groups) {
        group.slots.require_dtype(DType::i64);
        group.slots.require_shape({tokens});
    }
}

void require_rising(const Tensor& wanted, int64_t num_tokens) {
    wanted.require_dtype(DType::i64);
    wanted.require_shape({-1});
    wanted.require_contiguous();
    const int64_t* const token = wanted.as<const int64_t>();
    for (int64_t i = 0; i < wanted.shape[0]; ++i) {
        require_index(token[i], num_tokens, "token");
        require(i == 0 || token[i - 1] < token[i], "wanted tokens must be in rising order");
    }
}

}  // namespace

const StepTensors::Rotation& StepTensors::rotation(int64_t index) const { return at(rotations, index, "rotation"); }
const StepTensors::Group& StepTensors::group(int64_t index) const { return at(groups, index, "KV group"); }

Program::Program(Ops& ops, std::vector<int64_t> buffer_widths)
    : ops_(ops), widths_(std::move(buffer_widths)), buffers_(widths_.size()) {
    for (const int64_t width : widths_)
        if (width < 1) throw std::invalid_argument("a buffer must be at least one float wide");
}

int64_t Program::width(int64_t buffer) const { return at(widths_, buffer, "buffer"); }

float* Program::floats_of(int64_t buffer) {
    const int64_t before = is_passing_[static_cast<size_t>(buffer)] ? 0 : first_token_ * width(buffer);
    return buffers_[static_cast<size_t>(buffer)].data() + before;
}

Tensor Program::rows(int64_t buffer) { return floats(floats_of(buffer), {num_tokens_, width(buffer)}); }

Tensor Program::heads(int64_t buffer, int64_t dim) {
    return floats(floats_of(buffer), {num_tokens_, width(buffer) / dim, dim});
}

Program::Routed Program::routed(int64_t buffer) {
    const int64_t top_k = width(buffer) / 3;
    float* const data = floats_of(buffer);
    Tensor ids = floats(data, {num_tokens_, top_k});
    ids.dtype = DType::i64;
    return {ids, floats(data + 2 * num_tokens_ * top_k, {num_tokens_, top_k})};
}

std::vector<bool> Program::read_before_written(size_t first, size_t last) const {
    std::vector<bool> read(widths_.size()), written(widths_.size());
    for (size_t i = first; i < last; ++i) {
        for (const int64_t buffer : steps_[i].reads)
            if (!written[static_cast<size_t>(buffer)]) read[static_cast<size_t>(buffer)] = true;
        for (const int64_t buffer : steps_[i].writes) written[static_cast<size_t>(buffer)] = true;
    }
    return read;
}

void Program::cut_into_segments(int64_t result) {
    result_ = result;
    segments_.clear();
    for (size_t i = 0; i < steps_.size(); ++i) {
        const Takes takes = steps_[i].takes;
        if (segments_.empty() || takes == Takes::all_tokens || segments_.back().takes == Takes::all_tokens) {
            segments_.push_back({takes, i, i + 1});
        } else {
            segments_.back().last = i + 1;
        }
    }
    is_passing_.assign(widths_.size(), true);
    is_passing_[static_cast<size_t>(result)] = false;
    for (const Segment& segment : segments_) {
        const std::vector<bool> read = read_before_written(segment.first, segment.last);
        for (size_t i = 0; i < read.size(); ++i)
            if (read[i]) is_passing_[i] = false;
        if (segment.takes == Takes::all_tokens)
            for (const int64_t buffer : steps_[segment.first].writes) is_passing_[static_cast<size_t>(buffer)] = false;
    }
}

void Program::reserve(int64_t num_tokens) {
    const auto needed = [&](size_t i) {
        const int64_t rows = is_passing_[i] ? std::min(num_tokens, tokens_together + 8) : num_tokens;
        return static_cast<size_t>(rows * widths_[i] + padding_floats);
    };
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
    steps_.push_back({Takes::some_tokens, {}, {out}, [=, this](const StepTensors& step) {
                          ops_.embed(step.ids, weight, rows(out));
                      }});
}

void Program::scale(int64_t x, float factor, int64_t out) {
    if (width(x) != width(out)) throw std::invalid_argument("scale: widths differ");
    steps_.push_back({Takes::some_tokens, {x}, {out}, [=, this](const StepTensors&) {
                          ops_.scale(rows(x), factor, rows(out));
                      }});
}

void Program::rms_norm(int64_t x, const Tensor& weight, float eps, int64_t out) {
    const int64_t dim = weight.shape[0];
    if (width(x) % dim || width(out) != width(x)) throw std::invalid_argument("rms_norm: widths do not fit");
    steps_.push_back({Takes::some_tokens, {x}, {out}, [=, this](const StepTensors&) {
                          ops_.rms_norm(heads(x, dim), weight, eps, heads(out, dim));
                      }});
}

void Program::packed_linears(int64_t x, std::vector<RecordedLayer> layers) {
    width(x);
    std::vector<int64_t> reads = {x}, writes;
    for (const RecordedLayer& layer : layers) {
        width(layer.out);
        writes.push_back(layer.out);
        if (layer.adds) reads.push_back(layer.out);
    }
    const auto run = [=, this, layers = std::move(layers)](const StepTensors&) {
        packed_layers_.clear();
        for (const RecordedLayer& layer : layers)
            packed_layers_.push_back({layer.packed, layer.bias, rows(layer.out), layer.adds});
        ops_.packed_linears(rows(x), packed_layers_);
    };
    steps_.push_back({Takes::some_tokens, std::move(reads), std::move(writes), run});
}

void Program::rotary(int64_t q, int64_t k, int64_t dim, int64_t rotation, int64_t q_out, int64_t k_out) {
    if (width(q) % dim || width(k) % dim || width(q_out) != width(q) || width(k_out) != width(k))
        throw std::invalid_argument("rotary: widths do not fit");
    steps_.push_back({Takes::some_tokens, {q, k}, {q_out, k_out}, [=, this](const StepTensors& step) {
                          const StepTensors::Rotation& turn = step.rotation(rotation);
                          ops_.rotary(heads(q, dim), heads(k, dim), turn.cos, turn.sin, heads(q_out, dim),
                                      heads(k_out, dim));
                      }});
}

void Program::write_kv(int64_t k, int64_t v, const Tensor& key_cache, const Tensor& value_cache, int64_t group) {
    const int64_t dim = head_dim(key_cache);
    if (width(k) % dim || width(v) != width(k)) throw std::invalid_argument("write_kv: widths do not fit");
    steps_.push_back({Takes::some_tokens, {k, v}, {}, [=, this](const StepTensors& step) {
                          ops_.write_kv(heads(k, dim), heads(v, dim), key_cache, value_cache, step.group(group).slots);
                      }});
}

void Program::paged_attention(int64_t q, const RecordedAttention& a, int64_t out) {
    const int64_t dim = head_dim(a.key_cache);
    if (width(q) % dim || width(out) != width(q)) throw std::invalid_argument("paged_attention: widths do not fit");
    steps_.push_back({Takes::all_tokens, {q}, {out}, [=, this](const StepTensors& step) {
                          ops_.paged_attention(heads(q, dim), a.key_cache, a.value_cache, step.group(a.group).attention,
                                               a.scale, a.window, a.softcap, heads(out, dim));
                      }});
    after_last_attention_ = steps_.size();
}

void Program::gated(int64_t gate, int64_t up, Activation activation, int64_t out) {
    if (width(gate) != width(up) || width(out) != width(gate)) throw std::invalid_argument("gated: widths differ");
    steps_.push_back({Takes::some_tokens, {gate, up}, {out}, [=, this](const StepTensors&) {
                          ops_.gated(rows(gate), rows(up), activation, rows(out));
                      }});
}

void Program::add(int64_t x, int64_t y, int64_t out) {
    if (width(x) != width(y) || width(out) != width(x)) throw std::invalid_argument("add: widths differ");
    steps_.push_back({Takes::some_tokens, {x, y}, {out}, [=, this](const StepTensors&) {
                          ops_.add(rows(x), rows(y), rows(out));
                      }});
}

void Program::route(int64_t logits, int64_t top_k, bool normalized, int64_t out) {
    width(logits);
    if (width(out) != 3 * top_k) throw std::invalid_argument("route: widths do not fit");
    // All tokens at once, as the experts take them.
    steps_.push_back({Takes::all_tokens, {logits}, {out}, [=, this](const StepTensors&) {
                          const Routed to = routed(out);
                          ops_.route(rows(logits), normalized, to.ids, to.shares);
                      }});
}

// All tokens at once: an expert's weights are read once for those of a step that chose it.
void Program::experts(int64_t x, int64_t routed, const ExpertTensors& weights, Activation activation, int64_t out) {
    if (width(x) != width(out) || width(routed) % 3) throw std::invalid_argument("experts: widths do not fit");
    steps_.push_back({Takes::all_tokens, {x, routed}, {out}, [=, this](const StepTensors&) {
                          const Routed to = this->routed(routed);
                          ops_.experts(rows(x), to.ids, to.shares, weights, activation, rows(out));
                      }});
}

void Program::keep(const Tensor& wanted) {
    const std::vector<bool> read = read_before_written(after_last_attention_, steps_.size());
    const int64_t* const token = wanted.as<const int64_t>();
    for (size_t buffer = 0; buffer < read.size(); ++buffer) {
        if (!read[buffer]) continue;
        const int64_t width = widths_[buffer];
        float* const rows = buffers_[buffer].data();
        for (int64_t i = 0; i < wanted.shape[0]; ++i)
            if (token[i] != i) std::copy_n(rows + token[i] * width, width, rows + i * width);
    }
}

void Program::run(const StepTensors& step, const std::optional<Tensor>& wanted, int64_t result, const Tensor& out) {
    width(result);
    require_tokens(step);
    int64_t num_tokens = step.ids.shape[0];
    if (wanted) {
        require_rising(*wanted, num_tokens);
        require(after_last_attention_ > 0 && after_last_attention_ < steps_.size(), "no ops follow an attention");
    }
    out.require_dtype(DType::f32);
    out.require_shape({wanted ? wanted->shape[0] : num_tokens, width(result)});
    out.require_contiguous();

    if (segments_.empty() || result != result_) cut_into_segments(result);
    reserve(num_tokens);
    std::vector<Tokens> cuts = cut(num_tokens);
    std::vector<StepTensors> parts;
    for (const Tokens& tokens : cuts) parts.push_back(of_tokens(step, tokens));
    for (const Segment& segment : segments_) {
        if (wanted && segment.first == after_last_attention_) {
            keep(*wanted);
            num_tokens = wanted->shape[0];
            cuts = cut(num_tokens);
            parts.assign(cuts.size(), {});  // nothing of the step is asked for any more
        }
        if (segment.takes == Takes::all_tokens) {
            first_token_ = 0;
            num_tokens_ = num_tokens;
            if (num_tokens > 0) steps_[segment.first].run(step);
            continue;
        }
        for (size_t part = 0; part < cuts.size(); ++part) {
            first_token_ = cuts[part].first;
            num_tokens_ = cuts[part].count;
            for (size_t i = segment.first; i < segment.last; ++i) steps_[i].run(parts[part]);
        }
    }
    std::copy_n(buffers_[static_cast<size_t>(result)].data(), num_tokens * width(result), out.as<float>());
}

}  // namespace trivium
