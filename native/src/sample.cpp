// Choosing the next token of rows of logits; trivium/kernels/sample.py says what is computed.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "ops.h"

namespace trivium {

namespace {

using Candidate = SampleScratch::Candidate;

constexpr int64_t not_finite = -1;
constexpr int64_t all_banned = -2;
constexpr int64_t no_limit = std::numeric_limits<int64_t>::max();
constexpr float log2_e = 1.44269504f;
constexpr float max_scale = 1e30f;
constexpr int num_draw_columns = 6;

struct Draw {
    float temperature;
    int64_t top_k;
    double top_p;
    double min_p;
    double uniform;

    explicit Draw(const double* columns)
        : temperature(static_cast<float>(columns[0])),
          top_k(static_cast<int64_t>(std::min(columns[1], 9e15))),
          top_p(columns[2]),
          min_p(columns[3]),
          uniform(columns[5]) {}
};

// What remains of a row's tokens: those of more weight than `least`, and of those that have it, up to `last_equal`.
struct Kept {
    int64_t least;
    int64_t last_equal;
    int64_t mass;

    bool has(int64_t weight, int64_t token) const {
        return weight > least || (weight == least && token <= last_equal);
    }
};

// The weights of a row's tokens.
class Weights {
public:
    Weights(const Kernels& kernels, int64_t num_tokens, SampleScratch& scratch)
        : kernels_(kernels), weights_(scratch.weights.data()), num_tokens_(num_tokens), scratch_(scratch) {}

    Kept all() const { return {0, -1, at_least(1).mass}; }
    WeightSum at_least(int64_t least) const;
    void find_head();  // before anything is filtered
    Kept first_until(int64_t count, int64_t mass, const Kept& kept) const;
    int64_t token_at(int64_t mass, const Kept& kept) const;

private:
    // Filters seldom keep tokens of less weight than this; those of more are few, and passes over them cost little.
    static constexpr int64_t head_weight = int64_t{1} << (draw_weight_bits - 14);
    // Few enough to be sorted; to find them takes some passes, each of which halves their range.
    static constexpr int64_t few_candidates = 64;

    const Kernels& kernels_;
    const int64_t* weights_;
    int64_t num_tokens_;
    SampleScratch& scratch_;
};

WeightSum Weights::at_least(int64_t least) const {
    const std::vector<int64_t>& head = scratch_.head_weights;
    return least < head_weight || head.empty()
               ? kernels_.weights_at_least(weights_, num_tokens_, least)
               : kernels_.weights_at_least(head.data(), static_cast<int64_t>(head.size()), least);
}

void Weights::find_head() {
    for (int64_t i = 0; i < num_tokens_; ++i)
        if (weights_[i] >= head_weight) {
            scratch_.head_weights.push_back(weights_[i]);
            scratch_.head_tokens.push_back(i);
        }
}

// Of the kept tokens, the first in order (by weight, then by id) until they are `count` or have `mass`.
Kept Weights::first_until(int64_t count, int64_t mass, const Kept& kept) const {
    const auto reached = [&](const WeightSum& sum) { return sum.count >= count || sum.mass >= mass; };
    // The last of them weighs at least `low` and less than `high`.
    int64_t low = std::max(head_weight, kept.least), high = (int64_t{1} << draw_weight_bits) + 1;
    WeightSum at_low = at_least(low), at_high = {0, 0};
    if (!reached(at_low)) {
        high = low;
        at_high = at_low;
        low = std::max<int64_t>(1, kept.least);
        at_low = at_least(low);
        if (!reached(at_low)) return kept;
    }
    while (high - low > 1 && at_low.count - at_high.count > few_candidates) {
        const int bits = std::bit_width(static_cast<uint64_t>(low)), more_bits = std::bit_width(static_cast<uint64_t>(high));
        const int64_t middle = more_bits - bits > 1 ? int64_t{1} << ((bits + more_bits) / 2 - 1) : low + (high - low) / 2;
        const WeightSum at_middle = at_least(middle);
        if (reached(at_middle)) {
            low = middle;
            at_low = at_middle;
        } else {
            high = middle;
            at_high = at_middle;
        }
    }
    const bool in_head = low >= head_weight;
    const int64_t* const weights = in_head ? scratch_.head_weights.data() : weights_;
    const int64_t num_weights = in_head ? static_cast<int64_t>(scratch_.head_weights.size()) : num_tokens_;
    const auto range = static_cast<uint64_t>(high - low);  // one comparison, which the processor can foresee
    std::vector<Candidate>& candidates = scratch_.candidates;
    candidates.clear();
    for (int64_t i = 0; i < num_weights; ++i) {
        if (static_cast<uint64_t>(weights[i] - low) >= range) continue;
        const int64_t token = in_head ? scratch_.head_tokens[i] : i;
        if (kept.has(weights[i], token)) candidates.push_back({weights[i], token});
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.weight > b.weight; });
    WeightSum sum = at_high;
    for (const Candidate& candidate : candidates) {
        sum = {sum.count + 1, sum.mass + candidate.weight};
        if (reached(sum)) return {candidate.weight, candidate.token, sum.mass};
    }
    return kept;
}

// The first kept token, by id, at which the sum of the kept weights exceeds `mass`.
int64_t Weights::token_at(int64_t mass, const Kept& kept) const {
    constexpr int64_t chunk = 1024;
    for (int64_t first = 0; first < num_tokens_; first += chunk) {
        const int64_t last = std::min(num_tokens_, first + chunk);
        const bool has_some_equal = first <= kept.last_equal && kept.last_equal < last - 1;
        if (!has_some_equal) {
            const int64_t least = kept.last_equal >= last - 1 ? kept.least : kept.least + 1;
            const int64_t in_chunk = kernels_.weights_at_least(weights_ + first, last - first, least).mass;
            if (mass >= in_chunk) {
                mass -= in_chunk;
                continue;
            }
        }
        for (int64_t i = first; i < last; ++i) {
            if (!kept.has(weights_[i], i)) continue;
            mass -= weights_[i];
            if (mass < 0) return i;
        }
    }
    return num_tokens_ - 1;
}

int64_t draw_token(const Kernels& kernels, const float* logits, int64_t num_tokens, float largest, const Draw& draw,
                   SampleScratch& scratch) {
    scratch.weights.resize(num_tokens);
    const float scale = std::min(1.0f / draw.temperature * log2_e, max_scale);
    kernels.draw_weights(logits, num_tokens, largest, scale, scratch.weights.data());
    scratch.head_weights.clear();
    scratch.head_tokens.clear();
    Weights weights(kernels, num_tokens, scratch);
    Kept kept = weights.all();
    if (draw.top_k > 0 || draw.top_p < 1) weights.find_head();
    if (draw.top_k > 0) kept = weights.first_until(draw.top_k, no_limit, kept);
    if (draw.top_p < 1) {
        const double wanted = std::ceil(draw.top_p * static_cast<double>(kept.mass));
        kept = weights.first_until(no_limit, std::max<int64_t>(1, static_cast<int64_t>(wanted)), kept);
    }
    if (draw.min_p > 0) {
        const auto least = static_cast<int64_t>(std::ceil(draw.min_p * static_cast<double>(int64_t{1} << draw_weight_bits)));
        if (least > kept.least) kept = {least, num_tokens, weights.at_least(least).mass};
    }
    const auto target = static_cast<int64_t>(draw.uniform * static_cast<double>(kept.mass));
    return weights.token_at(std::min(target, kept.mass - 1), kept);
}

// Finds row m among ascending rows.
int64_t place_of(const Tensor& rows, int64_t m) {
    const int64_t *const begin = rows.as<const int64_t>(), *const end = begin + rows.shape[0];
    const int64_t* const found = std::lower_bound(begin, end, m);
    return found != end && *found == m ? found - begin : -1;
}

void penalize(float* logits, const SampleTensors::Penalties& penalties, int64_t place, std::vector<int32_t>& counts) {
    const int64_t* const span = penalties.spans.as<const int64_t>() + 3 * place;
    const int64_t* const tokens = penalties.history.as<const int64_t>() + span[0] * penalties.history.strides[0];
    const float* const amounts = penalties.amounts.as<const float>() + 3 * place;
    const float repetition = amounts[0], presence = amounts[1], frequency = amounts[2];
    for (int64_t i = 0; i < span[2]; ++i) {  // once for each token that is there: then it is marked
        if (counts[tokens[i]]) continue;
        counts[tokens[i]] = 1;
        float& value = logits[tokens[i]];
        value = value > 0 ? value / repetition : value * repetition;
    }
    for (int64_t i = 0; i < span[2]; ++i) counts[tokens[i]] = 0;
    for (int64_t i = span[1]; i < span[2]; ++i) ++counts[tokens[i]];
    for (int64_t i = span[1]; i < span[2]; ++i) {
        int32_t& count = counts[tokens[i]];
        if (count) logits[tokens[i]] -= frequency * static_cast<float>(count) + presence;
        count = 0;
    }
}

// Row m of the logits as the batch changes them, in `scratch`; null where it does not.
const float* changed(const float* logits, int64_t num_tokens, int64_t m, const SampleTensors& batch,
                     SampleScratch& scratch) {
    const int64_t penalty = batch.penalties ? place_of(batch.penalties->rows, m) : -1;
    const int64_t mask = batch.masks ? place_of(batch.masks->rows, m) : -1;
    const int64_t* const starts = batch.biases ? batch.biases->starts.as<const int64_t>() : nullptr;
    const bool has_biases = starts && starts[m] != starts[m + 1];
    if (penalty < 0 && mask < 0 && !has_biases) return nullptr;
    scratch.logits.assign(logits, logits + num_tokens);
    float* const row = scratch.logits.data();
    if (penalty >= 0) {
        scratch.counts.resize(num_tokens);
        penalize(row, *batch.penalties, penalty, scratch.counts);
    }
    if (has_biases)
        for (int64_t i = starts[m]; i < starts[m + 1]; ++i)
            row[batch.biases->tokens.as<const int64_t>()[i]] += batch.biases->values.as<const float>()[i];
    if (mask >= 0) {
        const auto* const words = batch.masks->bits.as<const uint32_t>() + mask * batch.masks->bits.shape[1];
        for (int64_t i = 0; i < num_tokens; ++i)
            if (!(words[i / 32] >> (i % 32) & 1)) row[i] = -std::numeric_limits<float>::infinity();
    }
    return row;
}

void require(bool condition, const char* message) {
    if (!condition) throw std::invalid_argument(message);
}

void require_tensor(const Tensor& t, DType dtype, std::initializer_list<int64_t> shape) {
    t.require_dtype(dtype);
    t.require_shape(shape);
    t.require_contiguous();
}

void require_logits(const Tensor& logits) {
    logits.require_dtype(DType::f32);
    logits.require_shape({-1, -1});
    logits.require_contiguous_tail(1);
}

void require_in(const Tensor& t, int64_t limit) {
    for (int64_t i = 0; i < t.num_elements(); ++i)
        if (const int64_t value = t.as<const int64_t>()[i]; value < 0 || value >= limit)
            throw std::out_of_range(std::string(t.name) + " has " + std::to_string(value) + ", which is outside 0 to " +
                                    std::to_string(limit - 1));
}

void check(const SampleTensors& batch, int64_t num_rows, int64_t num_tokens) {
    if (batch.draws) require_tensor(*batch.draws, DType::f64, {num_rows, num_draw_columns});
    if (batch.penalties) {
        const auto& [rows, amounts, history, spans] = *batch.penalties;
        require_tensor(rows, DType::i64, {-1});
        require_in(rows, num_rows);
        require_tensor(amounts, DType::f32, {rows.shape[0], 3});
        require_tensor(spans, DType::i64, {rows.shape[0], 3});
        history.require_dtype(DType::i64);
        history.require_shape({-1, -1});
        history.require_contiguous_tail(1);
        for (int64_t i = 0; i < rows.shape[0]; ++i) {
            const int64_t* const span = spans.as<const int64_t>() + 3 * i;
            require(span[0] >= 0 && span[0] < history.shape[0], "spans has a row that history has not");
            require(0 <= span[1] && span[1] <= span[2] && span[2] <= history.shape[1], "spans exceeds history");
            Tensor tokens = history;
            tokens.data = history.as<int64_t>() + span[0] * history.strides[0];
            tokens.ndim = 1;
            tokens.shape[0] = span[2];
            require_in(tokens, num_tokens);
        }
    }
    if (batch.biases) {
        const auto& [starts, tokens, values] = *batch.biases;
        require_tensor(starts, DType::i64, {num_rows + 1});
        require_tensor(tokens, DType::i64, {-1});
        require_tensor(values, DType::f32, {tokens.shape[0]});
        require_in(tokens, num_tokens);
        const int64_t* const start = starts.as<const int64_t>();
        require(std::is_sorted(start, start + num_rows + 1) && start[0] == 0 && start[num_rows] == tokens.shape[0],
                "starts must run from 0 to the number of biases");
    }
    if (batch.masks) {
        require_tensor(batch.masks->rows, DType::i64, {-1});
        require_in(batch.masks->rows, num_rows);
        require_tensor(batch.masks->bits, DType::i32, {batch.masks->rows.shape[0], (num_tokens + 31) / 32});
    }
}

// The likeliest tokens of a row in order, the lower id first where two are equal.
void likeliest(const Kernels& kernels, const float* logits, int64_t num_tokens, int64_t num_top, int64_t* tokens) {
    constexpr int64_t chunk = 1024;
    constexpr float lowest = -std::numeric_limits<float>::infinity();
    int64_t num_found = 0;
    for (int64_t first = 0; first < num_tokens; first += chunk) {
        const int64_t last = std::min(num_tokens, first + chunk);
        const float bar = num_found < num_top ? lowest : logits[tokens[num_top - 1]];
        if (num_found == num_top && !(kernels.largest(logits + first, last - first).value > bar)) continue;
        for (int64_t i = first; i < last; ++i) {
            if (num_found == num_top && !(logits[i] > logits[tokens[num_top - 1]])) continue;
            int64_t place = num_found < num_top ? num_found++ : num_top - 1;
            for (; place > 0 && logits[i] > logits[tokens[place - 1]]; --place) tokens[place] = tokens[place - 1];
            tokens[place] = i;
        }
    }
}

}  // namespace

void Ops::logprobs(const Tensor& logits, const Tensor& tokens, const Tensor& scores, const Tensor& places) {
    require_logits(logits);
    const int64_t num_rows = logits.shape[0], num_tokens = logits.shape[1];
    require_tensor(tokens, DType::i64, {num_rows});
    require_in(tokens, num_tokens);
    scores.require_shape({num_rows, -1});
    require_tensor(scores, DType::f64, {num_rows, scores.shape[1]});
    require_tensor(places, DType::i64, {num_rows, scores.shape[1]});
    const int64_t num_top = scores.shape[1] - 1;
    require(num_top >= 0 && num_top <= num_tokens, "scores must have a column, and no more others than there are tokens");

    const std::lock_guard lock(one_call_);
    pool_.run(num_rows, [&](int64_t m, int) {
        const float* const row = logits.as<const float>() + m * logits.strides[0];
        double* const score = scores.as<double>() + m * (1 + num_top);
        int64_t* const place = places.as<int64_t>() + m * (1 + num_top);
        const float largest = kernels_.largest(row, num_tokens).value;
        const double normalizer = largest + std::log(kernels_.sum_of_exponentials(row, num_tokens, largest));
        const float chosen = row[tokens.as<const int64_t>()[m]];
        place[0] = 1 + std::count_if(row, row + num_tokens, [&](float x) { return x > chosen; });
        score[0] = chosen - normalizer;
        if (num_top == 0) return;
        likeliest(kernels_, row, num_tokens, num_top, place + 1);
        for (int64_t i = 1; i <= num_top; ++i) score[i] = row[place[i]] - normalizer;
    });
}

void Ops::sample(const Tensor& logits, const SampleTensors& batch, const Tensor& out) {
    require_logits(logits);
    const int64_t num_rows = logits.shape[0], num_tokens = logits.shape[1];
    require(num_tokens > 0, "logits must have columns");
    require_tensor(out, DType::i64, {num_rows});
    check(batch, num_rows, num_tokens);

    const std::lock_guard lock(one_call_);
    sample_scratch_.resize(pool_.num_threads());
    pool_.run(num_rows, [&](int64_t m, int worker) {
        SampleScratch& scratch = sample_scratch_[worker];
        const float* row = logits.as<const float>() + m * logits.strides[0];
        int64_t& token = out.as<int64_t>()[m];
        Largest largest = kernels_.largest(row, num_tokens);
        token = not_finite;
        if (!largest.is_finite) return;
        if (const float* const changed_row = changed(row, num_tokens, m, batch, scratch)) {
            row = changed_row;
            largest = kernels_.largest(row, num_tokens);
            token = all_banned;
            if (!largest.is_finite) return;
        }
        token = largest.index;
        if (!batch.draws) return;
        const Draw draw(batch.draws->as<const double>() + m * num_draw_columns);
        if (draw.temperature > 0)
            token = draw_token(kernels_, row, num_tokens, largest.value, draw, scratch);
    });
}

}  // namespace trivium
