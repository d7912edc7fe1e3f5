// experts_mix.comp - x[r] += the sum over a row's places of weight[place] * y[r][place], in order; the
// shared expert's last.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "io.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint HAS_SHARED = 0;

layout(push_constant) uniform Push {
    IO_AT;
    uint width, places, x_first, x_stride, weight_first, weight_stride;
} p;
layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly buffer Y { float y[]; };
layout(binding = 2) readonly buffer Weight { float weight[]; };
layout(binding = 3) buffer X { float x[]; };
layout(binding = 4) readonly buffer Shared { float y_shared[]; };

void main() {
    uint i = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
    if (row >= io_n_rows() || i >= p.width)
        return;
    uint at = p.x_first + row * p.x_stride + i;
    precise float sum = x[at];
    for (uint j = 0; j < p.places; j++)
        sum = fma(weight[p.weight_first + row * p.weight_stride + j],
                  y[(row * p.places + j) * p.width + i], sum);
    if (HAS_SHARED != 0)
        sum = fma(weight[p.weight_first + row * p.weight_stride + p.places],
                  y_shared[row * p.width + i], sum);
    x[at] = sum;
}
