// Paged attention. A query's keys are cut at absolute positions into tiles of `attention_tile`. Each tile gives a softmax
// of its own; the tiles' results are then merged from the first to the last. So a query's result depends on its own
// position and keys only: not on who else is computed, nor on which thread computed which tile.
//
// Queries of a row's heads that read one key head are "items"; a block of items shares each pass over a tile. Where rows
// have a tile in the same blocks of the cache, it is read once, and their items form blocks together.
//
// With a cache of bfloat16, queries and softmax weights are rounded to bfloat16 (products.h). With one of int8 they are whole
// numbers too (byte_attention.h): a query's bytes have one scale, and so have an item's weights for a tile, each of which is
// multiplied by the scale of its value before.
#pragma once

#include <math.h>

#include "../kernels.h"
#if defined(__AMX_BF16__)
#include "amx_attention.h"
#endif
#include "byte_attention.h"
#include "denormals.h"
#include "paged_kv.h"
#include "products.h"

namespace trivium::TRIVIUM_ISA {

// limit * tanh(x / limit), from tanh(y) = 1 - 2 / (e^2y + 1).
static inline Vec soft_cap(Vec x, float limit) {
    const Vec doubled = x * (2.0f * log2_e / limit), highest = splat(126.0f);
    const Vec e = exp2<5>(doubled > highest ? highest : doubled);
    return limit * (1.0f - 2.0f / (e + 1.0f));
}

// To the nearest bfloat16, ties away from 0.
static inline Vec to_nearest_bf16(Vec x) { return (Vec)(((WordVec)x + 0x8000) & 0xffff0000); }

// The softmax of some items over some of their keys: sum over keys of weight * value, not divided by the sum of the
// weights yet. A weight is 2^(score - largest), with scores in units of log2.
struct Mixed {
    float* largest;  // [items], and a vector more
    float* weights;  // [items, 16]: sums of the weights of keys 0, 16, …, of keys 1, 17, …
    float* values;   // [slices of the head, room, 32]
    int64_t room;    // for items

    static int64_t num_floats(int64_t room, int64_t padded_dim) { return padded(room) + room * (16 + padded_dim); }
    static Mixed in(float* memory, int64_t room) {
        return {memory, memory + padded(room), memory + padded(room) + 16 * room, room};
    }
    Mixed from(int64_t item) const { return {largest + item, weights + 16 * item, values + item * panel_columns, room}; }
    float* panel(int64_t dimension, int64_t item) const { return values + dimension * room + item * panel_columns; }

private:
    static int64_t padded(int64_t room) { return (room + 31) / 16 * 16; }
};

// Less than any score; its difference to itself is 0, which that of -infinity is not.
constexpr float nothing_seen = -1e30f;

static inline void clear(const Mixed& mixed, int64_t items, int64_t padded_dim) {
    for (int64_t i = 0; i < items; ++i) mixed.largest[i] = nothing_seen;
    memset(mixed.weights, 0, 4 * 16 * items);
    for (int64_t d = 0; d < padded_dim; d += panel_columns) memset(mixed.panel(d, 0), 0, 4 * panel_columns * items);
}

static inline void copy(const Mixed& from, const Mixed& to, int64_t items, int64_t padded_dim) {
    memcpy(to.largest, from.largest, 4 * items);
    memcpy(to.weights, from.weights, 4 * 16 * items);
    for (int64_t d = 0; d < padded_dim; d += panel_columns)
        memcpy(to.panel(d, 0), from.panel(d, 0), 4 * panel_columns * items);
}

// `all` becomes the softmax over its keys and over those of `more`.
static inline void merge(const Mixed& all, const Mixed& more, int64_t items, int64_t padded_dim) {
    for (int64_t first = 0; first < items; first += lanes) {
        const int64_t last = items - first < lanes ? items : first + lanes;
        const Vec a = load(all.largest + first), b = load(more.largest + first), largest = max(a, b);
        float keep[lanes], add[lanes], larger[lanes];
        store(keep, exp2<5>(a - largest));
        store(add, exp2<5>(b - largest));
        store(larger, largest);
        for (int64_t i = first; i < last; ++i) {
            all.largest[i] = larger[i - first];
            const Vec kept = splat(keep[i - first]), added = splat(add[i - first]);
            const auto join = [&](float* into, const float* from) {
                store(into, fma(load(from), added, load(into) * kept));
            };
            for (int64_t j = 0; j < 16; j += lanes) join(all.weights + 16 * i + j, more.weights + 16 * i + j);
            for (int64_t d = 0; d < padded_dim; d += panel_columns) {
                float* const into = all.panel(d, i);
                const float* const from = more.panel(d, i);
                for (int64_t j = 0; j < panel_columns; j += lanes) join(into + j, from + j);
            }
        }
    }
}

template <KVType type, typename Products>
class Attender {
    static constexpr int64_t max_items = Products::max_items;
    static constexpr int64_t tile_slices = attention_tile / slice_elements;
    static constexpr bool in_bf16 = type == KVType::bf16;  // are products computed
    static constexpr bool in_bytes = type == KVType::int8;
    typedef typename Products::Word Word;

public:
    static AttentionSizes sizes(const Attention& a, int64_t num_items) {
        const int64_t dim = padded_dim(a), all = Mixed::num_floats(num_items, dim);
        const int64_t block = Mixed::num_floats(max_items, dim), tile = tile_slices * max_items * slice_elements;
        const int64_t bytes = in_bytes ? scale_floats(num_items) + tile_word_floats() : 0;
        constexpr int64_t to_align = 7 * vector_floats;
        return {query_floats(num_items, dim) + all + block + tile + bytes + copied_tile_floats(dim) + to_align, all};
    }

    Attender(const Attention& a, const AttentionPart& part)
        : a_(a),
          part_(part),
          dim_(padded_dim(a)),
          num_items_(part.num_queries * a.group),
          scale_(a.softcap != 0.0f ? log2_e : a.scale * log2_e),
          coming_(a) {
        float* memory = part.scratch;
        const auto take = [&](int64_t num_floats) {
            float* const taken = memory;
            memory += (num_floats + vector_floats - 1) / vector_floats * vector_floats;
            return taken;
        };
        queries_ = reinterpret_cast<Word*>(take(query_floats(num_items_, dim_)));
        totals_ = Mixed::in(take(Mixed::num_floats(num_items_, dim_)), num_items_);
        block_result_ = Mixed::in(take(Mixed::num_floats(max_items, dim_)), max_items);
        scores_ = take(tile_slices * max_items * slice_elements);
        copies_ = take(copied_tile_floats(dim_));
        if constexpr (in_bytes) {
            query_scales_ = take(scale_floats(num_items_));
            query_sums_ = reinterpret_cast<int32_t*>(query_scales_ + num_items_);
            tile_weights_ = reinterpret_cast<Word*>(take(tile_word_floats()));
        }
    }

    // Tiles first_tile … last_tile - 1: into part.results where there are such, else into part.out.
    void attend() {
        typename Products::Setup setup;
        plan_fetching();
        lay_queries();
        if (!part_.results) clear(totals_, num_items_, dim_);
        TileReader<type> reader(a_, part_.key_head, dim_, Products::needs_whole_slices, copies_);
        KeyTile tile;
        for (Visit visit = first_visit(); visit.run.num_rows; visit = visit_after(visit)) {
            const Run& run = visit.run;
            const AttentionRow& row = part_.rows[run.row];
            const int64_t t = visit.tile, num_items = run.last_item - run.first_item;
            if (!has_tile(row, t)) {
                keep(false, t, run.first_item, num_items);
                continue;
            }
            const Seen seen = seen_by(run, t);
            reader.read(row.table, seen.first, seen.last, t * attention_tile, tile);
            const int64_t num_blocks = num_blocks_of(num_items), block_items = (num_items + num_blocks - 1) / num_blocks;
            setup.shape_for(block_items);
            for (int64_t block = 0; block < num_blocks; ++block) {
                const int64_t first = run.first_item + block * block_items;
                const int64_t items = run.last_item - first < block_items ? run.last_item - first : block_items;
                keep(attend_tile(tile, t, run, first, items), t, first, items);
            }
        }
        if (!part_.results) write_out();
    }

    // Results of tiles first_tile … last_tile - 1, in this order, into part.out.
    void merge_results() {
        clear(totals_, num_items_, dim_);
        for (int64_t t = part_.first_tile; t < part_.last_tile; ++t) merge(totals_, results_of(t), num_items_, dim_);
        write_out();
    }

private:
    static constexpr int64_t vector_floats = 16;
    static constexpr int64_t line_bytes = 64, most_lines = 1 << 20;

    static int64_t padded_dim(const Attention& a) {
        return (a.dim + slice_elements - 1) / slice_elements * slice_elements;
    }
    // A block that is not full is read to its end.
    static int64_t query_floats(int64_t num_items, int64_t dim) {
        if constexpr (in_bytes) return num_items * byte_row_words(dim);
        return (num_items * (dim / slice_elements) + max_items) * slice_elements;
    }

    // Of a query's bytes. As many for all heads that are not large: a product whose rows lie at distances that the compiler knows
    // has registers for them.
    static constexpr int64_t few_row_words = ByteProducts::words_of(128);
    static int64_t byte_row_words(int64_t dim) {
        const int64_t words = ByteProducts::words_of(dim);
        return words < few_row_words ? few_row_words : words;
    }

    static int64_t scale_floats(int64_t num_items) { return 2 * num_items; }
    static int64_t tile_word_floats() { return max_items * ByteProducts::words_of(attention_tile); }

    // Rows that have a tile in the same blocks, and their items.
    struct Run {
        int64_t row, num_rows;
        int64_t first_item, last_item;
    };

    Run run_from(int64_t row, int64_t item, int64_t tile) const {
        Run run = {row, 0, item, item};
        while (row < part_.num_rows && (run.num_rows == 0 || shares(part_.rows[row], tile))) {
            run.last_item += part_.rows[row].num_queries * a_.group;
            ++run.num_rows;
            ++row;
        }
        return run;
    }
    static bool shares(const AttentionRow& row, int64_t tile) {
        return row.first_shared <= tile && tile < row.last_shared;
    }

    // A run of rows meets a tile. None is left where the run has no rows.
    struct Visit {
        int64_t tile;
        Run run;
    };

    // Tile by tile, with each all rows.
    Visit first_visit() const { return visit_from(part_.first_tile, 0, 0); }
    Visit visit_after(const Visit& visit) const {
        const int64_t row = visit.run.row + visit.run.num_rows;
        return row < part_.num_rows ? visit_from(visit.tile, row, visit.run.last_item) : visit_from(visit.tile + 1, 0, 0);
    }
    Visit visit_from(int64_t tile, int64_t row, int64_t item) const {
        return {tile, tile < part_.last_tile ? run_from(row, item, tile) : Run{}};
    }
    static int64_t num_blocks_of(int64_t items) { return (items + max_items - 1) / max_items; }
    static bool has_tile(const AttentionRow& row, int64_t tile) { return row.first_tile <= tile && tile < row.last_tile; }

    // Positions first … last - 1.
    struct Seen {
        int64_t first, last;
    };

    Seen seen_by(const Run& run, int64_t tile) const {
        const int64_t base = tile * attention_tile;
        if (run.num_rows > 1) return {base, base + attention_tile};
        const AttentionRow& row = part_.rows[run.row];
        return seen_from(row, row.position, row.position + row.num_queries - 1);
    }
    // By queries at positions first … last of a row.
    Seen seen_from(const AttentionRow& row, int64_t first, int64_t last) const {
        const int64_t oldest = a_.window && first >= a_.window ? first - a_.window + 1 : 0;
        if (!a_.both_ways) return {oldest, last + 1};
        return {oldest, a_.window && last + a_.window < row.num_keys ? last + a_.window : row.num_keys};
    }

    Mixed results_of(int64_t tile) const {
        float* const results = part_.results + (tile - part_.first_tile) * Mixed::num_floats(num_items_, dim_);
        return Mixed::in(results, num_items_);
    }
    void keep(bool any_seen, int64_t tile, int64_t first, int64_t items) const {
        if (!part_.results) {
            if (any_seen) merge(totals_.from(first), block_result_, items, dim_);
        } else if (any_seen) {
            copy(block_result_, results_of(tile).from(first), items, dim_);
        } else {
            clear(results_of(tile).from(first), items, dim_);
        }
    }

    // Of the float32, or bfloat16, that is multiplied.
    Rows<Word> queries(int64_t first_item) const {
        return {queries_ + first_item * row_words<Word>, num_items_ * row_words<Word>};
    }

    // use(item, token, head of the group) of all items.
    template <typename Use>
    void each_item(const Use& use) const {
        int64_t item = 0;
        for (int64_t row = 0; row < part_.num_rows; ++row)
            for (int64_t query = 0; query < part_.rows[row].num_queries; ++query)
                for (int64_t head = 0; head < a_.group; ++head) use(item++, part_.rows[row].token + query, head);
    }

    void lay_queries() {
        each_item([&](int64_t item, int64_t token, int64_t head) {
            const float* const q =
                a_.q + token * a_.q_token_stride + (part_.key_head * a_.group + head) * a_.q_head_stride;
            if constexpr (in_bytes) {
                lay_bytes(q, item);
            } else {
                lay_floats(q, item);
            }
        });
    }

    void lay_floats(const float* q, int64_t item) {
        for (int64_t d = 0; d < dim_; d += slice_elements) {
            Vec elements[panel_vectors];
            for (int v = 0; v < panel_vectors; ++v) {
                const Vec x = load_first(q + d + v * lanes, a_.dim - d - v * lanes);
                elements[v] = in_bf16 ? rounded_to_bf16(x) : x;
            }
            Products::put(elements, queries_ + (d / slice_elements * num_items_ + item) * row_words<Word>);
        }
    }

    void lay_bytes(const float* q, int64_t item) {
        // Turning takes so long that the processor does not look as far ahead as the next token's query.
        for (int64_t d = 0; d < a_.dim; d += line_bytes / 4) __builtin_prefetch(q + 2 * a_.q_token_stride + d);
        HeadBytes head;
        take_turned(q, a_.dim, head);
        // Scores of keys that are not seen are -infinity, which times 0 were no number.
        query_scales_[item] = head.scale < smallest_query_scale ? smallest_query_scale : head.scale;
        query_sums_[item] = head.sum;
        for (int64_t d = 0; d < a_.dim; d += lanes) {
            IntVec bytes;
            for (int i = 0; i < lanes; ++i) bytes[i] = head.bytes[d + i];
            ByteSteps::put(bytes, queries_ + item * byte_row_words(dim_), d);
        }
    }

    // The block's softmax over the tile's keys. False where no item of it sees one of them.
    bool attend_tile(const KeyTile& tile, int64_t t, const Run& run, int64_t first_item, int64_t items) {
        const int64_t base = t * attention_tile;
        const bool by_all = run.num_rows > 1;
        const AttentionRow& row = part_.rows[run.row];
        const auto position_of = [&](int64_t item) { return row.position + (item - run.first_item) / a_.group; };
        const auto seen_of = [&](int64_t first, int64_t last) {
            return by_all ? Range{0, attention_tile} : range(base, seen_from(row, position_of(first), position_of(last)));
        };
        const Range seen = seen_of(first_item, first_item + items - 1);
        if (seen.first >= seen.last) return false;
        score(tile, first_item, items, seen);
        const Range slices = {seen.first / slice_elements, (seen.last + slice_elements - 1) / slice_elements};
        const Range seen_by_all = {seen_of(first_item + items - 1, first_item + items - 1).first,
                                   seen_of(first_item, first_item).last};
        const bool is_whole = seen_by_all.first == 0 && seen_by_all.last == attention_tile;
        const auto seen_of_item = [&](int64_t i) { return seen_of(first_item + i, first_item + i); };
        is_whole ? weigh_items<true>(tile, first_item, items, slices, seen_of_item)
                 : weigh_items<false>(tile, first_item, items, slices, seen_of_item);
        mix(tile, items, seen);
        return true;
    }

    // Of a tile's keys, counted from its first.
    struct Range {
        int64_t first;
        int64_t last;
    };

    static Range range(int64_t base, const Seen& seen) {
        return {seen.first > base ? seen.first - base : 0,
                seen.last - base < attention_tile ? seen.last - base : attention_tile};
    }

    float* scores_of(int64_t slice, int64_t item) { return scores_ + (slice * max_items + item) * slice_elements; }

    CachedPositions positions_of(const AttentionPart& part, const AttentionRow& row, int64_t tile, const Seen& seen) const {
        if (!has_tile(row, tile)) return {};
        const int64_t base = tile * attention_tile;
        const Range keys = range(base, seen);
        return {row.table, part.key_head, base + keys.first, base + keys.last};
    }
    CachedPositions positions_of(const Visit& visit) const {
        return positions_of(part_, part_.rows[visit.run.row], visit.tile, seen_by(visit.run, visit.tile));
    }
    CachedPositions first_positions_of(const AttentionPart& part) const {
        const AttentionRow& row = part.rows[0];
        return positions_of(part, row, part.first_tile, seen_from(row, row.position, row.position + row.num_queries - 1));
    }

    // What is read after a part's first tile is fetched at an even rate while it is computed: a thread has room for few lines that
    // are under way, and waits where it asks for many at once. The last is the first tile of the part that comes next.
    void plan_fetching() {
        Visit visit = first_visit();
        if (!part_.is_fetched) {
            coming_.set(positions_of(visit));
            while (coming_.fetch(most_lines)) {}
        }
        coming_visit_ = visit;
        const auto steps_of = [&](const Visit& v) {
            const CachedPositions keys = positions_of(v);
            const int64_t pairs = (keys.num_groups() + 1) / 2, panels = (a_.dim + panel_columns - 1) / panel_columns;
            const int64_t num_items = v.run.last_item - v.run.first_item, num_blocks = num_blocks_of(num_items);
            const int64_t items = (num_items + num_blocks - 1) / num_blocks;
            return num_blocks * (pairs * Products::steps_of(items, a_.dim) +
                                 panels * Products::steps_of(items, keys.num_groups() * group_columns));
        };
        int64_t num_steps = steps_of(visit), num_lines = part_.next ? coming_.count(first_positions_of(*part_.next)) : 0;
        for (visit = visit_after(visit); visit.run.num_rows; visit = visit_after(visit)) {
            num_steps += steps_of(visit);
            num_lines += coming_.count(positions_of(visit));
        }
        lines_of_step_ = num_steps ? (num_lines + num_steps - 1) / num_steps : 0;
    }
    void fetch_some() {
        for (int64_t left = lines_of_step_; left > 0;) {
            const int64_t fetched = coming_.fetch(left);
            left -= fetched;
            if (fetched == 0 && !take_coming_visit()) return;
        }
    }
    // False if there is none.
    [[gnu::noinline]] bool take_coming_visit() {
        if (coming_visit_.run.num_rows == 0) return false;
        coming_visit_ = visit_after(coming_visit_);
        if (coming_visit_.run.num_rows) {
            coming_.set(positions_of(coming_visit_));
        } else if (part_.next) {
            coming_.set(first_positions_of(*part_.next));
        }
        return true;
    }

    void score(const KeyTile& tile, int64_t first_item, int64_t items, Range seen) {
        const int64_t last_group = (seen.last + group_columns - 1) / group_columns;
        for (int64_t group = seen.first / group_columns; group < last_group;) {
            const int together = group % 2 == 0 && group + 1 < last_group ? 2 : 1;
            multiply_keys(tile, first_item, static_cast<int>(items), group, together);
            group += together;
        }
    }

    // Scores of groups of keys that lie in one slice. Of bytes they are not multiplied by the query's scale.
    void multiply_keys(const KeyTile& tile, int64_t first_item, int items, int64_t group, int num_groups) {
        float* const scores = scores_of(group / 2, 0) + group % 2 * group_columns;
        const auto meanwhile = [&] { fetch_some(); };
        if constexpr (in_bytes) {
            const int64_t row_words = byte_row_words(dim_);
            const float* const scales = tile.key_scales + group * group_columns;
            const int64_t num_runs = ByteProducts::steps_of(items, a_.dim), fours_of_run = a_.dim / 4 / num_runs;
            const auto multiply = [&](auto words_of_row) {
                ByteProducts::multiply<false>(
                    items, num_groups, queries_ + first_item * row_words, words_of_row, 0, num_runs, fours_of_run,
                    [&](int64_t run, int64_t g) { return tile.keys[group + g] + run * fours_of_run * tile.key_row_bytes; },
                    tile.key_row_bytes, meanwhile, [&](int item, int64_t g, int v, IntVec sums) {
                        const int64_t key = g * group_columns + v * lanes;
                        const Vec products = to_float(sums - 128 * query_sums_[first_item + item]);
                        store(scores + item * slice_elements + key, products * load(scales + key));
                    });
            };
            row_words == few_row_words ? multiply(Constant<few_row_words>{}) : multiply(row_words);
        } else {
            const int64_t per_slice = rows_per_pair(type) * slice_pairs * tile.key_row_bytes;
            const int64_t num_pairs = (a_.dim + 1) / 2, num_slices = dim_ / slice_elements;
            Products::multiply(items, num_groups, queries(first_item),
                               Slices{0, num_slices, num_pairs - (num_slices - 1) * slice_pairs},
                               KeyColumns{tile.keys + group, tile.key_row_bytes, per_slice}, meanwhile, scores);
        }
    }

    // Of an item's scores, to units of log2.
    float scale_of(int64_t item) const { return in_bytes && a_.softcap == 0.0f ? scale_ * query_scales_[item] : scale_; }

    // Puts weights in the place of scores. `is_whole`: every item sees every key of the tile.
    template <bool is_whole, typename SeenOf>
    void weigh_items(const KeyTile& tile, int64_t first_item, int64_t items, Range slices, const SeenOf& seen_of) {
        constexpr Range all = {0, tile_slices};
        for (int64_t first = 0; first < items; first += lanes) {
            const int64_t count = items - first < lanes ? items - first : lanes;
            keep_largest(first_item, first, count, [&](int64_t i) {
                return is_whole ? find_largest(all, {0, attention_tile}, first_item, first + i)
                                : find_largest(slices, seen_of(first + i), first_item, first + i);
            });
        }
        for (int64_t i = 0; i < items; ++i) {
            const float scale = scale_of(first_item + i);
            if constexpr (in_bytes) {
                weigh_as_bytes(tile, is_whole ? all : slices, scale, i);
            } else {
                weigh(is_whole ? all : slices, scale, i);
            }
        }
    }

    // Of the block's items first …, from vectors that have it among their lanes.
    template <typename LanesOf>
    void keep_largest(int64_t first_item, int64_t first, int64_t count, const LanesOf& lanes_of) {
        float largest[lanes];
#if defined(__AVX512F__)
        Vec all[lanes];
        set_to_zero(all);
        for (int64_t i = 0; i < count; ++i) all[i] = lanes_of(i);
        store(largest, lane_maxima(all));
#else
        for (int64_t i = 0; i < count; ++i) largest[i] = lane_max(lanes_of(i));
#endif
        for (int64_t i = 0; i < count; ++i) {
            const float highest = largest[i] * scale_of(first_item + first + i);
            block_result_.largest[first + i] = highest > nothing_seen ? highest : nothing_seen;
        }
    }

    // use(scores, first key) for each vector of an item's scores.
    template <typename Use>
    inline __attribute__((always_inline)) void each_score(Range slices, int64_t item, const Use& use) {
#pragma GCC unroll 4
        for (int64_t slice = slices.first; slice < slices.last; ++slice)
            for (int v = 0; v < panel_vectors; ++v)
                use(scores_of(slice, item) + v * lanes, slice * slice_elements + v * lanes);
    }

    // Caps an item's scores, puts -infinity for keys outside `seen`, and gives lanes of which one is the largest.
    inline __attribute__((always_inline)) Vec find_largest(Range slices, Range seen, int64_t first_item, int64_t item) {
        if (seen.first > slices.first * slice_elements || seen.last < slices.last * slice_elements)
            each_score(slices, item, [&](float* scores, int64_t key) {
                const IntVec keys = static_cast<int32_t>(key) + lane_numbers();
                const auto is_seen = (keys >= static_cast<int32_t>(seen.first)) & (keys < static_cast<int32_t>(seen.last));
                store(scores, is_seen ? load(scores) : splat(-INFINITY));
            });
        if (a_.softcap != 0.0f)
            each_score(slices, item, [&](float* scores, int64_t) {
                store(scores, cap(load(scores), in_bytes ? a_.scale * query_scales_[first_item + item] : a_.scale));
            });
        Vec largest = splat(-INFINITY);
        each_score(slices, item, [&](float* scores, int64_t) { largest = max(largest, load(scores)); });
        return largest;
    }

    inline __attribute__((always_inline)) void weigh(Range slices, float scale_of_item, int64_t item) {
        constexpr int degree = in_bf16 ? 3 : 5;
        const Vec scale = splat(scale_of_item), shift = splat(-block_result_.largest[item]);
        Vec sums[group_vectors] = {};
#pragma GCC unroll 4
        for (int64_t slice = slices.first; slice < slices.last; ++slice) {
            float* const row = scores_of(slice, item);
            Vec weights[panel_vectors];
            for (int v = 0; v < panel_vectors; ++v) {
                weights[v] = exp2<degree>(fma(load(row + v * lanes), scale, shift));
                if constexpr (in_bf16) weights[v] = to_nearest_bf16(weights[v]);
                sums[v % group_vectors] += weights[v];
            }
            Products::put(weights, reinterpret_cast<Word*>(row));
        }
        for (int v = 0; v < group_vectors; ++v) store(block_result_.weights + 16 * item + v * lanes, sums[v]);
    }

    // Weights times their values' scales, as bytes with one scale for the tile.
    inline __attribute__((always_inline)) void weigh_as_bytes(const KeyTile& tile, Range slices, float scale_of_item, int64_t item) {
        const Vec scale = splat(scale_of_item), shift = splat(-block_result_.largest[item]);
        Vec sums[group_vectors] = {};
        IntVec largest = IntVec{};  // bits of numbers that are not below 0: those of what is no number are most
        each_score(slices, item, [&](float* scores, int64_t key) {
            const Vec weights = exp2<3>(fma(load(scores), scale, shift));
            sums[key / lanes % group_vectors] += weights;
            const Vec scaled = weights * load(tile.value_scales + key);
            largest = max((IntVec)scaled & 0x7fffffff, largest);
            store(scores, scaled);
        });
        for (int v = 0; v < group_vectors; ++v) store(block_result_.weights + 16 * item + v * lanes, sums[v]);
        const float most = bits_to_float(static_cast<uint32_t>(lane_max(largest)));
        weight_scales_[item] = most / largest_weight;
        const Vec inverse = splat(most > 1e-36f ? largest_weight / most : 0.0f);
        Word* const row = tile_weights_ + item * ByteProducts::words_of(attention_tile);
        each_score(slices, item, [&](float* scores, int64_t key) { ByteSteps::put(rounded(load(scores) * inverse), row, key); });
    }

    Vec cap(Vec scores, float scale) const {
        const Vec capped = soft_cap(scores * scale, a_.softcap);
        return scores == splat(-INFINITY) ? scores : capped;
    }

    void mix(const KeyTile& tile, int64_t items, Range seen) {
        const int64_t last_slice = (seen.last + slice_elements - 1) / slice_elements;
        const Slices slices = {seen.first / slice_elements, last_slice,
                               (seen.last - (last_slice - 1) * slice_elements + 1) / 2};
        const auto meanwhile = [&] { fetch_some(); };
        for (int64_t d = 0; d < a_.dim; d += panel_columns) {
            const int num_groups = a_.dim - d > group_columns ? 2 : 1;
            if constexpr (in_bytes) {
                ByteProducts::multiply<true>(
                    static_cast<int>(items), num_groups, tile_weights_, Constant<ByteProducts::words_of(attention_tile)>{},
                    seen.first / group_columns, (seen.last + group_columns - 1) / group_columns, group_columns / 4,
                    [&](int64_t keys, int64_t g) { return tile.values[keys] + 4 * (d + g * group_columns); }, tile.value_row_bytes,
                    meanwhile,
                    [&](int item, int64_t g, int v, IntVec sums) {
                        store(block_result_.panel(d, item) + g * group_columns + v * lanes,
                              to_float(sums) * weight_scales_[item]);
                    });
            } else {
                Products::multiply(static_cast<int>(items), num_groups,
                                   Rows<Word>{reinterpret_cast<const Word*>(scores_), max_items * row_words<Word>}, slices,
                                   ValueColumns{tile.values, tile.value_row_bytes, d}, meanwhile, block_result_.panel(d, 0));
            }
        }
    }

    void write_out() {
        each_item([&](int64_t item, int64_t token, int64_t head) {
            float* const out =
                a_.out + token * a_.out_token_stride + (part_.key_head * a_.group + head) * a_.out_head_stride;
            Vec sums[group_vectors];
            for (int v = 0; v < group_vectors; ++v) sums[v] = load(totals_.weights + 16 * item + v * lanes);
            const float share = 1.0f / sum_of_16(sums);
            for (int64_t d = 0; d < a_.dim; d += panel_columns) {
                const float* const panel = totals_.panel(d, item);
                for (int v = 0; v < panel_vectors; ++v)
                    store_first(out + d + v * lanes, load(panel + v * lanes) * share, a_.dim - d - v * lanes);
            }
        });
    }

    // As one tree of neighbours, whatever the lanes.
    static float sum_of_16(Vec (&v)[group_vectors]) {
        float sum[group_vectors];
        for (int i = 0; i < group_vectors; ++i) sum[i] = lane_sum(v[i]);
        for (int n = group_vectors; n > 1; n /= 2)
            for (int i = 0; i < n / 2; ++i) sum[i] = sum[2 * i] + sum[2 * i + 1];
        return sum[0];
    }

    const Attention& a_;
    const AttentionPart& part_;
    const int64_t dim_;  // padded to whole slices
    const int64_t num_items_;
    const float scale_;   // of scores, which are capped first where they are, to units of log2
    Word* queries_;       // [slices, items, row_words]; of bytes [items, byte_row_words]
    Mixed totals_;        // of all items
    Mixed block_result_;  // of a block's items over one tile
    float* scores_;       // [slices of a tile, max_items, 32], and then weights as words
    float* copies_;       // of keys and values that cannot be read where they lie
    CacheLines<type> coming_;  // those of coming_visit_, or where it has no rows, of the next part
    Visit coming_visit_;
    int64_t lines_of_step_ = 0;

    // Of a cache of bytes.
    static constexpr float largest_weight = 255.0f;
    static constexpr float smallest_query_scale = 1e-30f;
    float* query_scales_ = nullptr;   // [items]
    int32_t* query_sums_ = nullptr;   // [items], of their bytes
    Word* tile_weights_ = nullptr;    // [max_items, words of a tile's weights]
    float weight_scales_[max_items];  // of a block's items
};

#if defined(__AMX_BF16__)
constexpr int64_t prompt_items_together = 384;  // values are copied for tiles
#else
constexpr int64_t prompt_items_together = 96;
#endif

// Calls use.operator()<Way>() with the fastest way there is for such a cache and so many items.
template <typename Use>
static auto with_attender(KVType type, [[maybe_unused]] int64_t num_items, const Use& use) {
    return with_kv_type(type, [&]<KVType stored>() {
        if constexpr (stored == KVType::f32) {
            return use.template operator()<Attender<stored, VectorProducts<KVType::f32, MultiplyAdds<KVType::f32>>>>();
        } else if constexpr (stored == KVType::int8) {
            return use.template operator()<Attender<stored, ByteProducts>>();
        } else {
#if defined(__AMX_BF16__)
            if (num_items >= TileProducts::fewest_items)
                return use.template operator()<Attender<stored, TileProducts>>();
#endif
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
            return use.template operator()<Attender<stored, VectorProducts<KVType::bf16, MultiplyAddPairs>>>();
#else
            // Processors with tiles multiply pairs of bfloat16 more slowly than float32: 29 to 33 billion a second and 44 to 46.
            using Steps = MultiplyAdds<KVType::bf16>;
            return use.template operator()<Attender<stored, VectorProducts<KVType::bf16, Steps>>>();
#endif
        }
    });
}

static AttentionSizes attention_sizes(const Attention& a, int64_t num_items) {
    return with_attender(a.type, num_items, [&]<typename Way>() { return Way::sizes(a, num_items); });
}

static void attention(const Attention& a, const AttentionPart& part) {
    const FlushDenormals flushing;
    with_attender(a.type, part.num_queries * a.group, [&]<typename Way>() { Way(a, part).attend(); });
}

static void merge_attention(const Attention& a, const AttentionPart& part) {
    const FlushDenormals flushing;
    with_attender(a.type, part.num_queries * a.group, [&]<typename Way>() { Way(a, part).merge_results(); });
}

static constexpr AttentionKernels attention_kernels = {prompt_items_together, attention_sizes, attention, merge_attention};

}  // namespace trivium::TRIVIUM_ISA
