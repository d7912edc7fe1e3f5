#version 450
// copy_io.comp - IO's way to the device: one workgroup copies it up to the page changes, and applies
// those (PAGES). All dispatches but those of EMBED read the copy.
#extension GL_GOOGLE_include_directive : require
#include "io.glsl"

layout(local_size_x_id = 0) in;

layout(push_constant) uniform Push {
    IO_AT;
    uint pages_first, pages_per_slot;
} p;

layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) writeonly buffer Copy { uint io_copy[]; };
#ifdef PAGES
layout(binding = 2) writeonly buffer Pages { int pages[]; };
#endif

void main() {
    for (uint i = gl_LocalInvocationID.x; i < p.io_changes; i += gl_WorkGroupSize.x)
        io_copy[i] = io[i];
#ifdef PAGES
    for (uint i = gl_LocalInvocationID.x; i < io_n_changes(); i += gl_WorkGroupSize.x) {
        uint at = p.io_changes + 4 * i;
        pages[p.pages_first + io[at] * p.pages_per_slot + io[at + 1]] = int(io[at + 2]);
    }
#endif
}
