// Layers of which each token goes through a few: which, and what they make of it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "following.h"
#include "ops.h"

namespace trivium {

namespace {

// Pairs of a token and one of its choices that go to one expert: places [first, first + count) in the order of experts.
struct Group {
    int64_t expert, first, count;
};

struct Task {
    const Group* group;
    int64_t first_tile, last_tile;
};

std::vector<Group> grouped(const std::vector<int64_t>& pairs, const int64_t* ids) {
    std::vector<Group> groups;
    for (int64_t i = 0; i < static_cast<int64_t>(pairs.size()); ++i) {
        const int64_t expert = ids[pairs[static_cast<size_t>(i)]];
        if (groups.empty() || groups.back().expert != expert) groups.push_back({expert, i, 0});
        ++groups.back().count;
    }
    return groups;
}

// Few rows: about a task for each thread, since taking one costs about as much as a tile; many rows: several.
std::vector<Task> tasks_of(const std::vector<Group>& groups, int64_t tiles, int num_threads) {
    int64_t most_rows = 0;
    for (const Group& group : groups) most_rows = std::max(most_rows, group.count);
    const int64_t tasks = std::clamp<int64_t>(most_rows, 1, 8) * num_threads;
    const int64_t tiles_per_task = ceil_div(static_cast<int64_t>(groups.size()) * tiles, tasks);
    std::vector<Task> all;
    for (const Group& group : groups)
        for (int64_t first = 0; first < tiles; first += tiles_per_task)
            all.push_back({&group, first, std::min(tiles, first + tiles_per_task)});
    return all;
}

// The first expert's matrix of a stack; `rows` and `columns` are of each.
PackedMatrix first_of(const WeightTensor& stack, int64_t num_experts, int64_t rows, int64_t columns) {
    const WeightType type = packed_type_of(stack);
    require(!is_byte_rows(type), "experts are no rows of bytes");
    require(is_float(type) || (columns > 0 && columns % packed_layout(type).unit_columns == 0),
            std::to_string(columns) + " columns are not whole units of the weight's type");
    stack.tensor.require_shape({num_experts, packed_tiles(rows), packed_tile_bytes(type, columns)});
    stack.tensor.require_contiguous();
    return {type, stack.tensor.as<const uint8_t>(), rows, columns};
}

PackedMatrix expert_of(const PackedMatrix& first, int64_t index) {
    PackedMatrix one = first;
    one.data += index * packed_bytes(first.type, first.rows, first.columns);
    return one;
}

// `out`: the results of all pairs, in the order of experts.
LinearPart part_of(const Task& task, const PackedMatrix& first, float* out, Held held = Held::nothing) {
    const PackedMatrix weight = expert_of(first, task.group->expert);
    float* const result = out + task.group->first * weight.rows;
    return {task.group->count, weight, task.first_tile, task.last_tile, nullptr, result, weight.rows, held};
}

// A number that is greater for the likelier expert, and for the lower one of equals. What is not a number comes first, so
// that it is seen in the result.
uint64_t routing_key(float logit, int64_t expert) {
    const float value = (std::isnan(logit) ? INFINITY : logit) + 0.0f;  // which makes -0 equal 0
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    bits = bits >> 31 ? ~bits : bits | 0x80000000;
    return uint64_t{bits} << 32 | ~static_cast<uint32_t>(expert);
}

int64_t expert_of_key(uint64_t key) { return ~static_cast<uint32_t>(key); }

// As many of the greatest keys as `kept` has room for, from the greatest on. Few are kept, and most experts are below them.
void keep_greatest(const float* logits, int64_t num_experts, std::vector<uint64_t>& kept) {
    size_t count = 0;
    for (int64_t i = 0; i < num_experts; ++i) {
        const uint64_t key = routing_key(logits[i], i);
        if (count < kept.size())
            ++count;
        else if (key < kept.back())
            continue;
        size_t place = count - 1;
        for (; place > 0 && kept[place - 1] < key; --place) kept[place] = kept[place - 1];
        kept[place] = key;
    }
}

}  // namespace

void Ops::route(const Tensor& logits, bool normalized, const Tensor& ids, const Tensor& shares) {
    logits.require_dtype(DType::f32);
    logits.require_shape({-1, -1});
    logits.require_contiguous();
    const int64_t tokens = logits.shape[0], num_experts = logits.shape[1];
    ids.require_dtype(DType::i64);
    ids.require_shape({tokens, -1});
    const int64_t choices = ids.shape[1];
    require(choices >= 1 && choices <= num_experts,
            std::to_string(choices) + " of " + std::to_string(num_experts) + " experts cannot be chosen");
    shares.require_dtype(DType::f32);
    shares.require_shape({tokens, choices});
    for (const Tensor* t : {&ids, &shares}) t->require_contiguous();

    const std::lock_guard lock(one_call_);
    const int64_t tokens_per_task = cheap_rows_per_task(tokens, 16 * num_experts);
    pool_.run(ceil_div(tokens, tokens_per_task), [&](int64_t task, int) {
        std::vector<uint64_t> chosen_keys(static_cast<size_t>(choices));
        std::vector<float> powers(static_cast<size_t>(num_experts));
        const int64_t last = std::min(tokens, (task + 1) * tokens_per_task);
        for (int64_t token = task * tokens_per_task; token < last; ++token) {
            const float* const row = logits.as<const float>() + token * num_experts;
            keep_greatest(row, num_experts, chosen_keys);
            kernels_.exponentials(row, row[expert_of_key(chosen_keys[0])], powers.data(), num_experts);
            float all = 0.0f, chosen = 0.0f;
            for (const float power : powers) all += power;
            float* const share = shares.as<float>() + token * choices;
            for (int64_t i = 0; i < choices; ++i) {
                const int64_t expert = expert_of_key(chosen_keys[static_cast<size_t>(i)]);
                ids.as<int64_t>()[token * choices + i] = expert;
                share[i] = powers[static_cast<size_t>(expert)] / all;
                chosen += share[i];
            }
            for (int64_t i = 0; normalized && i < choices; ++i) share[i] /= chosen;
        }
    });
}

Activations Ops::gathered(const Activations& from, const std::vector<int64_t>& pairs, int64_t choices) {
    const int64_t count = static_cast<int64_t>(pairs.size()), columns = from.columns;
    Activations all;
    all.columns = columns;
    for (size_t digits = 0; digits < 2; ++digits) {
        if (!from.quantized[digits]) continue;
        const QuantizedRows& rows = *from.quantized[digits];
        const QuantizedRows to = room_for_quantized(count, columns, rows.unit_columns, expert_quantized_[digits]);
        for (int64_t i = 0; i < count; ++i)
            std::memcpy(to.from_row(i).q, rows.from_row(pairs[static_cast<size_t>(i)] / choices).q, static_cast<size_t>(to.stride));
        all.quantized[digits] = to;
    }
    const int64_t words_of_row = laid_stride(columns);
    for (size_t type = 0; type < 3; ++type) {
        if (!from.laid[type]) continue;
        uint32_t* const words = reinterpret_cast<uint32_t*>(expert_laid_[type].at_least(count * words_of_row));
        for (int64_t i = 0; i < count; ++i)
            std::copy_n(from.laid[type] + pairs[static_cast<size_t>(i)] / choices * words_of_row, words_of_row, words + i * words_of_row);
        all.laid[type] = words;
    }
    return all;
}

void Ops::experts(const Tensor& x, const Tensor& ids, const Tensor& shares, const ExpertTensors& weights,
                  Activation activation, const Tensor& out) {
    x.require_dtype(DType::f32);
    x.require_shape({-1, -1});
    x.require_contiguous_tail(1);
    const int64_t tokens = x.shape[0], hidden = x.shape[1], wide = weights.wide;
    require(weights.gate.tensor.ndim == 3, "gate must be a stack of packed matrices");
    const int64_t num_experts = weights.gate.tensor.shape[0];
    const PackedMatrix gate = first_of(weights.gate, num_experts, wide, hidden);
    const PackedMatrix up = first_of(weights.up, num_experts, wide, hidden);
    const PackedMatrix down = first_of(weights.down, num_experts, hidden, wide);
    ids.require_dtype(DType::i64);
    ids.require_shape({tokens, -1});
    ids.require_contiguous();
    const int64_t choices = ids.shape[1], num_pairs = tokens * choices;
    shares.require_dtype(DType::f32);
    shares.require_shape({tokens, choices});
    shares.require_contiguous();
    out.require_dtype(DType::f32);
    out.require_shape({tokens, hidden});
    out.require_contiguous();
    const int64_t* const id = ids.as<const int64_t>();
    for (int64_t i = 0; i < num_pairs; ++i) require_index(id[i], num_experts, "expert id");

    const std::lock_guard lock(one_call_);
    std::vector<int64_t> pairs(static_cast<size_t>(num_pairs)), place_of(static_cast<size_t>(num_pairs));
    for (int64_t i = 0; i < num_pairs; ++i) pairs[static_cast<size_t>(i)] = i;
    std::stable_sort(pairs.begin(), pairs.end(), [id](int64_t a, int64_t b) { return id[a] < id[b]; });
    for (int64_t i = 0; i < num_pairs; ++i) place_of[static_cast<size_t>(pairs[static_cast<size_t>(i)])] = i;
    const std::vector<Group> groups = grouped(pairs, id);

    int64_t scratch_bytes = 0;
    for (const PackedMatrix* matrix : {&gate, &up, &down}) scratch_bytes = std::max(scratch_bytes, linear_scratch(*matrix));
    const std::vector<float*> scratch = this->scratch(ceil_div(scratch_bytes, 4));

    const Activations of_tokens = prepared(x.as<const float>(), x.strides[0], tokens, hidden, {gate.type, up.type});
    const Activations inputs = gathered(of_tokens, pairs, choices);
    float* const gated = expert_gated_.at_least(num_pairs * wide);
    const std::vector<Task> wide_tasks = tasks_of(groups, packed_tiles(wide), pool_.num_threads());
    pool_.run(static_cast<int64_t>(wide_tasks.size()), [&](int64_t i, int worker) {
        const Task& task = wide_tasks[static_cast<size_t>(i)];
        const auto weights_of_task = [&](int64_t next) {
            return next == ThreadPool::none ? WeightBytes() : bytes_of(part_of(wide_tasks[static_cast<size_t>(next)], gate, gated));
        };
        FollowingTask next_task(pool_, worker, weights_of_task);
        LinearPart part = part_of(task, gate, gated), gated_part = part_of(task, up, gated, gate_of(activation));
        FollowingPart then(gated_part);
        part.following = &then;
        gated_part.following = &next_task;
        for (const LinearPart* each : {&part, &gated_part})
            multiply(*each, inputs, task.group->first, scratch[static_cast<size_t>(worker)]);
    });

    const Activations middle = prepared(gated, wide, num_pairs, wide, {down.type});
    float* const results = expert_out_.at_least(num_pairs * hidden);
    const std::vector<Task> hidden_tasks = tasks_of(groups, packed_tiles(hidden), pool_.num_threads());
    pool_.run(static_cast<int64_t>(hidden_tasks.size()), [&](int64_t i, int worker) {
        const Task& task = hidden_tasks[static_cast<size_t>(i)];
        const auto weights_of_task = [&](int64_t next) {
            return next == ThreadPool::none ? WeightBytes() : bytes_of(part_of(hidden_tasks[static_cast<size_t>(next)], down, results));
        };
        FollowingTask next_task(pool_, worker, weights_of_task);
        LinearPart part = part_of(task, down, results);
        part.following = &next_task;
        multiply(part, middle, task.group->first, scratch[static_cast<size_t>(worker)]);
    });

    // In the order of expert ids, so that a token's sum does not depend on the other tokens or on the order of its choices.
    const int64_t tokens_per_task = cheap_rows_per_task(tokens, hidden * choices);
    pool_.run(ceil_div(tokens, tokens_per_task), [&](int64_t task, int) {
        const int64_t last = std::min(tokens, (task + 1) * tokens_per_task);
        for (int64_t token = task * tokens_per_task; token < last; ++token) {
            const auto places = place_of.begin() + token * choices;
            std::sort(places, places + choices);
            float* const sum = out.as<float>() + token * hidden;
            std::fill_n(sum, hidden, 0.0f);
            for (auto place = places; place < places + choices; ++place)
                kernels_.add_scaled(results + *place * hidden, shares.as<const float>()[pairs[static_cast<size_t>(*place)]],
                                    sum, hidden);
        }
    });
}

}  // namespace trivium
