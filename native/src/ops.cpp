#include "ops.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#include "checks.h"
#include "checksum.h"
#include "following.h"

namespace trivium {

namespace {

// The weight [..., rows, columns] as one matrix of all its rows, with `columns` checked.
Matrix matrix_of(const WeightTensor& weight, int64_t columns) {
    const Tensor& t = weight.tensor;
    const WeightType type = type_of(weight);
    require(t.ndim >= 2, std::string(t.name) + " must have at least 2 dimensions");
    t.require_contiguous();
    const int64_t last = t.shape[t.ndim - 1];
    const bool fits = weight.type ? columns % layout(type).block_elements == 0 && last == bytes_of(type, columns)
                                  : last == columns;
    require(fits, std::string(t.name) + " of type " + layout(type).name + " has rows of " + std::to_string(last) +
                      (weight.type ? " bytes" : " elements") + ", which is not " + std::to_string(columns) + " columns");
    int64_t rows = 1;
    for (int i = 0; i + 1 < t.ndim; ++i) rows *= t.shape[i];
    return {type, t.as<const uint8_t>(), rows, columns};
}

// The number of columns where nothing else says it.
int64_t columns_of(const WeightTensor& weight) {
    const Tensor& t = weight.tensor;
    require(t.ndim >= 1, std::string(t.name) + " must have dimensions");
    const int64_t last = t.shape[t.ndim - 1];
    if (!weight.type) return last;
    const WeightLayout& blocks = layout(type_of(weight));
    require(last % blocks.block_bytes == 0, std::string(t.name) + " does not hold whole blocks");
    return last / blocks.block_bytes * blocks.block_elements;
}

// How many tiles of weights the next task takes: the more are left, the more, since taking a task costs about as much as a tile
// of a single row, and a task's first tile was not fetched beforehand; and few at the end, so that threads end together although
// one of them may be slower than another.
class Portions {
public:
    Portions(int64_t num_tiles, int num_threads)
        : left_(num_tiles), num_threads_(num_threads), fewest_(2 * ceil_div(num_tiles, 2 * last_portions * num_threads)) {}

    int64_t take(int64_t most) {
        const int64_t share = num_threads_ == 1 ? left_ : ceil_div(3 * left_, 4 * num_threads_);
        const int64_t taken = std::min(most, std::max((share + 1) / 2 * 2, fewest_));
        left_ -= taken;
        return taken;
    }

    // Of two layers that are taken beside each other. What one of them wrote is still in a cache when the other reads it.
    int64_t take_pairs(int64_t most) {
        const int64_t taken = take(std::min(most, most_pairs));
        left_ -= taken;
        return taken;
    }

private:
    static constexpr int64_t last_portions = 64, most_pairs = 16;

    int64_t left_;
    const int num_threads_;
    const int64_t fewest_;
};

// By a thread that waits: half of a second-level cache of 1 MiB.
constexpr int64_t most_bytes_fetched = 512 << 10;

// Floats of one worker: a row, and its bytes.
int64_t turned_tile_scratch(int64_t columns) { return columns + ceil_div(columns, 4); }

}  // namespace

Ops::Ops(const Kernels& kernels, int num_threads)
    : kernels_(kernels), pool_(num_threads), scratch_(static_cast<size_t>(std::max(1, num_threads))) {}

int64_t Ops::cheap_rows_per_task(int64_t rows, int64_t width) const {
    const int64_t worth_handing_over = std::max<int64_t>(1, cheap_elements_per_task / std::max<int64_t>(1, width));
    return std::max(worth_handing_over, ceil_div(rows, 4 * pool_.num_threads()));
}

void Ops::spread(int64_t count, const std::function<void(int64_t, int)>& work) {
    const std::lock_guard lock(one_call_);
    std::vector<std::exception_ptr> thrown(static_cast<size_t>(count));
    pool_.run(count, [&](int64_t task, int worker) {
        try {
            work(task, worker);
        } catch (...) {
            thrown[static_cast<size_t>(task)] = std::current_exception();
        }
    });
    for (const std::exception_ptr& one : thrown)
        if (one) std::rethrow_exception(one);
}

float* Ops::Buffer::at_least(int64_t num_floats) {
    if (memory_.size() < static_cast<size_t>(num_floats)) {
        memory_ = {};  // a growing vector would copy it, and take up to twice what is needed
        memory_ = AlignedFloats(static_cast<size_t>(num_floats));
    }
    return memory_.data();
}

std::vector<float*> Ops::scratch(int64_t num_floats) {
    std::vector<float*> all;
    for (Buffer& buffer : scratch_) all.push_back(buffer.at_least(num_floats));
    return all;
}

bool Ops::pack(const WeightTensor& weight, const WeightTensor& out) {
    const int64_t columns = columns_of(weight);
    const Matrix all = matrix_of(weight, columns);
    const WeightType type = packed_type_of(out);
    const int ndim = weight.tensor.ndim;
    const bool turns = is_byte_rows(type);
    require(turns || stored_type(type) == all.type,
            std::string(layout(all.type).name) + " weights cannot be packed as " + layout(type).name);
    require(!turns || ndim == 2, "a matrix can be packed as rows of bytes");
    require(!turns || can_be_byte_rows(columns),
            "rows of bytes have a multiple of " + std::to_string(turned_columns) + " columns, at most " +
                std::to_string(byte_rows_columns) + ", not " + std::to_string(columns));
    require(ndim == 2 || ndim == 3, "a matrix or a stack of matrices can be packed");
    const int64_t stack = ndim == 3 ? weight.tensor.shape[0] : 1, rows = weight.tensor.shape[ndim - 2];
    const int64_t tiles = packed_tiles(rows), tile_bytes = packed_tile_bytes(type, columns);
    if (ndim == 3) {
        out.tensor.require_shape({stack, tiles, tile_bytes});
    } else {
        out.tensor.require_shape({tiles, tile_bytes});
    }
    out.tensor.require_contiguous();

    const std::lock_guard lock(one_call_);
    const std::vector<float*> scratch = this->scratch(turns ? turned_tile_scratch(columns) : 0);
    std::atomic<bool> is_packed = true;
    pool_.run(stack * tiles, [&](int64_t tile, int worker) {
        const Matrix matrix = {all.type, all.data + tile / tiles * bytes_of(all.type, rows * columns), rows, columns};
        const int64_t first_row = tile % tiles * packed_tile_rows;
        uint8_t* const to = out.tensor.as<uint8_t>() + tile * tile_bytes;
        if (turns) {
            pack_turned_tile(matrix, first_row, scratch[static_cast<size_t>(worker)], to);
        } else if (!pack_tile(matrix, type, first_row, to)) {
            is_packed = false;
        }
    });
    return is_packed;
}

void Ops::pack_turned_tile(const Matrix& weight, int64_t first_row, float* scratch, uint8_t* out) const {
    const int64_t columns = weight.columns, row_bytes = bytes_of(weight.type, columns);
    int8_t* const bytes = reinterpret_cast<int8_t*>(scratch + columns);
    for (int i = 0; i < packed_tile_rows; ++i) {
        if (first_row + i < weight.rows) {
            kernels_.decode(weight.type, weight.data + (first_row + i) * row_bytes, scratch, columns);
        } else {
            std::fill_n(scratch, columns, 0.0f);
        }
        float scale;
        int32_t sum;
        kernels_.turn_row(scratch, scratch, {bytes, &scale, &sum, columns, columns});
        put_byte_row(bytes, scale, columns, i, out);
    }
}

uint64_t Ops::checksum(const Tensor& bytes) {
    bytes.require_dtype(DType::u8);
    bytes.require_contiguous();
    const int64_t count = bytes.num_elements();

    const std::lock_guard lock(one_call_);
    std::vector<uint64_t> chunks(static_cast<size_t>(ceil_div(count, checksum_chunk_bytes)));
    pool_.run(static_cast<int64_t>(chunks.size()), [&](int64_t i, int) {
        const int64_t first = i * checksum_chunk_bytes;
        chunks[static_cast<size_t>(i)] =
            chunk_checksum(bytes.as<const uint8_t>() + first, std::min(checksum_chunk_bytes, count - first));
    });
    uint64_t all = 0;
    for (const uint64_t chunk : chunks) all = joined_checksum(all, chunk);
    return all;
}

QuantizedRows Ops::room_for_quantized(int64_t rows, int64_t columns, int64_t unit_columns, Buffer& buffer) {
    return quantized_rows_in(buffer.at_least(rows * quantized_row_bytes(columns, unit_columns) / 4), columns, unit_columns);
}

TurnedRows Ops::room_for_turned(int64_t rows, int64_t columns, Buffer& buffer) {
    const int64_t stride = turned_stride(columns);
    float* const memory = buffer.at_least(2 * rows + ceil_div(rows * stride, 4));
    TurnedRows all;
    all.columns = columns;
    all.stride = stride;
    all.q = reinterpret_cast<int8_t*>(memory);
    all.scales = memory + ceil_div(rows * stride, 4);
    all.q_sums = reinterpret_cast<int32_t*>(all.scales + rows);
    return all;
}

Activations Ops::prepared(const float* x, int64_t stride, int64_t rows, int64_t columns,
                          std::initializer_list<WeightType> types) {
    Activations all;
    all.columns = columns;
    for (const WeightType type : types) prepare(x, stride, rows, {}, type, all);
    return all;
}

void Ops::prepare(const float* x, int64_t stride, int64_t rows, const std::optional<RowNorm>& norm, WeightType type,
                  Activations& all) {
    const int64_t columns = all.columns, rows_per_task = cheap_rows_per_task(rows, columns);
    const std::vector<float*> scratch = this->scratch(padded_columns(columns));
    const auto row = [&](int64_t i, int worker) -> const float* {
        if (!norm) return x + i * stride;
        float* const normed = scratch[static_cast<size_t>(worker)];
        kernels_.rms_norm(x + i * stride, norm->weight.as<const float>(), norm->eps, normed, columns);
        return normed;
    };
    const auto each_row = [&](const auto& work) {
        pool_.run(ceil_div(rows, rows_per_task), [&](int64_t task, int worker) {
            const int64_t last = std::min(rows, (task + 1) * rows_per_task);
            for (int64_t i = task * rows_per_task; i < last; ++i) work(i, worker);
        });
    };
    if (is_byte_rows(type)) {
        if (all.turned) return;
        all.turned = room_for_turned(rows, columns, turned_x_);
        each_row([&](int64_t i, int worker) {
            kernels_.turn_row(row(i, worker), scratch[static_cast<size_t>(worker)], all.turned->from_row(i));
        });
    } else if (!is_float(type)) {
        std::optional<QuantizedRows>& quantized = all.quantized_for(type);
        if (quantized) return;
        const int64_t unit_columns = packed_layout(type).unit_columns;
        quantized = room_for_quantized(rows, columns, unit_columns, quantized_x_[digits_of(unit_columns) - 1]);
        each_row([&](int64_t i, int worker) { kernels_.quantize_row(row(i, worker), quantized->from_row(i)); });
    } else if (!all.laid_for(type)) {
        const int64_t words_of_row = laid_stride(columns);
        const size_t place = static_cast<size_t>(laid_type(type));
        uint32_t* const words = reinterpret_cast<uint32_t*>(laid_x_[place].at_least(rows * words_of_row));
        each_row([&](int64_t i, int worker) {
            kernels_.floats.lay_row(type, row(i, worker), columns, words + i * words_of_row);
        });
        all.laid[place] = words;
    }
}

void Ops::packed_linears(const Tensor& x, const std::optional<RowNorm>& norm, const std::vector<PackedLayer>& layers) {
    x.require_dtype(DType::f32);
    x.require_shape({-1, -1});
    x.require_contiguous_tail(1);
    const int64_t num_x = x.shape[0], columns = x.shape[1];
    if (norm) {
        norm->weight.require_dtype(DType::f32);
        norm->weight.require_shape({columns});
        norm->weight.require_contiguous();
    }
    for (size_t i = 0; i < layers.size(); ++i) {
        const PackedLayer& layer = layers[i];
        require(!is_gate(layer.held) ||
                    (i > 0 && layers[i - 1].held == Held::nothing && layers[i - 1].out.data == layer.out.data &&
                     layers[i - 1].out.strides[0] == layer.out.strides[0]),
                "gates must be the outputs of the layer before");
        layer.out.require_dtype(DType::f32);
        layer.out.require_shape({num_x, -1});
        layer.out.require_contiguous_tail(1);
        layer.out.require_no_overlap();
        const int64_t rows = layer.out.shape[1];
        const WeightType type = packed_type_of(layer.packed);
        const int64_t unit = is_byte_rows(type) ? turned_columns : packed_layout(type).unit_columns;
        require(is_float(type) || (columns > 0 && columns % unit == 0),
                std::to_string(columns) + " columns are not whole units of the weight's type");
        layer.packed.tensor.require_shape({packed_tiles(rows), packed_tile_bytes(type, columns)});
        layer.packed.tensor.require_contiguous();
        if (layer.bias) {
            layer.bias->require_dtype(DType::f32);
            layer.bias->require_shape({rows});
            layer.bias->require_contiguous();
        }
    }
    if (num_x == 0) return;

    const std::lock_guard lock(one_call_);
    Activations rows_of_x;
    rows_of_x.columns = columns;
    for (const PackedLayer& layer : layers)
        prepare(x.as<const float>(), x.strides[0], num_x, norm, packed_type_of(layer.packed), rows_of_x);
    linear_layers_.clear();
    int64_t all_tiles = 0, scratch_bytes = 0;
    for (const PackedLayer& layer : layers) {
        const int64_t rows = layer.out.shape[1], num_tiles = packed_tiles(rows);
        const PackedMatrix matrix = {packed_type_of(layer.packed), layer.packed.tensor.as<const uint8_t>(), rows, columns};
        const float* const bias = layer.bias ? layer.bias->as<const float>() : nullptr;
        linear_layers_.push_back({num_x, matrix, 0, num_tiles, bias, layer.out.as<float>(), layer.out.strides[0], layer.held});
        scratch_bytes = std::max(scratch_bytes, linear_scratch(matrix));
        all_tiles += num_tiles;
    }
    cut_linear_tasks(all_tiles);
    const std::vector<float*> scratch = this->scratch(ceil_div(scratch_bytes, 4));
    fetch(after_next_layers_);
    pool_.run(static_cast<int64_t>(linear_tasks_.size()), [&](int64_t i, int worker) {
        const LinearTask& task = linear_tasks_[static_cast<size_t>(i)];
        float* const memory = scratch[static_cast<size_t>(worker)];
        // After the last task come the first weights of the layers after these.
        const auto weights_of_task = [&](int64_t next) {
            if (next != ThreadPool::none) return weights_of(linear_tasks_[static_cast<size_t>(next)]);
            const std::vector<WeightBytes>& coming = after_next_layers_.parts;
            return worker < std::ssize(coming) ? coming[static_cast<size_t>(worker)] : WeightBytes();
        };
        FollowingTask next_task(pool_, worker, weights_of_task);
        LinearPart part = tiles_of(task, task.layer);
        if (!has_gates(task.layer)) {
            part.following = &next_task;
            return multiply(part, rows_of_x, 0, memory);
        }
        LinearPart gated = tiles_of(task, task.layer + 1);
        FollowingPart then(gated);
        part.following = &then;
        gated.following = &next_task;
        multiply(part, rows_of_x, 0, memory);
        multiply(gated, rows_of_x, 0, memory);
    });
    after_next_layers_.parts.clear();
}

void Ops::cut_linear_tasks(int64_t all_tiles) {
    Portions portions(all_tiles, pool_.num_threads());
    linear_tasks_.clear();
    for (int32_t i = 0; i < std::ssize(linear_layers_); i += has_gates(i) ? 2 : 1) {
        const int64_t num_tiles = linear_layers_[static_cast<size_t>(i)].last_tile;
        for (int64_t first = 0, together; first < num_tiles; first += together) {
            together = has_gates(i) ? portions.take_pairs(num_tiles - first) : portions.take(num_tiles - first);
            linear_tasks_.push_back({i, static_cast<int32_t>(first), static_cast<int32_t>(first + together)});
        }
    }
}

WeightBytes Ops::weights_of(const LinearTask& task) const { return bytes_of(tiles_of(task, task.layer)); }

bool Ops::has_gates(int32_t layer) const {
    const size_t next = static_cast<size_t>(layer) + 1;
    return next < linear_layers_.size() && is_gate(linear_layers_[next].held);
}

LinearPart Ops::tiles_of(const LinearTask& task, int32_t layer) const {
    LinearPart part = linear_layers_[static_cast<size_t>(layer)];
    part.first_tile = task.first_tile;
    part.last_tile = task.last_tile;
    return part;
}

FirstWeights Ops::first_weights() const {
    FirstWeights first;
    for (size_t i = 0; i < std::min(linear_tasks_.size(), static_cast<size_t>(pool_.num_threads())); ++i) {
        const WeightBytes weights = weights_of(linear_tasks_[i]);
        first.parts.push_back({weights.data, std::min(most_bytes_fetched, weights.num_bytes)});
    }
    return first;
}

void Ops::fetch(const FirstWeights& weights) {
    for (size_t i = 0; i < weights.parts.size(); ++i)
        pool_.fetch_while_waiting(static_cast<int>(i), weights.parts[i].data, weights.parts[i].num_bytes);
}

void Ops::fetch_while_waiting(const FirstWeights& coming, const FirstWeights& after) {
    const std::lock_guard lock(one_call_);
    fetch(coming);
    after_next_layers_ = after;
}

int64_t Ops::linear_scratch(const PackedMatrix& weight) const {
    return is_float(weight.type) ? kernels_.floats.scratch_bytes(weight.type, weight.columns)
                                  : kernels_.packed.scratch_bytes(weight.type, weight.columns);
}

void Ops::multiply(const LinearPart& part, const Activations& x, int64_t first_row, void* scratch) const {
    const WeightType type = part.weight.type;
    if (is_byte_rows(type)) {
        kernels_.packed.byte_rows_linear(part, x.turned->from_row(first_row), scratch);
    } else if (is_float(type)) {
        kernels_.floats.linear(part, x.laid_for(type) + first_row * laid_stride(x.columns), scratch);
    } else {
        kernels_.packed.linear(part, x.quantized_for(type)->from_row(first_row), scratch);
    }
}

template <typename Work>
void Ops::each_range(int64_t num_elements, const Work& work) {
    const std::lock_guard lock(one_call_);
    pool_.run(ceil_div(num_elements, cheap_elements_per_task), [&](int64_t task, int) {
        const int64_t first = task * cheap_elements_per_task;
        work(first, std::min(cheap_elements_per_task, num_elements - first));
    });
}

void Ops::scale(const Tensor& x, float factor, const Tensor& out) {
    for (const Tensor* t : {&x, &out}) {
        t->require_dtype(DType::f32);
        t->require_contiguous();
    }
    require(out.num_elements() == x.num_elements(), "out must have the shape of x");
    each_range(x.num_elements(), [&](int64_t first, int64_t count) {
        for (int64_t i = first; i < first + count; ++i) out.as<float>()[i] = x.as<const float>()[i] * factor;
    });
}

void Ops::add(const Tensor& x, const Tensor& y, const Tensor& out) {
    for (const Tensor* t : {&x, &y, &out}) {
        t->require_dtype(DType::f32);
        t->require_contiguous();
    }
    require(y.num_elements() == x.num_elements() && out.num_elements() == x.num_elements(), "shapes must be the same");
    each_range(x.num_elements(), [&](int64_t first, int64_t count) {
        for (int64_t i = first; i < first + count; ++i)
            out.as<float>()[i] = x.as<const float>()[i] + y.as<const float>()[i];
    });
}

void Ops::embed(const Tensor& ids, const WeightTensor& weight, const Tensor& out) {
    ids.require_dtype(DType::i64);
    ids.require_shape({-1});
    ids.require_contiguous();
    const Matrix matrix = matrix_of(weight, columns_of(weight));
    out.require_dtype(DType::f32);
    out.require_shape({ids.shape[0], matrix.columns});
    out.require_contiguous();
    const int64_t* const id = ids.as<const int64_t>();
    for (int64_t i = 0; i < ids.shape[0]; ++i) require_index(id[i], matrix.rows, "token id");

    const std::lock_guard lock(one_call_);
    const int64_t row_bytes = bytes_of(matrix.type, matrix.columns);
    pool_.run(ids.shape[0], [&](int64_t i, int) {
        kernels_.decode(matrix.type, matrix.data + id[i] * row_bytes, out.as<float>() + i * matrix.columns,
                        matrix.columns);
    });
}

void Ops::rms_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out) {
    x.require_dtype(DType::f32);
    x.require_contiguous();
    require(x.ndim >= 1, "x must have dimensions");
    const int64_t dim = x.shape[x.ndim - 1];
    weight.require_dtype(DType::f32);
    weight.require_shape({dim});
    weight.require_contiguous();
    out.require_dtype(DType::f32);
    out.require_contiguous();
    require(out.num_elements() == x.num_elements(), "out must have the shape of x");
    if (x.num_elements() == 0) return;

    const std::lock_guard lock(one_call_);
    const int64_t rows = x.num_elements() / dim;
    const int64_t rows_per_task = cheap_rows_per_task(rows, dim);
    pool_.run(ceil_div(rows, rows_per_task), [&](int64_t task, int) {
        const int64_t last = std::min(rows, (task + 1) * rows_per_task);
        for (int64_t i = task * rows_per_task; i < last; ++i)
            kernels_.rms_norm(x.as<const float>() + i * dim, weight.as<const float>(), eps, out.as<float>() + i * dim,
                              dim);
    });
}

void Ops::rotary(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin, const Tensor& q_out,
                 const Tensor& k_out) {
    q.require_shape({-1, -1, -1});
    const int64_t tokens = q.shape[0], dim = q.shape[2];
    require_heads(q, tokens, -1, dim);
    require_heads(k, tokens, -1, dim);
    require_heads(q_out, tokens, q.shape[1], dim);
    require_heads(k_out, tokens, k.shape[1], dim);
    cos.require_shape({tokens, -1});
    const int64_t half = cos.shape[1];
    require(2 * half <= dim, "cos is wider than half a head");
    sin.require_shape({tokens, half});
    for (const Tensor* t : {&cos, &sin}) {
        t->require_dtype(DType::f32);
        t->require_contiguous();
    }
    for (const Tensor* t : {&q_out, &k_out}) t->require_no_overlap();

    const std::lock_guard lock(one_call_);
    const auto turn = [&](const Tensor& x, const Tensor& out, int64_t token) {
        for (int64_t head = 0; head < x.shape[1]; ++head)
            kernels_.rotary(x.as<const float>() + token * x.strides[0] + head * x.strides[1],
                            cos.as<const float>() + token * half, sin.as<const float>() + token * half,
                            out.as<float>() + token * out.strides[0] + head * out.strides[1], half, dim);
    };
    const int64_t width = std::max<int64_t>(1, (q.shape[1] + k.shape[1]) * dim);
    const int64_t tokens_per_task = cheap_rows_per_task(tokens, width);
    pool_.run(ceil_div(tokens, tokens_per_task), [&](int64_t task, int) {
        const int64_t last = std::min(tokens, (task + 1) * tokens_per_task);
        for (int64_t token = task * tokens_per_task; token < last; ++token) {
            turn(q, q_out, token);
            turn(k, k_out, token);
        }
    });
}

void Ops::gated(const Tensor& gate, const Tensor& up, Activation activation, const Tensor& out) {
    gate.require_shape({-1, -1});
    const int64_t rows = gate.shape[0], width = gate.shape[1];
    for (const Tensor* t : {&gate, &up, &out}) {
        t->require_dtype(DType::f32);
        t->require_shape({rows, width});
        t->require_contiguous_tail(1);
    }
    out.require_no_overlap();

    const std::lock_guard lock(one_call_);
    const int64_t rows_per_task = cheap_rows_per_task(rows, width);
    pool_.run(ceil_div(rows, rows_per_task), [&](int64_t task, int) {
        const int64_t last = std::min(rows, (task + 1) * rows_per_task);
        for (int64_t i = task * rows_per_task; i < last; ++i)
            kernels_.gated(gate.as<const float>() + i * gate.strides[0], up.as<const float>() + i * up.strides[0],
                           activation, out.as<float>() + i * out.strides[0], width);
    });
}

}  // namespace trivium
