// Weights that are fetched before they are multiplied.
#pragma once

#include <stdint.h>

namespace trivium::TRIVIUM_ISA {

// With fewer rows of activations a tile is passed over quickly and once, and the processor's own reading ahead does better.
constexpr int64_t fewest_rows_to_fetch_for = 4;

// The tile after the one that is multiplied. Several passes over a tile, or long ones, break off the processor's reading
// ahead; so that each step of them fetches a few lines of the next tile into the second-level cache.
class NextTile {
public:
    NextTile(const uint8_t* tile, int64_t num_bytes, int64_t num_steps)
        : at_(tile), end_(tile + num_bytes), step_bytes_((num_bytes + num_steps - 1) / num_steps) {}

    void fetch_some() {
        for (const uint8_t* const until = at_ + step_bytes_; at_ < until && at_ < end_; at_ += line_bytes)
            __builtin_prefetch(at_, 0, 2);
    }

private:
    static constexpr int64_t line_bytes = 64;

    const uint8_t* at_;
    const uint8_t* end_;
    int64_t step_bytes_;
};

}  // namespace trivium::TRIVIUM_ISA
