// project_plain.comp - products of weights in F32, F16 and BF16; a unit is eight values.
//
// IS_WIDE: K is a multiple of 8, and weights and activations are 16-aligned.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "half.glsl"
#include "product.glsl"

#define DT_F32 0u
#define DT_F16 1u

layout(binding = 7) readonly buffer X { float x[]; };
layout(binding = 7) readonly buffer X4 { vec4 x4[]; };

vec2 two_of(uint word) {
    return TYPE == DT_F16 ? unpack_halves(word)
                          : uintBitsToFloat(uvec2(word << 16, word & 0xffff0000u));
}

// Value i of a row that may begin at any value.
float load_value(uint row, uint i) {
    if (TYPE == DT_F32)
        return uintBitsToFloat(WORD(row / 4 + i));
    uint half_word = row / 2 + i;
    return two_of(WORD(half_word / 2))[half_word & 1];
}

// Of one row four units are loaded before the first is multiplied.
const uint STEPS = ROWS == 1 ? 4 : 1;
uvec4 raw[MAX_WEIGHTS * 4 * 2];
bool is_loaded; // the first of them already

void load_steps(uint u) {
    if (IS_WIDE == 0)
        return;
    [[unroll]] for (uint step = 0; step < STEPS; step++)
        [[unroll]] for (uint i = 0; i < WEIGHTS; i++) {
            is_second = i >= OUTPUTS;
            uint at = weight_at(i) / 16, mine = min(u + step * p.lanes, p.units - 1);
            if (TYPE == DT_F32) {
                raw[2 * (4 * i + step)] = WORD4(at + 2 * mine);
                raw[2 * (4 * i + step) + 1] = WORD4(at + 2 * mine + 1);
            } else {
                raw[2 * (4 * i + step)] = WORD4(at + mine);
            }
        }
}

void unpack_unit(uint i, uint u, uint step, out float y[8]) {
    if (IS_WIDE == 0) {
        is_second = i >= OUTPUTS;
        for (uint k = 0; k < 8; k++)
            y[k] = 8 * u + k < p.k ? load_value(weight_at(i), 8 * u + k) : 0;
        return;
    }
    uvec4 a = raw[2 * (4 * i + step)];
    if (TYPE == DT_F32) {
        uvec4 b = raw[2 * (4 * i + step) + 1];
        [[unroll]] for (uint k = 0; k < 4; k++) {
            y[k] = uintBitsToFloat(a[k]);
            y[k + 4] = uintBitsToFloat(b[k]);
        }
        return;
    }
    [[unroll]] for (uint k = 0; k < 4; k++) {
        vec2 two = two_of(a[k]);
        y[2 * k] = two.x;
        y[2 * k + 1] = two.y;
    }
}

void load_acts(uint r, uint u, out float a[8]) {
    uint at = act_at(r) + 8 * u;
    [[unroll]] for (uint k = 0; k < 8; k++)
        a[k] = IS_WIDE != 0 ? x4[at / 4 + k / 4][k % 4] : 8 * u + k < p.k ? x[at + k] : 0;
}

void multiply_unit(uint u, uint step) {
    float y[MAX_WEIGHTS][8];
    [[unroll]] for (uint i = 0; i < WEIGHTS; i++)
        unpack_unit(i, u, step, y[i]);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        float a[8];
        load_acts(r, u, a);
        [[unroll]] for (uint i = 0; i < WEIGHTS; i++) {
            precise float s = sum[i * ROWS + r];
            [[unroll]] for (uint k = 0; k < 8; k++)
                s = fma(y[i][k], a[k], s);
            sum[i * ROWS + r] = s;
        }
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


void main() {
    if (!find_rows())
        return;
    is_loaded = false;
    product();
}
