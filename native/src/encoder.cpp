// The ops that only encoders use.

#include <algorithm>
#include <vector>

#include "ops.h"

namespace trivium {

namespace {

constexpr int64_t text_block = 16;  // tokens: the least that a kernel reads where they lie
constexpr int64_t queries_together = 96;

}  // namespace

void Ops::layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out) {
    x.require_dtype(DType::f32);
    x.require_shape({-1, -1});
    x.require_contiguous();
    const int64_t rows = x.shape[0], dim = x.shape[1];
    for (const Tensor* t : {&weight, &bias}) {
        t->require_dtype(DType::f32);
        t->require_shape({dim});
        t->require_contiguous();
    }
    out.require_dtype(DType::f32);
    out.require_shape({rows, dim});
    out.require_contiguous();
    if (x.num_elements() == 0) return;

    const std::lock_guard lock(one_call_);
    const int64_t rows_per_task = cheap_rows_per_task(rows, dim);
    pool_.run(ceil_div(rows, rows_per_task), [&](int64_t task, int) {
        const int64_t last = std::min(rows, (task + 1) * rows_per_task);
        for (int64_t i = task * rows_per_task; i < last; ++i)
            kernels_.layer_norm(x.as<const float>() + i * dim, weight.as<const float>(), bias.as<const float>(), eps,
                                out.as<float>() + i * dim, dim);
    });
}

void Ops::activate(const Tensor& x, ElementFunction function, const Tensor& out) {
    x.require_shape({-1, -1});
    const int64_t rows = x.shape[0], width = x.shape[1];
    for (const Tensor* t : {&x, &out}) {
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
            kernels_.activate(x.as<const float>() + i * x.strides[0], function, out.as<float>() + i * out.strides[0],
                              width);
    });
}

// Keys and values are laid in blocks as those of a cache are, text by text, and read by the same kernels.
void Ops::text_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& starts, float scale,
                         int64_t reach, const Tensor& out) {
    q.require_shape({-1, -1, -1});
    const int64_t tokens = q.shape[0], heads = q.shape[1], dim = q.shape[2];
    for (const Tensor* t : {&q, &k, &v, &out}) require_heads(*t, tokens, heads, dim);
    out.require_no_overlap();
    require(dim > 0 && dim <= max_kv_dim, "heads must have 1 to " + std::to_string(max_kv_dim) + " dimensions");
    require(scale > 0, "scale must be above 0");
    starts.require_dtype(DType::i32);
    starts.require_shape({-1});
    starts.require_contiguous();
    const int32_t* const start = starts.as<const int32_t>();
    const int64_t texts = starts.shape[0] - 1;
    require(texts >= 0 && start[0] == 0 && start[texts] == tokens, "starts must run from 0 to the number of tokens");
    for (int64_t n = 0; n < texts; ++n) require(start[n] <= start[n + 1], "starts must not fall");
    if (tokens == 0 || heads == 0) return;

    std::vector<int64_t> slots(static_cast<size_t>(tokens));
    std::vector<int32_t> blocks;  // of all texts: each has its own, one after the other
    std::vector<int64_t> first_block(static_cast<size_t>(texts));
    for (int64_t n = 0; n < texts; ++n) {
        first_block[static_cast<size_t>(n)] = static_cast<int64_t>(blocks.size());
        for (int64_t i = start[n]; i < start[n + 1]; ++i) {
            const int64_t place = i - start[n];
            if (place % text_block == 0) blocks.push_back(static_cast<int32_t>(blocks.size()));
            slots[static_cast<size_t>(i)] = (static_cast<int64_t>(blocks.size()) - 1) * text_block + place % text_block;
        }
    }

    const std::lock_guard lock(one_call_);
    const int64_t head_bytes = 4 * text_block * dim, block_bytes = heads * head_bytes;
    const int64_t cache_floats = static_cast<int64_t>(blocks.size()) * block_bytes / 4;
    const PagedCache keys = {reinterpret_cast<uint8_t*>(text_keys_.at_least(cache_floats)), block_bytes, head_bytes};
    const PagedCache values = {reinterpret_cast<uint8_t*>(text_values_.at_least(cache_floats)), block_bytes, head_bytes};
    const auto written = [&](const Tensor& x, const PagedCache& cache, int64_t head) -> KVWrite {
        return {x.as<const float>() + head * x.strides[1], x.strides[0], tokens, slots.data(),
                cache.data + head * head_bytes, block_bytes, text_block, dim, KVType::f32};
    };
    pool_.run(2 * heads, [&](int64_t task, int) {
        task < heads ? kernels_.write_keys(written(k, keys, task))
                     : kernels_.write_values(written(v, values, task - heads));
    });

    attention_rows_.clear();
    for (int64_t n = 0; n < texts; ++n) {
        const int64_t count = start[n + 1] - start[n];
        const int32_t* const table = blocks.data() + first_block[static_cast<size_t>(n)];
        for (int64_t first = 0; first < count; first += queries_together) {
            const int64_t queries = std::min(queries_together, count - first), token = start[n] + first;
            const int64_t begin = reach < 0 ? 0 : std::max<int64_t>(0, first - reach);
            const int64_t end = reach < 0 ? count : std::min(count, first + queries + reach);
            attention_rows_.push_back({token, queries, first, table, begin / attention_tile, ceil_div(end, attention_tile),
                                       0, 0, count});
        }
    }
    attend({q.as<const float>(), q.strides[0], q.strides[1], out.as<float>(), out.strides[0], out.strides[1], keys, values,
            KVType::f32, text_block, 1, dim, scale, reach < 0 ? 0 : reach + 1, 0.0f, true},
           heads);
}

}  // namespace trivium
