// project_tile.comp - products of weights in blocks and many rows of int8 activations, through shared
// memory; see product.glsl and units.glsl.
//
// -DDOT: see units.glsl.
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
#define TILE
#include "product.glsl"
layout(binding = 7) readonly buffer Q { uvec4 xq[]; };
layout(binding = 8) readonly buffer S { uvec2 xs[]; };
#define SHARED_UNITS (2 * 16 * ROWS)
#include "units.glsl"

layout(constant_id = 9) const uint WEIGHT_VECTORS = 7; // of a unit: 5 of integers; odd, for banks
shared uvec4 tile_w[2 * 64 * WEIGHT_VECTORS];

void put_unit(uint at, Unit o) {
    [[unroll]] for (uint i = 0; i < 4; i++)
        tile_w[at + i] = uvec4(o.q[4 * i], o.q[4 * i + 1], o.q[4 * i + 2], o.q[4 * i + 3]);
    if (has_integers()) {
        uvec4 s = uvec4(o.whole) & 255u;
        tile_w[at + 4] =
            uvec4(floatBitsToUint(o.scale.x), floatBitsToUint(o.minimum.x),
                  s.x | s.y << 8 | s.z << 16 | s.w << 24, 0);
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
        o.minimum.x = uintBitsToFloat(v.y);
        [[unroll]] for (int i = 0; i < 4; i++)
            o.whole[i] = bitfieldExtract(int(v.z), 8 * i, 8);
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
        next_row = n * p.row_bytes + expert * p.plane_bytes;
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
        g = next_row + g * ACT_STEP;
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

void main() {
    uint tx = gl_LocalInvocationID.x % 16, ty = gl_LocalInvocationID.x / 16;
    first_n = gl_WorkGroupID.x * 16 * OUTPUTS;
    if (!find_tile(16 * ROWS))
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
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        uint row = row_of(r * 16 + ty);
        [[unroll]] for (uint i = 0; i < OUTPUTS; i++) {
            uint n = first_n + i * 16 + tx;
            if (n < p.n && row != ~0u)
                store(n, row, total[i * ROWS + r],
                      EPILOGUE == SWIGLU ? total[(i + OUTPUTS) * ROWS + r] : 0);
        }
    }
}
