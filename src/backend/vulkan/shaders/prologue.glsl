// prologue.glsl - an activation row before it is multiplied: norm or gate, then int8. For
// quantize.comp, and for products of one row, which do it themselves: both give the same bits.
//
// The shader declares x, norm, gate, the same as x4, norm4 and gate4, which are read where
// HAS_VECTORS says that all begin at multiples of four values; PROLOGUE, p.norm_first, p.head_width, p.gate_stride, p.eps and
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

float square(vec4 v) {
    precise float sum = 0;
    for (uint b = 0; b < 4; b++)
        sum = fma(v[b], v[b], sum);
    return sum;
}

// Each lane adds up four values in a row, every 4 lanes.
float squares(uint first, uint n, uint lane, uint lanes) {
    precise float sum = 0;
    for (uint i = 4 * lane; i < n; i += 4 * lanes) {
        vec4 v;
        if (HAS_VECTORS != 0) {
            v = x4[(first + i) / 4];
        } else {
            for (uint b = 0; b < 4; b++)
                v[b] = i + b < n ? x[first + i + b] : 0;
        }
        sum = sum + square(v);
    }
    return sum;
}

float norm_factor(float sum, uint n) {
    precise float mean = sum / float(n);
    mean = mean + p.eps;
    precise float factor = 1 / sqrt(mean);
    return factor;
}

// Sums of NORM_THREADS, then of 16 of them, then of those.
void norm_of_row(uint k) {
    uint tid = gl_LocalInvocationID.x;
    if (tid < NORM_THREADS)
        norm_partial[tid] = squares(row_at, k, tid, NORM_THREADS);
    barrier();
    precise float sum = 0;
    if (tid < NORM_THREADS / 16) {
        for (uint i = 0; i < 16; i++)
            sum = sum + norm_partial[16 * tid + i];
        factors[tid] = sum;
    }
    barrier();
    sum = 0;
    for (uint i = 0; i < NORM_THREADS / 16; i++)
        sum = sum + factors[i];
    barrier();
    if (tid == 0)
        factors[0] = norm_factor(sum, k);
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

float gated(float x, float g) {
    precise float factor = 1 + exp(-g);
    factor = x / factor;
    return factor;
}

float changed(float before, float weight, float factor, float g) {
    precise float v = before;
    if (PROLOGUE == PROLOGUE_NORM || PROLOGUE == PROLOGUE_GATED_NORM) {
        v = v * factor;
        v = v * weight;
    }
    if (PROLOGUE == PROLOGUE_GATED_NORM)
        v = v * g;
    if (PROLOGUE == PROLOGUE_GATED_NORM || PROLOGUE == PROLOGUE_SIGMOID_GATE)
        v = gated(v, g);
    return v;
}

#define HAS_NORM (PROLOGUE == PROLOGUE_NORM || PROLOGUE == PROLOGUE_GATED_NORM)
#define HAS_GATE (PROLOGUE == PROLOGUE_GATED_NORM || PROLOGUE == PROLOGUE_SIGMOID_GATE)

// Values i ... i + 3 of the row of k, i a multiple of four; those after its end are 0. A barrier is
// between this and the norms.
void values(uint i, uint k, uint first_head, out vec4 v) {
    if (HAS_VECTORS != 0) {
        uint h = HAS_GATE ? i / p.head_width : 0, in_head = i - h * p.head_width;
        vec4 a = x4[(row_at + i) / 4], weight = vec4(0), g = vec4(0);
        if (HAS_NORM)
            weight = norm4[(p.norm_first + in_head) / 4];
        if (HAS_GATE)
            g = gate4[(gate_at + h * p.gate_stride + in_head) / 4];
        float factor = HAS_NORM ? factors[h - first_head] : 0;
        for (uint b = 0; b < 4; b++)
            v[b] = changed(a[b], weight[b], factor, g[b]);
        return;
    }
    for (uint b = 0; b < 4; b++) {
        uint at = i + b, h = HAS_GATE ? at / p.head_width : 0, in_head = at - h * p.head_width;
        v[b] = 0;
        if (at < k)
            v[b] = changed(x[row_at + at], HAS_NORM ? norm[p.norm_first + in_head] : 0,
                           HAS_NORM ? factors[h - first_head] : 0,
                           HAS_GATE ? gate[gate_at + h * p.gate_stride + in_head] : 0);
    }
}

// ---- int8 ---------------------------------------------------------------------------------------

// As integers infinity is above all numbers and NaN above that: neither can hide.
uint magnitude(vec4 v) {
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
uint quants(vec4 v, float scale, out int sum) {
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
