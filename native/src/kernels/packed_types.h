// Work that is compiled for each type of packed weights.
#pragma once

#include "../packed.h"

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

}  // namespace trivium::TRIVIUM_ISA
