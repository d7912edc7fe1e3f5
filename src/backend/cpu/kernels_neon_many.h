/* kernels_neon_many.h - tiles that stay expanded while many rows are multiplied with them: a part
 * of kernels_neon_int8.h. Activations of several eights of rows are interleaved and stay in L1. */

/* A group of half a tile. s: its scales, or d where blocks are of 32 values; m: its minimums. */
struct expanded {
    int8x16_t w[8];
    float32x4_t s[2][ORDERS], m[2][ORDERS], start[ORDERS]; /* start: see group_sums_of_eight */
};

/* `n` groups of half a tile, up to a block of 256 values. */
INLINE TARGET void expand_half(const struct format *f, const uint8_t *block, int n, int half,
                               struct expanded *to) {
    for (int g = 0; g<n; g++, to++, block += f->groups> 1 ? 0 : f->size) {
        const struct half at = half_of(f, block, half);
        float32x4_t s[2], m[2];
        f->expand(at.quants + (uint32_t)(f->groups > 1 ? 2 * g : 0) * f->half, to->w);
        if (f->groups > 1)
            load_scales(f, at, g, 0, s);
        else
            s[0] = d_of(f, at, 0);
        in_order(s, f->runs, MAX_ACTS, to->s);
        if (K_STEP == 8 && f->groups > 1)
            UNROLL for (int o = 0; o < ORDERS; o++) to->start[o] =
                vmulq_n_f32(to->s[0][o], -start_value(f->shift[0]));
        if (f->has_min && f->groups > 1)
            load_minimums(f, at, g, 0, m);
        else if (f->has_min)
            m[0] = second_of(at, 0);
        if (f->has_min)
            in_order(m, f->runs, MAX_ACTS, to->m);
    }
}

/* An expanded tile, up to a block of 256 values. */
struct expanded_tile {
    struct expanded half[2][CHUNK];
    struct block_scales scales[2];
};

INLINE TARGET void expand_tile(const struct format *f, const uint8_t *block, int n,
                               struct expanded_tile *to) {
    for (int half = 0; half < 2; half++) {
        expand_half(f, block, n, half, to->half[half]);
        if (f->groups > 1)
            to->scales[half] = scales_of_block(f, half_of(f, block, half), 0, MAX_ACTS);
    }
}

/* The minimums of both halves: sixteen sums that do not wait for each other. */
INLINE TARGET void add_lows(const struct format *f, const struct expanded_tile *tile, int n,
                            struct rows rows, float32x4_t (*low)[MAX_ACTS]) {
    float32x4_t sum[2][MAX_ACTS];
    UNROLL for (int h = 0; h < 2; h++) UNROLL for (int r = 0; r < MAX_ACTS; r++) sum[h][r] =
        vdupq_n_f32(0);
    for (int g = 0; g < n; g++)
        UNROLL for (int h = 0; h < 2; h++)
            add_low(f, tile->half[h][g].m, rows, g, MAX_ACTS, sum[h]);
    UNROLL for (int h = 0; h < 2; h++) UNROLL for (int r = 0; r < MAX_ACTS; r++) low[h][r] =
        sum[h][r];
}

/* add_block or add_blocks of half a tile and MAX_ACTS rows: n groups. */
INLINE TARGET void add_expanded(const struct format *f, int n, const struct expanded *expanded,
                                const struct block_scales *scales, struct rows rows,
                                const float32x4_t *low, float32x4_t *sums) {
    float32x4_t part[MAX_ACTS];
    UNROLL for (int r = 0; r < MAX_ACTS; r++) part[r] = f->groups > 1 ? vdupq_n_f32(0) : sums[r];
    for (int g = 0; g < n; g++) {
        float32x4_t group_sums[1][MAX_ACTS];
#if K_STEP == 8
        group_sums_of_eight(f, expanded[g].w, expanded[g].s, expanded[g].start,
                            interleaved_of(rows, 0, g, MAX_ACTS), group_sums[0]);
#else
        multiply(f, &expanded[g].w, &expanded[g].s, rows, g, MAX_ACTS, group_sums);
#endif
        if (f->groups > 1)
            UNROLL for (int r = 0; r < MAX_ACTS; r++) part[r] =
                vfmaq_f32(part[r], group_sums[0][r], scale_of_row(rows, r, g, MAX_ACTS));
        else
            add_group_sums(f, group_sums[0], expanded[g].s[0], expanded[g].m[0], rows, g, MAX_ACTS,
                           part);
    }
    if (f->groups > 1)
        add_scaled(f, scales, part, low, MAX_ACTS, sums);
    else
        UNROLL for (int r = 0; r < MAX_ACTS; r++) sums[r] = part[r];
}

/* The interleaved activations stay in L1; a tile is expanded and multiplied with all of them. */
INLINE TARGET void add_many_tiles(const struct format *f, struct tiles tiles, uint32_t group, int n,
                                  struct rows rows, uint32_t acts,
                                  float32x4_t (*sums)[TILES][2][MAX_ACTS]) {
    struct interleaved interleaved[MANY / MAX_ACTS][CHUNK * MAX_ACTS / INTERLEAVED];
    struct expanded_tile tile;
    const uint32_t eights = acts / MAX_ACTS;
    rows.at += group;
    for (uint32_t i = 0; i < eights; i++, rows.at += MAX_ACTS * rows.stride)
        interleave(f, rows, (uint32_t)n, MAX_ACTS, interleaved[i]);
    const uint8_t *first = tiles.at + group / (uint32_t)f->groups * f->size, *block = first;
    const uint32_t bytes = (uint32_t)n / (uint32_t)f->groups * f->size;
    for (uint32_t t = 0; t < tiles.count; t++, block += tiles.bytes) {
        expand_tile(f, block, n, &tile);
        /* Pieces of tiles are too short for the processor to see what comes next. */
        const uint8_t *next = t + 1 < tiles.count ? block + tiles.bytes : first + bytes;
        for (uint32_t i = 0; i < bytes; i += 64)
            __builtin_prefetch(next + i);
        for (uint32_t i = 0; i < eights; i++) {
            float32x4_t low[2][MAX_ACTS];
            rows.interleaved = interleaved[i];
            if (f->groups > 1 && f->has_min)
                add_lows(f, &tile, n, rows, low);
            for (int h = 0; h < 2; h++)
                add_expanded(f, n, tile.half[h], &tile.scales[h], rows, low[h], sums[i][t][h]);
        }
    }
}
