// Linear layers with half of the multiplications (halved_linear.h), which processors of AMD are given, on whichever has AVX-512:
// compared with the vector kernel to the bit. Prints one line for each case that differs, and the count.
#include <cstdlib>
#include <random>

#define TRIVIUM_ISA halved
#include "../src/kernels/packed_linears.h"
#include "packed_cases.h"

using namespace trivium;
using namespace trivium::halved;

int main(int, char** arguments) {
    std::mt19937 random(static_cast<unsigned>(std::atoi(arguments[1])));
    Count count;
    for (int t = 0; t < num_weight_types; ++t) {
        if (is_float(static_cast<WeightType>(t))) continue;
        for_packed_type(static_cast<WeightType>(t), [&]<WeightType type>() {
            if constexpr (can_be_halved<type>) compare_packed_layers<type>(random, count, packed_linear_by_halves<type>);
        });
    }
    return count.tell();
}
