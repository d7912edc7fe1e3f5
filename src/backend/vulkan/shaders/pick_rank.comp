#version 450
// pick_rank.comp - the largest key of each chunk of a row's logits, a workgroup a chunk: after
// biases, penalties and mask where an output asks for them, on a copy. Logits that are wanted go to
// the host from here.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "io.glsl"
#include "pick.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint VOCAB = 1;
layout(constant_id = 2) const uint CHUNK = 128; // a multiple of 32
layout(constant_id = 3) const uint HAS_COUNTS = 0;
layout(constant_id = 4) const uint THREADS = 128; // as constant 0

const uint EACH = (CHUNK + THREADS - 1) / THREADS;

layout(push_constant) uniform Push {
    IO_AT;
    uint logits_first, logits_stride, wanted_first, wanted_stride;
    uint counts_first, counts_stride, adjusted_first, adjusted_stride;
} p;

layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly buffer Host { uint host[]; };
layout(binding = 2) readonly buffer Logits { float logits[]; };
layout(binding = 3) writeonly buffer Wanted { float wanted[]; };
layout(binding = 4) readonly buffer Counts { uint counts[]; }; // two a word
layout(binding = 5) coherent buffer Adjusted { float adjusted[]; };
layout(binding = 6) writeonly buffer Best { uvec2 best[]; }; // (O, chunks)
layout(binding = 7) writeonly buffer Sums { uvec2 sums[]; }; // as in pick_weigh.comp: nothing is listed

#include "pick_chunk.glsl"

shared uvec2 biases[THREADS];

uint t, o, begin, end; // this chunk; end: of what may be picked
uint logits_at, adjusted_at;

float output_float(uint word) {
    return uintBitsToFloat(io_output(o, word));
}

// ---- what changes logits ----------------------------------------------------------------------

bool is_in(int token) {
    return token >= int(begin) && token < int(end);
}

// In order: a token's biases are all added by the thread of its first.
void apply_biases() {
    uint n_all = io_output_n_bias(o), from = p.io_biases + 2 * io_output_first_bias(o);
    for (uint first = 0; first < n_all; first += THREADS) {
        uint n = min(n_all - first, THREADS);
        barrier();
        if (t < n)
            biases[t] = uvec2(host[from + 2 * (first + t)], host[from + 2 * (first + t) + 1]);
        barrier();
        bool is_first = t < n && is_in(int(biases[t].x));
        for (uint k = 0; is_first && k < t; k++)
            is_first = biases[k].x != biases[t].x;
        for (uint k = t; is_first && k < n; k++)
            if (biases[k].x == biases[t].x)
                adjusted[adjusted_at + biases[t].x] += uintBitsToFloat(biases[k].y);
        memoryBarrierBuffer();
    }
    barrier();
}

// The token's logit with its biases, made anew.
float biased(uint token) {
    uint n = io_output_n_bias(o), from = p.io_biases + 2 * io_output_first_bias(o);
    precise float x = logits[logits_at + token];
    for (uint i = 0; i < n; i++)
        if (host[from + 2 * i] == token)
            x += uintBitsToFloat(host[from + 2 * i + 1]);
    return x;
}

bool has_penalties() {
    return output_float(IO_REPEAT_PENALTY) != 1 || output_float(IO_PRESENCE_PENALTY) != 0 || output_float(IO_FREQUENCY_PENALTY) != 0;
}

float penalized(float x, uint count) {
    precise float y = x > 0 ? x / output_float(IO_REPEAT_PENALTY) : x * output_float(IO_REPEAT_PENALTY);
    precise float lost = output_float(IO_FREQUENCY_PENALTY) * float(min(count, 65535));
    lost = output_float(IO_PRESENCE_PENALTY) + lost;
    y = y - lost;
    return y;
}

uint count_of(uint slot, uint token) {
    uint i = p.counts_first + slot * p.counts_stride + token;
    return counts[i / 2] >> (i % 2 * 16) & 0xffffu;
}

// Whether a row of the step is in the sequence of this output: drafts after its own are not.
bool is_counted(uint row, uint slot) {
    if (io_row_slot(row) != slot)
        return false;
    uint own = io_output_row(o);
    if (row <= own || io_n_drafts() == 0)
        return true;
    for (uint i = o + 1; i < io_n_outputs(); i++)
        if (io_output_row(i) == row)
            return (io_output_flags(i) & IO_DRAFTED) == 0;
    return true;
}

// `counts` has the step's own tokens only after it: their logits are made anew, each by the thread
// of its first row.
void apply_penalties() {
    uint slot = io_row_slot(io_output_row(o)), n_rows = io_n_rows();
    for (uint i = begin + t; i < end; i += THREADS) {
        uint count = count_of(slot, i);
        if (count > 0)
            adjusted[adjusted_at + i] = penalized(adjusted[adjusted_at + i], count);
    }
    memoryBarrierBuffer();
    barrier();
    for (uint row = t; row < n_rows; row += THREADS) {
        int token = io_row_token(row);
        if (!is_in(token) || !is_counted(row, slot))
            continue;
        bool is_first = true;
        for (uint k = 0; is_first && k < row; k++)
            is_first = io_row_token(k) != token || !is_counted(k, slot);
        if (!is_first)
            continue;
        uint count = count_of(slot, token) + 1;
        for (uint k = row + 1; k < n_rows; k++)
            count += io_row_token(k) == token && is_counted(k, slot) ? 1 : 0;
        adjusted[adjusted_at + token] = penalized(biased(token), count);
    }
    memoryBarrierBuffer();
    barrier();
}

void apply_mask() {
    const uint WORDS = (VOCAB + 127) / 128 * 4;
    for (uint i = begin + t; i < end; i += THREADS) {
        bool is_allowed = (host[p.io_masks + o * WORDS + i / 32] >> i % 32 & 1u) != 0;
        float x = adjusted[adjusted_at + i];
        adjusted[adjusted_at + i] = !is_allowed   ? uintBitsToFloat(0xff800000u)
                            : x >= -1e30 ? x
                                         : -1e30;
    }
    memoryBarrierBuffer();
    barrier();
}

// ---- the chunk ------------------------------------------------------------------------------

// The best key of this thread's after all changes, made on a copy.
uvec2 best_of_changed(uint flags) {
    [[unroll]] for (uint k = 0; k < EACH; k++)
        if (begin + t + k * THREADS < end)
            adjusted[adjusted_at + begin + t + k * THREADS] = chunk[k];
    memoryBarrierBuffer();
    barrier();
    apply_biases();
    if (HAS_COUNTS != 0 && has_penalties())
        apply_penalties();
    if ((flags & IO_HAS_MASK) != 0)
        apply_mask();
    uvec2 key = uvec2(0);
    for (uint i = begin + t; i < end; i += THREADS)
        key = max64(key, argmax_key(adjusted[adjusted_at + i], i));
    return key;
}

void main() {
    t = gl_LocalInvocationIndex;
    o = gl_WorkGroupID.y;
    begin = gl_WorkGroupID.x * CHUNK;
    load_chunk(o, begin + t); // before IO says anything
    if (o >= io_n_outputs())
        return;
    uint all_end = min(begin + CHUNK, VOCAB), flags = io_output_flags(o);
    end = clamp(io_output_n_vocab(o), begin, all_end);
    logits_at = p.logits_first + o * p.logits_stride;
    adjusted_at = p.adjusted_first + o * p.adjusted_stride;
    if ((flags & IO_WANTS_LOGITS) != 0)
        give_wanted(o, begin + t, all_end);
    uvec2 key = best_of_chunk(begin + t, end);
    if ((flags & IO_WANTS_TOKEN) != 0 &&
        ((flags & IO_HAS_MASK) != 0 || io_output_n_bias(o) > 0 || has_penalties())) {
        uvec2 changed = best_of_changed(flags);
        key = key == KEY_NOT_FINITE ? key : changed;
    }
    key = largest(t, key);
    if (t == 0)
        best[o * gl_NumWorkGroups.x + gl_WorkGroupID.x] = key;
    if (t == 0 && begin == 0)
        sums[o * (gl_NumWorkGroups.x + 1) + gl_NumWorkGroups.x] = uvec2(0);
}
