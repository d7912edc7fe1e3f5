// quantize.comp - activation rows for products: the prologue, then int8, f32 or both.
//
// Workgroup (x, y) has values 4 T x ... 4 T (x + 1) - 1 of row y, four a thread; where it needs the
// norm of the whole row it reads all of it.
//   q  round(x / scale), scale = largest magnitude of GROUP values / 127 (act_quantize)
//   s  for every 32 values: scale; sums of the quants of both halves, 16 bits each
#version 450
#extension GL_GOOGLE_include_directive : require
#include "io.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint PROLOGUE = 0; // enum prologue
layout(constant_id = 2) const uint GROUP = 32;   // 32 or 128 values; 0: no int8
layout(constant_id = 3) const uint HAS_F32 = 0;
layout(constant_id = 4) const uint IS_HEAD = 0;

layout(push_constant) uniform Push {
    IO_AT;
    uint k, in_first, in_stride, norm_first, gate_first, gate_row_stride, head_width, gate_stride;
    uint f32_stride;
    float eps;
} p;
layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly buffer In { float x[]; };
layout(binding = 2) readonly buffer Norm { float norm[]; };
layout(binding = 3) readonly buffer Gate { float gate[]; };
layout(binding = 4) writeonly buffer Q { uint q[]; };
layout(binding = 5) writeonly buffer S { uvec2 s[]; };
layout(binding = 6) writeonly buffer F { float y[]; };

#define PROLOGUE_NORM 1
#define PROLOGUE_GATED_NORM 2
#define PROLOGUE_SIGMOID_GATE 3

const uint T = gl_WorkGroupSize.x;
shared float partial[T];
shared float factors[T + 2]; // of the heads that this workgroup has values of; of the row: the first
shared uint most[T / 8];     // largest magnitudes, as bits
shared int sums[T / 4];      // of 16 quants

uint row;     // of `in`
uint row_at;  // its first value
uint gate_at; // its first gate

float squares(uint first, uint n, uint lane, uint lanes) {
    precise float sum = 0;
    for (uint i = lane; i < n; i += lanes) {
        float v = x[first + i];
        sum = fma(v, v, sum);
    }
    return sum;
}

float norm_factor(float sum, uint n) {
    return 1 / sqrt(sum / float(n) + p.eps);
}

void norm_of_row() {
    uint tid = gl_LocalInvocationID.x;
    partial[tid] = squares(row_at, p.k, tid, T);
    for (uint n = T / 2; n > 0; n /= 2) {
        barrier();
        if (tid < n)
            partial[tid] += partial[tid + n];
    }
    barrier();
    if (tid == 0)
        factors[0] = norm_factor(partial[0], p.k);
}

// Eight threads a head.
void norms_of_heads(uint first_head, uint end) {
    uint tid = gl_LocalInvocationID.x, lane = tid % 8;
    for (uint h = first_head; h < end; h += T / 8) {
        uint mine = h + tid / 8;
        if (mine < end)
            partial[tid] = squares(row_at + mine * p.head_width, p.head_width, lane, 8);
        barrier();
        if (mine < end && lane == 0) {
            float sum = partial[tid];
            for (uint i = 1; i < 8; i++)
                sum += partial[tid + i];
            factors[mine - first_head] = norm_factor(sum, p.head_width);
        }
        barrier();
    }
}

float sigmoid(float v) {
    return 1 / (1 + exp(-v));
}

float value(uint i, uint first_head) {
    float v = x[row_at + i];
    if (PROLOGUE == PROLOGUE_NORM)
        return v * factors[0] * norm[p.norm_first + i];
    if (PROLOGUE == PROLOGUE_GATED_NORM || PROLOGUE == PROLOGUE_SIGMOID_GATE) {
        uint h = i / p.head_width, in_head = i - h * p.head_width;
        float g = gate[gate_at + h * p.gate_stride + in_head];
        if (PROLOGUE == PROLOGUE_SIGMOID_GATE)
            return v * sigmoid(g);
        return v * factors[h - first_head] * norm[p.norm_first + in_head] * (g * sigmoid(g));
    }
    return v;
}

void quantize(float v[4], uint i, bool is_inside) {
    uint tid = gl_LocalInvocationID.x, size = 0, word = 0;
    // As integers infinity is above all numbers and NaN above that: neither can hide.
    for (uint b = 0; b < 4; b++)
        size = max(size, floatBitsToUint(v[b]) & 0x7fffffff);
    atomicMax(most[4 * tid / max(GROUP, 1)], size);
    barrier();
    float scale = uintBitsToFloat(most[4 * tid / max(GROUP, 1)]) / 127;
    scale = scale < 1.17549435e-38 ? 0 : scale;
    bool is_usual = scale > 0 && scale <= 3.40282347e38;
    float inverse = is_usual ? 1 / scale : 0;
    int sum = 0;
    for (uint b = 0; b < 4; b++) {
        precise float rounded = v[b] * inverse;
        rounded = rounded + 12582912.0; // 1.5 * 2^23: rounds half to even
        int quant = is_usual ? bitfieldExtract(int(floatBitsToUint(rounded)), 0, 8) : 0;
        word |= (uint(quant) & 255) << 8 * b;
        sum += quant;
    }
    atomicAdd(sums[tid / 4], sum);
    barrier();
    if (!is_inside)
        return;
    q[gl_WorkGroupID.y * (p.k / 4) + i / 4] = word;
    if (i % 32 == 0) {
        uint halves = (uint(sums[tid / 4]) & 0xffff) | uint(sums[tid / 4 + 1]) << 16;
        s[gl_WorkGroupID.y * (p.k / 32) + i / 32] = uvec2(floatBitsToUint(scale), halves);
    }
}

void main() {
    uint tid = gl_LocalInvocationID.x, to = gl_WorkGroupID.y;
    if (to >= (IS_HEAD != 0 ? io_n_outputs() : io_n_rows()))
        return;
    row = IS_HEAD != 0 ? io_output_row(to) : to;
    row_at = p.in_first + row * p.in_stride;
    gate_at = p.gate_first + row * p.gate_row_stride;
    uint first = 4 * T * gl_WorkGroupID.x, i = first + 4 * tid, first_head = 0;
    if (PROLOGUE == PROLOGUE_NORM)
        norm_of_row();
    if (PROLOGUE == PROLOGUE_GATED_NORM) {
        first_head = first / p.head_width;
        norms_of_heads(first_head, (min(first + 4 * T, p.k) + p.head_width - 1) / p.head_width);
    }
    if (tid < T / 8)
        most[tid] = 0;
    if (tid < T / 4)
        sums[tid] = 0;
    barrier();
    float v[4];
    for (uint b = 0; b < 4; b++) {
        v[b] = i + b < p.k ? value(i + b, first_head) : 0;
        if (HAS_F32 != 0 && i + b < p.k)
            y[to * p.f32_stride + i + b] = v[b];
    }
    if (GROUP != 0)
        quantize(v, i, i < p.k);
}
