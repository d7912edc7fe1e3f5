#version 450
// pick_step_end.comp - the end of a step of several outputs: pick_end.glsl.
#extension GL_GOOGLE_include_directive : require
#include "io.glsl"

#define THREADS 128
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint VOCAB = 1;
layout(constant_id = 2) const uint HAS_COUNTS = 0;

layout(push_constant) uniform Push {
    IO_AT;
    uint counts_first, counts_stride, burst, step;
} p;

// What the step has of IO, and the same with what workgroups write to it now.
layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 0) buffer IoNow { uint io_now[]; };
layout(binding = 1) buffer Host { uint host[]; };
layout(binding = 2) buffer Counts { uint counts[]; };

#include "pick_end.glsl"

void main() {
    end_step(gl_LocalInvocationIndex, THREADS);
}
