#version 450
// tap.comp - TAP: a workgroup an output, a copy of the residual to the host; NORM: RMS-normed. Then
// a thread sums every n-th square, and a tree adds the threads' sums.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "io.glsl"

layout(local_size_x_id = 0) in;

layout(push_constant) uniform Push {
    IO_AT;
    uint width, x_first, x_stride, out_first, out_stride;
    float eps;
} p;

layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly buffer X { float x[]; };
layout(binding = 2) writeonly buffer Out { float taps[]; };
#ifdef NORM
layout(binding = 3) readonly buffer Norm { float norm[]; };
#endif

void main() {
    uint o = gl_WorkGroupID.x, thread = gl_LocalInvocationID.x;
    if (o >= io_n_outputs())
        return;
    uint from = p.x_first + io_output_row(o) * p.x_stride, to = p.out_first + o * p.out_stride;
    float factor = 1;
#ifdef NORM
    float sum = 0;
    for (uint c = thread; c < p.width; c += gl_WorkGroupSize.x)
        sum += x[from + c] * x[from + c];
    factor = 1 / sqrt(group_sum(sum) / float(p.width) + p.eps);
#endif
    for (uint c = thread; c < p.width; c += gl_WorkGroupSize.x)
#ifdef NORM
        taps[to + c] = x[from + c] * factor * norm[c];
#else
        taps[to + c] = x[from + c];
#endif
}
