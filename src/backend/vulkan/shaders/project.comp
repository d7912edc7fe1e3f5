// project.comp - products of weights in blocks; a unit is two groups of 32 values.
//
// -DF32: with f32 activations. -DDOT: with the instruction for four int8 products. -DTILE: of many
// rows, through shared memory. -DFUSED: see product.glsl.
// -DMATRIX: a tile by cooperative matrices of 16 x 16 x 32, for has_integers and subgroups of 32.
//
// int8 activations: sum += (scale * x.scale) * dot(q, x.q) - minimum * (x.scale * sum(x.q)) for each
// run of 16 or 32 values, dot and sum exact. Where 128 activations share a scale, Q4_K, Q5_K and
// Q6_K multiply with the scales of runs as integers, and there is one such line a unit:
// sum += x.scale * (scale * dot - minimums).
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
#include "product.glsl"
#define GRIDS 9
#include "types.glsl"

#ifdef F32

layout(binding = 7) readonly buffer X { vec4 x[]; };

void add_group(uint row, uint g, uint i) {
    Group o;
    unpack_group(row, g, o);
    for (uint r = 0; r < ROWS; r++) {
        precise float s = sum[i * ROWS + r];
        for (uint k = 0; k < 8; k++) {
            vec4 v = x[act_at(r) / 4 + 8 * g + k];
            for (uint b = 0; b < 4; b++)
                s = fma(group_value(o, 4 * k + b), v[b], s);
        }
        sum[i * ROWS + r] = s;
    }
}

void load_first() {}

void multiply() {
    for (uint u = lane; u < p.units; u += p.lanes)
        [[unroll]] for (uint i = 0; i < WEIGHTS; i++) {
            is_second = i >= OUTPUTS;
            for (uint g = 2 * u; g < min(2 * u + 2, p.k / 32); g++)
                add_group(weight_at(i), g, i);
        }
}

#else

#ifndef FUSED
layout(binding = 7) readonly buffer Q { uvec4 xq[]; };
layout(binding = 8) readonly buffer S { uvec2 xs[]; };
#endif

// ---- int8 ---------------------------------------------------------------------------------------

#ifdef DOT
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int dot_packed(uint a, uint b, spirv_literal int format);
#define dot4(a, b) dot_packed(a, b, 0)
#else
int dot4(uint a, uint b) {
    int sum = 0;
    for (int i = 0; i < 32; i += 8)
        sum += bitfieldExtract(int(a), i, 8) * bitfieldExtract(int(b), i, 8);
    return sum;
}
#endif

// Where has_integers: scale.x is the block's, whole the runs', minimum.xy that of both groups.
struct Unit {
    uint q[16];
    vec4 scale, minimum; // of runs of 16
    ivec4 whole;
};

struct Acts {
    uvec4 q[4];
    vec2 scale;
    ivec4 sum; // of runs of 16
};

bool has_integers() {
    return IS_WIDE != 0 && (TYPE == DT_Q4_K || TYPE == DT_Q5_K || TYPE == DT_Q6_K);
}

// The groups of a unit.
uvec2 groups_of(uint u) {
    if (has_integers() && TYPE == DT_Q6_K)
        return u / 2 * 4 + (u & 1) + uvec2(0, 2);
    return 2 * u + uvec2(0, 1);
}

// Of units in shared memory: four vectors of quants, then scale and sums of both groups.
#if defined(TILE)
shared uvec4 tile_x[2 * 16 * ROWS * 5];
#elif defined(FUSED)
shared uvec4 tile_x[UNITS * 5];
#endif

#if defined(TILE) || defined(FUSED)
Acts get_acts(uint at) {
    Acts a;
    [[unroll]] for (uint i = 0; i < 4; i++)
        a.q[i] = tile_x[at + i];
    uvec4 s = tile_x[at + 4];
    a.scale = uintBitsToFloat(s.xz);
    a.sum = ivec4(bitfieldExtract(int(s.y), 0, 16), int(s.y) >> 16,
                  bitfieldExtract(int(s.w), 0, 16), int(s.w) >> 16);
    return a;
}
#else
Acts load_acts(uint row, uint u) {
    Acts a;
    uvec2 g = groups_of(u);
    g.y = min(g.y, p.k / 32 - 1);
    for (uint i = 0; i < 2; i++) {
        a.q[2 * i] = xq[2 * (row + g[i])];
        a.q[2 * i + 1] = xq[2 * (row + g[i]) + 1];
        uvec2 s = xs[row + g[i]];
        a.scale[i] = uintBitsToFloat(s.x);
        a.sum[2 * i] = bitfieldExtract(int(s.y), 0, 16);
        a.sum[2 * i + 1] = int(s.y) >> 16;
    }
    return a;
}
#endif

// Two blocks of Q8_0 are 17 whole words, K being a multiple of 128.
bool has_words_of_q8_0() {
    return IS_WIDE != 0 && TYPE == DT_Q8_0;
}

// A unit as it lies in memory: loads that nothing waits for yet. Of most types it is empty.
struct Raw {
    uvec4 v[6];
    uvec3 rest;
};

void load_k(uint row, uint u, out Raw o) {
    const uint vectors = TYPE == DT_Q5_K ? 11 : 9;
    uint at = row / 16 + u / 4 * vectors, qs = at + (vectors - 8) + 2 * (u & 3);
    o.v[0] = WORD4(at);
    o.v[1] = WORD4(qs);
    o.v[2] = WORD4(qs + 1);
    if (TYPE == DT_Q5_K) {
        o.v[3] = WORD4(at + 1);
        o.v[4] = WORD4(at + 2);
    }
}

void unpack_k(Raw raw, uint u, out Unit o) {
    uint r = u & 3;
    vec2 d = unpackHalf2x16(raw.v[0].x);
    uvec2 s = k_scales(raw.v[0], r);
    o.scale.x = d.x;
    o.minimum.xy = d.y * vec2(s.y & 255, s.y >> 8);
    o.whole.xy = ivec2(s.x & 255, s.x >> 8);
    [[unroll]] for (uint i = 0; i < 8; i++) {
        uint low = raw.v[1 + i / 4][i % 4];
        o.q[i] = low & 0x0f0f0f0f;
        o.q[i + 8] = low >> 4 & 0x0f0f0f0f;
        if (TYPE == DT_Q5_K) {
            uint bits = raw.v[3 + i / 4][i % 4] >> 2 * r;
            o.q[i] |= bits << 4 & 0x10101010;
            o.q[i + 8] |= bits << 3 & 0x10101010;
        }
    }
}

// Where the low bits, the high bits and the scales of a unit of Q6_K are.
uvec3 places_q6_k(uint row, uint u) {
    uint at = row + u / 4 * 210, h = u >> 1 & 1, j = u & 1;
    return uvec3(at + 64 * h + 32 * j, at + 128 + 32 * h, at + 192 + 8 * h + 2 * j);
}

// 32 bytes at an even place from the three vectors around them, of which the last is in the block.
void load_q6_k(uint row, uint u, out Raw o) {
    uvec3 at = places_q6_k(row, u);
    [[unroll]] for (uint i = 0; i < 3; i++) {
        o.v[i] = WORD4(at.x / 16 + i);
        o.v[3 + i] = WORD4(at.y / 16 + i);
    }
    o.rest = uvec3(load_u16(at.z), load_u16(at.z + 4), load_u16(row + u / 4 * 210 + 208));
}

void shift_vectors(uvec4 a, uvec4 b, uvec4 c, uint at, out uint to[8]) {
    uint w[12] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
    [[unroll]] for (uint i = 0; i < 10; i++)
        w[i] = (at & 8) != 0 ? w[i + 2] : w[i];
    [[unroll]] for (uint i = 0; i < 9; i++)
        w[i] = (at & 4) != 0 ? w[i + 1] : w[i];
    [[unroll]] for (uint i = 0; i < 8; i++)
        to[i] = (at & 2) != 0 ? w[i] >> 16 | w[i + 1] << 16 : w[i];
}

void unpack_q6_k(Raw raw, uint row, uint u, out Unit o) {
    uvec3 at = places_q6_k(row, u);
    uint low[8], high[8];
    shift_vectors(raw.v[0], raw.v[1], raw.v[2], at.x, low);
    shift_vectors(raw.v[3], raw.v[4], raw.v[5], at.y, high);
    o.scale.x = unpackHalf2x16(raw.rest.z).x;
    o.whole = ivec4(bitfieldExtract(int(raw.rest.x), 0, 8), bitfieldExtract(int(raw.rest.x), 8, 8),
                    bitfieldExtract(int(raw.rest.y), 0, 8), bitfieldExtract(int(raw.rest.y), 8, 8));
    [[unroll]] for (uint i = 0; i < 8; i++) {
        uint bits = high[i] >> 2 * (u & 1);
        o.q[i] = (low[i] & 0x0f0f0f0f) | (bits << 4 & 0x30303030);
        o.q[i + 8] = (low[i] >> 4 & 0x0f0f0f0f) | (bits & 0x30303030);
    }
}

// The last vector by words: it may be the buffer's end.
void load_q8_0(uint row, uint u, out Raw o) {
    uint at = row / 4 + 17 * u;
    [[unroll]] for (uint i = 0; i < 4; i++)
        o.v[i] = WORD4(at / 4 + i);
    [[unroll]] for (uint i = 0; i < 4; i++)
        o.v[4][i] = i <= (at & 3) ? WORD(at / 4 * 4 + 16 + i) : 0;
}

void unpack_q8_0(Raw raw, uint row, uint u, out Unit o) {
    uint at = row / 4 + 17 * u, w[20];
    [[unroll]] for (uint i = 0; i < 20; i++)
        w[i] = raw.v[i / 4][i % 4];
    [[unroll]] for (uint i = 0; i < 18; i++)
        w[i] = (at & 2) != 0 ? w[i + 2] : w[i];
    [[unroll]] for (uint i = 0; i < 17; i++)
        w[i] = (at & 1) != 0 ? w[i + 1] : w[i];
    [[unroll]] for (uint i = 0; i < 8; i++) {
        o.q[i] = w[i] >> 16 | w[i + 1] << 16;
        o.q[i + 8] = w[i + 9];
    }
    o.scale = vec2(unpackHalf2x16(w[0]).x, unpackHalf2x16(w[8]).y).xxyy;
    o.minimum = vec4(0);
}

void load_raw(uint row, uint u, out Raw o) {
    if (has_words_of_q8_0())
        load_q8_0(row, u, o);
    if (has_integers()) {
        if (TYPE == DT_Q6_K)
            load_q6_k(row, u, o);
        else
            load_k(row, u, o);
    }
}

void unpack_unit(Raw raw, uint row, uint u, out Unit o) {
    if (has_words_of_q8_0()) {
        unpack_q8_0(raw, row, u, o);
        return;
    }
    if (has_integers()) {
        if (TYPE == DT_Q6_K)
            unpack_q6_k(raw, row, u, o);
        else
            unpack_k(raw, u, o);
        return;
    }
    for (uint i = 0; i < 2; i++) {
        Group g;
        if (2 * u + i < p.k / 32) {
            unpack_group(row, 2 * u + i, g);
        } else { // after the row's end
            for (uint k = 0; k < 8; k++)
                g.q[k] = 0;
            set_scale(0, 0, g);
        }
        for (uint k = 0; k < 8; k++)
            o.q[8 * i + k] = g.q[k];
        for (uint k = 0; k < 2; k++) {
            o.scale[2 * i + k] = g.scale[k];
            o.minimum[2 * i + k] = g.minimum[k];
        }
    }
}

// Of run i of 16 values, added to `before`.
int dot16(Unit w, Acts a, uint i, int before) {
    int total = before + dot4(w.q[4 * i], a.q[i].x);
    total += dot4(w.q[4 * i + 1], a.q[i].y);
    total += dot4(w.q[4 * i + 2], a.q[i].z);
    return total + dot4(w.q[4 * i + 3], a.q[i].w);
}

// The whole sum of a unit, times its scales, less its minimums.
float add_whole(int whole, float scale, vec2 minimum, Acts a, float before) {
    precise float term = 0;
    if (TYPE == DT_Q6_K) {
        term = scale * float(whole);
    } else {
        term = minimum.y * float(a.sum.z + a.sum.w);
        term = fma(minimum.x, float(a.sum.x + a.sum.y), term);
        term = fma(scale, float(whole), -term);
    }
    precise float total = fma(a.scale.x, term, before);
    return total;
}

float add_integers(Unit w, Acts a, float before) {
    int whole = 0;
    if (TYPE == DT_Q6_K) {
        [[unroll]] for (uint i = 0; i < 4; i++)
            whole += w.whole[i] * dot16(w, a, i, -32 * a.sum[i]);
    } else {
        whole = w.whole.x * dot16(w, a, 1, dot16(w, a, 0, 0)) +
                w.whole.y * dot16(w, a, 3, dot16(w, a, 2, 0));
    }
    return add_whole(whole, w.scale.x, w.minimum.xy, a, before);
}

float add_unit(Unit w, Acts a, float before) {
    precise float total = before;
    if (has_integers())
        return add_integers(w, a, before);
    [[unroll]] for (uint i = 0; i < 4; i++) {
        int dot = dot16(w, a, i, 0), least = a.sum[i];
        if (!has_short_runs()) { // of 32
            if (i % 2 != 0)
                continue;
            dot = dot16(w, a, i + 1, dot);
            least += a.sum[i + 1];
        }
        precise float scale = w.scale[i] * a.scale[i / 2];
        total = fma(scale, float(dot), total);
        if (has_minimums()) {
            precise float offset = a.scale[i / 2] * float(least);
            total = fma(-w.minimum[i], offset, total);
        }
    }
    return total;
}

#ifdef TILE

// ---- many rows ----------------------------------------------------------------------------------

// 64 weight rows (SwiGLU: 32 of gate, then 32 of up) and 16 ROWS activation rows by 256 threads,
// four weight rows and ROWS activation rows each. While a unit is multiplied the next one is
// unpacked into shared memory. Units come lane by lane, so that sums have the order of product.glsl.
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

void tile() {
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

#else

#ifdef FUSED
// ---- one row ------------------------------------------------------------------------------------

#define NORM_THREADS 256
#include "prologue.glsl"

shared uint most[2 * UNITS]; // largest magnitudes of groups, as bits
shared int sums[4 * UNITS];  // of 16 quants

// Where group g is: unit and half.
uvec2 place_of(uint g) {
    if (has_integers() && TYPE == DT_Q6_K)
        return uvec2(g / 4 * 2 + (g & 1), g >> 1 & 1);
    return uvec2(g / 2, g & 1);
}

void quantize_row() {
    uint tid = gl_LocalInvocationID.x;
    row_at = p.in_first;
    gate_at = p.gate_first;
    if (PROLOGUE == PROLOGUE_NORM)
        norm_of_row(p.k);
    if (PROLOGUE == PROLOGUE_GATED_NORM)
        norms_of_heads(0, p.k / p.head_width);
    for (uint i = tid; i < 4 * UNITS; i += T) {
        if (i < 2 * UNITS)
            most[i] = 0;
        sums[i] = 0;
    }
    barrier();
    float v[4];
    for (uint i = 4 * tid; i < p.k; i += 4 * T) {
        values(i, p.k, 0, v);
        atomicMax(most[i / GROUP], magnitude(v));
    }
    barrier();
    for (uint i = 4 * tid; i < p.k; i += 4 * T) {
        int added;
        values(i, p.k, 0, v);
        uvec2 at = place_of(i / 32);
        uint word = i / 4 % 8;
        tile_x[at.x * 5 + at.y * 2 + word / 4][word % 4] =
            quants(v, act_scale(most[i / GROUP]), added);
        atomicAdd(sums[i / 16], added);
    }
    barrier();
    for (uint g = tid; g < 2 * UNITS; g += T) { // the last unit may have one group
        uvec2 at = place_of(g);
        uint halves = (uint(sums[2 * g]) & 0xffff) | uint(sums[2 * g + 1]) << 16;
        tile_x[at.x * 5 + 4][2 * at.y] = floatBitsToUint(act_scale(most[32 * g / GROUP]));
        tile_x[at.x * 5 + 4][2 * at.y + 1] = halves;
    }
    barrier();
}
#endif

// Of one row two units are loaded before the first is multiplied.
const uint STEPS = ROWS == 1 ? 2 : 1;
Raw raw[MAX_WEIGHTS * 2];
bool is_loaded; // the first of them already

void load_steps(uint u) {
    [[unroll]] for (uint step = 0; step < STEPS; step++)
        [[unroll]] for (uint i = 0; i < WEIGHTS; i++) {
            is_second = i >= OUTPUTS;
            load_raw(weight_at(i), min(u + step * p.lanes, p.units - 1), raw[2 * i + step]);
        }
}

void multiply_unit(uint u, uint step) {
    Unit o[MAX_WEIGHTS];
    [[unroll]] for (uint i = 0; i < WEIGHTS; i++) {
        is_second = i >= OUTPUTS;
        unpack_unit(raw[2 * i + step], weight_at(i), u, o[i]);
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
#ifdef FUSED
        Acts a = get_acts(u * 5);
#else
        Acts a = load_acts(act_at(r), u);
#endif
        [[unroll]] for (uint i = 0; i < WEIGHTS; i++)
            sum[i * ROWS + r] = add_unit(o[i], a, sum[i * ROWS + r]);
    }
}

void load_first() {
    load_steps(lane);
    is_loaded = true;
}

void multiply() {
    for (uint u = lane; u < p.units; u += STEPS * p.lanes) {
        if (!is_loaded)
            load_steps(u);
        is_loaded = false;
        [[unroll]] for (uint step = 0; step < STEPS; step++)
            if (u + step * p.lanes < p.units)
                multiply_unit(u + step * p.lanes, step);
    }
}

#endif
#endif

void main() {
#ifdef TILE
    tile();
#else
#ifdef FUSED
    // The plan has one row, and so has every step; but its head may have none.
    if (IS_HEAD != 0 && io_n_outputs() == 0)
        return;
    n_rows = 1;
    first_row = place = 0;
    find_team(gl_WorkGroupID.x * outputs_of_group());
    load_first(); // come while the row is prepared
    quantize_row();
#else
    if (!find_rows())
        return;
#ifndef F32
    is_loaded = false;
#endif
#endif
    product();
#endif
}
