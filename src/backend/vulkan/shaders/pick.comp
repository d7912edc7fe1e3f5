#version 450
// pick.comp - a token for an output, by one workgroup; where a plan has one output, the end of the
// step, too. IS_LAST: there is a workgroup for every chunk, which weighs it, and the last one to be
// done is the one that picks; the last of all outputs' ends the step.
//
//   best     the largest key of pick_rank.comp's chunks: the token of a greedy output
//   cuts     pick_weigh.comp has listed the tokens near the best. Where these are not all that may
//            pass top-k, top-p and min-p: a histogram of all by distance from the maximum, 32 bins a
//            power of e, and a list anew of the bins that may. The cut and the draw are found in the
//            list by rank, or in a long one by radix select over the keys
//   no cuts  the token at which the running sum reaches the draw, in the order of the vocabulary
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "io.glsl"
#include "pick.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint VOCAB = 1;
layout(constant_id = 2) const uint HAS_COUNTS = 0;
layout(constant_id = 3) const uint THREADS = 128; // as constant 0; a power of two, at most 1024
layout(constant_id = 4) const uint CHUNKS = 1;
layout(constant_id = 5) const uint IS_END = 0;
layout(constant_id = 6) const uint CHUNK = 128;
layout(constant_id = 7) const uint IS_LAST = 0;

layout(push_constant) uniform Push {
    IO_AT;
    uint counts_first, counts_stride, burst, step;
    uint logits_first, logits_stride, adjusted_first, adjusted_stride, order_first, order_stride;
} p;

// What the step has of IO, and the same with what workgroups write to it now.
layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 0) coherent buffer IoNow { uint io_now[]; };
layout(binding = 1) buffer Host { uint host[]; };
layout(binding = 2) buffer Counts { uint counts[]; };
layout(binding = 3) readonly buffer Logits { float logits[]; };
layout(binding = 4) readonly buffer Adjusted { float adjusted[]; };
layout(binding = 5) coherent buffer Order { uvec2 list[]; };
layout(binding = 6) readonly buffer Best { uvec2 best[]; };
layout(binding = 7) coherent buffer Sums { uint sums[]; }; // as in pick_weigh.comp
layout(binding = 8) coherent buffer Counters { uint counters[]; }; // one an output, then one for all

#include "last.glsl"
#define NO_STAGE
#include "stage.glsl"
#include "pick_end.glsl"

#define BINS 1024
#define MAX_BY_RANK 512 // candidates

shared uvec2 keys[THREADS];
shared uint low[BINS], high[BINS];
shared uint n_listed, hit_bin;
shared uvec2 hit_before;

#include "pick_weights.glsl"

bool is_top_k;

// Loops over logits have AHEAD of them in flight; what is beyond the end is NaN.
#define AHEAD 8
#define EACH_LOGIT(begin, end, i, x, body)                                                         \
    for (uint base = (begin); base < (end); base += AHEAD * THREADS) {                             \
        float ahead[AHEAD];                                                                        \
        [[unroll]] for (uint k = 0; k < AHEAD; k++) {                                              \
            uint i = base + k * THREADS + t;                                                       \
            ahead[k] = i < (end) ? logit_at(i) : uintBitsToFloat(0x7fc00000u);                     \
        }                                                                                          \
        [[unroll]] for (uint k = 0; k < AHEAD; k++) {                                              \
            uint i = base + k * THREADS + t;                                                       \
            float x = ahead[k];                                                                    \
            body                                                                                   \
        }                                                                                          \
    }

// ---- reductions and histograms ----------------------------------------------------------------

REDUCE(largest, max64)
REDUCE(smallest, min64)
REDUCE(sum_of, add64)

#include "pick_weigh.glsl"

// Of a chunk; after the last: how many are listed.
uvec2 sum_at(uint chunk) {
    uint at = (o * (CHUNKS + 1) + chunk) * 2;
    return uvec2(sums[at], sums[at + 1]);
}

void clear_bins() {
    barrier();
    for (uint i = t; i < BINS; i += THREADS) {
        low[i] = 0;
        high[i] = 0;
    }
    barrier();
}

void add_to_bin(uint bin, uvec2 weight) {
    uint upper = weight.y;
    if (weight.x != 0 && atomicAdd(low[bin], weight.x) > ~weight.x)
        upper++;
    if (upper != 0)
        atomicAdd(high[bin], upper);
}

uvec2 bin_at(uint bin) {
    return uvec2(low[bin], high[bin]);
}

uvec2 total_of_bins() {
    uvec2 sum = uvec2(0);
    barrier();
    for (uint i = t; i < BINS; i += THREADS)
        sum = add64(sum, bin_at(i));
    return sum_of(sum);
}

// The first bin at which the running sum reaches the target, from 1 to the sum of all; hit_before
// is the sum of those before it.
void find_bin(uvec2 target) {
    uint each = BINS / THREADS;
    uvec2 own = uvec2(0);
    barrier();
    for (uint i = 0; i < each; i++)
        own = add64(own, bin_at(t * each + i));
    keys[t] = own;
    if (t == 0) {
        hit_bin = 0;
        hit_before = uvec2(0);
    }
    barrier();
    for (uint n = 1; n < THREADS; n *= 2) {
        uvec2 other = t >= n ? keys[t - n] : uvec2(0);
        barrier();
        keys[t] = add64(keys[t], other);
        barrier();
    }
    uvec2 before = sub64(keys[t], own);
    for (uint i = 0; i < each; i++) {
        uvec2 after = add64(before, bin_at(t * each + i));
        if (less64(before, target) && !less64(after, target)) {
            hit_bin = t * each + i;
            hit_before = before;
        }
        before = after;
    }
    barrier();
}

// ---- bins of all logits ------------------------------------------------------------------------

// The distance from the maximum in 32nds of a power of e: a larger logit is never in a later bin.
uint bin_of(float x) {
    precise float distance = shift - x * scale;
    return distance >= 31.0 ? BINS - 1 : uint(max(distance, 0.0) * 32.0);
}

// ---- the draw ---------------------------------------------------------------------------------

// 53 random bits, above zeros: a function of seed and position alone (splitmix64).
uvec2 random_bits() {
    uvec2 position = add64(uvec2(io_row_position(output_words[0]), 0), uvec2(1, 0));
    uvec2 z = add64(uvec2(output_words[12], output_words[13]),
                    mul64(uvec2(0x7F4A7C15u, 0x9E3779B9u), position));
    z = mul64(z ^ shift_right64(z, 30), uvec2(0x1CE4E5B9u, 0xBF58476Du));
    z = mul64(z ^ shift_right64(z, 27), uvec2(0x133111EBu, 0x94D049BBu));
    z = z ^ shift_right64(z, 31);
    return uvec2(z.x & 0xfffff800u, z.y);
}

// What the running sum of weights has to reach, from 1 to `whole`.
uvec2 draw_target(uvec2 whole) {
    bool has_rest;
    return min64(add64(mul_high64(random_bits(), whole, has_rest), uvec2(1, 0)), whole);
}

// What it has to reach for top-p, of all tokens' weight.
uvec2 top_p_target(uvec2 total) {
    float top_p = output_float(IO_TOP_P);
    bool has_rest;
    if (!(top_p > 0))
        return uvec2(1, 0);
    uint bits = floatBitsToUint(top_p), down = 126 - (bits >> 23);
    uvec2 part = shift_right64(uvec2(0, (bits & 0x7fffffu | 0x800000u) << 8), down);
    uvec2 target = mul_high64(part, total, has_rest);
    return max64(add64(target, uvec2(has_rest ? 1 : 0, 0)), uvec2(1, 0));
}

void put_token(int token) {
    io_now[p.io_outputs + 16 * o + 14] = uint(token);
    host[p.io_outputs + 16 * o + 14] = uint(token);
}

void set_token(int token) {
    if (t == 0)
        put_token(token);
}

// From all tokens: which chunk has the target, then which of its runs, until a run is a token.
void draw_uncut() {
    uint run = CHUNK, begin = 0, end = n_vocab;
    clear_bins();
    if (t < CHUNKS) {
        low[t] = sum_at(t).x;
        high[t] = sum_at(t).y;
    }
    uvec2 target = draw_target(total_of_bins());
    for (;;) {
        find_bin(target);
        target = sub64(target, hit_before);
        begin += hit_bin * run;
        end = min(begin + run, end);
        if (run == 1)
            break;
        run = (run + BINS - 1) / BINS;
        clear_bins();
        EACH_LOGIT(begin, end, i, x, if (i < end) add_to_bin((i - begin) / run, weight_of(x));)
    }
    set_token(int(begin));
}

// ---- candidates -------------------------------------------------------------------------------

uint list_at;

uvec2 weight_from(uvec2 cut) {
    uvec2 sum = uvec2(0);
    for (uint i = t; i < n_listed; i += THREADS)
        if (!less64(list[list_at + i], cut))
            sum = add64(sum, weight_of(logit_of(list[list_at + i])));
    return sum_of(sum);
}

// The lowest key that passes min-p.
uvec2 min_p_cut() {
    uvec2 lowest = uvec2(0xffffffffu);
    for (uint i = t; i < n_listed; i += THREADS)
        if (relative_prob(logit_of(list[list_at + i])) >= min(output_float(IO_MIN_P), 1.0))
            lowest = min64(lowest, list[list_at + i]);
    return smallest(lowest);
}

// The key at which the running weight (or count), from the largest key down, reaches the target.
// Each pass makes a histogram of the keys from `bottom` to `top`, ten bits at a time, and goes on
// with the bin that reaches the target.
uvec2 radix_select(bool is_count, uvec2 target) {
    uvec2 bottom = uvec2(0), top = uvec2(0xffffffffu);
    for (;;) {
        uvec2 least = top, most = bottom;
        for (uint i = t; i < n_listed; i += THREADS) {
            uvec2 key = list[list_at + i];
            if (!less64(key, bottom) && !less64(top, key)) {
                least = min64(least, key);
                most = max64(most, key);
            }
        }
        bottom = smallest(least);
        top = largest(most);
        if (!less64(bottom, top))
            return top;
        uvec2 span = sub64(top, bottom);
        int bits = span.y != 0 ? 33 + findMSB(span.y) : 1 + findMSB(span.x);
        uint down = uint(max(bits - 10, 0));
        clear_bins();
        for (uint i = t; i < n_listed; i += THREADS) {
            uvec2 key = list[list_at + i];
            if (!less64(key, bottom) && !less64(top, key))
                add_to_bin(shift_right64(sub64(top, key), down).x,
                           is_count ? uvec2(1, 0) : weight_of(logit_of(key)));
        }
        find_bin(target);
        target = sub64(target, hit_before);
        top = sub64(top, shift_left64(uvec2(hit_bin, 0), down));
        uvec2 width = sub64(shift_left64(uvec2(1, 0), down), uvec2(1, 0));
        bottom = less64(width, sub64(top, bottom)) ? sub64(top, width) : bottom;
    }
}

// The last bin that can hold a token which passes.
uint last_bin(uvec2 total) {
    if (is_top_k) {
        find_bin(min64(uvec2(output_words[IO_TOP_K], 0), total));
        return hit_bin;
    }
    uint last = BINS - 1;
    float min_p = output_float(IO_MIN_P);
    if (min_p > 0) // one more, for rounding
        last = min(last, uint(-log(min(min_p, 1.0)) * 32.0) + 1);
    if (output_float(IO_TOP_P) < 1) {
        find_bin(top_p_target(total));
        last = min(last, hit_bin);
    }
    return last;
}

// Lists anew all that may pass.
void list_all(uvec2 total) {
    clear_bins();
    EACH_LOGIT(0, n_vocab, i, x, if (!is_nan(x))
                   add_to_bin(bin_of(x), is_top_k ? uvec2(1, 0) : weight_of(x));)
    uint last = last_bin(is_top_k ? total_of_bins() : total);
    float least = is_finite(shift) || shift > 0 ? -3.4028234e38 : uintBitsToFloat(0xff800000u);
    barrier();
    if (t == 0)
        n_listed = 0;
    barrier();
    EACH_LOGIT(0, n_vocab, i, x, if (!is_nan(x) && x >= least && bin_of(x) <= last)
                   list[list_at + atomicAdd(n_listed, 1)] = key_of(x, i);)
    memoryBarrierBuffer();
    barrier();
}

// By radix select. total: the weight of all tokens.
void draw_long(uvec2 total) {
    uvec2 cut = uvec2(0);
    if (is_top_k)
        cut = radix_select(true, uvec2(min(output_words[IO_TOP_K], n_listed), 0));
    uvec2 listed = weight_from(cut);
    total = is_top_k ? listed : total;
    if (output_float(IO_TOP_P) < 1) {
        uvec2 target = top_p_target(total);
        if (!less64(listed, target)) // else min-p cut before
            cut = max64(cut, radix_select(false, target));
    }
    if (output_float(IO_MIN_P) > 0)
        cut = max64(cut, min_p_cut());
    set_token(token_of(radix_select(false, draw_target(weight_from(cut)))));
}

// A thread has a key, its rank, and the running weight from the largest key down to its own.
void draw_short(uvec2 total) {
    uvec2 key = uvec2(0), own = uvec2(0), running = uvec2(0);
    uint rank = 0;
    bool is_in = t < n_listed;
    barrier();
    if (is_in) {
        key = list[list_at + t];
        own = weight_of(logit_of(key));
        keys[t] = key;
        low[t] = own.x;
        high[t] = own.y;
    }
    barrier();
    for (uint i = 0; is_in && i < n_listed; i++)
        if (!less64(keys[i], key)) {
            rank++;
            running = add64(running, bin_at(i));
        }
    if (is_top_k) {
        is_in = is_in && rank <= output_words[IO_TOP_K];
        total = largest(is_in ? running : uvec2(0));
    }
    if (output_float(IO_TOP_P) < 1)
        is_in = is_in && less64(sub64(running, own), top_p_target(total));
    if (output_float(IO_MIN_P) > 0)
        is_in = is_in && relative_prob(logit_of(key)) >= min(output_float(IO_MIN_P), 1.0);
    uvec2 target = draw_target(largest(is_in ? running : uvec2(0)));
    if (is_in && less64(sub64(running, own), target) && !less64(running, target))
        put_token(token_of(key));
}

void draw_cut() {
    uvec2 total = uvec2(0);
    if (t < CHUNKS)
        total = sum_at(t);
    total = sum_of(total);
    barrier();
    if (t == 0)
        n_listed = sum_at(CHUNKS).x;
    barrier();
    bool is_enough = output_float(IO_MIN_P) >= NEAR_PROB;
    if (is_top_k)
        is_enough = n_listed >= output_words[IO_TOP_K];
    else if (!is_enough && output_float(IO_TOP_P) < 1)
        is_enough = !less64(weight_from(uvec2(0)), top_p_target(total));
    if (!is_enough)
        list_all(total);
    if (n_listed <= min(THREADS, MAX_BY_RANK))
        draw_short(total);
    else
        draw_long(total);
}

void pick_token() {
    if (counters[STAGE_FAILED] != 0) {
        set_token(IO_STAGE_FAILED);
        return;
    }
    uvec2 key = uvec2(0);
    for (uint i = t; i < CHUNKS; i += THREADS)
        key = max64(key, best[o * CHUNKS + i]);
    key = largest(key);
    if (find_scale(key)) {
        is_top_k = output_words[IO_TOP_K] > 0 && output_words[IO_TOP_K] < n_vocab;
        if (is_cut())
            draw_cut();
        else
            draw_uncut();
    } else if ((flags & IO_WANTS_TOKEN) != 0 || token_of(key) == IO_NOT_FINITE) {
        set_token(token_of(key));
    }
}

// Whether this workgroup picks for output o, when its chunk is weighed.
bool is_picking() {
    if (o >= io_n_outputs())
        return false;
    find_output();
    if (IS_LAST != 0)
        weigh(gl_WorkGroupID.y, CHUNKS);
    return IS_LAST == 0 || is_last(t, o, CHUNKS);
}

// Whether it ends the step: a step without outputs has an end, too.
bool is_ending(bool picks) {
    if (IS_LAST == 0 || io_n_outputs() == 0)
        return o == 0 && gl_WorkGroupID.y == 0;
    return picks && (gl_NumWorkGroups.x == 1 || is_last(t, gl_NumWorkGroups.x, io_n_outputs()));
}

void main() {
    o = gl_WorkGroupID.x;
    t = gl_LocalInvocationIndex;
    bool picks = is_picking();
    if (picks) {
        list_at = p.order_first + o * p.order_stride;
        pick_token();
    }
    group_barrier();
    if (IS_END != 0 && is_ending(picks))
        end_step(t, THREADS);
}
