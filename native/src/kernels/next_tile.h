// Weights that are fetched before they are multiplied.
#pragma once

#include <stdint.h>

namespace trivium::TRIVIUM_ISA {

// With fewer rows of activations a tile is passed over quickly and once.
constexpr int64_t fewest_rows_to_fetch_for = 4;

// Weights are fetched into the second-level cache, a few lines at each step of what is multiplied meanwhile: the tile after the
// one that is multiplied, since several passes over a tile, or long ones, break off the processor's reading ahead; or, where
// each tile is passed over once, what is so far ahead that it comes in time.
class NextTile {
public:
    NextTile() = default;  // nothing is fetched
    NextTile(const uint8_t* tile, int64_t num_bytes, int64_t num_steps)
        : at_(tile), end_(tile + num_bytes), step_bytes_((num_bytes + num_steps - 1) / num_steps) {}

    // For one pass over the tile, of a run of tiles that ends at `end`.
    static NextTile ahead_of(const uint8_t* tile, int64_t tile_bytes, const uint8_t* end, int64_t num_steps) {
        const uint8_t* const first = tile + bytes_ahead;
        return {first, first >= end ? 0 : end - first < tile_bytes ? end - first : tile_bytes, num_steps};
    }

    void fetch_some() {
        for (const uint8_t* const until = at_ + step_bytes_; at_ < until && at_ < end_; at_ += line_bytes)
            __builtin_prefetch(at_, 0, 2);
    }

private:
    static constexpr int64_t line_bytes = 64;
    // An Intel Xeon that reads 11 GB/s with one thread took in rows of bytes at 9.6 without, 10.7 with 1 KiB, 11.2 with 2, 12.4
    // with 4 and 12.3 with 8; two threads 21.8, 25.3, 28.0, 29.9 and 31.6.
    static constexpr int64_t bytes_ahead = 8 << 10;

    const uint8_t* at_ = nullptr;
    const uint8_t* end_ = nullptr;
    int64_t step_bytes_ = 0;
};

}  // namespace trivium::TRIVIUM_ISA
