#version 450
// embed.comp - rows of the table: workgroup (c, row) unpacks 32 columns a thread. In the middle of a
// plan of one row it is a stage (stage.glsl).
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
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
layout(binding = 2) writeonly coherent buffer X { float x[]; };
layout(binding = 4) coherent buffer Counters { uint counters[]; };

#define WORD(i) words[i]
#define GRIDS 3
#include "types.glsl"
#include "stage.glsl"

bool is_plain() {
    return TYPE == DT_F32 || TYPE == DT_F16 || TYPE == DT_BF16;
}

float plain_value(uint row, uint c) {
    if (TYPE == DT_F32)
        return uintBitsToFloat(WORD(row / 4 + c));
    uint bits = load_u16(row + 2 * c);
    return TYPE == DT_F16 ? unpack_halves(bits).x : uintBitsToFloat(bits << 16);
}

void put_plain(uint row, uint g, uint to) {
    for (uint c = 32 * g; c < min(32 * g + 32, p.k); c++)
        x[to + c] = plain_value(row, c);
}

void put_group(Group o, uint to) {
    for (uint i = 0; i < 32; i++) {
        int q = bitfieldExtract(int(o.q[i / 4]), int(8 * (i & 3)), 8);
        x[to + i] = o.scale[i / 16] * float(q) - o.minimum[i / 16];
    }
}

void main() {
    uint row = gl_WorkGroupID.y, g = gl_WorkGroupID.x * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    uint token = p.n_tokens, to = p.x_first + row * p.x_stride;
    if (row < io_n_rows() && 32 * g < p.k)
        token = uint(io_row_token(row)) - p.first_token;
    bool is_in = token < p.n_tokens;
    Group o;
    if (is_in && !is_plain())
        unpack_group(token * p.row_bytes, g, o);
    wait_for_stage();
    if (is_in && is_plain())
        put_plain(token * p.row_bytes, g, to);
    else if (is_in)
        put_group(o, to + 32 * g);
    end_stage();
}
