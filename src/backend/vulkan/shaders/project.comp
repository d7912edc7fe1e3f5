// project.comp - products of weights in blocks, of one row or a few; project_tile.comp has many.
//
// -DF32: with f32 activations. Else with int8 ones (units.glsl).
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

void multiply() {
    for (uint g = lane; g < p.units; g += p.lanes) // a unit is a group
        [[unroll]] for (uint i = 0; i < WEIGHTS; i++) {
            is_second = i >= OUTPUTS;
            add_group(weight_at(i), g, i);
        }
}

#else

layout(binding = 7) readonly buffer Q { uvec4 xq[]; };
layout(binding = 8) readonly buffer S { uvec2 xs[]; };

#include "units.glsl"

// Of one row two units are loaded before the first is multiplied.
const uint STEPS = ROWS == 1 ? 2 : 1;
Raw raw[MAX_WEIGHTS * 2];

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
        Acts a = load_acts(act_at(r), u);
        [[unroll]] for (uint i = 0; i < WEIGHTS; i++)
            sum[i * ROWS + r] = add_unit(o[i], a, sum[i * ROWS + r]);
    }
}

void multiply() {
    for (uint u = lane; u < p.units; u += STEPS * p.lanes) {
        load_steps(u);
        [[unroll]] for (uint step = 0; step < STEPS; step++)
            if (u + step * p.lanes < p.units)
                multiply_unit(u + step * p.lanes, step);
    }
}

#endif

void load_first() {}

void main() {
    if (find_rows())
        product();
}
