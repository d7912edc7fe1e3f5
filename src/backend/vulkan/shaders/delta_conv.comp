#version 450
// delta_conv.comp - the convolution of plans of several rows, before delta.comp: a head of four
// rows a workgroup. The first A heads are those of q and k together, which are normed here.
//
// To y, for each row: q and k of each key head, padded to DK4 vectors each; then v. To qk: q . k.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "io.glsl"
#include "delta.glsl"

layout(binding = 4) writeonly buffer Y { float y[]; };   // (R, 2 * A * 4 * DK4 + B * DV)
layout(binding = 5) writeonly buffer Qk { float qk[]; }; // (R, A)

const uint ROWS = 4;
const uint STRIDE = 2 * A * 4 * DK4 + B * DV;

shared vec4 keys[ROWS * 2 * DK4]; // q, then k, of each row
shared float parts[ROWS * 4 * 3];
shared float factors[ROWS * 2];

void convolve_values(uint t, uint head, uint first, uint n) {
    for (uint i = t; i < n * DV; i += DELTA_THREADS) {
        uint row = first + i / DV, v = head * DV + i % DV;
        y[row * STRIDE + 2 * A * 4 * DK4 + v] = convolved(row, 2 * A * DK + v);
    }
}

void norm_keys(uint t, uint n) {
    uint row = t / 4, lane = t % 4;
    if (row < n) {
        precise vec4 q2 = vec4(0), k2 = vec4(0), both = vec4(0);
        for (uint i = 0; i < VECS; i++) {
            vec4 q = keys[row * 2 * DK4 + 4 * i + lane];
            vec4 k = keys[(row * 2 + 1) * DK4 + 4 * i + lane];
            q2 = fma(q, q, q2);
            k2 = fma(k, k, k2);
            both = fma(q, k, both);
        }
        parts[t * 3] = row_dot4(q2);
        parts[t * 3 + 1] = row_dot4(k2);
        parts[t * 3 + 2] = row_dot4(both);
    }
    barrier();
    if (row < n && lane < 2) {
        uint at = row * 12 + lane;
        precise float sum = (parts[at] + parts[at + 3]) + (parts[at + 6] + parts[at + 9]);
        factors[row * 2 + lane] = lane == 0 ? query_factor(sum) : key_factor(sum);
    }
    barrier();
}

void main() {
    uint t = gl_LocalInvocationIndex, head = gl_WorkGroupID.x, first = gl_WorkGroupID.y * ROWS;
    uint n_rows = io_n_rows(), n = first < n_rows ? min(n_rows - first, ROWS) : 0;
    if (n == 0)
        return;
    if (head >= A) {
        convolve_values(t, head - A, first, n);
        return;
    }
    for (uint i = t; i < n * 2 * 4 * DK4; i += DELTA_THREADS) {
        uint at = i % (4 * DK4), is_k = i / (4 * DK4) % 2, row = first + i / (8 * DK4);
        float value = at < DK ? convolved(row, (is_k * A + head) * DK + at) : 0;
        keys[i / 4][i % 4] = value;
    }
    barrier();
    norm_keys(t, n);
    for (uint i = t; i < n * 2 * 4 * DK4; i += DELTA_THREADS) {
        uint row = i / (8 * DK4), is_k = i / (4 * DK4) % 2;
        precise float value = keys[i / 4][i % 4] * factors[row * 2 + is_k];
        y[(first + row) * STRIDE + head * 8 * DK4 + i % (8 * DK4)] = value;
    }
    if (t < n) {
        uint at = t * 12 + 2;
        precise float sum = (parts[at] + parts[at + 3]) + (parts[at + 6] + parts[at + 9]);
        qk[(first + t) * A + head] = scaled_qk(sum, factors[t * 2], factors[t * 2 + 1]);
    }
}
