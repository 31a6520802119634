// The instructions of AVX-512 VNNI that kernels are made of, modelled as the manual defines them, for processors with AVX-512
// and without them. Included before anything else.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace model {

// Each lane of the sum grows by the four unsigned bytes of w times the four signed ones of x.
inline __m512i add_products_of_bytes(__m512i sums, __m512i w, __m512i x) {
    int32_t sum[16];
    uint8_t unsigned_bytes[64];
    int8_t signed_bytes[64];
    std::memcpy(sum, &sums, 64);
    std::memcpy(unsigned_bytes, &w, 64);
    std::memcpy(signed_bytes, &x, 64);
    for (int i = 0; i < 64; ++i) sum[i / 4] += int32_t{unsigned_bytes[i]} * signed_bytes[i];
    return _mm512_loadu_si512(sum);
}

// The same of two signed words.
inline __m512i add_products_of_words(__m512i sums, __m512i w, __m512i x) {
    int32_t sum[16];
    int16_t a[32], b[32];
    std::memcpy(sum, &sums, 64);
    std::memcpy(a, &w, 64);
    std::memcpy(b, &x, 64);
    for (int i = 0; i < 32; ++i) sum[i / 2] += int32_t{a[i]} * b[i];
    return _mm512_loadu_si512(sum);
}

}  // namespace model

#define __AVX512VNNI__ 1
#define _mm512_dpbusd_epi32 model::add_products_of_bytes
#define _mm512_dpwssd_epi32 model::add_products_of_words
