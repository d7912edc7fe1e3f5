#version 450
// attend_store.comp - a head of a row a workgroup: queries normed, rotated and scaled to memory;
// keys, normed and rotated, and values into the cache, encoded as its type.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "io.glsl"
#include "attend.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint D = 128;
layout(constant_id = 2) const uint HEADS = 1;
layout(constant_id = 3) const uint KV_HEADS = 1;
layout(constant_id = 4) const uint ROTARY = 0;
layout(constant_id = 5) const uint IS_NEIGHBOURS = 0;
layout(constant_id = 6) const uint HAS_Q_NORM = 0;
layout(constant_id = 7) const uint HAS_K_NORM = 0;
layout(constant_id = 8) const uint PAGES = 1; // of a slot

layout(push_constant) uniform Push {
    IO_AT;
    uint in_first, in_stride, q_stride, k_column, v_column;
    uint q_norm_first, k_norm_first, angles_first, pages_first;
    float eps, scale;
} p;

layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly buffer In { float x_in[]; };
layout(binding = 2) readonly buffer QNorm { float q_norm[]; };
layout(binding = 3) readonly buffer KNorm { float k_norm[]; };
layout(binding = 4) readonly buffer Angles { float angles[]; };
layout(binding = 5) readonly buffer Pages { uint pages[]; };
layout(binding = 6) buffer Keys { uint keys[]; };
layout(binding = 7) buffer Values { uint values[]; };
layout(binding = 8) writeonly buffer Queries { float queries[]; };

shared float squares[2 * ATTEND_THREADS];
#define SQUARES(i) squares[i]
#include "attend_head.glsl"

// The factor of x's norm: every thread has it.
float norm_factor(uint t) {
    float sum = 0;
    for (uint i = t; i < D; i += ATTEND_THREADS)
        sum = square_of(x[i], sum);
    squares[t] = sum;
    barrier();
    if (t < 8)
        squares[ATTEND_THREADS + t] = eighth_of(0, t);
    barrier();
    return factor_of(sum_of_eighths(ATTEND_THREADS));
}

void rotate(uint t, uint row) {
    for (uint i = t; i < ROTARY / 2; i += ATTEND_THREADS) {
        uvec2 at = pair_at(i);
        vec2 y = rotated(vec2(x[at.x], x[at.y]), angle_at(row, i));
        x[at.x] = y.x;
        x[at.y] = y.y;
    }
    barrier();
}

void main() {
    uint t = gl_LocalInvocationIndex, row = gl_WorkGroupID.y, head = gl_WorkGroupID.x;
    if (row >= io_n_rows())
        return;
    bool is_query = head < HEADS, is_key = !is_query && head < HEADS + KV_HEADS;
    uint column = is_query ? head * p.q_stride
                  : is_key ? p.k_column + (head - HEADS) * D
                           : p.v_column + (head - HEADS - KV_HEADS) * D;
    for (uint i = t; i < D; i += ATTEND_THREADS)
        x[i] = x_in[p.in_first + row * p.in_stride + column + i];
    barrier();
    if (is_query ? HAS_Q_NORM != 0 : is_key && HAS_K_NORM != 0) {
        float factor = norm_factor(t);
        for (uint i = t; i < D; i += ATTEND_THREADS) {
            float w = is_query ? q_norm[p.q_norm_first + i] : k_norm[p.k_norm_first + i];
            x[i] = normed(x[i], factor, w);
        }
        barrier();
    }
    if ((is_query || is_key) && ROTARY > 0)
        rotate(t, row);
    if (is_query) {
        for (uint i = t; i < D; i += ATTEND_THREADS)
            queries[(row * HEADS + head) * D + i] = scaled_query(x[i]);
        return;
    }
    uint kv_head = (head - HEADS) % KV_HEADS, position = io_row_position(row);
    uint page = pages[p.pages_first + io_row_slot(row) * PAGES + position / IO_PAGE_POSITIONS];
    uint cache_row = (page * KV_HEADS + kv_head) * IO_PAGE_POSITIONS + position % IO_PAGE_POSITIONS;
    if (is_key) {
        STORE(keys)
    } else {
        STORE(values)
    }
}
