/* project_many.cu - PROJECT for five rows and more: the sums of project.cuh, bit for bit, on tensor
 * cores.
 *
 * A warp multiplies a strip, 16 rows of weights (A of an mma), with 8 NT rows of activations (B),
 * 32 columns at a time (16 of Q6_K). What comes out are the integers that a lane has there; here a
 * lane (g, j) = (lane / 4, lane % 4) has those of rows g and g + 8 of the strip and rows 2 j and 2
 * j + 1 of every eight of the activations. They are added as there: as integers over 128 columns,
 * times scales, pairs of neighbours first within a unit, then unit by unit. Minimums meet the sums
 * of the activations in an mma of halves, in which everything is a whole number and exact.
 *
 * From the start of its tasks to their end a warp goes its own way: units come by the copy engine,
 * and whoever is the last of a strip's warps adds up and stores. */
#include "backend/cuda/project.cuh"
#include "backend/cuda/project_many.h"

/* ---- registers --------------------------------------------------------------------------------
 */

/* The products need all registers that there are, and what does not fit goes to memory, far away
 * since shared memory leaves no room for a cache. So what is quickly found again is not kept; the
 * compiler would, if it knew that it is the same. */
static __device__ __forceinline__ uint32_t fresh(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}

static __device__ __forceinline__ uint32_t fresh_lane(void) {
    uint32_t lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/* ---- tasks ------------------------------------------------------------------------------------
 */

struct many_task {
    uint32_t segment, strip; /* of the segment */
    uint32_t unit, end;
    uint32_t part, parts; /* of the strip's */
    uint32_t place;       /* the block's own number of the strip */
    uint32_t first_part;  /* where its parts are in shared memory */
};

/* Which unit's task t is, if they are spread: divisions take a hundred instructions. */
static __device__ __forceinline__ uint32_t spread_unit(const struct many_params &m, uint32_t t) {
    return __umulhi(t, m.strip_magic);
}

/* Task t of the block; false: there are not so many. */
static __device__ __forceinline__ bool find_many(const struct many_params &m, uint32_t t,
                                                 struct many_task &out) {
    const struct project_params &p = m.p;
    if (m.is_spread) {
        t += p.bounds[blockIdx.x];
        uint32_t unit = spread_unit(m, t);
        out = {0, t - unit * m.strips, unit, unit + 1, unit, m.units, 0, 0};
        return t < p.bounds[blockIdx.x + 1];
    }
    struct task found;
    if (!find_task(p, t, found))
        return false;
    const struct project_segment &s = p.segments[found.segment];
    uint32_t strip = found.tile, slice = found.slice, unit = task_first(s, slice);
    out = {found.segment,
           strip,
           unit,
           unit + task_units(s, slice),
           slice,
           s.slices,
           s.first_tile + strip - p.bounds[blockIdx.x],
           t - slice};
    return true;
}

/* Columns of the activations that a block needs: all, or those of its tasks' units. */
struct many_range {
    uint32_t first, n;
};

static __device__ __forceinline__ struct many_range range_of(const struct many_params &m) {
    if (!m.is_spread)
        return {0, m.p.in.k};
    uint32_t unit = 128 * 32 >> m.p.segments[0].row_shift; /* columns */
    if (m.p.segments[0].type == IS_Q8_0)
        unit /= 2;
    uint32_t begin = m.p.bounds[blockIdx.x], end = m.p.bounds[blockIdx.x + 1];
    uint32_t first = spread_unit(m, begin),
             last = end > begin ? spread_unit(m, end - 1) + 1 : first;
    return {first * unit, (last - first) * unit};
}

/* ---- the ring: a slot has a unit of every tile of a strip --------------------------------------
 */

struct many_loader {
    const uint8_t *at; /* of this lane's tile, if it has one */
    uint32_t left;     /* units of the task */
    uint32_t task;     /* the next one; OVER: there is none */
    uint32_t form;     /* bytes of a unit; tiles of a strip, above 16 */
};

enum : uint32_t { OVER = ~0u };

/* Lane l brings tile l of the strip. Of SwiGLU the first half is gate, the second up. */
static __device__ __forceinline__ void aim(const struct many_params &m, const struct many_task &t,
                                           struct many_loader &l) {
    const struct project_segment &s = m.p.segments[t.segment];
    uint32_t lane = threadIdx.x % 32, tiles = MANY_STRIP >> s.row_shift, tile = lane;
    const uint8_t *data = s.data;
    uint32_t all = (s.n + (1u << s.row_shift) - 1) >> s.row_shift, own = tiles;
    if (m.p.finish == FINISH_SWIGLU) {
        own = tiles / 2;
        data = lane >= own ? m.p.segments[1].data : data;
        tile = lane >= own ? lane - own : lane;
    }
    tile = min(t.strip * own + tile, all - 1);
    l.form = s.unit_bytes | tiles << 16;
    l.left = t.end - t.unit;
    l.at = data + ((uint64_t)tile * s.units + t.unit) * s.unit_bytes;
}

/* False: there is nothing more. asks: else only the loader goes on, and another member asks. */
static __device__ __forceinline__ bool load_strip(const struct many_params &m,
                                                  struct many_loader &l, uint32_t slot,
                                                  uint32_t barrier, bool asks) {
    uint32_t lane = fresh_lane();
    if (l.left == 0 && l.task != OVER) {
        struct many_task t;
        if (find_many(m, l.task, t)) {
            aim(m, t, l);
            l.task += m.p.ring_warps;
        } else {
            l.task = OVER;
        }
    }
    if (l.left == 0)
        return false;
    uint32_t tiles = l.form >> 16, bytes = l.form & 0xffff;
    if (asks && lane == 0)
        expect_bytes(barrier, tiles * bytes);
    if (asks && lane < tiles)
        copy_bytes(slot + lane * m.p.slot_bytes, l.at, bytes, barrier);
    l.at += bytes;
    l.left--;
    return true;
}

/* ---- products ---------------------------------------------------------------------------------
 */

/* Four matrices of 8 rows by 16 bytes: a lane gives the address of row lane % 8 of matrix lane / 8,
 * and gets word j of row g of each. */
static __device__ __forceinline__ void load_matrices(uint32_t (&x)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void mma32(int (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1, int start) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %10, %10, %10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start));
}

static __device__ __forceinline__ void mma16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %7, %7, %7};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(0));
}

static __device__ __forceinline__ void mma_halves(float (&c)[4], uint32_t a0, uint32_t a1,
                                                  uint32_t b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %7, %7, %7};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a0), "r"(a1), "r"(b), "f"(0.0f));
}

/* Activations in shared memory, as a lane reads them: 8 NT rows. */
struct many_acts {
    uint32_t numbers; /* an address: row lane % 8, columns lane / 8 * 16... */
    uint32_t pitch;   /* from 8 rows to the next 8 */
    uint32_t scales;  /* of rows 2 j and 2 j + 1, from the start of shared memory */
    uint32_t sums;    /* of row g, columns 32 j... */
    uint32_t rows;    /* of the image */
    uint32_t shift;   /* 128 columns have 1 << shift scales */
};

/* n: columns in shared memory; row: the warp's first. */
static __device__ __forceinline__ struct many_acts acts_of(const struct many_params &m, uint32_t n,
                                                           uint32_t row) {
    extern __shared__ uint4 shared[];
    const struct many_image &e = m.images;
    uint32_t lane = fresh_lane(), pitch = n + 16, scales = m.p.image_at + e.rows * pitch;
    struct many_acts a;
    a.numbers = (uint32_t)__cvta_generic_to_shared(shared) + m.p.image_at +
                (row + lane % 8) * pitch + lane / 8 * 16;
    a.pitch = 8 * pitch;
    a.scales = scales + row * 4 + lane % 4 * 8;
    a.sums = scales + (e.group == 128 ? n / 128 : n / 32) * e.rows * 4 + row * 16 + lane * 4;
    a.rows = e.rows;
    a.shift = e.group == 128 ? 0 : 2;
    return a;
}

/* Where a lane finds its part of a strip's units: for rows g and g + 8 the tile's unit, from the
 * start of a slot, and the row there, which is the number of the lane that owns its first columns.
 */
struct many_view {
    uint32_t matrix; /* for load_matrices, from the start of a slot */
    uint32_t unit[2], row[2];
    uint32_t rows; /* T: so many lanes on are the row's next columns */
};

static __device__ __forceinline__ struct many_view view_of(uint32_t rows, uint32_t slot_bytes) {
    uint32_t lane = fresh_lane(), g = lane / 4, half = lane / 8 % 2, r = lane % 8;
    struct many_view v;
    v.rows = rows;
    v.matrix = lane / 16 * 512; /* matrices 2 and 3 are of the next piece */
    if (rows == 16) {
        v.matrix += (half * 8 + r) * 16;
        v.unit[0] = v.unit[1] = 0;
        v.row[0] = g, v.row[1] = g + 8;
    } else if (rows == 8) {
        v.matrix += half * slot_bytes + r * 16;
        v.unit[0] = 0, v.unit[1] = slot_bytes;
        v.row[0] = v.row[1] = g;
    } else {
        v.matrix += (half * 2 + r / 4) * slot_bytes + r % 4 * 16;
        v.unit[0] = g / 4 * slot_bytes, v.unit[1] = v.unit[0] + 2 * slot_bytes;
        v.row[0] = v.row[1] = g % 4;
    }
    return v;
}

/* What is read of 128 columns (64 of Q8_0), group by group; all but the matrices from the start of
 * shared memory. A group further they are `rows` lanes on. */
template <int TYPE> struct many_places {
    static constexpr uint32_t SCALE = TYPE == IS_Q6_K ? 8 : 4; /* bytes of a lane */
    static constexpr uint32_t D = TYPE == IS_Q6_K ? 2 : 4;
    uint32_t matrix;    /* an address */
    uint32_t scales[2]; /* Q8_0: d */
    uint32_t mins[2];   /* of Q4_K and Q5_K */
    uint32_t more[2];   /* upper bits of Q5_K and Q6_K */
    uint32_t d[2];      /* a pair of groups further: `rows` on */
    uint32_t rows;

    __device__ __forceinline__ many_places(const struct many_view &v, uint32_t slot,
                                           uint32_t address) {
        matrix = address + v.matrix;
        rows = v.rows;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t unit = slot + v.unit[i];
            scales[i] = unit + v.row[i] * SCALE;
            mins[i] = unit + v.row[i] * 2;
            more[i] = unit + v.row[i] * 16;
            d[i] = unit + v.row[i] * D;
        }
    }

    __device__ __forceinline__ void next(void) {
        matrix += rows * 16;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            scales[i] += rows * SCALE;
            mins[i] += rows * 2;
            more[i] += rows * 16;
        }
    }

    __device__ __forceinline__ void next_pair(void) {
        d[0] += rows * D;
        d[1] += rows * D;
    }
};

template <class T> static __device__ __forceinline__ T peek(uint32_t at) {
    extern __shared__ uint4 shared[];
    return *(const T *)((const uint8_t *)shared + at);
}

static __device__ __forceinline__ uint32_t byte_of(uint32_t v, uint32_t i) {
    return __byte_perm(v, 0, 0x4440 + i);
}

static __device__ __forceinline__ int signed_byte(uint32_t v, uint32_t i) {
    int r;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(r) : "r"(v), "r"(0x8880 + 0x1111 * i));
    return r;
}

/* Integers of the strip against 8 rows, scaled: those of row g by a, of row g + 8 by b. */
static __device__ __forceinline__ void add_scaled(int (&sum)[4], const int (&c)[4], int a, int b) {
    sum[0] += a * c[0];
    sum[1] += a * c[1];
    sum[2] += b * c[2];
    sum[3] += b * c[3];
}

/* The minimum of columns 32 j... of a row, as a pair of halves. */
static __device__ __forceinline__ uint32_t min_pair(uint32_t scales, uint32_t mins) {
    uint32_t j = threadIdx.x % 4;
    uint32_t min = (mins >> ((j & 1) * 8 + (j >> 1) * 4) & 15) | (scales >> (8 * j + 2) & 0x30);
    uint32_t pair = min * 0x00010001u + 0x64006400u; /* 1024 more, as halves have it */
    __half2 h = __hadd2(*reinterpret_cast<__half2 *>(&pair), __floats2half2_rn(-1024, -1024));
    return *reinterpret_cast<uint32_t *>(&h);
}

/* 128 columns, numbered x among those in shared memory. */
template <int TYPE, int NT>
static __device__ __forceinline__ void many_q4(const struct many_places<TYPE> &v,
                                               const struct many_acts &a, uint32_t x,
                                               const float2 (&d)[2], float (&out)[NT][4]) {
    constexpr bool IS_5 = TYPE == IS_Q5_K;
    constexpr uint32_t SCALES = IS_5 ? TILE_Q5_SCALES : TILE_Q4_SCALES;
    uint32_t scales[2], pairs[2], j = threadIdx.x % 4;
    uint4 bits[2];
    int sum[NT][4] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        scales[i] = peek<uint32_t>(v.scales[i] + SCALES);
        uint32_t mins = peek<uint16_t>(v.mins[i] + SCALES + TILE_MINS);
        pairs[i] = min_pair(scales[i], mins);
        scales[i] &= 0x3f3f3f3fu;
        if (IS_5)
            bits[i] = peek<uint4>(v.more[i] + TILE_MORE);
    }
#pragma unroll
    for (int two = 0; two < 2; two++) {
        uint32_t w[4], b[NT][4];
        load_matrices(w, v.matrix + two * 1024);
#pragma unroll
        for (int t = 0; t < NT; t++)
            load_matrices(b[t], a.numbers + t * a.pitch + x * 128 + two * 64);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int piece = 2 * two + h;
            uint32_t f[4] = {w[2 * h] & 0x0f0f0f0fu, w[2 * h + 1] & 0x0f0f0f0fu,
                             w[2 * h] >> 4 & 0x0f0f0f0fu, w[2 * h + 1] >> 4 & 0x0f0f0f0fu};
            if (IS_5)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    uint32_t more = word(bits[i], piece) >> j;
                    f[i] |= more << 4 & 0x10101010u;
                    f[i + 2] |= more & 0x10101010u;
                }
#pragma unroll
            for (int t = 0; t < NT; t++) {
                int c[4];
                mma32(c, f, b[t][2 * h], b[t][2 * h + 1], 0);
                add_scaled(sum[t], c, (int)byte_of(scales[0], piece),
                           (int)byte_of(scales[1], piece));
            }
        }
    }
#pragma unroll
    for (int t = 0; t < NT; t++) {
        float2 as = peek<float2>(a.scales + x * a.rows * 4 + t * 32);
        float least[4];
        mma_halves(least, pairs[0], pairs[1], peek<uint32_t>(a.sums + x * a.rows * 16 + t * 128));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float value = __fmul_rn(d[i / 2].x, (float)sum[t][i]);
            value = __fmaf_rn(-d[i / 2].y, least[i], value);
            out[t][i] = __fmul_rn(i % 2 ? as.y : as.x, value);
        }
    }
}

/* As eat_q6, numbers are four times what they should be. */
template <int NT>
static __device__ __forceinline__ void many_q6(const struct many_places<IS_Q6_K> &v,
                                               const struct many_acts &a, uint32_t x,
                                               const float2 (&d)[2], float (&out)[NT][4]) {
    uint32_t shift = 6 - 2 * (threadIdx.x % 4);
    uint2 scales[2];
    int sum[NT][4] = {};
#pragma unroll
    for (int i = 0; i < 2; i++)
        scales[i] = peek<uint2>(v.scales[i] + TILE_Q6_SCALES);
#pragma unroll
    for (int two = 0; two < 2; two++) {
        uint32_t w[4], b[NT][4];
        load_matrices(w, v.matrix + two * 1024);
        uint4 one = peek<uint4>(v.more[0] + TILE_MORE + two * 512);
        uint4 other = peek<uint4>(v.more[1] + TILE_MORE + two * 512);
#pragma unroll
        for (int t = 0; t < NT; t++)
            load_matrices(b[t], a.numbers + t * a.pitch + x * 128 + two * 64);
#pragma unroll
        for (int h = 0; h < 4; h++) { /* runs of 16 columns */
            uint32_t n = w[h / 2 * 2], m = w[h / 2 * 2 + 1];
            uint32_t f = (h % 2 ? n >> 2 : n << 2) & 0x3c3c3c3cu;
            uint32_t g = (h % 2 ? m >> 2 : m << 2) & 0x3c3c3c3cu;
            f |= word(one, h) << shift & 0xc0c0c0c0u;
            g |= word(other, h) << shift & 0xc0c0c0c0u;
            int s = signed_byte(two ? scales[0].y : scales[0].x, h);
            int r = signed_byte(two ? scales[1].y : scales[1].x, h);
#pragma unroll
            for (int t = 0; t < NT; t++) {
                int c[4];
                mma16(c, f, g, b[t][h]);
                add_scaled(sum[t], c, s, r);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < NT; t++) {
        float2 as = peek<float2>(a.scales + x * a.rows * 4 + t * 32);
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[t][i] =
                __fmul_rn(i % 2 ? as.y : as.x, __fmul_rn(d[i / 2].x, (float)(sum[t][i] >> 2)));
    }
}

/* Sums begin with 1.5 * 2^23, as the bits of a float: then they are floats, too large by that. */
enum { MAGIC = 0x4b400000 };

static __device__ __forceinline__ float number(int sum) {
    return __fadd_rn(__int_as_float(sum), -12582912.0f);
}

/* 64 columns, numbered x. */
template <int NT>
static __device__ __forceinline__ void many_q8(const struct many_places<IS_Q8_0> &v,
                                               const struct many_acts &a, uint32_t x,
                                               float (&out)[NT][4]) {
    float2 d[2];
    uint32_t w[2][4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        d[i] = halves(peek<uint32_t>(v.scales[i] + TILE_MORE));
        load_matrices(w[i], v.matrix + i * 1024);
    }
#pragma unroll
    for (int t = 0; t < NT; t++) {
        uint32_t b[4];
        load_matrices(b, a.numbers + t * a.pitch + x * 64);
#pragma unroll
        for (int block = 0; block < 2; block++) {
            int c[4];
            mma32(c, w[block], b[2 * block], b[2 * block + 1], MAGIC);
            uint32_t group = (2 * x + block) << a.shift >> 2;
            float2 as = peek<float2>(a.scales + group * a.rows * 4 + t * 32);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float scale = __fmul_rn(block ? d[i / 2].y : d[i / 2].x, i % 2 ? as.y : as.x);
                out[t][i] = block ? __fmaf_rn(scale, number(c[i]), out[t][i])
                                  : __fmul_rn(scale, number(c[i]));
            }
        }
    }
}

/* The scales that 256 columns share: of Q4_K and Q5_K with the minimums'. */
template <int TYPE>
static __device__ __forceinline__ void load_d(const struct many_places<TYPE> &v, float2 (&d)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (TYPE == IS_Q6_K)
            d[i].x = __half2float(peek<__half>(v.d[i] + TILE_Q6_D));
        else if (TYPE != IS_Q8_0)
            d[i] = halves(peek<uint32_t>(
                v.d[i] + (TYPE == IS_Q5_K ? TILE_Q5_SCALES : TILE_Q4_SCALES) + TILE_D));
    }
}

template <int TYPE, int NT>
static __device__ __forceinline__ void many_group(const struct many_places<TYPE> &v,
                                                  const struct many_acts &a, uint32_t x,
                                                  const float2 (&d)[2], float (&out)[NT][4]) {
    if constexpr (TYPE == IS_Q6_K)
        many_q6<NT>(v, a, x, d, out);
    else if constexpr (TYPE == IS_Q8_0)
        many_q8<NT>(v, a, x, out);
    else
        many_q4<TYPE, NT>(v, a, x, d, out);
}

/* A unit of a strip; x: its first group among those in shared memory. Groups are added as a tree:
 * neighbours, pairs, and pairs of pairs where there are eight: then the first two pairs wait in
 * memory, since registers are few. -0 changes nothing that is added to it. */
template <int TYPE, int NT>
static __device__ __forceinline__ void
many_unit(struct many_places<TYPE> v, const struct many_acts &a, uint32_t x, float (&acc)[NT][4]) {
    float sum[NT][4];
    volatile float before[NT][4];
    uint32_t pairs = MANY_STRIP / v.rows;
#pragma unroll
    for (int i = 0; i < 4 * NT; i++)
        sum[i / 4][i % 4] = -0.0f;
#pragma unroll 1
    for (uint32_t pair = 0; pair < pairs; pair++) {
        float2 d[2];
        float one[NT][4], two[NT][4];
        if (pair == 2)
#pragma unroll
            for (int i = 0; i < 4 * NT; i++) {
                before[i / 4][i % 4] = sum[i / 4][i % 4];
                sum[i / 4][i % 4] = -0.0f;
            }
        load_d<TYPE>(v, d);
        many_group<TYPE, NT>(v, a, x, d, one);
        v.next();
        many_group<TYPE, NT>(v, a, x + 1, d, two);
        v.next();
        v.next_pair();
        x += 2;
#pragma unroll
        for (int i = 0; i < 4 * NT; i++)
            sum[i / 4][i % 4] =
                __fadd_rn(sum[i / 4][i % 4], __fadd_rn(one[i / 4][i % 4], two[i / 4][i % 4]));
    }
    if (pairs == 4)
#pragma unroll
        for (int i = 0; i < 4 * NT; i++)
            sum[i / 4][i % 4] = __fadd_rn(before[i / 4][i % 4], sum[i / 4][i % 4]);
#pragma unroll
    for (int i = 0; i < 4 * NT; i++)
        acc[i / 4][i % 4] = __fadd_rn(acc[i / 4][i % 4], sum[i / 4][i % 4]);
}

template <int SET, int NT>
static __device__ __forceinline__ void
many_unit_of(uint32_t type, const struct many_view &v, uint32_t slot, uint32_t address,
             const struct many_acts &a, uint32_t x, float (&acc)[NT][4]) {
    if (SET == IS_Q4_K || (SET & IS_Q4_K && type == IS_Q4_K))
        many_unit<IS_Q4_K, NT>({v, slot, address}, a, x, acc);
    else if (SET == IS_Q6_K || (SET & IS_Q6_K && type == IS_Q6_K))
        many_unit<IS_Q6_K, NT>({v, slot, address}, a, x, acc);
    else if (SET == IS_Q8_0 || (SET & IS_Q8_0 && type == IS_Q8_0))
        many_unit<IS_Q8_0, NT>({v, slot, address}, a, x, acc);
    else if (SET & IS_Q5_K)
        many_unit<IS_Q5_K, NT>({v, slot, address}, a, x, acc);
}

/* ---- sums and results -------------------------------------------------------------------------
 */

/* The barriers of a block: one of its rows, one a slot of every warp, one of the factors. */
static __device__ __forceinline__ uint32_t rows_barrier(const struct many_params &m) {
    extern __shared__ uint4 shared[];
    return shared_at(shared) + m.p.bars_at;
}

static __device__ __forceinline__ uint32_t slot_barrier(const struct many_params &m, uint32_t warp,
                                                        uint32_t slot) {
    return rows_barrier(m) + (1 + warp * m.p.slots + slot) * 8;
}

static __device__ __forceinline__ uint32_t factors_barrier(const struct many_params &m) {
    return slot_barrier(m, m.p.ring_warps, 0);
}

static __device__ __forceinline__ float *factors_of(const struct many_params &m) {
    extern __shared__ uint4 shared[];
    return (float *)((uint8_t *)shared + m.squares_at) + m.images.rows * m.images.squares_pitch;
}

/* The factors of all rows, by one warp, a lane a row: prepare_factor's sum, in its order. */
static __device__ __forceinline__ void put_factors(const struct many_params &m) {
    extern __shared__ uint4 shared[];
    const struct project_input &in = m.p.in;
    uint32_t row = threadIdx.x % 32, chunks = in.k / PROJECT_CHUNK;
    const float *squares =
        (const float *)((const uint8_t *)shared + m.squares_at) + row * m.images.squares_pitch;
    float sum[32];
    if (row < m.images.rows) {
#pragma unroll
        for (uint32_t i = 0; i < 32; i++)
            sum[i] = i < chunks ? squares[i] : 0;
#pragma unroll 1
        for (uint32_t first = 32; first < chunks; first += 32)
#pragma unroll
            for (uint32_t i = 0; i < 32; i++)
                sum[i] = first + i < chunks ? __fadd_rn(sum[i], squares[first + i]) : sum[i];
#pragma unroll
        for (int round = 0; round < 5; round++)
#pragma unroll
            for (int i = 0; i < 16; i++)
                if (i < 16 >> round)
                    sum[i] = __fadd_rn(sum[i], sum[i + (16 >> round)]);
        factors_of(m)[row] = norm_factor(in, sum[0]);
    }
    __syncwarp();
    if (row == 0)
        arrive(factors_barrier(m));
}

/* Those of rows 2 j and 2 j + 1 of eight. */
static __device__ __forceinline__ float2 factor_pair(const struct many_params &m, uint32_t row) {
    return m.p.in.kind == PREPARE_NORM ? *(const float2 *)(factors_of(m) + row) : make_float2(1, 1);
}

/* All that is asked of the factors comes behind this. */
static __device__ __forceinline__ void wait_factors(const struct many_params &m) {
    if (HAS_BULK && m.p.in.kind == PREPARE_NORM)
        wait_bytes(factors_barrier(m), 0);
}

/* What a lane puts where, of a strip: sums of rows g and g + 8 of the weights, rows 2 j and 2 j + 1
 * of every eight of the activations. */
struct strip_place {
    float *out;      /* weights' row g, row 2 j of the first eight */
    uint32_t stride; /* from row to row */
    uint32_t n;      /* the weights' row */
    uint32_t row;    /* of the block's */
};

/* own: the first of the warp's rows. */
static __device__ __forceinline__ struct strip_place
place_strip(const struct many_params &m, const struct many_task &t, uint32_t own) {
    const struct project_params &p = m.p;
    uint32_t lane = fresh_lane(), row = own + lane % 4 * 2;
    uint32_t rows = p.finish == FINISH_SWIGLU ? MANY_STRIP / 2 : MANY_STRIP;
    uint32_t n = t.strip * rows + lane / 4;
    return {p.out + (uint64_t)(blockIdx.y * m.images.rows + row) * p.out_stride +
                p.segments[t.segment].column + n,
            p.out_stride, n, row};
}

static __device__ __forceinline__ float gated(float gate, float up) {
    return __fmul_rn(__fmul_rn(gate, quick_sigmoid(gate)), up);
}

/* A strip all of which there is, without biases: most are so. */
template <int NT>
static __device__ __forceinline__ void put_whole_strip(const struct many_params &m,
                                                       const struct strip_place &at,
                                                       const float (&sum)[NT][4]) {
    uint32_t finish = m.p.finish;
    float was[NT][4] = {};
    if (finish == FINISH_ADD) {
#pragma unroll
        for (int i = 0; i < 4 * NT; i++)
            was[i / 4][i % 4] =
                __ldcg(at.out + (uint64_t)at.stride * (i / 4 * 8 + i % 2) + i % 4 / 2 * 8);
    }
    wait_factors(m);
#pragma unroll
    for (int e = 0; e < NT; e++) {
        float2 f = factor_pair(m, at.row + e * 8);
        float *out = at.out + (uint64_t)at.stride * (e * 8), *next = out + at.stride;
        float v[4] = {__fmul_rn(sum[e][0], f.x), __fmul_rn(sum[e][1], f.y),
                      __fmul_rn(sum[e][2], f.x), __fmul_rn(sum[e][3], f.y)};
        if (finish == FINISH_SWIGLU) {
            out[0] = gated(v[0], v[2]);
            next[0] = gated(v[1], v[3]);
            continue;
        }
        if (finish == FINISH_ADD)
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = __fadd_rn(was[e][i], v[i]);
        out[0] = v[0];
        next[0] = v[1];
        out[8] = v[2];
        next[8] = v[3];
    }
}

template <int NT>
static __device__ __forceinline__ void put_strip(const struct many_params &m,
                                                 const struct many_task &t, uint32_t member,
                                                 uint32_t n_rows, const float (&sum)[NT][4]) {
    const struct project_params &p = m.p;
    const struct project_segment &s = p.segments[t.segment];
    struct strip_place at = place_strip(m, t, member * NT * 8);
    bool is_swiglu = p.finish == FINISH_SWIGLU, is_sum = p.finish == FINISH_ADD;
    uint32_t first_row = blockIdx.y * m.images.rows, strip_rows = is_swiglu ? 8 : 16;
    uint32_t there = n_rows > first_row ? n_rows - first_row : 0;
    if (there >= (member + 1) * NT * 8 && (t.strip + 1) * strip_rows <= s.n && !p.has_bias)
        return put_whole_strip<NT>(m, at, sum);
    wait_factors(m);
#pragma unroll
    for (int i = 0; i < 4 * NT; i++) {
        uint32_t row = i / 4 * 8 + i % 2, n = i % 4 / 2 * 8;
        if (at.row + row >= there || (is_swiglu && n) || at.n + n >= s.n)
            continue;
        float *out = at.out + (uint64_t)at.stride * row + n;
        float2 factor = factor_pair(m, at.row + i / 4 * 8);
        float f = i % 2 ? factor.y : factor.x, v = __fmul_rn(sum[i / 4][i % 4], f);
        if (p.has_bias)
            v = biased(s, at.n + n, v);
        if (is_sum)
            v = __fadd_rn(__ldcg(out), v);
        if (is_swiglu) {
            float w = __fmul_rn(sum[i / 4][i % 4 ^ 2], f);
            v = gated(v, p.has_bias ? biased(p.segments[1], at.n, w) : w);
        }
        *out = v;
    }
}

/* Where a member's parts of a task's strip are, and the counter of those that are there. */
template <int NT>
static __device__ __forceinline__ float4 *parts_of(const struct many_params &m,
                                                   const struct many_task &t, uint32_t member,
                                                   uint32_t *&counter) {
    extern __shared__ uint4 shared[];
    uint8_t *base = (uint8_t *)shared;
    if (m.is_spread) {
        uint32_t strip = (blockIdx.y * m.strips + t.strip) * m.members + member;
        counter = m.counters + strip;
        return (float4 *)m.parts + (uint64_t)strip * m.units * NT * 32;
    }
    counter = (uint32_t *)(base + m.counters_at) + t.place * m.members + member;
    return (float4 *)(base + m.p.parts_at) +
           (t.first_part * m.members + member * t.parts) * NT * 32;
}

/* Whether this warp is the last of its strip's; the parts of all are seen then. */
static __device__ __forceinline__ bool is_last(const struct many_params &m,
                                               const struct many_task &t, uint32_t *counter) {
    uint32_t before = 0;
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        if (m.is_spread)
            asm volatile("atom.add.acq_rel.gpu.u32 %0, [%1], 1;"
                         : "=r"(before)
                         : "l"(counter)
                         : "memory");
        else
            asm volatile("atom.add.acq_rel.cta.u32 %0, [%1], 1;"
                         : "=r"(before)
                         : "l"(counter)
                         : "memory");
        if (before == t.parts - 1)
            *counter = 0;
    }
    bool is_last = __shfl_sync(~0u, before, 0) == t.parts - 1;
    __syncwarp(); /* what lane 0 has seen all have */
    return is_last;
}

/* All parts of a strip: units of a slice are added up, then slices. Some are on their way at once:
 * from global memory each takes 700 cycles. */
template <int NT>
static __device__ __forceinline__ void add_parts(const struct many_params &m,
                                                 const struct many_task &t, const float4 *parts,
                                                 float (&sum)[NT][4]) {
    constexpr int BATCH = NT == 4 ? 2 : 8; /* registers */
    const struct project_segment &s = m.p.segments[t.segment];
    float slice[NT][4];
    uint32_t left = 0, next = 0, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4 * NT; i++)
        sum[i / 4][i % 4] = 0;
#pragma unroll 1
    for (uint32_t part = 0; part < t.parts; part += BATCH) {
        float4 v[BATCH][NT];
#pragma unroll
        for (uint32_t i = 0; i < BATCH * NT; i++) {
            const float4 *from =
                parts + (min(part + i / NT, t.parts - 1) * NT + i % NT) * 32 + lane;
            v[i / NT][i % NT] = m.is_spread ? __ldcg(from) : *from;
        }
#pragma unroll
        for (uint32_t b = 0; b < BATCH; b++) {
            if (part + b >= t.parts)
                break;
            if (left == 0) {
                left = m.is_spread ? task_units(s, next++) : 1;
#pragma unroll
                for (int i = 0; i < 4 * NT; i++)
                    slice[i / 4][i % 4] = 0;
            }
            left--;
#pragma unroll
            for (int e = 0; e < NT; e++) {
                slice[e][0] = __fadd_rn(slice[e][0], v[b][e].x);
                slice[e][1] = __fadd_rn(slice[e][1], v[b][e].y);
                slice[e][2] = __fadd_rn(slice[e][2], v[b][e].z);
                slice[e][3] = __fadd_rn(slice[e][3], v[b][e].w);
            }
            if (left == 0)
#pragma unroll
                for (int i = 0; i < 4 * NT; i++)
                    sum[i / 4][i % 4] = __fadd_rn(sum[i / 4][i % 4], slice[i / 4][i % 4]);
        }
    }
}

template <int NT>
static __device__ __forceinline__ void end_task(const struct many_params &m,
                                                const struct many_task &t, uint32_t member,
                                                uint32_t n_rows, float (&acc)[NT][4]) {
    if (t.parts > 1) {
        uint32_t *counter;
        float4 *parts = parts_of<NT>(m, t, member, counter), *to = parts + t.part * NT * 32;
#pragma unroll
        for (int e = 0; e < NT; e++)
            to[e * 32 + threadIdx.x % 32] = make_float4(acc[e][0], acc[e][1], acc[e][2], acc[e][3]);
        if (!is_last(m, t, counter))
            return;
        add_parts<NT>(m, t, parts, acc);
    }
    put_strip<NT>(m, t, member, n_rows, acc);
}

/* Whether all members are done with a slot: the last asks for what comes next. */
static __device__ __forceinline__ bool is_left(const struct many_params &m, uint32_t slot) {
    extern __shared__ uint4 shared[];
    if (m.members == 1)
        return true;
    uint32_t before = 0;
    if (fresh_lane() == 0)
        before = atomicAdd((uint32_t *)((uint8_t *)shared + m.left_at) + slot, 1);
    return __shfl_sync(~0u, before, 0) % 2;
}

/* All tasks of a warp, which is a member of those of a ring. x: the columns in shared memory. */
template <int SET, int NT>
static __device__ __forceinline__ void
many_tasks(const struct many_params &m, struct many_loader &l, uint32_t ring, uint32_t member,
           const struct many_range &x, uint32_t n_rows) {
    extern __shared__ uint4 shared[];
    const struct project_params &p = m.p;
    uint32_t slot = 0, phase = 0;
#pragma unroll 1
    for (uint32_t i = ring;; i += p.ring_warps) {
        struct many_task t;
        if (!find_many(m, i, t))
            return;
        uint32_t segment = t.segment, left = t.end - t.unit, shift = p.segments[segment].row_shift;
        uint32_t type = p.segments[segment].type, groups = 32u >> shift;
        uint32_t group = t.unit * groups - x.first / (type == IS_Q8_0 ? 64 : 128);
        float acc[NT][4] = {};
#pragma unroll 1
        for (; left; left--, group += groups) {
            uint32_t from = (uint32_t)__cvta_generic_to_shared(shared);
            uint32_t at = (ring * p.slots + slot) * p.slot_bytes * m.tiles;
            uint32_t barrier = slot_barrier(m, ring, slot);
            wait_bytes(barrier, phase);
            many_unit_of<SET, NT>(type, view_of(1u << shift, p.slot_bytes), at, from + at,
                                  acts_of(m, x.n, member * NT * 8), group, acc);
            __syncwarp();
            load_strip(m, l, fresh(from + at), fresh(barrier), is_left(m, ring * p.slots + slot));
            slot = slot + 1 == p.slots ? 0 : slot + 1;
            phase ^= slot == 0;
        }
        find_many(m, fresh(i), t);
        end_task<NT>(m, t, member, n_rows, acc);
    }
}

/* ---- plain segments ---------------------------------------------------------------------------
 */

/* A slice of a tile for one row: sums as of eat_plain. Some units are on their way at once: they
 * come from far away, and there is little else to do. */
static __device__ __forceinline__ float plain_task(const struct project_params &p,
                                                   const struct project_segment &s, uint32_t tile,
                                                   uint32_t slice, uint32_t row) {
    constexpr int BATCH = 3;
    uint32_t lane = threadIdx.x % 32, lanes = 1u << s.lane_shift, place = lane & (lanes - 1);
    const uint8_t *at = s.data + (uint64_t)tile * s.units * s.unit_bytes + lane * 16;
    uint32_t u = task_first(s, slice), last = u + task_units(s, slice);
    float acc[4] = {};
#pragma unroll 1
    for (; u < last; u += BATCH) {
        struct plain_acts<1> a[BATCH];
        float4 w[BATCH][4];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            uint32_t v = min(u + b, last - 1);
            load_plain<1>(p, row, v * lanes + place, a[b]);
#pragma unroll
            for (uint32_t r = 0; r < 4; r++)
                w[b][r] = __ldcg((const float4 *)(at + (uint64_t)v * s.unit_bytes + r * 512));
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            float4 x = plain_act(p, a[b].x[0], a[b].norm);
#pragma unroll
            for (uint32_t r = 0; r < 4; r++) {
                float next = dot_floats(w[b][r], x, acc[r]);
                acc[r] = u + b < last ? next : acc[r];
            }
        }
    }
    return sum_lanes(acc, lanes, lane);
}

/* All blocks share the plain segments: each has a tile for some rows. Item i of the block: */
struct plain_item {
    const struct project_segment *s;
    uint32_t tile, row; /* the first */
};

static __device__ __forceinline__ bool find_plain(const struct many_params &m, uint32_t i,
                                                  uint32_t rows, struct plain_item &out) {
    uint32_t groups = (rows + MANY_PLAIN_ROWS - 1) / MANY_PLAIN_ROWS;
    i = blockIdx.x + i * gridDim.x;
    if (i >= m.plain_tiles * groups)
        return false;
    out.tile = i / groups;
    out.row = (i - out.tile * groups) * MANY_PLAIN_ROWS;
    out.s = m.plain;
    while (out.tile >= out.s->n_tiles)
        out.tile -= out.s++->n_tiles;
    return true;
}

/* By the warps that have no strips, while the others have: `warp` of `warps`. Not inlined, so that
 * the others' registers are their own. */
static __device__ __noinline__ void plain_tiles(const struct many_params &m, uint32_t warp,
                                                uint32_t warps, uint32_t n_rows) {
    extern __shared__ uint4 shared[];
    float *sums = (float *)((uint8_t *)shared + m.plain_at); /* (item, slice, row, row of a tile) */
    uint32_t lane = threadIdx.x % 32, first_row = blockIdx.y * m.images.rows;
    uint32_t rows = n_rows > first_row ? min(m.images.rows, n_rows - first_row) : 0;
    uint32_t tasks = m.plain_slices * MANY_PLAIN_ROWS, n = MANY_PLAIN_ROWS * MANY_PLAIN;
    struct plain_item item;
    for (uint32_t t = warp; find_plain(m, t / tasks, rows, item); t += warps) {
        uint32_t slice = t % tasks / MANY_PLAIN_ROWS, r = t % MANY_PLAIN_ROWS;
        if (slice >= item.s->slices || item.row + r >= rows)
            continue;
        float v = plain_task(m.p, *item.s, item.tile, slice, first_row + item.row + r);
        if (lane < MANY_PLAIN)
            sums[t * MANY_PLAIN + lane % 2 * 2 + lane / 2] = v;
    }
    asm volatile("bar.sync 1, %0;" ::"r"(warps * 32) : "memory");
    wait_factors(m);
    uint32_t e = warp * 32 + lane, r = e / MANY_PLAIN % MANY_PLAIN_ROWS, row = e % MANY_PLAIN;
    for (uint32_t i = e / n; find_plain(m, i, rows, item); i += warps * 32 / n) {
        uint32_t at = item.tile * MANY_PLAIN + row;
        float v = 0;
        if (item.row + r >= rows || at >= item.s->n)
            continue;
        for (uint32_t slice = 0; slice < item.s->slices; slice++)
            v = __fadd_rn(
                v, sums[((i * m.plain_slices + slice) * MANY_PLAIN_ROWS + r) * MANY_PLAIN + row]);
        put_result(m.p, *item.s, at, first_row + item.row + r,
                   __fmul_rn(v, m.p.in.kind == PREPARE_NORM ? factors_of(m)[item.row + r] : 1));
    }
}

/* ---- the whole --------------------------------------------------------------------------------
 */

/* Asks for the rows of this block, by one warp: all of them at once, or numbers, scales and sums of
 * its range. */
static __device__ __forceinline__ void
fetch_rows(const struct many_params &m, const struct many_range &x, uint32_t to, uint32_t barrier) {
    extern __shared__ uint4 shared[];
    const struct many_image &e = m.images;
    const uint8_t *from = e.at + (uint64_t)blockIdx.y * e.bytes;
    uint32_t lane = threadIdx.x % 32, pitch = x.n + 16, scale = e.rows * 4;
    uint32_t scales = x.n / e.group * scale, sums = x.n / 32 * scale;
    uint32_t scales_to = to + e.rows * pitch, squares = e.bytes - e.squares_at;
    bool is_all = x.n == e.k;
    if (lane == 0)
        expect_bytes(barrier, (is_all ? e.squares_at : x.n * e.rows + scales + sums) + squares);
    if (is_all && lane == 0)
        copy_bytes(to, from, e.squares_at, barrier);
    if (lane == 1 && squares)
        copy_bytes(shared_at(shared) + m.squares_at, from + e.squares_at, squares, barrier);
    if (is_all || x.n == 0)
        return;
    if (lane < e.rows)
        copy_bytes(to + lane * pitch, from + (uint64_t)lane * (e.k + 16) + x.first, x.n, barrier);
    if (lane == 0)
        copy_bytes(scales_to, from + e.scales_at + x.first / e.group * scale, scales, barrier);
    if (lane == 1)
        copy_bytes(scales_to + scales, from + e.sums_at + x.first / 32 * scale, sums, barrier);
}

template <int SET, int NT>
static __device__ __forceinline__ void project_many(const struct many_params &m) {
    extern __shared__ uint4 shared[];
    pdl_launch();
    const struct project_params &p = m.p;
    uint8_t *base = (uint8_t *)shared;
    uint32_t warp = uniform(threadIdx.x / 32), warps = blockDim.x / 32;
    uint32_t member = warp / p.ring_warps, ring = warp - member * p.ring_warps;
    bool filled = false, is_last = warp == warps - 1, has_ring = member < m.members;
    uint32_t from = (uint32_t)__cvta_generic_to_shared(shared), slot_bytes = p.slot_bytes * m.tiles;
    uint32_t slots = from + ring * p.slots * slot_bytes, bars = slot_barrier(m, ring, 0);
    struct many_loader l = {NULL, 0, ring, 0};
    if (member == 0)
        bulk_init_slots(bars, p.slots);
    if (has_ring)
        filled = load_strip(m, l, slots, bars, member == 0);
    if (is_last) {
        bulk_init_slots(rows_barrier(m), 1);
        bulk_init_slots(factors_barrier(m), 1);
    }
    for (uint32_t i = threadIdx.x; i < (p.bars_at - m.counters_at) / 4; i += blockDim.x)
        ((uint32_t *)(base + m.counters_at))[i] = 0;
    struct many_range x = range_of(m);
    uint32_t first_row = blockIdx.y * m.images.rows;
    __syncthreads();
    pdl_wait(p.io);
    if (blockIdx.y && first_row >= prepare_count(p.io, p.in)) {
        if (filled) /* before a block leaves what it asked for must have come */
            wait_bytes(bars, 0);
        return;
    }
    if (is_last)
        fetch_rows(m, x, from + p.image_at, rows_barrier(m));
    /* More units are asked for behind the rows, which would queue behind them. */
    if (has_ring)
        for (uint32_t i = 1; i < p.slots; i++)
            load_strip(m, l, slots + i * slot_bytes, bars + i * 8, member == 0);
    uint32_t n_rows = prepare_count(p.io, p.in);
    wait_bytes(rows_barrier(m), 0);
    if (!HAS_BULK)
        __syncthreads();
    if (is_last && p.in.kind == PREPARE_NORM)
        put_factors(m);
    if (!HAS_BULK)
        __syncthreads();
    if (has_ring)
        many_tasks<SET, NT>(m, l, ring, member, x, n_rows);
    else if (m.plain_tiles)
        plain_tiles(m, warp - p.ring_warps * m.members, warps - p.ring_warps * m.members, n_rows);
}

#define MANY_KERNEL(EIGHTS, REGISTERS, NAME, SET)                                                  \
    extern "C" __global__ void __maxnreg__(REGISTERS)                                              \
        project_many_##EIGHTS##_##NAME(const __grid_constant__ struct many_params m) {             \
        project_many<SET, EIGHTS>(m);                                                              \
    }

#define MANY_KERNELS(...)                                                                          \
    MANY_KERNEL(__VA_ARGS__, q4, IS_Q4_K)                                                          \
    MANY_KERNEL(__VA_ARGS__, q6, IS_Q6_K)                                                          \
    MANY_KERNEL(__VA_ARGS__, q4_q6, IS_Q4_K | IS_Q6_K)                                             \
    MANY_KERNEL(__VA_ARGS__, q8, IS_Q8_0)                                                          \
    MANY_KERNEL(__VA_ARGS__, all, MANY_SETS)

MANY_KERNELS(1, 112)
MANY_KERNELS(2, 128)
MANY_KERNELS(4, 168)

/* ---- rows made ready --------------------------------------------------------------------------
 */

/* Row `row` of an image. */
struct many_row {
    struct many_image m;
    uint32_t row;
};

static __device__ __forceinline__ void *image_word(const struct many_row &to, uint32_t,
                                                   uint32_t i) {
    return to.m.at + to.row * (to.m.k + 16) + i * 4;
}

static __device__ __forceinline__ float4 *image_floats(const struct many_row &,
                                                       const struct project_input &) {
    return NULL; /* there are none */
}

template <int SHARE>
static __device__ __forceinline__ void image_group(const struct team &, bool,
                                                   const struct many_row &to, uint32_t, uint32_t i,
                                                   float scale, int sum) {
    uint32_t rows = to.m.rows, group = to.m.group == 128 ? i / 32 : i / 8;
    ((float *)(to.m.at + to.m.scales_at))[group * rows + to.row] = scale;
    ((__half2 *)(to.m.at + to.m.sums_at))[(i / 32 * rows + to.row) * 4 + i / 8 % 4] =
        __floats2half2_rn((float)(sum & ~1), (float)(sum & 1));
}

static __device__ __forceinline__ float *row_squares(const struct many_image &m, uint32_t row) {
    return (float *)(m.at + m.squares_at) + row * m.squares_pitch;
}

/* Blocks (i, ...) make row i, or part of it. */
extern "C" __global__ void __maxnreg__(48)
    project_many_prepare(const __grid_constant__ struct many_prepare_params p) {
    extern __shared__ uint4 prepare_room[];
    pdl_launch();
    uint32_t i = blockIdx.x, group = i / p.images.rows;
    float4 weight[NORM_BATCH];
    struct team who = {threadIdx.x + blockIdx.y * blockDim.x, gridDim.y * blockDim.x, 0, 0};
    prepare_early(who, p.in, weight);
    struct many_row to = {p.images, i - group * p.images.rows};
    to.m.at += (uint64_t)group * p.images.bytes;
    float *red = p.in.kind == PREPARE_NORM ? row_squares(to.m, to.row)
                                           : (float *)prepare_room; /* a factor a head */
    struct row_source source = {min(i, p.row_limit - 1), p.row_limit, true};
    prepare_row<1>(who, p.io, p.in, source, weight, to, red);
}
