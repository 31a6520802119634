#include "checksum.h"

#include <cstring>

namespace trivium {

namespace {

// Scatters the bits of a number over all 64 (the finalizer of splitmix64).
uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

constexpr int num_sums = 8;  // independent of each other: one vector, or several

}  // namespace

uint64_t chunk_checksum(const uint8_t* data, int64_t bytes) {
    constexpr int64_t step = 8 * num_sums;
    uint64_t sums[num_sums] = {}, sums_of_sums[num_sums] = {};
    const auto add = [&](const uint8_t* at) {
        uint64_t words[num_sums];
        std::memcpy(words, at, step);
        for (int i = 0; i < num_sums; ++i) sums[i] += words[i];
        for (int i = 0; i < num_sums; ++i) sums_of_sums[i] += sums[i];
    };
    int64_t at = 0;
    for (; at + step <= bytes; at += step) add(data + at);
    if (at < bytes) {
        uint8_t rest[step] = {};
        std::memcpy(rest, data + at, static_cast<size_t>(bytes - at));
        add(rest);
    }
    uint64_t all = mixed(static_cast<uint64_t>(bytes));
    for (int i = 0; i < num_sums; ++i) all = mixed(mixed(all ^ sums[i]) ^ sums_of_sums[i]);
    return all;
}

uint64_t joined_checksum(uint64_t before, uint64_t chunk) { return mixed(before ^ chunk); }

}  // namespace trivium
