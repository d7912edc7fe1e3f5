#version 450
// embed.comp - rows of the table: workgroup (c, row) unpacks 32 columns a thread.
#extension GL_GOOGLE_include_directive : require
#include "io.glsl"

layout(local_size_x_id = 0) in;
#ifndef TYPE
layout(constant_id = 1) const uint TYPE = 0;
#endif

layout(push_constant) uniform Push {
    IO_AT;
    uint first_token, n_tokens, k, row_bytes, x_first, x_stride;
} p;

layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly buffer Table { uint words[]; };
layout(binding = 2) writeonly buffer X { float x[]; };

#define WORD(i) words[i]
#define GRIDS 3
#include "types.glsl"

bool is_plain() {
    return TYPE == DT_F32 || TYPE == DT_F16 || TYPE == DT_BF16;
}

float plain_value(uint row, uint c) {
    if (TYPE == DT_F32)
        return uintBitsToFloat(WORD(row / 4 + c));
    uint bits = load_u16(row + 2 * c);
    return TYPE == DT_F16 ? unpack_halves(bits).x : uintBitsToFloat(bits << 16);
}

void put_group(uint row, uint g, uint to) {
    if (is_plain()) {
        for (uint c = 32 * g; c < min(32 * g + 32, p.k); c++)
            x[to + c] = plain_value(row, c);
        return;
    }
    Group o;
    unpack_group(row, g, o);
    for (uint i = 0; i < 32; i++) {
        int q = bitfieldExtract(int(o.q[i / 4]), int(8 * (i & 3)), 8);
        x[to + 32 * g + i] = o.scale[i / 16] * float(q) - o.minimum[i / 16];
    }
}

void main() {
    uint row = gl_WorkGroupID.y, g = gl_WorkGroupID.x * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (row >= io_n_rows() || 32 * g >= p.k)
        return;
    uint token = uint(io_row_token(row)) - p.first_token;
    if (token < p.n_tokens)
        put_group(token * p.row_bytes, g, p.x_first + row * p.x_stride);
}
