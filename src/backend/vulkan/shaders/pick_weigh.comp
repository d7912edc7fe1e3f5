#version 450
// pick_weigh.comp - of outputs that are drawn: the weight of each stretch of the row, a workgroup a
// stretch, and a list of the tokens near the best where something is cut.
#extension GL_GOOGLE_include_directive : require
#include "io.glsl"
#include "pick.glsl"

#define THREADS 128
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint STRETCH = 128;

layout(push_constant) uniform Push {
    IO_AT;
    uint logits_first, logits_stride, room_first, room_stride, order_first, order_stride;
} p;

layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly buffer Logits { float logits[]; };
layout(binding = 2) readonly buffer Room { float room[]; };
layout(binding = 3) writeonly buffer Order { uvec2 list[]; };
layout(binding = 4) readonly buffer Best { uvec2 best[]; };
// (O, stretches + 1): two words each; the last of a row has how many are listed
layout(binding = 5) buffer Sums { uint sums[]; };

#include "pick_weights.glsl"

shared uvec2 keys[THREADS];
shared uint n_here, list_from;

REDUCE(largest, max64)
REDUCE(sum_of, add64)

void list_near(uint begin, uint end, uint n, uint at) {
    uint n_all = (gl_NumWorkGroups.x + 1) * 2;
    if (n > 0)
        at = atomicAdd(n_here, n);
    barrier();
    if (t == 0 && n_here > 0)
        list_from = atomicAdd(sums[o * n_all + n_all - 2], n_here);
    barrier();
    at += p.order_first + o * p.order_stride + list_from;
    for (uint i = begin + t; n > 0 && i < end; i += THREADS) {
        float x = logit_at(i);
        if (is_near(x))
            list[at++] = key_of(x, i);
    }
}

void main() {
    o = gl_WorkGroupID.y;
    if (o >= io_n_outputs())
        return;
    find_output();
    if ((flags & IO_WANTS_TOKEN) == 0 || !(output_float(IO_TEMPERATURE) > 0))
        return;
    uvec2 key = uvec2(0), sum = uvec2(0);
    for (uint i = t; i < gl_NumWorkGroups.x; i += THREADS)
        key = max64(key, best[o * gl_NumWorkGroups.x + i]);
    if (t == 0)
        n_here = 0;
    if (!find_scale(largest(key)))
        return;
    uint begin = gl_WorkGroupID.x * STRETCH, end = clamp(n_vocab, begin, begin + STRETCH), n = 0;
    for (uint i = begin + t; i < end; i += THREADS) {
        float x = logit_at(i);
        sum = add64(sum, weight_of(x));
        n += is_near(x) ? 1 : 0;
    }
    sum = sum_of(sum);
    if (t == 0) {
        uint at = (o * (gl_NumWorkGroups.x + 1) + gl_WorkGroupID.x) * 2;
        sums[at] = sum.x;
        sums[at + 1] = sum.y;
    }
    if (is_cut())
        list_near(begin, end, n, 0);
}
