// row.glsl - the activation row of a product of one row, prepared by every workgroup for itself: its
// first 4 T values are loaded before the weights, with norms and gates, and stay in registers. The
// bits are those of prologue.glsl.
//
// Thread t of T has values 4 t ... 4 t + 3 of every 4 T: a round.
#ifndef ROW_GLSL
#define ROW_GLSL

struct Four {
    vec4 x, norm, gate;
};

uint row_thread; // numbered by subgroups
Four first_four;

// a / b of numbers below 2^14, in few instructions.
uint quotient(uint a, uint b) {
    return uint((float(a) + 0.5) / float(b));
}

// Without branches on what the op is, for which loops would be copied: what there is not is read at
// one place, and has no effect. Rows without heads have one of p.k values.
void load_four(uint i, out Four f) {
    uint at = min(i, p.k - 1), h = quotient(at, p.head_width), in_head = at - h * p.head_width;
    uint has_norm = HAS_NORM ? 1 : 0, has_gate = HAS_GATE ? 1 : 0;
    if (HAS_VECTORS != 0) {
        f.x = x4[(row_at + at) / 4];
        f.norm = norm4[(p.norm_first + in_head) / 4 * has_norm];
        f.gate = gate4[(gate_at + h * p.gate_stride + in_head) / 4 * has_gate];
    } else {
        for (uint b = 0; b < 4; b++) {
            at = min(i + b, p.k - 1);
            h = quotient(at, p.head_width);
            in_head = at - h * p.head_width;
            f.x[b] = i + b < p.k ? x[row_at + at] : 0;
            f.norm[b] = norm[(p.norm_first + in_head) * has_norm];
            f.gate[b] = gate[(gate_at + h * p.gate_stride + in_head) * has_gate];
        }
    }
    f.x = i < p.k ? f.x : vec4(0);
}

void load_row() {
    row_thread = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    row_at = p.in_first;
    gate_at = p.gate_first;
    load_four(4 * row_thread, first_four);
}

// Of a thread's values in all rounds. In this and other loops a barrier of the subgroup keeps drivers
// from unrolling them.
shared float row_squares[ROW_VECTORS];
void share_squares() {
    Four f = first_four;
    for (uint j = 0; j < p.k; j += 4 * T) {
        uint i = j + 4 * row_thread;
        subgroupBarrier();
        if (i < p.k)
            row_squares[i / 4] = square(f.x);
        load_four(i + 4 * T, f);
    }
    barrier();
}

// norm_of_row.
void row_norm_factor() {
    precise float sum = 0;
    share_squares();
    if (row_thread < NORM_THREADS) {
        for (uint j = 0; j < (p.k + 3) / 4; j += NORM_THREADS) {
            subgroupBarrier();
            sum = sum + (j + row_thread < (p.k + 3) / 4 ? row_squares[j + row_thread] : 0);
        }
        norm_partial[row_thread] = sum;
    }
    barrier();
    if (row_thread < NORM_THREADS / 16) {
        sum = 0;
        [[unroll]] for (uint i = 0; i < 16; i++)
            sum = sum + norm_partial[16 * row_thread + i];
        factors[1 + row_thread] = sum;
    }
    barrier();
    if (row_thread == 0) {
        sum = 0;
        [[unroll]] for (uint i = 0; i < NORM_THREADS / 16; i++)
            sum = sum + factors[1 + i];
        factors[0] = norm_factor(sum, p.k);
    }
}

// norms_of_heads of heads of 32 values or more.
void row_norms_of_heads() {
    uint lane = row_thread % 8, heads = p.k / p.head_width, n = p.head_width / 4;
    share_squares();
    for (uint j = 0; j < heads; j += T / 8) {
        uint h = min(j + row_thread / 8, heads - 1);
        precise float sum = 0;
        for (uint i = 0; i < n; i += 8) {
            subgroupBarrier();
            sum = sum + (i + lane < n ? row_squares[h * n + i + lane] : 0);
        }
        barrier(); // threads after the last head have its sums, too
        row_squares[h * n + lane] = sum;
    }
    barrier();
    for (uint j = 0; j < heads; j += T) {
        uint h = min(j + row_thread, heads - 1);
        subgroupBarrier();
        precise float sum = row_squares[h * n];
        [[unroll]] for (uint i = 1; i < 8; i++)
            sum = sum + row_squares[h * n + i];
        factors[h] = norm_factor(sum, p.head_width);
    }
    barrier();
}

#ifdef F32
// As f32.
shared vec4 row_x[ROW_VECTORS];
void share_four(uint i, vec4 v) {
    if (i / 4 < ROW_VECTORS)
        row_x[i / 4] = v;
}
#else
// As int8, in units.
uvec2 place_of(uint g) {
    if (has_integers() && is_q6_k())
        return uvec2(g / 4 * 2 + (g & 1), g >> 1 & 1);
    return uvec2(g / 2, g & 1);
}

const bool SHUFFLES = SUBGROUP >= GROUP / 4; // a group's threads are in one subgroup
shared uint most[SHUFFLES ? 1 : T / 8]; // largest magnitudes of a round's groups, as bits
shared int sums[SHUFFLES ? 1 : T / 4];  // of 16 quants

uint largest_of_group(uint largest) {
    if (SHUFFLES) {
        [[unroll]] for (uint n = 1; n < GROUP / 4; n *= 2)
            largest = max(largest, subgroupShuffleXor(largest, n));
        return largest;
    }
    uint group = 4 * row_thread / GROUP;
    barrier(); // the round before
    if (row_thread < T / 8)
        most[row_thread] = 0;
    if (row_thread < T / 4)
        sums[row_thread] = 0;
    barrier();
    atomicMax(most[group], largest);
    barrier();
    return most[group];
}

// Of this thread's 16 quants, and of the 16 beside them.
ivec2 sums_of_runs(int sum) {
    if (SHUFFLES) {
        sum += subgroupShuffleXor(sum, 1);
        sum += subgroupShuffleXor(sum, 2);
        return ivec2(sum, subgroupShuffleXor(sum, 4));
    }
    uint run = row_thread / 4;
    atomicAdd(sums[run], sum);
    barrier();
    return ivec2(sums[run], sums[run ^ 1]);
}

void share_four(uint i, vec4 v) {
    float scale = act_scale(largest_of_group(magnitude(v)));
    int sum;
    uint q = quants(v, scale, sum), word = i / 4 % 8;
    ivec2 both = sums_of_runs(sum);
    uvec2 at = place_of(i / 32);
    if (i >= p.k)
        return;
    tile_x[at.x * 5 + at.y * 2 + word / 4][word % 4] = q;
    if (word != 0)
        return;
    tile_x[at.x * 5 + 4][2 * at.y] = floatBitsToUint(scale);
    tile_x[at.x * 5 + 4][2 * at.y + 1] = (uint(both.x) & 0xffff) | uint(both.y) << 16;
    if (i + 32 == p.k && i % 64 == 0) // the last unit has one group
        tile_x[at.x * 5 + 4].zw = uvec2(0);
}
#endif

// `changed`, with factors of 1 for what the prologue has not.
float changed_any(float before, float weight, float factor, float g) {
    precise float v = before * factor;
    v = v * (HAS_NORM ? weight : 1);
    v = v * (PROLOGUE == PROLOGUE_GATED_NORM ? g : 1);
    precise float divisor = 1 + exp(-g);
    v = v / (HAS_GATE ? divisor : 1);
    return v;
}

// The row after its prologue, to shared memory.
void share_row() {
    if (row_thread == 0)
        factors[0] = 1;
    if (PROLOGUE == PROLOGUE_NORM)
        row_norm_factor();
    if (PROLOGUE == PROLOGUE_GATED_NORM) {
        if (HAS_VECTORS != 0 && p.head_width >= 32)
            row_norms_of_heads();
        else
            norms_of_heads(0, p.k / p.head_width);
    }
    barrier();
    Four f = first_four;
    uint has_heads = PROLOGUE == PROLOGUE_GATED_NORM ? 1 : 0;
    [[dont_unroll]] for (uint j = 0; j < p.k; j += 4 * T) {
        uint i = j + 4 * row_thread;
        Four next;
        load_four(i + 4 * T, next); // comes while this one is quantized
        vec4 v;
        [[unroll]] for (uint b = 0; b < 4; b++)
            v[b] = changed_any(f.x[b], f.norm[b],
                               factors[quotient(min(i + (HAS_VECTORS != 0 ? 0 : b), p.k - 1),
                                                p.head_width) * has_heads],
                               f.gate[b]);
        share_four(i, v);
        f = next;
    }
    barrier();
}

#endif
