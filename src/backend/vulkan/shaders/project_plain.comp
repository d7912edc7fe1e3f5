// project_plain.comp - products of weights in F32, F16 and BF16; a unit is eight values.
//
// IS_WIDE: K is a multiple of 8, and weights and activations are 16-aligned.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "product.glsl"

#define DT_F32 0u
#define DT_F16 1u

layout(binding = 7) readonly buffer X { float x[]; };
layout(binding = 7) readonly buffer X4 { vec4 x4[]; };

vec2 two_of(uint word) {
    return TYPE == DT_F16 ? unpackHalf2x16(word)
                          : uintBitsToFloat(uvec2(word << 16, word & 0xffff0000u));
}

void load_unit(uint row, uint u, out float y[8]) {
    if (TYPE == DT_F32) {
        uvec4 a = WORD4(row / 16 + 2 * u), b = WORD4(row / 16 + 2 * u + 1);
        [[unroll]] for (uint i = 0; i < 4; i++) {
            y[i] = uintBitsToFloat(a[i]);
            y[i + 4] = uintBitsToFloat(b[i]);
        }
        return;
    }
    uvec4 a = WORD4(row / 16 + u);
    [[unroll]] for (uint i = 0; i < 4; i++) {
        vec2 two = two_of(a[i]);
        y[2 * i] = two.x;
        y[2 * i + 1] = two.y;
    }
}

// Value i of a row that may begin at any value.
float load_value(uint row, uint i) {
    if (TYPE == DT_F32)
        return uintBitsToFloat(WORD(row / 4 + i));
    uint half_word = row / 2 + i;
    return two_of(WORD(half_word / 2))[half_word & 1];
}

void multiply() {
    for (uint u = lane; u < p.units; u += p.lanes) {
        float y[MAX_WEIGHTS][8];
        uint n = min(8, p.k - 8 * u);
        [[unroll]] for (uint i = 0; i < WEIGHTS; i++) {
            is_second = i >= OUTPUTS;
            if (IS_WIDE != 0)
                load_unit(weight_at(i), u, y[i]);
            else
                for (uint k = 0; k < 8; k++)
                    y[i][k] = k < n ? load_value(weight_at(i), 8 * u + k) : 0;
        }
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            float a[8];
            uint at = act_at(r) + 8 * u;
            [[unroll]] for (uint k = 0; k < 8; k++)
                a[k] = IS_WIDE != 0 ? x4[at / 4 + k / 4][k % 4] : k < n ? x[at + k] : 0;
            [[unroll]] for (uint i = 0; i < WEIGHTS; i++) {
                precise float s = sum[i * ROWS + r];
                [[unroll]] for (uint k = 0; k < 8; k++)
                    s = fma(y[i][k], a[k], s);
                sum[i * ROWS + r] = s;
            }
        }
    }
}

void main() {
    if (find_rows())
        product();
}
