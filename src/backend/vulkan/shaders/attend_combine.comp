#version 450
// attend_combine.comp - a query's parts combined in order (attend.glsl): 128 columns of a query head
// a workgroup. Sixteen parts at a time go through shared memory, so that their loads are in flight
// together and the code is short (attend_one.comp).
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
layout(binding = 1) readonly buffer Parts { vec4 parts[]; }; // (R, H, parts, d)
layout(binding = 2) readonly buffer Sums { vec2 sums[]; };
layout(binding = 3) writeonly buffer Out { float result[]; };

#define AHEAD 16                        // parts
#define EACH (AHEAD / 4)                // loads of a thread
#define COLUMNS4 (ATTEND_THREADS / 4)
const uint PADDED_PARTS = (MAX_PARTS + AHEAD - 1) / AHEAD * AHEAD, D4 = D / 4;

shared vec4 staged[AHEAD * COLUMNS4];
shared vec2 of_part[PADDED_PARTS], factor[PADDED_PARTS];
shared float largest[PADDED_PARTS]; // up to each part

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

vec4 ahead[EACH];

// Parts [first, first + AHEAD) of n, from vector c of a row on.
void load_parts(uint t, uint at, uint c, uint first, uint n) {
    [[unroll]] for (uint k = 0; k < EACH; k++) {
        uint part = first + k * 4 + t / COLUMNS4, column = c + t % COLUMNS4;
        ahead[k] = part < n && column < D4 ? parts[(at + part) * D4 + column] : vec4(0);
    }
}

void main() {
    uint t = gl_LocalInvocationIndex, head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    if (row >= io_n_rows())
        return;
    uint n = attend_parts(io_row_position(row) + 1), at = (row * HEADS + head) * MAX_PARTS;
    uint c = gl_WorkGroupID.z * COLUMNS4;
    load_parts(t, at, c, 0, n);
    for (uint i = t; i < PADDED_PARTS; i += ATTEND_THREADS) {
        vec2 part = i < n ? sums[at + i] : vec2(0);
        of_part[i] = part;
        largest[i] = part.x;
    }
    barrier();
    scan(t, n);
    for (uint i = t; i < PADDED_PARTS; i += ATTEND_THREADS) {
        float before = i > 0 && i < n ? largest[i - 1] : ATTEND_NONE;
        factor[i] = i < n ? vec2(exp2(before - largest[i]), exp2(of_part[i].x - largest[i]))
                          : vec2(1, 0);
    }
    barrier();
    precise float sum = 0, whole = 0;
    [[dont_unroll]] for (uint i = 0; i < n; i += AHEAD) {
        barrier();
        [[unroll]] for (uint k = 0; k < EACH; k++)
            staged[k * ATTEND_THREADS + t] = ahead[k];
        load_parts(t, at, c, i + AHEAD, n);
        barrier();
        uint end = min(AHEAD, n - i);
        [[dont_unroll]] for (uint k = 0; k < end; k++) {
            vec2 f = factor[i + k];
            sum = fma(sum, f.x, of_part[i + k].y * f.y);
            whole = fma(whole, f.x, staged[k * COLUMNS4 + t / 4][t % 4] * f.y);
        }
    }
    precise float y = whole * (1.0 / sum);
    if (4 * c + t < D)
        result[p.out_first + row * p.out_stride + head * D + 4 * c + t] = y;
}
