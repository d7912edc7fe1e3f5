// project_plain_tile.comp - products of weights in F32, F16 and BF16 and many rows, through shared
// memory; K is a multiple of 8, and weights and activations are 16-aligned.
//
// 128 weight rows (SwiGLU: 64 of gate, then 64 of up) and 64 activation rows by 256 threads, eight
// weight rows and four activation rows each. A stage is two units of a lane, in the order of
// project_plain.comp; while it is multiplied the next one is loaded.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define TILE
#include "half.glsl"
#include "product.glsl"

#define DT_F32 0u
#define DT_F16 1u

layout(binding = 7) readonly buffer X4 { vec4 x4[]; };

#define W 128
#define X 64
#define STRIDE 5 // vectors of a row; odd, for banks
shared vec4 tile[2 * (W + X) * STRIDE];
const uint COLUMNS = EPILOGUE == SWIGLU ? W / 2 : W;

vec2 two_of(uint word) {
    return TYPE == DT_F16 ? unpack_halves(word)
                          : uintBitsToFloat(uvec2(word << 16, word & 0xffff0000u));
}

// What this thread brings: a unit of a weight row, and half a unit of an activation row.
uint w_row, x_row;
uvec4 next_w[2];
vec4 next_x;

void find_row() {
    uint mine = gl_LocalInvocationID.x / 2;
    is_second = mine >= COLUMNS;
    uint n = min(first_n + (is_second ? mine - COLUMNS : mine), p.n - 1);
    w_row = n * p.row_bytes;
    uint row = row_of(gl_LocalInvocationID.x / 4);
    x_row = (row == ~0u ? 0 : row) * p.act_stride;
}

// The stage of units u and u + lanes; what is after the row's end is not multiplied.
void load_next(uint u) {
    uint t = gl_LocalInvocationID.x, last = p.units - 1;
    uint mine = min(u + t % 2 * p.lanes, last), half_of = min(u + t % 4 / 2 * p.lanes, last);
    if (TYPE == DT_F32) {
        next_w[0] = WORD4(w_row / 16 + 2 * mine);
        next_w[1] = WORD4(w_row / 16 + 2 * mine + 1);
    } else {
        next_w[0] = WORD4(w_row / 16 + mine);
    }
    next_x = x4[x_row / 4 + 2 * half_of + t % 2];
}

void put_next(uint stage) {
    uint t = gl_LocalInvocationID.x, first = stage * (W + X) * STRIDE;
    uint at = first + t / 2 * STRIDE + t % 2 * 2;
    [[unroll]] for (uint i = 0; i < 2; i++)
        tile[at + i] = TYPE == DT_F32 ? uintBitsToFloat(next_w[i])
                                      : vec4(two_of(next_w[0][2 * i]), two_of(next_w[0][2 * i + 1]));
    tile[first + (W + t / 4) * STRIDE + t % 4] = next_x;
}

float sums[32];

void multiply_stage(uint stage, uint vectors) {
    uint tx = gl_LocalInvocationID.x % 16, ty = gl_LocalInvocationID.x / 16;
    uint first = stage * (W + X) * STRIDE;
    for (uint k = 0; k < vectors; k++) {
        vec4 w[8], a;
        [[unroll]] for (uint i = 0; i < 8; i++)
            w[i] = tile[first + (i * 16 + tx) * STRIDE + k];
        [[unroll]] for (uint r = 0; r < 4; r++) {
            a = tile[first + (W + r * 16 + ty) * STRIDE + k];
            [[unroll]] for (uint i = 0; i < 8; i++) {
                precise float s = sums[i * 4 + r];
                [[unroll]] for (uint b = 0; b < 4; b++)
                    s = fma(w[i][b], a[b], s);
                sums[i * 4 + r] = s;
            }
        }
    }
}

// The stage after that of unit u.
uint next_stage(uint u) {
    u += 2 * p.lanes;
    return u < p.units ? u : u % p.lanes + 1;
}

void main() {
    uint tx = gl_LocalInvocationID.x % 16, ty = gl_LocalInvocationID.x / 16;
    first_n = gl_WorkGroupID.x * COLUMNS;
    if (!find_tile(X))
        return;
    precise float total[32];
    [[unroll]] for (uint i = 0; i < 32; i++)
        total[i] = sums[i] = 0;
    find_row();
    load_next(0);
    // Lane by lane: the last one's stages end after unit lanes - 1.
    for (uint u = 0, stage = 0, next; u != p.lanes; u = next, stage ^= 1) {
        put_next(stage);
        next = next_stage(u);
        load_next(next);
        barrier();
        multiply_stage(stage, u + p.lanes < p.units ? 4 : 2);
        if (u + 2 * p.lanes >= p.units) // the lane's last
            [[unroll]] for (uint i = 0; i < 32; i++) {
                total[i] = u % p.lanes == 0 ? sums[i] : total[i] + sums[i];
                sums[i] = 0;
            }
    }
    [[unroll]] for (uint r = 0; r < 4; r++) {
        uint row = row_of(r * 16 + ty);
        [[unroll]] for (uint i = 0; i < COLUMNS / 16; i++) {
            uint n = first_n + i * 16 + tx;
            if (n < p.n && row != ~0u)
                store(n, row, total[i * 4 + r],
                      EPILOGUE == SWIGLU ? total[(i + 4) * 4 + r] : 0);
        }
    }
}
