// Products of panels (products.h) by AMX tiles of bfloat16. Included only where tiles are compiled for.
#pragma once

#include "amx_tiles.h"
#include "products.h"

namespace trivium::TRIVIUM_ISA {

struct TileProducts {
    static constexpr int max_items = 32;  // two tiles
    static constexpr bool needs_whole_slices = true;

    typedef uint16_t Word;

    // Fewer items leave tiles too empty to pay for copying the values into whole slices.
    static constexpr int64_t fewest_items = 8;

    // While it lives, the thread's tiles have the shape that `multiply` needs for blocks of so many items.
    class Setup {
    public:
        Setup() = default;
        Setup(const Setup&) = delete;
        Setup& operator=(const Setup&) = delete;
        ~Setup() {
            if (rows_) _tile_release();
        }

        void shape_for(int64_t block_items) {
            const uint8_t rows = static_cast<uint8_t>(block_items < 16 ? block_items : 16);
            if (rows == rows_) return;
            rows_ = rows;
            shape_tiles(rows, slice_pairs);
        }

    private:
        uint8_t rows_ = 0;  // of the tiles of items; 0: no shape yet
    };

    static void put(const Vec (&elements)[panel_vectors], Word* row) {
        _mm512_storeu_si512(row, upper_halves(elements[0], elements[1]));
    }

    // Slices, with which something else is done meanwhile.
    static int64_t steps_of(int64_t, int64_t elements) { return (elements + slice_elements - 1) / slice_elements; }

    template <typename Columns, typename Meanwhile>
    static void multiply(int items, int num_groups, const Rows<Word>& rows, const Slices& slices, const Columns& columns,
                         const Meanwhile& meanwhile, float* out) {
        if (items > 16) {
            num_groups == 2 ? multiply_tiles<true, true>(rows, slices, columns, meanwhile, out)
                            : multiply_tiles<true, false>(rows, slices, columns, meanwhile, out);
        } else {
            num_groups == 2 ? multiply_tiles<false, true>(rows, slices, columns, meanwhile, out)
                            : multiply_tiles<false, false>(rows, slices, columns, meanwhile, out);
        }
    }

private:
    // Tiles 0 … 3: sums [items, 16 columns]; 4, 5: [items, 32 elements]; 6, 7: [16 pairs, 16 columns, 2]. Keys and values are
    // to leave the first-level cache to what vectors write and read: a line that is not there takes a store four times as long.
    template <bool more_items, bool more_columns, typename Columns, typename Meanwhile>
    static inline void multiply_tiles(const Rows<Word>& rows, const Slices& slices, const Columns& columns,
                                      const Meanwhile& meanwhile, float* out) {
        _tile_zero(0);
        if constexpr (more_columns) _tile_zero(1);
        if constexpr (more_items) _tile_zero(2);
        if constexpr (more_items && more_columns) _tile_zero(3);
        for (int64_t s = slices.first; s < slices.last; ++s) {
            meanwhile();
            const Word* const row = rows.slice(s);
            _tile_loadd(4, row, row_bytes);
            _tile_stream_loadd(6, columns.at(s, 0, 0), columns.row_bytes);
            _tile_dpbf16ps(0, 4, 6);
            if constexpr (more_columns) {
                _tile_stream_loadd(7, columns.at(s, 1, 0), columns.row_bytes);
                _tile_dpbf16ps(1, 4, 7);
            }
            if constexpr (more_items) {
                _tile_loadd(5, row + 16 * row_words<Word>, row_bytes);
                _tile_dpbf16ps(2, 5, 6);
                if constexpr (more_columns) _tile_dpbf16ps(3, 5, 7);
            }
        }
        constexpr int64_t out_bytes = 4 * panel_columns;
        _tile_stored(0, out, out_bytes);
        if constexpr (more_columns) _tile_stored(1, out + group_columns, out_bytes);
        if constexpr (more_items) _tile_stored(2, out + 16 * panel_columns, out_bytes);
        if constexpr (more_items && more_columns) _tile_stored(3, out + 16 * panel_columns + group_columns, out_bytes);
    }
};

}  // namespace trivium::TRIVIUM_ISA
