#version 450
// pages.comp - the step's changes of the page table.
#extension GL_GOOGLE_include_directive : require
#include "io.glsl"

layout(local_size_x_id = 0) in;

layout(push_constant) uniform Push {
    IO_AT;
    uint pages_first, pages_per_slot;
} p;

layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly buffer Host { uint host[]; };
layout(binding = 2) writeonly buffer Pages { int pages[]; };

void main() {
    for (uint i = gl_LocalInvocationID.x; i < io_n_changes(); i += gl_WorkGroupSize.x) {
        uint at = p.io_changes + 4 * i;
        pages[p.pages_first + host[at] * p.pages_per_slot + host[at + 1]] = int(host[at + 2]);
    }
}
