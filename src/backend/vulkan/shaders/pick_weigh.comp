#version 450
// pick_weigh.comp - pick_weigh.glsl for all chunks, a workgroup each, where pick.comp does not do it.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "io.glsl"
#include "pick.glsl"

#define THREADS 128
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint CHUNK = 128;

layout(push_constant) uniform Push {
    IO_AT;
    uint logits_first, logits_stride, adjusted_first, adjusted_stride, order_first, order_stride;
} p;

layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly buffer Logits { float logits[]; };
layout(binding = 2) readonly buffer Adjusted { float adjusted[]; };
layout(binding = 3) writeonly buffer Order { uvec2 list[]; };
layout(binding = 4) readonly buffer Best { uvec2 best[]; };
// (O, chunks + 1): two words each; the last of a row has how many are listed
layout(binding = 5) buffer Sums { uint sums[]; };

#include "pick_weights.glsl"

shared uvec2 keys[THREADS];

REDUCE(largest, max64)
REDUCE(sum_of, add64)

#include "pick_weigh.glsl"

void main() {
    o = gl_WorkGroupID.y;
    if (o >= io_n_outputs())
        return;
    find_output();
    weigh(gl_WorkGroupID.x, gl_NumWorkGroups.x);
}
