// Weights that are fetched before they are multiplied.
#pragma once

#include "../kernels.h"
#include "processor.h"

namespace trivium::TRIVIUM_ISA {

// With fewer rows of activations a tile is passed over quickly and once.
constexpr int64_t fewest_rows_to_fetch_for = 4;

// Weights are fetched a few lines at each step of what is multiplied meanwhile: the tile after the one that is multiplied, since
// several passes over a tile, or long ones, break off the processor's reading ahead; or, where each tile is passed over once,
// what is so far ahead that it comes in time. After the last tile of a part comes what its worker multiplies next, so that
// reading goes on from part to part.
class NextTile {
public:
    NextTile() = default;  // nothing is fetched

    // The tile at `tile` of a part whose tiles have so many bytes, into the second-level cache.
    static NextTile after_this(const LinearPart& part, int64_t tile_bytes, const uint8_t* tile, int64_t num_bytes, int64_t num_steps) {
        return {part, tile_bytes, tile, num_bytes, num_steps, false};
    }
    // For one pass over the tile at `tile`.
    static NextTile ahead_of(const LinearPart& part, int64_t tile_bytes, const uint8_t* tile, int64_t num_steps) {
        return {part, tile_bytes, tile + bytes_ahead, tile_bytes, num_steps, keeps_lines_out_of_lower_caches()};
    }
    // Bytes of a tile, after which nothing else is fetched.
    NextTile(const uint8_t* bytes, int64_t num_bytes, int64_t num_steps)
        : at_(bytes), end_(bytes + num_bytes), step_bytes_((num_bytes + num_steps - 1) / num_steps) {}

    void fetch_some() {
        const uint8_t* const until = at_ + step_bytes_;
        if (is_passed_once_) {
            for (; at_ < until && at_ < end_; at_ += line_bytes) __builtin_prefetch(at_, 0, 0);
        } else {
            for (; at_ < until && at_ < end_; at_ += line_bytes) __builtin_prefetch(at_, 0, 2);
        }
        if (at_ >= end_ && following_ != nullptr) go_on();
    }

private:
    NextTile(const LinearPart& part, int64_t tile_bytes, const uint8_t* begin, int64_t num_bytes, int64_t num_steps, bool is_passed_once)
        : at_(begin), end_(begin + num_bytes), step_bytes_((num_bytes + num_steps - 1) / num_steps), is_passed_once_(is_passed_once) {
        const uint8_t* const end_of_part = part.weight.data + part.last_tile * tile_bytes;
        if (end_ <= end_of_part) return;
        beyond_ = end_ - end_of_part;
        end_ = end_of_part;
        following_ = part.following;
    }

    // From the end of the part, or what lies beyond it, to what follows.
    [[gnu::noinline]] void go_on() {
        const WeightBytes next = following_->weights();
        following_ = nullptr;
        const int64_t skipped = at_ - end_;
        if (next.num_bytes <= skipped) {
            at_ = end_ = nullptr;
            return;
        }
        at_ = next.data + skipped;
        end_ = next.data + (beyond_ < next.num_bytes ? beyond_ : next.num_bytes);
    }

    static constexpr int64_t line_bytes = 64;
    // An Intel Xeon that reads 11 GB/s with one thread took in rows of bytes at 9.6 without, 10.7 with 1 KiB, 11.2 with 2, 12.4
    // with 4 and 12.3 with 8; two threads 21.8, 25.3, 28.0, 29.9 and 31.6.
    static constexpr int64_t bytes_ahead = 8 << 10;

    const uint8_t* at_ = nullptr;
    const uint8_t* end_ = nullptr;
    int64_t step_bytes_ = 0;
    bool is_passed_once_ = false;
    // If not null: fetched after what comes before `end_`, so many bytes of it.
    Following* following_ = nullptr;
    int64_t beyond_ = 0;
};

}  // namespace trivium::TRIVIUM_ISA
