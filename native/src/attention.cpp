// The ops on the KV cache, and how attention is spread over threads.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "checks.h"
#include "ops.h"

namespace trivium {

namespace {

// Items, which are (query, head) pairs, that share one pass over the keys of their head: of rows that have tiles in common, and of
// prompts that would leave threads idle if they were cut into larger parts.
constexpr int64_t most_items_together = 96;
// Prompts are cut into so many parts for each thread at least, if they can be: parts take unequal time.
constexpr int64_t parts_of_a_thread = 4;
// So many share a pass although threads could be kept busier with fewer: more of them are bound by computing, not reading.
constexpr int64_t enough_items_together = 24;
// A part of more items is not cut between tiles: there are other parts beside it, and the results between take memory.
constexpr int64_t most_items_to_cut = 32;

struct Caches {
    KVType type;
    int64_t num_blocks, heads, block_size, dim;
    PagedCache keys, values;
};

// float32 and bfloat16: keys [num_blocks, heads, dim / pair, block_size, pair] and values [num_blocks, heads,
// block_size / pair, dim, pair], with pairs of 1 or 2. int8: both [num_blocks, heads, block_size, dim + 4], whose bytes are
// scales and then fours.
Caches caches_of(const Tensor& keys, const Tensor& values) {
    constexpr int64_t scale_bytes = 4;
    const auto paged = [](const Tensor& cache, int64_t element_bytes) -> PagedCache {
        cache.require_contiguous_tail(2);
        return {cache.as<uint8_t>(), cache.strides[0] * element_bytes, cache.strides[1] * element_bytes};
    };
    Caches caches;
    values.require_dtype(keys.dtype);
    if (keys.dtype == DType::i8) {
        keys.require_shape({-1, -1, -1, -1});
        caches = {KVType::int8, keys.shape[0], keys.shape[1], keys.shape[2], keys.shape[3] - scale_bytes, paged(keys, 1),
                  paged(values, 1)};
        values.require_shape({caches.num_blocks, caches.heads, caches.block_size, keys.shape[3]});
    } else {
        require(keys.dtype == DType::f32 || keys.dtype == DType::bf16, "key_cache must be float32, bfloat16 or int8");
        const bool in_pairs = keys.dtype == DType::bf16;
        const int64_t pair = in_pairs ? 2 : 1, bytes = in_pairs ? 2 : 4;
        keys.require_shape({-1, -1, -1, -1, pair});
        caches = {in_pairs ? KVType::bf16 : KVType::f32, keys.shape[0], keys.shape[1], keys.shape[3], keys.shape[2] * pair,
                  paged(keys, bytes), paged(values, bytes)};
        values.require_shape({caches.num_blocks, caches.heads, caches.block_size / pair, caches.dim, pair});
    }
    require(caches.block_size > 0, "key_cache must have a block size of at least 1");
    require(caches.dim > 0 && caches.dim <= max_kv_dim,
            "key_cache must have heads of 1 to " + std::to_string(max_kv_dim) + " dimensions");
    require(caches.type != KVType::bf16 || (caches.block_size % 2 == 0 && caches.dim % 2 == 0),
            "key_cache must have an even block size and even heads");
    require(caches.type != KVType::int8 || (caches.block_size % 4 == 0 && caches.dim % 4 == 0),
            "key_cache must have a block size and heads that are multiples of 4");
    return caches;
}

// Tiles first … last - 1.
struct Tiles {
    int64_t first, last;
};

int64_t oldest_seen(const Attention& a, int64_t position) {
    return a.window && position >= a.window ? position - a.window + 1 : 0;
}

// That all queries of the row see, to the last key.
Tiles seen_wholly(const Attention& a, const AttentionRow& row) {
    if (a.both_ways) return {0, 0};
    return {ceil_div(oldest_seen(a, row.position + row.num_queries - 1), attention_tile),
            (row.position + 1) / attention_tile};
}

// That both rows have in the same blocks.
Tiles shared_tiles(const Attention& a, const AttentionRow& one, const AttentionRow& other) {
    const Tiles of_one = seen_wholly(a, one), of_other = seen_wholly(a, other);
    const int64_t first = std::max(of_one.first, of_other.first), last = std::min(of_one.last, of_other.last);
    const auto is_shared = [&](int64_t tile) {
        const int64_t begin = tile * attention_tile / a.block_size;
        const int64_t end = ceil_div((tile + 1) * attention_tile, a.block_size);
        return std::equal(one.table + begin, one.table + end, other.table + begin);
    };
    Tiles shared = {first, first};
    while (shared.last < last && is_shared(shared.last)) ++shared.last;
    return shared;
}

// Puts rows of few queries last, those that begin alike beside each other, and notes what they share.
void find_shared_tiles(const Attention& a, std::vector<AttentionRow>& rows) {
    const auto few = std::stable_partition(rows.begin(), rows.end(), [&](const AttentionRow& row) {
        const Tiles whole = seen_wholly(a, row);
        return 2 * row.num_queries * a.group > most_items_together || whole.first >= whole.last;
    });
    std::stable_sort(few, rows.end(), [&](const AttentionRow& one, const AttentionRow& other) {
        const int64_t tiles_of_one = seen_wholly(a, one).last, tiles_of_other = seen_wholly(a, other).last;
        for (int64_t t = 0; t < tiles_of_one && t < tiles_of_other; ++t) {
            const int64_t place = t * attention_tile / a.block_size;
            if (one.table[place] != other.table[place]) return one.table[place] < other.table[place];
        }
        return tiles_of_one < tiles_of_other;
    });
    for (auto row = few; row != rows.end(); ++row) {
        const Tiles shared = row == few ? Tiles{0, 0} : shared_tiles(a, row[-1], *row);
        row->first_shared = shared.first;
        row->last_shared = shared.last;
    }
}

}  // namespace

void Ops::write_kv(const Tensor& k, const Tensor& v, const Tensor& key_cache, const Tensor& value_cache,
                   const Tensor& slots) {
    k.require_shape({-1, -1, -1});
    const int64_t tokens = k.shape[0], heads = k.shape[1], dim = k.shape[2];
    require_heads(k, tokens, heads, dim);
    require_heads(v, tokens, heads, dim);
    const Caches caches = caches_of(key_cache, value_cache);
    require(caches.heads == heads && caches.dim == dim, "key_cache must have the heads and dimensions of k");
    key_cache.require_no_overlap();
    value_cache.require_no_overlap();
    slots.require_dtype(DType::i64);
    slots.require_shape({tokens});
    slots.require_contiguous();
    const int64_t* const slot = slots.as<const int64_t>();
    for (int64_t i = 0; i < tokens; ++i) require_index(slot[i], caches.num_blocks * caches.block_size, "slot");

    const std::lock_guard lock(one_call_);
    const auto part = [&](const Tensor& x, const PagedCache& cache, int64_t head) -> KVWrite {
        return {x.as<const float>() + head * x.strides[1], x.strides[0], tokens, slot, cache.data + head * cache.head_bytes,
                cache.block_bytes, caches.block_size, dim, caches.type};
    };
    // A thread writes all tokens of a head: tokens may share a slot, and then the last must win, and they share words.
    const int64_t heads_per_task = tokens * heads * dim < cheap_elements_per_task ? heads : 1;
    const int64_t tasks_of_keys = ceil_div(heads, heads_per_task);
    pool_.run(2 * tasks_of_keys, [&](int64_t task, int) {
        const int64_t first = task % tasks_of_keys * heads_per_task;
        for (int64_t head = first; head < std::min(heads, first + heads_per_task); ++head)
            task < tasks_of_keys ? kernels_.write_keys(part(k, caches.keys, head))
                                 : kernels_.write_values(part(v, caches.values, head));
    });
}

void Ops::paged_attention(const Tensor& q, const Tensor& key_cache, const Tensor& value_cache,
                          const AttentionTensors& batch, float scale, int64_t window, float softcap,
                          const Tensor& out) {
    q.require_shape({-1, -1, -1});
    const int64_t tokens = q.shape[0], heads = q.shape[1], dim = q.shape[2];
    require_heads(q, tokens, heads, dim);
    require_heads(out, tokens, heads, dim);
    out.require_no_overlap();
    const Caches caches = caches_of(key_cache, value_cache);
    require(caches.dim == dim, "key_cache must have the dimensions of q");
    require(caches.heads > 0 && heads % caches.heads == 0,
            "the heads of q are not a multiple of the heads of the cache");
    require(scale > 0, "scale must be above 0");
    require(window >= 0, "window must be positive");
    for (const Tensor* t : {&batch.query_starts, &batch.context_lens, &batch.block_table}) {
        t->require_dtype(DType::i32);
        t->require_contiguous();
    }
    batch.block_table.require_shape({-1, -1});
    const int64_t rows = batch.block_table.shape[0], table_width = batch.block_table.shape[1];
    batch.query_starts.require_shape({rows + 1});
    batch.context_lens.require_shape({rows});
    const int32_t* const starts = batch.query_starts.as<const int32_t>();
    const int32_t* const contexts = batch.context_lens.as<const int32_t>();
    require(starts[0] == 0 && starts[rows] == tokens, "query_starts must run from 0 to the number of queries");

    const Attention attention = {q.as<const float>(), q.strides[0],    q.strides[1],  out.as<float>(), out.strides[0],
                                 out.strides[1],      caches.keys,     caches.values, caches.type,     caches.block_size,
                                 heads / caches.heads, dim,            scale,         window,          softcap};
    const std::lock_guard lock(one_call_);
    const int64_t parts_of_many = tokens * heads / kernels_.attention.prompt_items_together;
    const int64_t items_together = parts_of_many < parts_of_a_thread * pool_.num_threads() ? most_items_together
                                                                                          : kernels_.attention.prompt_items_together;
    const int64_t queries_together = std::max<int64_t>(1, items_together / attention.group);
    attention_rows_.clear();
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t count = int64_t{starts[row + 1]} - starts[row], position = contexts[row] - count;
        require(count >= 0 && position >= 0, "row " + std::to_string(row) + " has fewer keys than queries");
        if (count == 0) continue;
        const int64_t last_block = (contexts[row] - 1) / caches.block_size;
        require(last_block < table_width, "the block table of row " + std::to_string(row) + " is too short");
        const int32_t* const table = batch.block_table.as<const int32_t>() + row * table_width;
        for (int64_t i = oldest_seen(attention, position) / caches.block_size; i <= last_block; ++i)
            require_index(table[i], caches.num_blocks, "block");
        // The last queries, which have most to do, first: then threads end together.
        for (int64_t first = (count - 1) / queries_together * queries_together; first >= 0; first -= queries_together) {
            const int64_t queries = std::min(queries_together, count - first);
            attention_rows_.push_back({starts[row] + first, queries, position + first, table,
                                       oldest_seen(attention, position + first) / attention_tile,
                                       ceil_div(position + first + queries, attention_tile)});
        }
    }
    attend(attention, caches.heads);
}

void Ops::attend(const Attention& attention, int64_t key_heads) {
    std::vector<AttentionRow>& rows = attention_rows_;
    const auto cost = [](const AttentionRow& row) { return row.num_queries * (row.last_tile - row.first_tile); };
    int64_t total = 0;
    for (const AttentionRow& row : rows) total += cost(row) * key_heads;
    const int64_t fair_share = ceil_div(total, 4 * pool_.num_threads());
    const int64_t worth_cutting = ceil_div(total, 2 * pool_.num_threads());

    if (rows.size() > 1) find_shared_tiles(attention, rows);
    attention_parts_.clear();
    std::vector<int64_t> cost_of;  // parts
    for (auto row = rows.begin(); row != rows.end();) {
        AttentionPart part = {&*row, 1, row->num_queries, 0, row->first_tile, row->last_tile, nullptr, nullptr};
        int64_t part_cost = cost(*row);
        for (++row; row != rows.end() && row->first_shared < row->last_shared; ++row) {
            const int64_t items = (part.num_queries + row->num_queries) * attention.group;
            if (items > most_items_together) break;
            if (items > enough_items_together && part_cost + cost(*row) > fair_share) break;
            ++part.num_rows;
            part.num_queries += row->num_queries;
            part.first_tile = std::min(part.first_tile, row->first_tile);
            part.last_tile = std::max(part.last_tile, row->last_tile);
            part_cost += cost(*row);
        }
        for (part.key_head = 0; part.key_head < key_heads; ++part.key_head) {
            attention_parts_.push_back(part);
            cost_of.push_back(part_cost);
        }
    }

    // Parts of few queries that would keep one thread busy while others wait are cut between tiles of keys.
    struct Piece {
        int64_t part, first_tile, last_tile;
    };
    int64_t scratch_floats = 0, result_floats = 0;
    std::vector<Piece> pieces;
    std::vector<int> pieces_of(attention_parts_.size());
    std::vector<AttentionSizes> sizes(attention_parts_.size());
    for (size_t i = 0; i < attention_parts_.size(); ++i) {
        const AttentionPart& part = attention_parts_[i];
        sizes[i] = kernels_.attention.sizes(attention, part.num_queries * attention.group);
        scratch_floats = std::max(scratch_floats, sizes[i].scratch);
        const int64_t tiles = part.last_tile - part.first_tile;
        const bool cuts = pool_.num_threads() > 1 && part.num_queries * attention.group <= most_items_to_cut;
        const int64_t count = cuts ? std::min(tiles, ceil_div(cost_of[i], worth_cutting)) : 1;
        for (int64_t c = 0; c < count; ++c)
            pieces.push_back({static_cast<int64_t>(i), part.first_tile + tiles * c / count,
                              part.first_tile + tiles * (c + 1) / count});
        pieces_of[i] = static_cast<int>(count);
        if (count > 1) result_floats += tiles * sizes[i].tile_results;
    }
    float* results = attention_results_.at_least(result_floats);
    std::vector<std::atomic<int>> left(attention_parts_.size());
    for (size_t i = 0; i < attention_parts_.size(); ++i) {
        left[i].store(pieces_of[i], std::memory_order_relaxed);
        if (pieces_of[i] == 1) continue;
        attention_parts_[i].results = results;
        results += (attention_parts_[i].last_tile - attention_parts_[i].first_tile) * sizes[i].tile_results;
    }

    const std::vector<float*> scratch = this->scratch(scratch_floats);
    const auto part_of = [&](const Piece& piece) {
        AttentionPart part = attention_parts_[piece.part];
        if (part.results) part.results += (piece.first_tile - part.first_tile) * sizes[piece.part].tile_results;
        part.first_tile = piece.first_tile;
        part.last_tile = piece.last_tile;
        return part;
    };
    // A thread takes its next piece before it computes one, so that it knows what to fetch meanwhile. But the last ones are for
    // whoever is free: else one would wait with two while others have none.
    fetched_pieces_.assign(static_cast<size_t>(pool_.num_threads()), {});
    const int64_t num_pieces = std::ssize(pieces), num_last = 2 * pool_.num_threads();
    pool_.run(num_pieces, [&](int64_t i, int worker) {
        AttentionPart part = part_of(pieces[i]), next;
        part.scratch = scratch[worker];
        int64_t& fetched = fetched_pieces_[worker].index;
        part.is_fetched = fetched == i;
        if (i + num_last < num_pieces) {
            fetched = pool_.take_ahead(worker);
            if (fetched != ThreadPool::none) {
                next = part_of(pieces[fetched]);
                part.next = &next;
            }
        }
        kernels_.attention.attend(attention, part);
        // Whoever finishes a part last merges its tiles.
        AttentionPart whole = attention_parts_[pieces[i].part];
        whole.scratch = part.scratch;
        if (left[pieces[i].part].fetch_sub(1, std::memory_order_acq_rel) == 1 && whole.results)
            kernels_.attention.merge(attention, whole);
    });
}

}  // namespace trivium
