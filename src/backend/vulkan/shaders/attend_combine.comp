#version 450
// attend_combine.comp - a query's parts combined in order (attend.glsl): a query head a workgroup.
#extension GL_GOOGLE_include_directive : require
#include "io.glsl"
#include "attend.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint D = 128;
layout(constant_id = 2) const uint HEADS = 1;
layout(constant_id = 3) const uint MAX_PARTS = 1; // at most 256

layout(push_constant) uniform Push {
    IO_AT;
    uint out_first, out_stride;
} p;

layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly buffer Parts { float parts[]; };
layout(binding = 2) readonly buffer Sums { vec2 sums[]; };
layout(binding = 3) writeonly buffer Out { float result[]; };

shared vec2 of_part[MAX_PARTS], factor[MAX_PARTS];

void main() {
    uint t = gl_LocalInvocationIndex, head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    if (row >= io_n_rows())
        return;
    uint n = attend_parts(io_row_position(row) + 1), at = (row * HEADS + head) * MAX_PARTS;
    for (uint i = t; i < n; i += ATTEND_THREADS)
        of_part[i] = sums[at + i];
    barrier();
    for (uint i = t; i < n; i += ATTEND_THREADS) {
        float before = ATTEND_NONE;
        for (uint k = 0; k < i; k++)
            before = max(before, of_part[k].x);
        float largest = max(before, of_part[i].x);
        factor[i] = vec2(exp2(before - largest), exp2(of_part[i].x - largest));
    }
    barrier();
    precise float sum = 0;
    for (uint i = 0; i < n; i++)
        sum = fma(sum, factor[i].x, of_part[i].y * factor[i].y);
    float inverse = 1.0 / sum;
    for (uint c = t; c < D; c += ATTEND_THREADS) {
        precise float whole = 0;
        for (uint i = 0; i < n; i++)
            whole = fma(whole, factor[i].x, parts[(at + i) * D + c] * factor[i].y);
        precise float y = whole * inverse;
        result[p.out_first + row * p.out_stride + head * D + c] = y;
    }
}
