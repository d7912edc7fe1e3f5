// route.comp - the U best of a row's E logits, and their weights; the shared expert's gate. A
// workgroup a row.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "io.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint EXPERTS = 1;
layout(constant_id = 2) const uint HAS_SHARED = 0;
layout(constant_id = 3) const uint IS_UNNORMED = 0; // weights of a softmax over all experts

layout(push_constant) uniform Push {
    IO_AT;
    uint used, choice_first, choice_stride, weight_first, weight_stride;
} p;
layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly buffer Logits { float logits[]; };
layout(binding = 2) writeonly buffer Choice { uint choice[]; };
layout(binding = 3) buffer Weight { float weight[]; };
layout(binding = 4) readonly buffer Gates { float gates[]; };

const uint T = gl_WorkGroupSize.x;
shared uint keys[EXPERTS]; // ordered as the logits are; 0: taken
shared uint best_key[T], best_expert[T];
shared float sums[T], largest;

uint key_of(float x) {
    uint bits = floatBitsToUint(x);
    return max(bits ^ (bits >> 31 != 0 ? 0xffffffffu : 0x80000000u), 1);
}

// The largest key, the lower index among equals, to best_*[0].
void find_best() {
    uint tid = gl_LocalInvocationID.x, best = min(tid, EXPERTS - 1);
    for (uint e = best + T; e < EXPERTS; e += T)
        best = keys[e] > keys[best] ? e : best;
    best_key[tid] = tid < EXPERTS ? keys[best] : 0;
    best_expert[tid] = best;
    for (uint n = T / 2; n > 0; n /= 2) {
        barrier();
        if (tid >= n)
            continue;
        uint other = best_key[tid + n], mine = best_key[tid];
        if (other > mine || (other == mine && best_expert[tid + n] < best_expert[tid])) {
            best_key[tid] = other;
            best_expert[tid] = best_expert[tid + n];
        }
    }
    barrier();
}

// Of e^(logit - largest) of all experts, to sums[0].
void sum_all(uint from) {
    uint tid = gl_LocalInvocationID.x;
    float sum = 0;
    for (uint e = tid; e < EXPERTS; e += T)
        sum += exp(logits[from + e] - largest);
    sums[tid] = sum;
    for (uint n = T / 2; n > 0; n /= 2) {
        barrier();
        if (tid < n)
            sums[tid] += sums[tid + n];
    }
    barrier();
}

void main() {
    uint tid = gl_LocalInvocationID.x, row = gl_WorkGroupID.x;
    if (row >= io_n_rows())
        return;
    uint from = row * EXPERTS, to = p.choice_first + row * p.choice_stride;
    uint weights = p.weight_first + row * p.weight_stride;
    for (uint e = tid; e < EXPERTS; e += T)
        keys[e] = key_of(logits[from + e]);
    barrier();
    float first = 0, sum = 0;
    for (uint j = 0; j < p.used; j++) {
        find_best();
        uint e = best_expert[0];
        barrier();
        if (tid == 0) {
            float logit = logits[from + e];
            first = j == 0 ? logit : first;
            largest = first;
            float w = exp(logit - first);
            sum += w;
            choice[to + j] = e;
            weight[weights + j] = w;
            keys[e] = 0;
        }
        barrier();
    }
    if (IS_UNNORMED != 0)
        sum_all(from);
    if (tid != 0)
        return;
    sum = IS_UNNORMED != 0 ? sums[0] : sum;
    for (uint j = 0; j < p.used; j++)
        weight[weights + j] = weight[weights + j] / sum;
    choice[to + p.used] = EXPERTS;
    weight[weights + p.used] = HAS_SHARED != 0 ? 1 / (1 + exp(-gates[row])) : 0;
}
