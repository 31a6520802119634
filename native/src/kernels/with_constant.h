// A number that is known when the program runs, as one that is known when it is compiled.
#pragma once

namespace trivium::TRIVIUM_ISA {

// Calls call.operator()<count>(), 1 <= count <= max.
template <int max, typename Call>
static inline void with_constant(int count, const Call& call) {
    if constexpr (max > 1)
        if (count < max) return with_constant<max - 1>(count, call);
    call.template operator()<max>();
}

}  // namespace trivium::TRIVIUM_ISA
