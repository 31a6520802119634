// A number that is known when the program runs, as one that is known when it is compiled.
#pragma once

#include <stdint.h>

namespace trivium::TRIVIUM_ISA {

// Calls call.operator()<count>(), 1 <= count <= max.
template <int max, typename Call>
static inline void with_constant(int count, const Call& call) {
    if constexpr (max > 1)
        if (count < max) return with_constant<max - 1>(count, call);
    call.template operator()<max>();
}

// A number that the compiler knows.
template <int64_t value>
struct Constant {
    constexpr operator int64_t() const { return value; }
};

// Calls multiply.operator()<count>(first) for begin … end - 1, at most `most` at a time, in groups of nearly one size.
template <int most, typename Multiply>
static inline void for_near_equal_groups(int64_t begin, int64_t end, const Multiply& multiply) {
    for (int64_t groups = (end - begin + most - 1) / most; groups > 0; --groups) {
        const int64_t count = (end - begin + groups - 1) / groups;
        with_constant<most>(static_cast<int>(count), [&]<int num_x>() { multiply.template operator()<num_x>(begin); });
        begin += count;
    }
}

}  // namespace trivium::TRIVIUM_ISA
