// prologue.glsl - an activation row before it is multiplied: norm or gate, then int8. For
// quantize.comp, and for products of one row, which do it themselves: both give the same bits.
//
// The shader declares x, norm, gate, PROLOGUE, p.norm_first, p.head_width, p.gate_stride, p.eps and
// NORM_THREADS: how many threads add up the squares of a row, a power of two.
#ifndef PROLOGUE_GLSL
#define PROLOGUE_GLSL

#define PROLOGUE_NORM 1
#define PROLOGUE_GATED_NORM 2
#define PROLOGUE_SIGMOID_GATE 3

#define MAX_HEADS 258
shared float norm_partial[NORM_THREADS];
shared float factors[MAX_HEADS]; // of heads; of the row: the first

uint row_at;  // the row's first value
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
    precise float mean = sum / float(n);
    mean = mean + p.eps;
    precise float factor = 1 / sqrt(mean);
    return factor;
}

void norm_of_row(uint k) {
    uint tid = gl_LocalInvocationID.x;
    if (tid < NORM_THREADS)
        norm_partial[tid] = squares(row_at, k, tid, NORM_THREADS);
    for (uint n = NORM_THREADS / 2; n > 0; n /= 2) {
        barrier();
        if (tid < n)
            norm_partial[tid] += norm_partial[tid + n];
    }
    barrier();
    if (tid == 0)
        factors[0] = norm_factor(norm_partial[0], k);
}

// Eight threads a head, NORM_THREADS in all.
void norms_of_heads(uint first_head, uint end) {
    uint tid = gl_LocalInvocationID.x, lane = tid % 8;
    for (uint h = first_head; h < end; h += NORM_THREADS / 8) {
        uint mine = tid < NORM_THREADS ? h + tid / 8 : end;
        if (mine < end)
            norm_partial[tid] = squares(row_at + mine * p.head_width, p.head_width, lane, 8);
        barrier();
        if (mine < end && lane == 0) {
            precise float sum = norm_partial[tid];
            for (uint i = 1; i < 8; i++)
                sum = sum + norm_partial[tid + i];
            factors[mine - first_head] = norm_factor(sum, p.head_width);
        }
        barrier();
    }
}

// Value i of the row; a barrier is between it and the norms.
float value(uint i, uint first_head) {
    precise float v = x[row_at + i];
    if (PROLOGUE == PROLOGUE_NORM) {
        v = v * factors[0];
        v = v * norm[p.norm_first + i];
    }
    if (PROLOGUE == PROLOGUE_GATED_NORM || PROLOGUE == PROLOGUE_SIGMOID_GATE) {
        uint h = i / p.head_width, in_head = i - h * p.head_width;
        float g = gate[gate_at + h * p.gate_stride + in_head];
        precise float factor = 1 + exp(-g);
        factor = 1 / factor;
        if (PROLOGUE == PROLOGUE_GATED_NORM) {
            v = v * factors[h - first_head];
            v = v * norm[p.norm_first + in_head];
            factor = g * factor;
        }
        v = v * factor;
    }
    return v;
}

// ---- int8 ---------------------------------------------------------------------------------------

// As integers infinity is above all numbers and NaN above that: neither can hide.
uint magnitude(float v[4]) {
    uint most = 0;
    for (uint b = 0; b < 4; b++)
        most = max(most, floatBitsToUint(v[b]) & 0x7fffffff);
    return most;
}

float act_scale(uint most) {
    precise float scale = uintBitsToFloat(most) / 127;
    return scale < 1.17549435e-38 ? 0 : scale;
}

// Four quants, and their sum.
uint quants(float v[4], float scale, out int sum) {
    bool is_usual = scale > 0 && scale <= 3.40282347e38;
    precise float inverse = is_usual ? 1 / scale : 0;
    uint word = 0;
    sum = 0;
    for (uint b = 0; b < 4; b++) {
        precise float rounded = v[b] * inverse;
        rounded = rounded + 12582912.0; // 1.5 * 2^23: rounds half to even
        int quant = is_usual ? bitfieldExtract(int(floatBitsToUint(rounded)), 0, 8) : 0;
        word |= (uint(quant) & 255) << 8 * b;
        sum += quant;
    }
    return word;
}

#endif
