// stage_reset.comp - sets the counters of a step's stages (stage.glsl) back. STAGE_FAILED stays: in a
// burst PICK of the step before still reads it, and a step without outputs has no token that tells.
#version 450
#extension GL_GOOGLE_include_directive : require
layout(local_size_x_id = 0) in;
layout(binding = 0) writeonly buffer Counters { uint counters[]; };
#define NO_STAGE
#include "stage.glsl"

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i > 0)
        counters[STAGE_COUNTER(i)] = 0;
}
