#version 450
// embed.comp - EMBED: rows of the table, rotary angles, and IO's way to the device.
//
// Workgroup (c, row) unpacks columns [32 * threads * c, ...) of the row's embedding, 32 values a
// thread; those of c = 0 also compute the row's angles. COPIES: workgroup (0, n_rows) copies IO up
// to the page changes, where all others read it from then on, and applies those (PAGES); it is the
// step's first dispatch, and rows are read from the host's block, since the copy is being written.
//
// ANGLES: cos and sin of a sum, from two tables that the host made in f64: (1024, n, 2) of the
// position's low bits and (n_high, n, 2) of the others.
#extension GL_GOOGLE_include_directive : require
#include "io.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint TYPE = 0;

layout(push_constant) uniform Push {
    IO_AT;
    uint n_rows, first_token, n_tokens, k, row_bytes, x_first, x_stride;
    uint pages_first, pages_per_slot, max_changes;
    uint n_freqs, n_high, angles_first;
    float rope_scale;
} p;

#ifdef ANGLES
#define AFTER_ANGLES 5
#else
#define AFTER_ANGLES 3
#endif

layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly buffer Table { uint words[]; };
layout(binding = 2) writeonly buffer X { float x[]; };
#ifdef ANGLES
layout(binding = 3) readonly buffer Tables { vec2 tables[]; };
layout(binding = 4) writeonly buffer Angles { float angles[]; };
#endif
#ifdef COPIES
layout(binding = AFTER_ANGLES) writeonly buffer Copy { uint io_copy[]; };
#ifdef PAGES
layout(binding = AFTER_ANGLES + 1) writeonly buffer Pages { int pages[]; };
#endif
#endif

#ifdef COPIES
void copy_io() {
    for (uint i = gl_LocalInvocationID.x; i < p.io_changes; i += gl_WorkGroupSize.x)
        io_copy[i] = io[i];
#ifdef PAGES
    for (uint i = gl_LocalInvocationID.x; i < io_n_changes(); i += gl_WorkGroupSize.x) {
        uint at = p.io_changes + 4 * i;
        pages[p.pages_first + io[at] * p.pages_per_slot + io[at + 1]] = int(io[at + 2]);
    }
#endif
}
#endif

#define DT_F32 0u
#define DT_F16 1u
#define DT_BF16 30u

void fill_group(uint row_at, uint g, uint to) {
    uint n = min(32, p.k - 32 * g);
    for (uint i = 0; i < n; i++) {
        uint c = 32 * g + i;
        float v = 0;
        if (TYPE == DT_F32) {
            v = uintBitsToFloat(words[row_at / 4 + c]);
        } else {
            uint at = row_at + 2 * c;
            uint half_word = words[at >> 2] >> 8 * (at & 2) & 0xffff;
            v = TYPE == DT_F16 ? unpackHalf2x16(half_word).x : uintBitsToFloat(half_word << 16);
        }
        x[to + c] = v;
    }
}

#ifdef ANGLES
void fill_angles(uint row, uint position) {
    uint low = position & 1023, high = min(position >> 10, p.n_high - 1);
    for (uint i = gl_LocalInvocationID.x; i < p.n_freqs; i += gl_WorkGroupSize.x) {
        vec2 a = tables[low * p.n_freqs + i], b = tables[(1024 + high) * p.n_freqs + i];
        uint to = p.angles_first + 2 * (row * p.n_freqs + i);
        angles[to] = (a.x * b.x - a.y * b.y) * p.rope_scale;
        angles[to + 1] = (a.y * b.x + a.x * b.y) * p.rope_scale;
    }
}
#endif

void main() {
    uint row = gl_WorkGroupID.y;
#ifdef COPIES
    if (row == p.n_rows) {
        if (gl_WorkGroupID.x == 0)
            copy_io();
        return;
    }
#endif
    if (row >= io_n_rows())
        return;
    uint token = uint(io_row_token(row)) - p.first_token;
    uint g = gl_WorkGroupID.x * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (token < p.n_tokens && 32 * g < p.k)
        fill_group(token * p.row_bytes, g, p.x_first + row * p.x_stride);
#ifdef ANGLES
    if (gl_WorkGroupID.x == 0)
        fill_angles(row, io_row_position(row));
#endif
}
