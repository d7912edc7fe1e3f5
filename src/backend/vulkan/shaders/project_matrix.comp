// project_matrix.comp - products of Q4_K, Q5_K and Q6_K and many rows of int8 activations, of which
// 128 share a scale, by fp16 matrices; see product.glsl, units.glsl and matrix.glsl.
//
// 64 weight rows (SwiGLU: 32 of gate, then 32 of up) and 64 activation rows by 256 threads. Quants
// times the scale of their run are exact in fp16, and a unit's sum is exact as f32: it is the
// integer of units.glsl. Of Q6_K runs are summed apart, and multiplied by their scales as f32. While
// a unit is multiplied the next one is unpacked into shared memory. Units come lane by lane, in the
// order of product.glsl.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#ifndef PLAIN
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_NV_cooperative_matrix : require
#endif
#define TILE
#include "product.glsl"
layout(binding = 7) readonly buffer Q { uvec4 xq[]; };
layout(binding = 8) readonly buffer S { uvec2 xs[]; };
#include "units.glsl"

const bool IS_Q6 = TYPE == DT_Q6_K || TYPE == Q6_K_PLANES;
const uint COLUMNS = 16 * OUTPUTS;

// Stages of 64 weight rows and 64 activation rows; a row is 64 fp16 values. At the end, the result.
#ifdef PLAIN
#define STAGES 1 // 22 KB instead of 42
#else
#define STAGES 2
#endif
#define STRIDE 9 // vectors of a row; odd, for banks
#define STAGE (128 * STRIDE)
#define OUT_STRIDE 17
shared uvec4 tile[STAGES * STAGE];
// Of weight rows: the scale; the minimum, those of both groups; or the scales of runs. Of activation
// rows: the scale, the sums of both groups.
#define W_VALUES 5
#define X_VALUES 3
shared float of_w[STAGES * W_VALUES * 64], of_x[STAGES * X_VALUES * 64];
#include "matrix.glsl"

// ---- what a thread brings: half a unit of a weight row, or of an activation row -----------------

#define MINE (gl_LocalInvocationID.x / 2 % 64)
#define HALF (gl_LocalInvocationID.x % 2)
#define BRINGS_WEIGHTS (gl_LocalInvocationID.x < 128)

uint row_at; // of it
uvec4 header, low[2], high[2];
uvec3 rest;

void find_row() {
    is_second = MINE >= COLUMNS;
    uint n = min(first_n + (is_second ? MINE - COLUMNS : MINE), p.n - 1);
    row_at = n * p.row_bytes + expert * p.plane_bytes;
    if (!BRINGS_WEIGHTS)
        row_at = act_at(MINE);
}

void load_q6_k_half(uint u) {
    const uint vectors = TYPE == Q6_K_PLANES ? 1 : 2;
    uvec4 at = places_q6_k(row_at, u);
    [[unroll]] for (uint i = 0; i < vectors; i++) {
        low[i] = WORD4(at.x / 16 + HALF + i);
        high[i] = WORD4(at.y / 16 + HALF + i);
    }
    rest = uvec3(load_u16(at.z), load_u16(at.z + 4), load_u16(at.w));
}

void load_k_half(uint u) {
    const uint vectors = TYPE == DT_Q5_K ? 11 : 9;
    uint at = row_at / 16 + u / 4 * vectors;
    header = WORD4(at);
    low[0] = WORD4(at + vectors - 8 + 2 * (u & 3) + HALF);
    if (TYPE == DT_Q5_K)
        high[0] = WORD4(at + 1 + HALF);
}

void load_next(uint u) {
    if (!BRINGS_WEIGHTS) {
        uint g = row_at + groups_of(u)[HALF] * ACT_STEP;
        low[0] = xq[2 * g];
        low[1] = xq[2 * g + 1];
        rest.xy = xs[g];
    } else if (IS_Q6) {
        load_q6_k_half(u);
    } else {
        load_k_half(u);
    }
}

// 16 bytes, of which `mask` says the bits, as fp16: 1024 + n becomes (n - less) * factor, each step
// exact. Values 0 and 2 of four come before 1 and 3: products do not see the order.
void put_bytes(uint at, uvec4 q, uint mask, uint magic, float less, bool is_scaled, float factor) {
    f16vec2 by = f16vec2(float16_t(factor)), minus = f16vec2(float16_t(1024 + less));
    [[unroll]] for (uint i = 0; i < 2; i++) {
        uvec4 to;
        [[unroll]] for (uint k = 0; k < 2; k++) {
            f16vec2 even = unpackFloat2x16(q[2 * i + k] & mask ^ magic) - minus;
            f16vec2 odd = unpackFloat2x16(q[2 * i + k] >> 8 & mask ^ magic) - minus;
            to[2 * k] = packFloat2x16(is_scaled ? even * by : even);
            to[2 * k + 1] = packFloat2x16(is_scaled ? odd * by : odd);
        }
        tile[at + i] = to;
    }
}

// 16 bytes at an even place from the vectors around them.
uvec4 shift_vector(uvec4 a, uvec4 b, uint at) {
    if (TYPE == Q6_K_PLANES)
        return a;
    uint w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    [[unroll]] for (uint i = 0; i < 6; i++)
        w[i] = (at & 8) != 0 ? w[i + 2] : w[i];
    [[unroll]] for (uint i = 0; i < 5; i++)
        w[i] = (at & 4) != 0 ? w[i + 1] : w[i];
    uvec4 to;
    [[unroll]] for (uint i = 0; i < 4; i++)
        to[i] = (at & 2) != 0 ? w[i] >> 16 | w[i + 1] << 16 : w[i];
    return to;
}

void put_q6_k(uint at, uint to, uint u) {
    uvec4 from = places_q6_k(row_at, u);
    uvec4 l = shift_vector(low[0], low[1], from.x);
    uvec4 h = shift_vector(high[0], high[1], from.y) >> 2 * (u & 1);
    put_bytes(at, l & 0x0f0f0f0fu | h << 4 & 0x30303030u, 0x00ff00ffu, 0x64006400u, 32, false, 1);
    put_bytes(at + 4, l >> 4 & 0x0f0f0f0fu | h & 0x30303030u, 0x00ff00ffu, 0x64006400u, 32, false, 1);
    of_w[to] = unpack_halves(rest.z).x;
    of_w[to + (1 + HALF) * 64] = float(bitfieldExtract(int(rest.x), int(8 * HALF), 8));
    of_w[to + (3 + HALF) * 64] = float(bitfieldExtract(int(rest.y), int(8 * HALF), 8));
}

void put_k(uint at, uint to, uint u) {
    uvec2 s = k_scales(header, u & 3);
    vec2 scale = vec2(s.x & 255, s.x >> 8), d = unpack_halves(header.x);
    if (TYPE == DT_Q5_K) {
        uvec4 bits = high[0] >> 2 * (u & 3);
        uvec4 a = low[0] & 0x0f0f0f0fu | bits << 4 & 0x10101010u;
        uvec4 b = low[0] >> 4 & 0x0f0f0f0fu | bits << 3 & 0x10101010u;
        put_bytes(at, a, 0x00ff00ffu, 0x64006400u, 0, true, scale.x);
        put_bytes(at + 4, b, 0x00ff00ffu, 0x64006400u, 0, true, scale.y);
    } else { // the high nibbles as 16 n
        put_bytes(at, low[0], 0x000f000fu, 0x64006400u, 0, true, scale.x);
        put_bytes(at + 4, low[0], 0x00f000f0u, 0x64006400u, 0, true, scale.y / 16);
    }
    of_w[to + HALF * 64] = HALF == 0 ? d.x : d.y;
    of_w[to + (2 + HALF) * 64] = float(HALF == 0 ? s.y & 255 : s.y >> 8);
}

void put_next(uint u, uint stage) {
    uint at = stage * STAGE + MINE * STRIDE;
    if (!BRINGS_WEIGHTS) { // n + 128, as bytes
        uint to = stage * X_VALUES * 64 + MINE;
        at += 64 * STRIDE + 4 * HALF;
        [[unroll]] for (uint i = 0; i < 2; i++)
            put_bytes(at + 2 * i, low[i], 0x00ff00ffu, 0x64806480u, 128, false, 1);
        of_x[to] = uintBitsToFloat(rest.x);
        of_x[to + (1 + HALF) * 64] =
            float(bitfieldExtract(int(rest.y), 0, 16) + (int(rest.y) >> 16));
    } else if (IS_Q6) {
        put_q6_k(at + 2 * HALF, stage * W_VALUES * 64 + MINE, u);
    } else {
        put_k(at + 2 * HALF, stage * W_VALUES * 64 + MINE, u);
    }
}

// ---- products -----------------------------------------------------------------------------------

// Subgroup s has weight rows 32 (s % 2) ..., in two matrices, and activation rows 16 (s / 2) ...
#define FIRST_W (SUBGROUP % 2 * 32)
#define FIRST_X (SUBGROUP / 2 * 16)
Floats sums[2];

// Of 16 weight rows, from values w and x on: what units.glsl does with the sums of a unit.
void add_matrix(uint i, uint w, uint x, Floats dot) {
    Floats scale, minimum, minimum0, minimum1, x_scale, sum0, sum1;
    spread_rows(scale, of_w, w);
    spread_columns(x_scale, of_x, x);
    if (!IS_Q6) {
        spread_rows(minimum, of_w, w + 64);
        spread_rows(minimum0, of_w, w + 2 * 64);
        spread_rows(minimum1, of_w, w + 3 * 64);
        spread_columns(sum0, of_x, x + 64);
        spread_columns(sum1, of_x, x + 2 * 64);
    }
    [[unroll]] for (uint e = 0; e < ELEMENTS(dot); e++) {
        float before = AT(sums[i], e), of_all = 0, least = 0;
        if (!IS_Q6) { // exact
            of_all = AT(minimum, e);
            least = fma(AT(minimum0, e), AT(sum0, e), AT(minimum1, e) * AT(sum1, e));
        }
        AT(sums[i], e) = add_term(AT(scale, e), AT(dot, e), of_all, least, AT(x_scale, e), before);
    }
}

void multiply_stage(uint stage) {
    uint at = stage * STAGE + FIRST_W * STRIDE, from = stage * STAGE + (64 + FIRST_X) * STRIDE;
    uint w = stage * W_VALUES * 64 + FIRST_W, x = stage * X_VALUES * 64 + FIRST_X;
    Halves a, b[4];
    [[unroll]] for (uint k = 0; k < 4; k++)
        load_columns(b[k], from + 2 * k, STRIDE);
    [[unroll]] for (uint i = 0; i < 2; i++) {
        Floats dot = zeros(), run, scale, whole[2]; // whole: of two runs, exact
        [[unroll]] for (uint k = 0; k < 4; k++) {
            load_rows(a, at + 16 * i * STRIDE + 2 * k, STRIDE);
            if (!IS_Q6) {
                dot = multiply_add(a, b[k], dot);
                continue;
            }
            run = multiply_add(a, b[k], zeros());
            spread_rows(scale, of_w, w + 16 * i + (1 + k) * 64);
            [[unroll]] for (uint e = 0; e < ELEMENTS(run); e++)
                AT(whole[k / 2], e) = k % 2 == 0
                                          ? AT(scale, e) * AT(run, e)
                                          : fma(AT(scale, e), AT(run, e), AT(whole[k / 2], e));
        }
        if (IS_Q6)
            dot = add(whole[0], whole[1]);
        add_matrix(i, w + 16 * i, x, dot);
    }
}

// After the last unit, any.
uint next_unit(uint u) {
    return min(after(u), p.units - 1);
}

void main() {
    first_n = gl_WorkGroupID.x * COLUMNS;
    if (!find_tile(64))
        return;
    Floats total[2];
    [[unroll]] for (uint i = 0; i < 2; i++)
        total[i] = sums[i] = zeros();
    find_row();
    load_next(0);
    put_next(0, 0);
    uint u = 0, next = next_unit(0);
    load_next(next);
    for (uint step = 0; step < p.units; step++) {
        barrier();
        if (STAGES == 1) {
            multiply_stage(0);
            barrier();
        }
        put_next(next, (step + 1) % STAGES);
        uint later = next_unit(next);
        load_next(later);
        if (STAGES == 2)
            multiply_stage(step & 1);
        if (u + p.lanes >= p.units) // the lane's last
            [[unroll]] for (uint i = 0; i < 2; i++) {
                if (u % p.lanes == 0)
                    total[i] = sums[i];
                else
                    total[i] = add(total[i], sums[i]);
                sums[i] = zeros();
            }
        u = next;
        next = later;
    }
    barrier();
    [[unroll]] for (uint i = 0; i < 2; i++)
        store_columns(total[i], FIRST_X * OUT_STRIDE + FIRST_W / 4 + 4 * i, OUT_STRIDE);
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < COLUMNS * 64; i += T) {
        uint r = i / COLUMNS, column = i - r * COLUMNS, n = first_n + column, row = row_of(r);
        uint at = r * OUT_STRIDE, up = column + COLUMNS;
        if (n < p.n && row != ~0u)
            store(n, row, uintBitsToFloat(tile[at + column / 4][column % 4]),
                  EPILOGUE == SWIGLU ? uintBitsToFloat(tile[at + up / 4][up % 4]) : 0);
    }
}
