// stage_reset.comp - sets the counters of a step's stages (stage.glsl) back.
#version 450
layout(local_size_x_id = 0) in;
layout(binding = 0) writeonly buffer Counters { uint counters[]; };

#define STAGE_COUNTER(i) (256 + 32 * (i)) // host/vulkan.h

void main() {
    counters[STAGE_COUNTER(gl_GlobalInvocationID.x)] = 0;
}
