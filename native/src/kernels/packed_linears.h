// Which kernel multiplies packed weights of which type by vectors.
#pragma once

#include "byte_rows.h"
#include "byte_rows_by_words.h"
#include "byte_units.h"
#include "halved_linear.h"
#include "packed_linear.h"
#include "packed_types.h"
#include "spread_linear.h"

namespace trivium::TRIVIUM_ISA {

static void packed_linear(const LinearPart& task, const QuantizedRows& x, [[maybe_unused]] void* scratch) {
    if (is_units(task.weight.type))
        return for_units_type(task.weight.type, [&]<WeightType type>() { units_linear<type>(task, x, scratch); });
    for_packed_type(task.weight.type, [&]<WeightType type>() {
#if defined(TRIVIUM_SPREADS_ROWS)
        if (task.num_x >= fewest_spread_rows) return packed_linear_by_spread_rows<type>(task, x, scratch);
#elif defined(TRIVIUM_HALVES_PRODUCTS)
        if constexpr (can_be_halved<type>)
            if (task.num_x >= fewest_halved_rows && adds_beside_products())
                return packed_linear_by_halves<type>(task, x, scratch);
#endif
        packed_linear_of<type>(task, x);
    });
}

static void byte_rows_linear(const LinearPart& task, const TurnedRows& x, [[maybe_unused]] void* scratch) {
#if defined(TRIVIUM_SUMS_PAIRS_OF_BYTES)
    byte_rows_by_words(task, x, static_cast<int16_t*>(scratch));
#else
    byte_rows_by_vectors(task, x);
#endif
}

static int64_t packed_scratch([[maybe_unused]] WeightType type, [[maybe_unused]] int64_t columns) {
    if (is_units(type)) return PassScratch::size(columns);
#if defined(TRIVIUM_SUMS_PAIRS_OF_BYTES)
    if (is_byte_rows(type)) return word_rows_scratch(columns);
#endif
#if defined(TRIVIUM_SPREADS_ROWS)
    return spread_scratch;
#elif defined(TRIVIUM_HALVES_PRODUCTS)
    if (!is_byte_rows(type))
        return for_packed_type(
            type, [&]<WeightType type>() { return can_be_halved<type> ? halved_scratch<type>(columns) : int64_t{0}; });
#endif
    return 0;
}

static bool expands(WeightType type) { return is_units(type); }

static constexpr PackedKernels packed_kernels = {packed_linear, byte_rows_linear, packed_scratch, expands};

}  // namespace trivium::TRIVIUM_ISA
