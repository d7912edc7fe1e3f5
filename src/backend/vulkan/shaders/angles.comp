#version 450
// angles.comp - cos and sin of position * frequency for every row, a workgroup each: those of a sum,
// from two tables that the host made in f64, (1024, n, 2) of the position's low bits and
// (n_high, n, 2) of the others. At position 200000 an f32 angle would be off by 0.01.
#extension GL_GOOGLE_include_directive : require
#include "io.glsl"

layout(local_size_x_id = 0) in;

layout(push_constant) uniform Push {
    IO_AT;
    uint n_freqs, n_high, first;
    float scale;
} p;

layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly buffer Tables { vec2 tables[]; };
layout(binding = 2) writeonly buffer Angles { float angles[]; };

void main() {
    uint row = gl_WorkGroupID.x;
    if (row >= io_n_rows())
        return;
    uint position = io_row_position(row), low = position & 1023;
    uint high = min(position >> 10, p.n_high - 1);
    for (uint i = gl_LocalInvocationID.x; i < p.n_freqs; i += gl_WorkGroupSize.x) {
        vec2 a = tables[low * p.n_freqs + i], b = tables[(1024 + high) * p.n_freqs + i];
        uint to = p.first + 2 * (row * p.n_freqs + i);
        angles[to] = (a.x * b.x - a.y * b.y) * p.scale;
        angles[to + 1] = (a.y * b.x + a.x * b.y) * p.scale;
    }
}
