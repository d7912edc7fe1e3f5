// project_tile.comp - products of weights in blocks and many rows of int8 activations, through shared
// memory; see product.glsl and units.glsl.
//
// -DDOT: see units.glsl. -DMATRIX: by cooperative matrices of 16 x 16 x 32, for has_integers and
// subgroups of 32.
//
// 64 weight rows (SwiGLU: 32 of gate, then 32 of up) and 16 ROWS activation rows by 256 threads,
// four weight rows and ROWS activation rows each. While a unit is multiplied the next one is
// unpacked into shared memory. Units come lane by lane, so that sums have the order of product.glsl.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#ifdef MATRIX
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_NV_cooperative_matrix : require
#extension GL_NV_integer_cooperative_matrix : require
#endif
#define TILE
#include "product.glsl"
layout(binding = 7) readonly buffer Q { uvec4 xq[]; };
layout(binding = 8) readonly buffer S { uvec2 xs[]; };
#define SHARED_UNITS (2 * 16 * ROWS)
#include "units.glsl"

#ifdef MATRIX
#define WEIGHT_VECTORS 9 // of a unit; odd, for banks
#else
layout(constant_id = 9) const uint WEIGHT_VECTORS = 7; // of a unit: 5 of integers; odd, for banks
#endif
shared uvec4 tile_w[2 * 64 * WEIGHT_VECTORS];

#ifdef MATRIX

// A quant times its scale is more than a byte: 2^SPLIT high + low, each a byte, in 4 vectors each;
// then the block's scale and the minimums. So products need no scales of runs.
#define SPLIT (TYPE == DT_Q6_K ? 6 : 4)

// Two bytes, at bits 0 and 16 of `two`, of quants (Q6_K: plus 32) times their scale, as high and low.
uvec2 split(uint two, int scale) {
    if (TYPE != DT_Q6_K) {
        uint product = two * uint(scale);
        return uvec2(product >> 4 & 0x007f007f, product & 0x000f000f);
    }
    int a = (int(two & 0xffff) - 32) * scale, b = (int(two >> 16) - 32) * scale;
    return uvec2(uint(a >> 6 & 255) | uint(b >> 6 & 255) << 16, uint(a & 63) | uint(b & 63) << 16);
}

void put_unit(uint at, Unit o) {
    [[unroll]] for (uint i = 0; i < 4; i++) {
        uvec4 high, low;
        int scale = TYPE == DT_Q6_K ? o.whole[i] : o.whole[i / 2];
        [[unroll]] for (uint k = 0; k < 4; k++) {
            uint q = o.q[4 * i + k];
            uvec2 even = split(q & 0x00ff00ff, scale), odd = split(q >> 8 & 0x00ff00ff, scale);
            high[k] = even.x | odd.x << 8;
            low[k] = even.y | odd.y << 8;
        }
        tile_w[at + i] = high;
        tile_w[at + 4 + i] = low;
    }
    tile_w[at + 8] = uvec4(floatBitsToUint(o.scale.x), floatBitsToUint(o.minimum.x),
                           floatBitsToUint(o.minimum.y), 0);
}

// The products as integers: column n of 64 weight rows begins at n * MATRIX_STRIDE.
#define MATRIX_STRIDE 68
shared int tile_c[64 * MATRIX_STRIDE];

// Subgroup s has weight rows 16 (s % 4) ... and activation rows 32 (s / 4) ...
#define SUMS icoopmatNV<32, gl_ScopeSubgroup, 16, 16>
#define ROWS_OF icoopmatNV<8, gl_ScopeSubgroup, 16, 32>
#define COLUMNS icoopmatNV<8, gl_ScopeSubgroup, 32, 16>
void multiply_matrices(uint stage) {
    uint m = gl_SubgroupID % 4, n = gl_SubgroupID / 4;
    SUMS high0 = SUMS(0), high1 = SUMS(0), low0 = SUMS(0), low1 = SUMS(0);
    [[unroll]] for (uint g = 0; g < 2; g++) {
        ROWS_OF a, b;
        COLUMNS x, y;
        uint at = (stage * 64 + m * 16) * WEIGHT_VECTORS + 2 * g;
        uint from = (stage * 64 + n * 32) * 5 + 2 * g;
        coopMatLoadNV(a, tile_w, at, WEIGHT_VECTORS, false);
        coopMatLoadNV(b, tile_w, at + 4, WEIGHT_VECTORS, false);
        coopMatLoadNV(x, tile_x, from, 5, true);
        coopMatLoadNV(y, tile_x, from + 16 * 5, 5, true);
        high0 = coopMatMulAddNV(a, x, high0);
        low0 = coopMatMulAddNV(b, x, low0);
        high1 = coopMatMulAddNV(a, y, high1);
        low1 = coopMatMulAddNV(b, y, low1);
    }
    low0 = high0 * (1 << SPLIT) + low0;
    low1 = high1 * (1 << SPLIT) + low1;
    uint to = n * 32 * MATRIX_STRIDE + m * 16;
    coopMatStoreNV(low0, tile_c, to, MATRIX_STRIDE, true);
    coopMatStoreNV(low1, tile_c, to + 16 * MATRIX_STRIDE, MATRIX_STRIDE, true);
}

void multiply_stage(uint stage) {
    uint tx = gl_LocalInvocationID.x % 16, ty = gl_LocalInvocationID.x / 16;
    multiply_matrices(stage);
    barrier();
    vec3 w[4];
    [[unroll]] for (uint i = 0; i < 4; i++)
        w[i] = uintBitsToFloat(tile_w[(stage * 64 + i * 16 + tx) * WEIGHT_VECTORS + 8].xyz);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        Acts a = get_acts((stage * 16 * ROWS + r * 16 + ty) * 5);
        [[unroll]] for (uint i = 0; i < 4; i++)
            sum[i * ROWS + r] =
                add_whole(tile_c[(r * 16 + ty) * MATRIX_STRIDE + i * 16 + tx], w[i].x, w[i].yz, a,
                          sum[i * ROWS + r]);
    }
}

#else

void put_unit(uint at, Unit o) {
    [[unroll]] for (uint i = 0; i < 4; i++)
        tile_w[at + i] = uvec4(o.q[4 * i], o.q[4 * i + 1], o.q[4 * i + 2], o.q[4 * i + 3]);
    if (has_integers()) {
        uvec4 s = uvec4(o.whole) & 255u;
        tile_w[at + 4] =
            uvec4(floatBitsToUint(o.scale.x), floatBitsToUint(o.minimum.x),
                  floatBitsToUint(o.minimum.y), s.x | s.y << 8 | s.z << 16 | s.w << 24);
    } else {
        tile_w[at + 4] = floatBitsToUint(o.scale);
        tile_w[at + 5] = floatBitsToUint(o.minimum);
    }
}

Unit get_unit(uint at) {
    Unit o;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        uvec4 q = tile_w[at + i];
        o.q[4 * i] = q.x;
        o.q[4 * i + 1] = q.y;
        o.q[4 * i + 2] = q.z;
        o.q[4 * i + 3] = q.w;
    }
    uvec4 v = tile_w[at + 4];
    if (has_integers()) {
        o.scale.x = uintBitsToFloat(v.x);
        o.minimum.xy = uintBitsToFloat(v.yz);
        [[unroll]] for (int i = 0; i < 4; i++)
            o.whole[i] = bitfieldExtract(int(v.w), 8 * i, 8);
    } else {
        o.scale = uintBitsToFloat(v);
        o.minimum = uintBitsToFloat(tile_w[at + 5]);
    }
    return o;
}

void multiply_stage(uint stage) {
    uint tx = gl_LocalInvocationID.x % 16, ty = gl_LocalInvocationID.x / 16;
    Unit o[4];
    [[unroll]] for (uint i = 0; i < 4; i++)
        o[i] = get_unit((stage * 64 + i * 16 + tx) * WEIGHT_VECTORS);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        Acts a = get_acts((stage * 16 * ROWS + r * 16 + ty) * 5);
        [[unroll]] for (uint i = 0; i < 4; i++)
            sum[i * ROWS + r] = add_unit(o[i], a, sum[i * ROWS + r]);
    }
}

#endif

// The unit that this thread brings into shared memory: of a weight row, of an activation row, or
// none. It is loaded while the one two before it is multiplied.
Raw next_raw;
uvec4 next_x[5];
uint next_row;
#define BRINGS_WEIGHTS (gl_LocalInvocationID.x < 64)
#define BRINGS_ACTS (gl_LocalInvocationID.x - 128 < 16 * ROWS)

void find_row() {
    uint t = gl_LocalInvocationID.x, outputs = 16 * OUTPUTS;
    if (BRINGS_WEIGHTS) {
        is_second = t >= outputs;
        uint n = min(first_n + (is_second ? t - outputs : t), p.n - 1);
        next_row = (is_second ? p.weight2_first : p.weight_first) + n * p.row_bytes;
    } else if (BRINGS_ACTS) {
        next_row = act_at(t - 128);
    }
}

void load_next(uint u) {
    if (BRINGS_WEIGHTS) {
        load_raw(next_row, u, next_raw);
    } else if (BRINGS_ACTS) {
        uvec2 g = groups_of(u);
        g.y = min(g.y, p.k / 32 - 1);
        g += next_row;
        next_x[0] = xq[2 * g.x];
        next_x[1] = xq[2 * g.x + 1];
        next_x[2] = xq[2 * g.y];
        next_x[3] = xq[2 * g.y + 1];
        next_x[4] = uvec4(xs[g.x], xs[g.y]);
    }
}

void put_next(uint u, uint stage) {
    uint t = gl_LocalInvocationID.x;
    if (BRINGS_WEIGHTS) {
        Unit o;
        unpack_unit(next_raw, next_row, u, o);
        put_unit((stage * 64 + t) * WEIGHT_VECTORS, o);
    } else if (BRINGS_ACTS) {
        [[unroll]] for (uint i = 0; i < 5; i++)
            tile_x[(stage * 16 * ROWS + t - 128) * 5 + i] = next_x[i];
    }
}

// The unit after u, lane by lane.
uint after(uint u) {
    u += p.lanes;
    return u < p.units ? u : u % p.lanes + 1;
}

void main() {
    uint tx = gl_LocalInvocationID.x % 16, ty = gl_LocalInvocationID.x / 16;
    n_rows = IS_HEAD != 0 ? io_n_outputs() : io_n_rows();
    first_row = gl_WorkGroupID.y * 16 * ROWS;
    first_n = gl_WorkGroupID.x * 16 * OUTPUTS;
    place = expert = 0;
    if (first_row >= n_rows)
        return;
    precise float total[MAX_SUMS];
    [[unroll]] for (uint i = 0; i < 4 * ROWS; i++)
        total[i] = sum[i] = 0;
    uint u = 0, running = 0;
    find_row();
    load_next(0);
    for (uint step = 0; step <= p.units; step++) {
        uint next = after(u);
        if (step < p.units)
            put_next(u, step & 1);
        if (step + 1 < p.units)
            load_next(next);
        if (step > 0) {
            multiply_stage(step & 1 ^ 1);
            if (running + p.lanes >= p.units) // the lane's last
                [[unroll]] for (uint i = 0; i < 4 * ROWS; i++) {
                    total[i] = running % p.lanes == 0 ? sum[i] : total[i] + sum[i];
                    sum[i] = 0;
                }
        }
        running = u;
        u = next;
        barrier();
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        [[unroll]] for (uint i = 0; i < OUTPUTS; i++) {
            uint n = first_n + i * 16 + tx, row = first_row + r * 16 + ty;
            if (n < p.n && row < n_rows)
                store(n, row, total[i * ROWS + r],
                      EPILOGUE == SWIGLU ? total[(i + OUTPUTS) * ROWS + r] : 0);
        }
}
