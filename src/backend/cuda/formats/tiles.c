/* tiles.c - which tile layout a matrix gets on the device. */
#include "backend/cuda/formats/tiles.h"

#include "base/size.h"
#include "plan/plan.h"

enum { MAX_K_F32 = 32768, MAX_K_INT8 = 65536, MAX_TILES = 60000 };

/* Rows of the thread block that gets most, of n_sms. */
static uint64_t max_block_rows(uint32_t n, uint32_t rows, uint32_t n_sms) {
    return (uint64_t)div_up(div_up(n, rows), n_sms) * rows;
}

/* 8 rows where K allows: fewer cost more shuffles to add up a row, more are harder to divide evenly
 * among SMs. 4 where that balances the thread blocks by more than 4 %, 16 where there are very many
 * rows. The same for all types, so that gate and up have the same tiles. */
static uint32_t choose_tile_rows(uint32_t k, uint32_t n, uint32_t n_sms) {
    if (k % 512 || n / 16 >= 32 * n_sms || div_up(n, 8) > MAX_TILES)
        return 16;
    bool is_4_better = 100 * max_block_rows(n, 8, n_sms) > 104 * max_block_rows(n, 4, n_sms);
    return k % 1024 == 0 && is_4_better && div_up(n, 4) <= MAX_TILES ? 4 : 8;
}

bool tile_choose(const struct operand *weight, enum tile_expansion as, uint32_t n_sms,
                 struct tile_format *out) {
    uint32_t k = weight->dims[0], n = weight->dims[1];
    uint32_t type = as == TILE_AS_IS ? weight->type : DT_F32;
    if (tile_span(weight->type) == 0 || k % 256 || k == 0 || n == 0 || weight->dims[2] > 1 ||
        weight->dims[3] > 1)
        return false;
    if (k > (tile_is_int8(type) ? MAX_K_INT8 : MAX_K_F32))
        return false;
    uint32_t rows = as == TILE_FEW_F32 ? 4 : choose_tile_rows(k, n, n_sms);
    if (div_up(n, rows) > MAX_TILES)
        return false;
    *out = (struct tile_format){
        .type = type,
        .rows = rows,
        .columns = tile_columns(type, rows),
        .kblock_bytes = tile_kblock_bytes(type),
    };
    out->bytes = (uint64_t)div_up(n, rows) * (k / out->columns) * out->kblock_bytes;
    return true;
}
