// A number that tells whether bytes are those that were written: not against malice, but at the speed of memory.
#pragma once

#include <cstdint>

namespace trivium {

constexpr int64_t checksum_chunk_bytes = int64_t{1} << 22;  // hashed apart, so that threads can share the work

// Of one chunk. Any single changed word changes it, and so does any exchange of two different ones.
uint64_t chunk_checksum(const uint8_t* data, int64_t bytes);

// Of all chunks so far, and one more.
uint64_t joined_checksum(uint64_t before, uint64_t chunk);

}  // namespace trivium
