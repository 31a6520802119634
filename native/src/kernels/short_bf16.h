// Slices of short bfloat16 (packed.h) made into bfloat16, every bit of it.
#pragma once

#include "../packed.h"
#include "next_tile.h"
#include "vector.h"

namespace trivium::TRIVIUM_ISA {

// 128 weights. `uppers`: eight bytes, by the numbers that stand for them.
static inline void expand_run(const uint8_t* run, uint64_t uppers, uint8_t* out) {
    constexpr int64_t negative = static_cast<int64_t>(0x8080808080808080);  // the signs of eight
    const uint8_t *const numbers = run, *const lowers = run + ShortLayout::number_bytes;
#if defined(__AVX512BW__)
    const __m512i table = _mm512_or_si512(_mm512_set1_epi64(static_cast<int64_t>(uppers)), _mm512_maskz_set1_epi64(0xaa, negative));
    const __m512i of_two = _mm512_loadu_si512(numbers), nibble = _mm512_set1_epi8(15);
    for (int half = 0; half < 2; ++half) {
        const __m512i places = _mm512_and_si512(half ? _mm512_srli_epi16(of_two, 4) : of_two, nibble);
        const __m512i upper = _mm512_shuffle_epi8(table, places), lower = _mm512_loadu_si512(lowers + 64 * half);
        _mm512_storeu_si512(out + 128 * half, _mm512_unpacklo_epi8(lower, upper));
        _mm512_storeu_si512(out + 128 * half + 64, _mm512_unpackhi_epi8(lower, upper));
    }
#elif defined(__AVX2__)
    const __m256i table = _mm256_or_si256(_mm256_set1_epi64x(static_cast<int64_t>(uppers)),
                                          _mm256_setr_epi64x(0, negative, 0, negative));
    const __m256i nibble = _mm256_set1_epi8(15);
    for (int part = 0; part < 2; ++part) {
        const __m256i of_two = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers + 32 * part));
        for (int half = 0; half < 2; ++half) {
            const __m256i places = _mm256_and_si256(half ? _mm256_srli_epi16(of_two, 4) : of_two, nibble);
            const __m256i upper = _mm256_shuffle_epi8(table, places);
            const __m256i lower = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lowers + 64 * half + 32 * part));
            __m256i* const to = reinterpret_cast<__m256i*>(out + 128 * half + 32 * part);
            _mm256_storeu_si256(to, _mm256_unpacklo_epi8(lower, upper));
            _mm256_storeu_si256(to + 2, _mm256_unpackhi_epi8(lower, upper));
        }
    }
#elif defined(__aarch64__)
    const uint8x16_t table = vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(uppers), vcreate_u64(uppers | negative)));
    for (int part = 0; part < 4; ++part) {
        const uint8x16_t of_two = vld1q_u8(numbers + 16 * part);
        for (int half = 0; half < 2; ++half) {
            const uint8x16_t places = half ? vshrq_n_u8(of_two, 4) : vandq_u8(of_two, vdupq_n_u8(15));
            const uint8x16_t upper = vqtbl1q_u8(table, places), lower = vld1q_u8(lowers + 64 * half + 16 * part);
            vst1q_u8(out + 128 * half + 16 * part, vzip1q_u8(lower, upper));
            vst1q_u8(out + 128 * half + 64 + 16 * part, vzip2q_u8(lower, upper));
        }
    }
#else
    for (int i = 0; i < ShortLayout::run_weights; ++i) {
        const int half = i / 64, in_line = i % 16, second = in_line / 8;
        const int place = numbers[i % 64] >> 4 * half & 15;
        uint8_t* const weight = out + 128 * half + 64 * second + i % 64 / 16 * 16 + in_line % 8 * 2;
        weight[0] = lowers[i];
        weight[1] = static_cast<uint8_t>((place & 8 ? uppers | negative : uppers) >> place % 8 * 8);
    }
#endif
}

// The slices of a tile, one after the other.
class ShortSlices {
public:
    ShortSlices() = default;
    ShortSlices(const uint8_t* tile, int64_t num_slices)
        : layout_{num_slices}, tile_(tile), exceptions_(tile + layout_.first_exception()),
          end_of_exceptions_(exceptions_ + 4 * layout_.most_exceptions()) {}

    // Where the next ones lie.
    const uint8_t* next() const { return tile_ + layout_.first_slice() + done_ * ShortLayout::slice_bytes; }

    // The next `count`, as bfloat16. `fetched` meanwhile: a part for each of them.
    void expand(int64_t count, uint8_t* out, NextTile& fetched) {
        const int64_t end = done_ + count;
        uint8_t* const chunk = out;
        const uint32_t first_place = place(done_), end_place = place(end);
        for (; done_ < end; ++done_) {
            fetched.fetch_some();
            uint64_t uppers;
            memcpy(&uppers, tile_ + done_ * ShortLayout::table_entries, sizeof uppers);
            const uint8_t* run = next();
            for (int i = 0; i < ShortLayout::slice_weights / ShortLayout::run_weights; ++i) {
                expand_run(run, uppers, out);
                run += ShortLayout::run_bytes;
                out += 2 * ShortLayout::run_weights;
            }
        }
        // Bytes that nobody packed stay within the tile too: what is no exception of these slices ends them.
        for (; exceptions_ < end_of_exceptions_; exceptions_ += 4) {
            uint32_t exception;
            memcpy(&exception, exceptions_, sizeof exception);
            const uint32_t in_chunk = (exception >> 8) - first_place;
            if (in_chunk >= end_place - first_place) return;
            chunk[2 * in_chunk + 1] = static_cast<uint8_t>(exception);
        }
    }

private:
    static uint32_t place(int64_t slice) { return static_cast<uint32_t>(slice * ShortLayout::slice_weights); }

    ShortLayout layout_ = {};
    const uint8_t *tile_ = nullptr, *exceptions_ = nullptr, *end_of_exceptions_ = nullptr;
    int64_t done_ = 0;
};

}  // namespace trivium::TRIVIUM_ISA
