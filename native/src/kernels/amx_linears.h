// Which kernel multiplies packed weights of which type where there are tiles: these, for as many rows of x as fill them; for
// fewer, the vectors of the set that they are added to.
#pragma once

#include "amx_byte_rows.h"
#include "amx_linear.h"
#include "amx_units.h"
#include "byte_units.h"
#include "packed_types.h"

namespace trivium::TRIVIUM_ISA {

static bool fill_tiles(const LinearPart& task) {
    if (is_byte_rows(task.weight.type)) return task.num_x >= fewest_byte_rows_for_tiles;
    if (is_units(task.weight.type)) return task.num_x >= fewest_rows_for_tiles_of_units;
    const bool is_k_type = packed_layout(task.weight.type).unit_columns > packed_group_columns;
    return task.num_x >= (is_k_type ? fewest_unit_tile_rows : fewest_tile_rows);
}

static void packed_linear(const LinearPart& task, const QuantizedRows& x, void* scratch) {
    if (!fill_tiles(task)) return avx512_vnni_kernels().packed.linear(task, x, scratch);
    if (is_units(task.weight.type))
        return for_units_type(task.weight.type, [&]<WeightType type>() {
            units_of_many_rows<UnitsByTiles, type>(task, x, scratch);
        });
    for_packed_type(task.weight.type, [&]<WeightType type>() {
        if constexpr (Unit<type>::has_factors)
            packed_linear_by_unit_tiles<type>(task, x, scratch);
        else
            packed_linear_by_tiles<type>(task, x, scratch);
    });
}

static void byte_rows_linear(const LinearPart& task, const TurnedRows& x, void* scratch) {
    fill_tiles(task) ? byte_rows_by_tiles(task, x) : avx512_vnni_kernels().packed.byte_rows_linear(task, x, scratch);
}

static int64_t packed_scratch(WeightType type, int64_t columns) {
    const auto of_tiles = [&]<WeightType type>() {
        if constexpr (Unit<type>::has_factors)
            return UnitScratch<type>::bytes(columns);
        else
            return weight_tiles_together * expanded_bytes<type>(columns);
    };
    const int64_t by_vectors = avx512_vnni_kernels().packed.scratch_bytes(type, columns);
    const int64_t by_tiles = is_byte_rows(type) ? 0
                             : is_units(type)   ? PassScratch::size(columns)
                                                : for_packed_type(type, of_tiles);
    return by_tiles > by_vectors ? by_tiles : by_vectors;
}

static bool expands(WeightType type) { return !is_float(type) && !is_byte_rows(type); }

static constexpr PackedKernels packed_kernels = {packed_linear, byte_rows_linear, packed_scratch, expands};

}  // namespace trivium::TRIVIUM_ISA
