#version 450
// delta_conv.comp - the convolution of segments of several rows, before delta.comp: a head of four
// rows a workgroup. The first A heads are those of q and k together, which are normed here.
//
// To y, for each row: q and k of each key head, padded to DK4 vectors each; then v. To qk: q . k.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "io.glsl"
#include "delta.glsl"

layout(binding = 4) writeonly buffer Y { float y[]; };   // (R, 2 * A * 4 * DK4 + B * DV)
layout(binding = 5) writeonly buffer Qk { float qk[]; }; // (R, A)

const uint ROWS = 4; // as many as convolved_four() has
const uint STRIDE = 2 * A * 4 * DK4 + B * DV;

shared vec4 keys[ROWS * 2 * DK4]; // q, then k, of each row
shared vec3 parts[ROWS * CHAINS]; // of q . q, k . k and q . k
shared uvec2 of_row[ROWS]; // segment and position; a segment of one row: ~0, delta.comp convolves it

float convolved_row(uint first, uint row, uint channel) {
    uvec2 at = of_row[row];
    return at.x != ~0u ? convolved(first + row, at.x, at.y, channel) : 0;
}

// Rows of one segment, ROWS of them: as in prompts.
bool are_together(uint n) {
    bool are = n == ROWS;
    for (uint i = 0; i < n; i++)
        are = are && of_row[i].x == of_row[0].x;
    return are;
}

void convolve_values(uint t, uint head, uint first, uint n) {
    uint to = first * STRIDE + 2 * A * 4 * DK4 + head * DV, from = 2 * A * DK + head * DV;
    if (are_together(n)) {
        for (uint i = t; i < DV; i += THREADS) {
            vec4 four = convolved_four(first, of_row[0].x, of_row[0].y, from + i);
            [[unroll]] for (uint r = 0; r < ROWS; r++)
                y[to + r * STRIDE + i] = four[r];
        }
        return;
    }
    for (uint i = t; i < n * DV; i += THREADS)
        y[to + i / DV * STRIDE + i % DV] = convolved_row(first, i / DV, from + i % DV);
}

void convolve_keys(uint t, uint head, uint first, uint n) {
    bool are = are_together(n);
    for (uint i = t; i < 8 * DK4; i += THREADS) {
        uint at = i % (4 * DK4), channel = (i / (4 * DK4) * A + head) * DK + at;
        vec4 four = vec4(0);
        if (at < DK && are)
            four = convolved_four(first, of_row[0].x, of_row[0].y, channel);
        else if (at < DK)
            for (uint r = 0; r < n; r++)
                four[r] = convolved_row(first, r, channel);
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            keys[r * 2 * DK4 + i / 4][i % 4] = four[r];
    }
}

// Row t / 16 has sixteen threads, a chain each, whose sums are added in shared memory.
void norm_keys(uint t, uint n) {
    uint row = t / CHAINS, chain = t % CHAINS;
    if (row < n) {
        precise vec4 q2 = vec4(0), k2 = vec4(0), both = vec4(0);
        for (uint i = 0; i < LINKS; i++) {
            vec4 q = keys[row * 2 * DK4 + CHAINS * i + chain];
            vec4 k = keys[(row * 2 + 1) * DK4 + CHAINS * i + chain];
            q2 = fma(q, q, q2);
            k2 = fma(k, k, k2);
            both = fma(q, k, both);
        }
        parts[t] = vec3(sum_of_four(q2), sum_of_four(k2), sum_of_four(both));
    }
    barrier();
    for (uint apart = CHAINS / 2; apart > 0; apart /= 2) {
        precise vec3 sum = vec3(0);
        if (row < n && chain < apart)
            sum = parts[t] + parts[t + apart];
        barrier();
        if (row < n && chain < apart)
            parts[t] = sum;
        barrier();
    }
}

void main() {
    uint t = gl_LocalInvocationIndex, head = gl_WorkGroupID.x, first = gl_WorkGroupID.y * ROWS;
    uint n_rows = io_n_rows(), n = first < n_rows ? min(n_rows - first, ROWS) : 0;
    if (n == 0)
        return;
    if (t < n) {
        uint segment = io_row_segment(first + t);
        bool is_alone = io_segment_n_rows(segment) == 1;
        of_row[t] = uvec2(is_alone ? ~0u : segment, io_row_position(first + t));
    }
    barrier();
    bool is_any = false;
    for (uint i = 0; i < n; i++)
        is_any = is_any || of_row[i].x != ~0u;
    if (!is_any)
        return;
    if (head >= A) {
        convolve_values(t, head - A, first, n);
        return;
    }
    convolve_keys(t, head, first, n);
    barrier();
    norm_keys(t, n);
    for (uint i = t; i < n * 8 * DK4; i += THREADS) {
        uint row = i / (8 * DK4);
        vec3 sums = parts[row * CHAINS];
        float factor = i / (4 * DK4) % 2 == 0 ? query_factor(sums.x) : key_factor(sums.y);
        precise float value = keys[i / 4][i % 4] * factor;
        y[(first + row) * STRIDE + head * 8 * DK4 + i % (8 * DK4)] = value;
    }
    if (t < n) {
        vec3 sums = parts[t * CHAINS];
        qk[(first + t) * A + head] = scaled_qk(sums);
    }
}
