#version 450
// pick_best.comp - the best token of outputs that are not drawn, and whose logits nothing changes: a
// workgroup a chunk of a row. The last one of a row to be done has the row's best, and the last of
// those ends the step. Logits that are wanted go to the host from here.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_control_flow_attributes : require
#include "io.glsl"
#include "pick.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint VOCAB = 1;
layout(constant_id = 2) const uint HAS_COUNTS = 0;
layout(constant_id = 3) const uint THREADS = 128; // as constant 0
layout(constant_id = 4) const uint EACH = 8;      // logits of a thread

layout(push_constant) uniform Push {
    IO_AT;
    uint counts_first, counts_stride, burst, step;
    uint logits_first, logits_stride, wanted_first, wanted_stride;
} p;

// What the step has of IO, and the same with what workgroups write to it now.
layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 0) coherent buffer IoNow { uint io_now[]; };
layout(binding = 1) buffer Host { uint host[]; };
layout(binding = 2) buffer Counts { uint counts[]; };
layout(binding = 3) readonly buffer Logits { float logits[]; };
layout(binding = 4) writeonly buffer Wanted { float wanted[]; };
layout(binding = 5) coherent buffer Best { uvec2 best[]; }; // (O, chunks)
layout(binding = 6) coherent buffer Counters { uint counters[]; }; // one an output, then one for all

#include "last.glsl"
#define NO_STAGE
#include "stage.glsl"
#include "pick_end.glsl"

#include "pick_chunk.glsl"

uint has_failed;

int best_token(uint t, uint o) {
    uvec2 key = uvec2(0);
    for (uint i = t; i < gl_NumWorkGroups.x; i += THREADS)
        key = max64(key, best[o * gl_NumWorkGroups.x + i]);
    int token = token_of(largest(t, key));
    return has_failed != 0 ? IO_STAGE_FAILED : token;
}

// The row's best token. It goes to the host after what others wait for.
bool put_best(uint t, uint o) {
    int token = best_token(t, o);
    // Below -1: IO_NOT_FINITE and IO_STAGE_FAILED.
    bool is_put = t == 0 && ((io_output_flags(o) & IO_WANTS_TOKEN) != 0 || token < -1);
    if (is_put)
        io_now[p.io_outputs + 16 * o + 14] = uint(token);
    group_barrier();
    bool is_end = gl_NumWorkGroups.y == 1 || is_last(t, gl_NumWorkGroups.y, io_n_outputs());
    if (is_put)
        host[p.io_outputs + 16 * o + 14] = uint(token);
    return is_end;
}

void main() {
    uint t = gl_LocalInvocationIndex, o = gl_WorkGroupID.y;
    uint first = gl_WorkGroupID.x * EACH * THREADS + t;
    load_chunk(o, first); // before IO says anything
    has_failed = counters[STAGE_FAILED];
    bool is_end = io_n_outputs() == 0 && o == 0 && gl_WorkGroupID.x == 0;
    if (o < io_n_outputs()) {
        if ((io_output_flags(o) & IO_WANTS_LOGITS) != 0)
            give_wanted(o, first, VOCAB);
        uvec2 key = largest(t, best_of_chunk(first, io_output_n_vocab(o)));
        if (t == 0)
            best[o * gl_NumWorkGroups.x + gl_WorkGroupID.x] = key;
        is_end = is_last(t, o, gl_NumWorkGroups.x) && put_best(t, o);
    }
    if (is_end)
        end_step(t, THREADS);
}
