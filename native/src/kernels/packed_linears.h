// Which kernel multiplies packed weights of which type.
#pragma once

#include "amx_byte_rows.h"
#include "amx_linear.h"
#include "amx_units.h"
#include "byte_rows.h"
#include "byte_rows_by_words.h"
#include "byte_units.h"
#include "halved_linear.h"
#include "packed_linear.h"
#include "spread_linear.h"

namespace trivium::TRIVIUM_ISA {

// work.operator()<type>() for a type that has a packed layout.
template <typename Work>
static auto for_packed_type(WeightType type, const Work& work) {
    switch (type) {
        case WeightType::q8_0: return work.template operator()<WeightType::q8_0>();
        case WeightType::q4_0: return work.template operator()<WeightType::q4_0>();
        case WeightType::q4_1: return work.template operator()<WeightType::q4_1>();
        case WeightType::q5_0: return work.template operator()<WeightType::q5_0>();
        case WeightType::q5_1: return work.template operator()<WeightType::q5_1>();
        case WeightType::q2_k: return work.template operator()<WeightType::q2_k>();
        case WeightType::q3_k: return work.template operator()<WeightType::q3_k>();
        case WeightType::q4_k: return work.template operator()<WeightType::q4_k>();
        case WeightType::q5_k: return work.template operator()<WeightType::q5_k>();
        default: return work.template operator()<WeightType::q6_k>();
    }
}

// The same for units of bytes.
template <typename Work>
static auto for_units_type(WeightType type, const Work& work) {
    switch (type) {
        case WeightType::q4_k_units: return work.template operator()<WeightType::q4_k_units>();
        case WeightType::q5_k_units: return work.template operator()<WeightType::q5_k_units>();
        default: return work.template operator()<WeightType::q6_k_units>();
    }
}

static void packed_linear(const LinearPart& task, const QuantizedRows& x, [[maybe_unused]] void* scratch) {
    if (is_units(task.weight.type))
        return for_units_type(task.weight.type, [&]<WeightType type>() { units_linear<type>(task, x, scratch); });
    for_packed_type(task.weight.type, [&]<WeightType type>() {
#if defined(__AMX_INT8__)
        if constexpr (Unit<type>::has_factors) {
            if (task.num_x >= fewest_unit_tile_rows) return packed_linear_by_unit_tiles<type>(task, x, scratch);
        } else {
            if (task.num_x >= fewest_tile_rows) return packed_linear_by_tiles<type>(task, x, scratch);
        }
#elif defined(TRIVIUM_SUMS_PAIRS_OF_BYTES)
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
#if defined(__AMX_INT8__)
    if (task.num_x >= fewest_byte_rows_for_tiles) return byte_rows_by_tiles(task, x);
#endif
    byte_rows_by_vectors(task, x);
#endif
}

static int64_t packed_scratch([[maybe_unused]] WeightType type, [[maybe_unused]] int64_t columns) {
    if (is_units(type)) return PassScratch::size(columns);
#if defined(__AMX_INT8__)
    if (!is_byte_rows(type))
        return for_packed_type(type, [&]<WeightType type>() {
            if constexpr (Unit<type>::has_factors)
                return UnitScratch<type>::bytes(columns);
            else
                return weight_tiles_together * expanded_bytes<type>(columns);
        });
#elif defined(TRIVIUM_SUMS_PAIRS_OF_BYTES)
    return is_byte_rows(type) ? word_rows_scratch(columns) : spread_scratch;
#elif defined(TRIVIUM_HALVES_PRODUCTS)
    if (!is_byte_rows(type))
        return for_packed_type(
            type, [&]<WeightType type>() { return can_be_halved<type> ? halved_scratch<type>(columns) : int64_t{0}; });
#endif
    return 0;
}

static bool expands([[maybe_unused]] WeightType type) {
#if defined(__AMX_INT8__)
    return !is_float(type) && !is_byte_rows(type);
#else
    return is_units(type);
#endif
}

}  // namespace trivium::TRIVIUM_ISA
