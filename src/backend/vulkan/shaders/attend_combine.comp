#version 450
// attend_combine.comp - a query's parts combined in order (attend.glsl): 128 columns of a query head
// a workgroup.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
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

#define AHEAD 32 // parts in flight
const uint ROOM = (MAX_PARTS + AHEAD - 1) / AHEAD * AHEAD;

shared vec2 of_part[ROOM], factor[ROOM];
shared float largest[ROOM]; // up to each part

// The largest maximum up to each of n parts.
void scan(uint t, uint n) {
    for (uint d = 1; d < n; d *= 2) {
        float before[2];
        [[unroll]] for (uint k = 0; k < 2; k++) {
            uint i = t + k * ATTEND_THREADS;
            before[k] = i < n && i >= d ? largest[i - d] : ATTEND_NONE;
        }
        barrier();
        [[unroll]] for (uint k = 0; k < 2; k++) {
            uint i = t + k * ATTEND_THREADS;
            if (i < n)
                largest[i] = max(largest[i], before[k]);
        }
        barrier();
    }
}

float ahead[AHEAD];

void load_parts(uint at, uint c, uint first, uint n) {
    [[unroll]] for (uint k = 0; k < AHEAD; k++)
        ahead[k] = c < D && first + k < n ? parts[(at + first + k) * D + c] : 0;
}

void main() {
    uint t = gl_LocalInvocationIndex, head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    if (row >= io_n_rows())
        return;
    uint n = attend_parts(io_row_position(row) + 1), at = (row * HEADS + head) * MAX_PARTS;
    uint c = gl_WorkGroupID.z * ATTEND_THREADS + t;
    load_parts(at, c, 0, n);
    for (uint i = t; i < ROOM; i += ATTEND_THREADS) {
        vec2 part = i < n ? sums[at + i] : vec2(0);
        of_part[i] = part;
        largest[i] = part.x;
    }
    barrier();
    scan(t, n);
    for (uint i = t; i < ROOM; i += ATTEND_THREADS) {
        float before = i > 0 && i < n ? largest[i - 1] : ATTEND_NONE;
        factor[i] = i < n ? vec2(exp2(before - largest[i]), exp2(of_part[i].x - largest[i]))
                          : vec2(1, 0);
    }
    barrier();
    precise float sum = 0, whole = 0;
    for (uint i = 0; i < n; i += AHEAD) {
        if (i > 0)
            load_parts(at, c, i, n);
        [[unroll]] for (uint k = 0; k < AHEAD; k++) {
            vec2 f = factor[i + k];
            sum = fma(sum, f.x, of_part[i + k].y * f.y);
            whole = fma(whole, f.x, ahead[k] * f.y);
        }
    }
    precise float y = whole * (1.0 / sum);
    if (c < D)
        result[p.out_first + row * p.out_stride + head * D + c] = y;
}
