// project.comp - products of weights in blocks, of one row or a few; project_tile.comp has many.
//
// -DF32: with f32 activations. Else with int8 ones (units.glsl). -DFUSED: see product.glsl.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#include "product.glsl"
#ifdef F32
#define GRIDS 9
#include "types.glsl"

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

#ifdef FUSED
#define SHARED_UNITS UNITS
#else
layout(binding = 7) readonly buffer Q { uvec4 xq[]; };
layout(binding = 8) readonly buffer S { uvec2 xs[]; };
#endif

#include "units.glsl"

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

void main() {
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
}
