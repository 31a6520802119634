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
// stay there. Where all threads take them, they meet after every op, and less often if there are more.
constexpr int64_t tokens_of_a_thread = 64, tokens_of_all_threads = 128;
// Where weights are expanded for all tokens that are taken, which costs as much as multiplying some dozens of them
// (kernels/native_program.py counts their memory).
constexpr int64_t tokens_of_expanded_weights = 512;
// A thread's last ones are fewer, so that threads end together.
constexpr int64_t last_tokens_of_a_thread = 32;

// About as many in each part.
void cut_into(int64_t num_parts, const Tokens& tokens, std::vector<Tokens>& parts) {
    for (int64_t i = 0; i < num_parts; ++i) {
        const int64_t first = tokens.count * i / num_parts / 8 * 8;  // rows are multiplied eight at a time
        const int64_t last = i + 1 == num_parts ? tokens.count : tokens.count * (i + 1) / num_parts / 8 * 8;
        parts.push_back({tokens.first + first, last - first});
    }
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

void Lane::take(const Tokens& tokens, std::vector<AlignedFloats>& kept) {
    num_tokens_ = tokens.count;
    for (size_t i = 0; i < data_.size(); ++i)
        data_[i] = kept[i].empty() ? own_[i].data() : kept[i].data() + tokens.first * widths_[i];
}

Tensor Lane::rows(int64_t buffer) const {
    const size_t i = static_cast<size_t>(buffer);
    return floats(data_[i], {num_tokens_, widths_[i]});
}

Tensor Lane::heads(int64_t buffer, int64_t dim) const {
    const size_t i = static_cast<size_t>(buffer);
    return floats(data_[i], {num_tokens_, widths_[i] / dim, dim});
}

Lane::Routed Lane::routed(int64_t buffer) const {
    const size_t i = static_cast<size_t>(buffer);
    const int64_t top_k = widths_[i] / 3;
    Tensor ids = floats(data_[i], {num_tokens_, top_k});
    ids.dtype = DType::i64;
    return {ids, floats(data_[i] + 2 * num_tokens_ * top_k, {num_tokens_, top_k})};
}

Program::Program(Ops& ops, std::vector<int64_t> buffer_widths)
    : ops_(ops), widths_(std::move(buffer_widths)), kept_(widths_.size()), together_(ops_, widths_) {
    for (const int64_t width : widths_)
        if (width < 1) throw std::invalid_argument("a buffer must be at least one float wide");
}

int64_t Program::width(int64_t buffer) const { return at(widths_, buffer, "buffer"); }

Program::Cut Program::cut(int64_t num_tokens) const {
    if (expands_) {
        Cut cut = {{}, false};
        cut_into(ceil_div(num_tokens, tokens_of_expanded_weights), {0, num_tokens}, cut.parts);
        return cut;
    }
    const int64_t threads = ops_.num_threads(), last = threads * tokens_of_a_thread;
    Cut cut = {{}, threads > 1 && num_tokens >= last};
    if (cut.by_threads) {
        const int64_t first = (num_tokens - last) / 8 * 8;
        cut_into(ceil_div(first, tokens_of_a_thread), {0, first}, cut.parts);
        cut_into(last / last_tokens_of_a_thread, {first, num_tokens - first}, cut.parts);
    } else {
        const int64_t together = threads == 1 ? tokens_of_a_thread : tokens_of_all_threads;
        cut_into(ceil_div(num_tokens, together), {0, num_tokens}, cut.parts);
    }
    return cut;
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
    for (size_t i = 0; i < kept_.size(); ++i)
        if (is_passing_[i]) kept_[i] = {};
}

void Program::reserve(int64_t num_tokens, const std::vector<Cut>& cuts) {
    struct Need {
        AlignedFloats* memory;
        size_t num_floats;
    };
    std::vector<Need> needs;
    const auto need = [&](AlignedFloats& memory, int64_t rows, size_t buffer) {
        const size_t num_floats = static_cast<size_t>(rows * widths_[buffer] + padding_floats);
        if (memory.size() < num_floats) needs.push_back({&memory, num_floats});
    };
    for (size_t i = 0; i < widths_.size(); ++i)
        if (!is_passing_[i]) need(kept_[i], num_tokens, i);
    for (const Cut& cut : cuts) {
        int64_t most = 0;
        for (const Tokens& part : cut.parts) most = std::max(most, part.count);
        while (cut.by_threads && std::ssize(thread_lanes_) < ops_.num_threads()) {
            thread_ops_.push_back(std::make_unique<Ops>(ops_.kernels(), 1));
            thread_lanes_.push_back(std::make_unique<Lane>(*thread_ops_.back(), widths_));
        }
        const auto need_of = [&](Lane& lane) {
            for (size_t i = 0; i < widths_.size(); ++i)
                if (is_passing_[i]) need(lane.own()[i], most, i);
        };
        if (!cut.by_threads) need_of(together_);
        for (size_t i = 0; cut.by_threads && i < thread_lanes_.size(); ++i) need_of(*thread_lanes_[i]);
    }
    if (needs.empty()) return;
    for (const Need& each : needs) *each.memory = {};
#ifdef __GLIBC__
    malloc_trim(0);  // the small buffers would stay with the allocator, beside the large ones
#endif
    for (const Need& each : needs)
        if (each.memory->size() < each.num_floats) *each.memory = AlignedFloats(each.num_floats);
}

void Program::embed(const WeightTensor& weight, int64_t out) {
    width(out);
    steps_.push_back({Takes::some_tokens, {}, {out}, [=](Lane& lane, const StepTensors& step) {
                          lane.ops.embed(step.ids, weight, lane.rows(out));
                      }});
}

void Program::scale(int64_t x, float factor, int64_t out) {
    if (width(x) != width(out)) throw std::invalid_argument("scale: widths differ");
    steps_.push_back({Takes::some_tokens, {x}, {out}, [=](Lane& lane, const StepTensors&) {
                          lane.ops.scale(lane.rows(x), factor, lane.rows(out));
                      }});
}

void Program::rms_norm(int64_t x, const Tensor& weight, float eps, int64_t out) {
    const int64_t dim = weight.shape[0];
    if (width(x) % dim || width(out) != width(x)) throw std::invalid_argument("rms_norm: widths do not fit");
    steps_.push_back({Takes::some_tokens, {x}, {out}, [=](Lane& lane, const StepTensors&) {
                          lane.ops.rms_norm(lane.heads(x, dim), weight, eps, lane.heads(out, dim));
                      }});
}

void Program::packed_linears(int64_t x, std::optional<RowNorm> norm, std::vector<RecordedLayer> layers) {
    width(x);
    std::vector<int64_t> reads = {x}, writes;
    for (const RecordedLayer& layer : layers) {
        width(layer.out);
        writes.push_back(layer.out);
        if (layer.held == Held::summand) reads.push_back(layer.out);
        expands_ |= ops_.kernels().expands(packed_type_of(layer.packed));
    }
    const auto run = [=, layers = std::move(layers)](Lane& lane, const StepTensors&) {
        lane.packed_layers.clear();
        for (const RecordedLayer& layer : layers)
            lane.packed_layers.push_back({layer.packed, layer.bias, lane.rows(layer.out), layer.held});
        lane.ops.packed_linears(lane.rows(x), norm, lane.packed_layers);
    };
    steps_.push_back({Takes::some_tokens, std::move(reads), std::move(writes), run, true});
}

void Program::rotary(int64_t q, int64_t k, int64_t dim, int64_t rotation, int64_t q_out, int64_t k_out) {
    if (width(q) % dim || width(k) % dim || width(q_out) != width(q) || width(k_out) != width(k))
        throw std::invalid_argument("rotary: widths do not fit");
    steps_.push_back({Takes::some_tokens, {q, k}, {q_out, k_out}, [=](Lane& lane, const StepTensors& step) {
                          const StepTensors::Rotation& turn = step.rotation(rotation);
                          lane.ops.rotary(lane.heads(q, dim), lane.heads(k, dim), turn.cos, turn.sin,
                                          lane.heads(q_out, dim), lane.heads(k_out, dim));
                      }});
}

void Program::write_kv(int64_t k, int64_t v, const Tensor& key_cache, const Tensor& value_cache, int64_t group) {
    const int64_t dim = head_dim(key_cache);
    if (width(k) % dim || width(v) != width(k)) throw std::invalid_argument("write_kv: widths do not fit");
    // All tokens at once: some may share a slot, and then the last must win.
    steps_.push_back({Takes::all_tokens, {k, v}, {}, [=](Lane& lane, const StepTensors& step) {
                          lane.ops.write_kv(lane.heads(k, dim), lane.heads(v, dim), key_cache, value_cache,
                                            step.group(group).slots);
                      }});
}

void Program::paged_attention(int64_t q, const RecordedAttention& a, int64_t out) {
    const int64_t dim = head_dim(a.key_cache);
    if (width(q) % dim || width(out) != width(q)) throw std::invalid_argument("paged_attention: widths do not fit");
    steps_.push_back({Takes::all_tokens, {q}, {out}, [=](Lane& lane, const StepTensors& step) {
                          lane.ops.paged_attention(lane.heads(q, dim), a.key_cache, a.value_cache,
                                                   step.group(a.group).attention, a.scale, a.window, a.softcap,
                                                   lane.heads(out, dim));
                      }});
    after_last_attention_ = steps_.size();
}

void Program::gated(int64_t gate, int64_t up, Activation activation, int64_t out) {
    if (width(gate) != width(up) || width(out) != width(gate)) throw std::invalid_argument("gated: widths differ");
    steps_.push_back({Takes::some_tokens, {gate, up}, {out}, [=](Lane& lane, const StepTensors&) {
                          lane.ops.gated(lane.rows(gate), lane.rows(up), activation, lane.rows(out));
                      }});
}

void Program::add(int64_t x, int64_t y, int64_t out) {
    if (width(x) != width(y) || width(out) != width(x)) throw std::invalid_argument("add: widths differ");
    steps_.push_back({Takes::some_tokens, {x, y}, {out}, [=](Lane& lane, const StepTensors&) {
                          lane.ops.add(lane.rows(x), lane.rows(y), lane.rows(out));
                      }});
}

void Program::route(int64_t logits, int64_t top_k, bool normalized, int64_t out) {
    width(logits);
    if (width(out) != 3 * top_k) throw std::invalid_argument("route: widths do not fit");
    // All tokens at once, as the experts take them.
    steps_.push_back({Takes::all_tokens, {logits}, {out}, [=](Lane& lane, const StepTensors&) {
                          const Lane::Routed to = lane.routed(out);
                          lane.ops.route(lane.rows(logits), normalized, to.ids, to.shares);
                      }});
}

// All tokens at once: an expert's weights are read once for those of a step that chose it.
void Program::experts(int64_t x, int64_t routed, const ExpertTensors& weights, Activation activation, int64_t out) {
    if (width(x) != width(out) || width(routed) % 3) throw std::invalid_argument("experts: widths do not fit");
    steps_.push_back({Takes::all_tokens, {x, routed}, {out}, [=](Lane& lane, const StepTensors&) {
                          const Lane::Routed to = lane.routed(routed);
                          lane.ops.experts(lane.rows(x), to.ids, to.shares, weights, activation, lane.rows(out));
                      }});
}

void Program::keep(const Tensor& wanted) {
    const std::vector<bool> read = read_before_written(after_last_attention_, steps_.size());
    const int64_t* const token = wanted.as<const int64_t>();
    for (size_t buffer = 0; buffer < read.size(); ++buffer) {
        if (!read[buffer]) continue;
        const int64_t width = widths_[buffer];
        float* const rows = kept_[buffer].data();
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
    Cut now = cut(num_tokens);
    std::vector<Cut> cuts = {now};
    if (wanted) cuts.push_back(cut(wanted->shape[0]));
    reserve(num_tokens, cuts);
    std::vector<StepTensors> parts;
    for (const Tokens& tokens : now.parts) parts.push_back(of_tokens(step, tokens));
    for (const Segment& segment : segments_) {
        if (wanted && segment.first == after_last_attention_) {
            keep(*wanted);
            num_tokens = wanted->shape[0];
            now = cuts.back();
            parts.assign(now.parts.size(), {});  // nothing of the step is asked for any more
        }
        if (segment.takes == Takes::some_tokens) {
            run_segment(segment, now, parts);
        } else if (num_tokens > 0) {
            together_.take({0, num_tokens}, kept_);
            run_by_all_threads(segment.first, step);
        }
    }
    std::copy_n(kept_[static_cast<size_t>(result)].data(), num_tokens * width(result), out.as<float>());
}

void Program::run_segment(const Segment& segment, const Cut& cut, const std::vector<StepTensors>& parts) {
    if (cut.by_threads) {
        ops_.spread(std::ssize(parts), [&](int64_t part, int worker) {
            Lane& lane = *thread_lanes_[static_cast<size_t>(worker)];
            lane.take(cut.parts[static_cast<size_t>(part)], kept_);
            for (size_t op = segment.first; op < segment.last; ++op) steps_[op].run(lane, parts[static_cast<size_t>(part)]);
        });
    } else {
        for (size_t part = 0; part < parts.size(); ++part) {
            together_.take(cut.parts[part], kept_);
            for (size_t op = segment.first; op < segment.last; ++op) run_by_all_threads(op, parts[part]);
        }
    }
}

void Program::run_by_all_threads(size_t op, const StepTensors& part) {
    Recorded& step = steps_[op];
    ops_.fetch_while_waiting(weights_from(op), weights_from(op + 1));
    step.run(together_, part);
    if (step.has_layers && step.first_weights.parts.empty()) step.first_weights = ops_.first_weights();
}

const FirstWeights& Program::weights_from(size_t op) const {
    static const FirstWeights none;
    for (size_t i = 0; i < steps_.size(); ++i)
        if (const Recorded& step = steps_[(op + i) % steps_.size()]; step.has_layers) return step.first_weights;
    return none;
}

}  // namespace trivium
