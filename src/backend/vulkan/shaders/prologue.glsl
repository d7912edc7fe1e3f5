// prologue.glsl - an activation row before it is multiplied: norm or gate, then int8. For
// quantize.comp, and for products of one row, which do it themselves: both give the same bits.
//
// The shader declares x, norm, gate, the same as x4, norm4 and gate4, which are read where
// HAS_VECTORS says that all begin at multiples of four values; PROLOGUE, p.norm_first, p.head_width,
// p.gate_stride, p.eps, T and SUBGROUP, the threads of a subgroup (0: not known).
//
// Squares of a row or a head are added in runs of 128 values, four a thread: a tree of 32 threads,
// then the runs in order.
#ifndef PROLOGUE_GLSL
#define PROLOGUE_GLSL

#ifndef KEEP_LOOP // drivers unroll loops without a barrier
#define KEEP_LOOP(iterations) subgroupBarrier()
#endif

#define PROLOGUE_NORM 1
#define PROLOGUE_GATED_NORM 2
#define PROLOGUE_SIGMOID_GATE 3
#define HAS_NORM (PROLOGUE == PROLOGUE_NORM || PROLOGUE == PROLOGUE_GATED_NORM)
#define HAS_GATE (PROLOGUE == PROLOGUE_GATED_NORM || PROLOGUE == PROLOGUE_SIGMOID_GATE)

uint row_at;  // the row's first value
uint gate_at; // its first gate

// ---- neighbours ---------------------------------------------------------------------------------

const bool SHUFFLES = SUBGROUP >= 32;
shared uint of_thread[SHUFFLES ? 1 : T];

// Numbered by subgroups, where that matters.
uint thread() {
    return SHUFFLES ? gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID
                    : gl_LocalInvocationID.x;
}

// The value of thread t ^ n, n below 32. All threads call it.
uint of_neighbour(uint v, uint n) {
    if (SHUFFLES)
        return subgroupShuffleXor(v, n);
    barrier(); // the last call's reads
    of_thread[thread()] = v;
    barrier();
    return of_thread[thread() ^ n];
}

// ---- norms --------------------------------------------------------------------------------------

#define RUN 128u
#define MAX_RUNS 1024 // ops/product.h
shared vec4 run_squares[MAX_RUNS / 4]; // sums of runs, or of heads

float square(vec4 v) {
    precise float sum = 0;
    for (uint b = 0; b < 4; b++)
        sum = fma(v[b], v[b], sum);
    return sum;
}

// Of a run's 32 threads, to all of them.
float run_sum(float v) {
    precise float sum = v;
    [[unroll]] for (uint n = 1; n < 32; n *= 2)
        sum = sum + uintBitsToFloat(of_neighbour(floatBitsToUint(sum), n));
    return sum;
}

// Zeros after the last run of k values, to a multiple of four.
void end_runs(uint k) {
    uint runs = (k + RUN - 1) / RUN, i = runs + thread();
    if (i < (runs + 3) / 4 * 4)
        run_squares[i / 4][i % 4] = 0;
}

// After a barrier.
float sum_of_runs(uint k) {
    precise float sum = 0;
    for (uint i = 0; i < (k + 4 * RUN - 1) / (4 * RUN); i++) {
        KEEP_LOOP((k + 4 * RUN - 1) / (4 * RUN));
        vec4 v = run_squares[i];
        sum = sum + v.x;
        sum = sum + v.y;
        sum = sum + v.z;
        sum = sum + v.w;
    }
    return sum;
}

float norm_factor(float sum, uint n) {
    precise float mean = sum / float(n);
    mean = mean + p.eps;
    precise float factor = 1 / sqrt(mean);
    return factor;
}

// Four values of the row's [i, end), i a multiple of four.
vec4 four_of_row(uint i, uint end) {
    vec4 v = vec4(0);
    if (HAS_VECTORS != 0) {
        if (i < end)
            v = x4[(row_at + i) / 4];
    } else {
        for (uint b = 0; b < 4; b++)
            if (i + b < end)
                v[b] = x[row_at + i + b];
    }
    return v;
}

// The factor of the whole row, to all threads.
float norm_of_row(uint k) {
    for (uint j = 0; j < k; j += 4 * T) {
        uint i = j + 4 * thread();
        float sum = run_sum(square(four_of_row(i, k)));
        if (i % RUN == 0 && i < k)
            run_squares[i / RUN / 4][i / RUN % 4] = sum;
    }
    end_runs(k);
    barrier();
    return norm_factor(sum_of_runs(k), k);
}

// Of heads [first, end), to run_squares: 32 threads have a head.
void norms_of_heads(uint first, uint end) {
    uint lane = thread() % 32;
    for (uint j = first; j < end; j += T / 32) {
        uint h = j + thread() / 32, at = h * p.head_width, last = h < end ? at + p.head_width : 0;
        precise float sum = 0;
        for (uint i = 0; i < p.head_width; i += RUN)
            sum = sum + run_sum(square(four_of_row(at + i + 4 * lane, last)));
        if (h < end && lane == 0)
            run_squares[(h - first) / 4][(h - first) % 4] = norm_factor(sum, p.head_width);
    }
    barrier();
}

float factor_of_head(uint h) {
    return run_squares[h / 4][h % 4];
}

// ---- values -------------------------------------------------------------------------------------

float gated(float x, float g) {
    precise float factor = 1 + exp(-g);
    factor = x / factor;
    return factor;
}

// A value before it is multiplied with the norm's factor of the row; factor: of its head.
float changed(float before, float weight, float factor, float g) {
    precise float v = before;
    if (PROLOGUE == PROLOGUE_GATED_NORM)
        v = v * factor;
    if (HAS_NORM)
        v = v * weight;
    if (PROLOGUE == PROLOGUE_GATED_NORM)
        v = v * g;
    if (HAS_GATE)
        v = gated(v, g);
    return v;
}

// Values i ... i + 3 of the row of k, i a multiple of four; those after its end are 0. After
// norms_of_heads, from first_head on.
void values(uint i, uint k, uint first_head, out vec4 v) {
    bool has_heads = PROLOGUE == PROLOGUE_GATED_NORM;
    if (HAS_VECTORS != 0) {
        uint h = HAS_GATE ? i / p.head_width : 0, in_head = i - h * p.head_width;
        vec4 a = x4[(row_at + i) / 4], weight = vec4(0), g = vec4(0);
        if (HAS_NORM)
            weight = norm4[(p.norm_first + in_head) / 4];
        if (HAS_GATE)
            g = gate4[(gate_at + h * p.gate_stride + in_head) / 4];
        float factor = has_heads ? factor_of_head(h - first_head) : 1;
        for (uint b = 0; b < 4; b++)
            v[b] = changed(a[b], weight[b], factor, g[b]);
        return;
    }
    for (uint b = 0; b < 4; b++) {
        uint at = i + b, h = HAS_GATE ? at / p.head_width : 0, in_head = at - h * p.head_width;
        v[b] = 0;
        if (at < k)
            v[b] = changed(x[row_at + at], HAS_NORM ? norm[p.norm_first + in_head] : 0,
                           has_heads ? factor_of_head(h - first_head) : 1,
                           HAS_GATE ? gate[gate_at + h * p.gate_stride + in_head] : 0);
    }
}

// ---- int8 ---------------------------------------------------------------------------------------

// As integers infinity is above all numbers and NaN above that: neither can hide.
uint magnitude(vec4 v) {
    uint max_bits = 0;
    for (uint b = 0; b < 4; b++)
        max_bits = max(max_bits, floatBitsToUint(v[b]) & 0x7fffffff);
    return max_bits;
}

float act_scale(uint max_bits) {
    precise float scale = uintBitsToFloat(max_bits) / 127;
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

// Four values of a thread as quants; the scale of their `group` values, which neighbours have; in the
// first thread of a group of 32 the sums of its halves' quants, 16 bits each. All threads call it.
uint quantized(vec4 v, uint group, out float scale, out uint halves) {
    uint max_bits = magnitude(v);
    [[unroll]] for (uint n = 1; n < 32; n *= 2)
        if (n < group / 4)
            max_bits = max(max_bits, of_neighbour(max_bits, n));
    scale = act_scale(max_bits);
    int sum;
    uint word = quants(v, scale, sum);
    sum += int(of_neighbour(uint(sum), 1));
    sum += int(of_neighbour(uint(sum), 2));
    halves = (uint(sum) & 0xffff) | of_neighbour(uint(sum), 4) << 16;
    return word;
}

#endif
