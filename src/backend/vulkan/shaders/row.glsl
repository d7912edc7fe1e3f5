// row.glsl - the activation row of a product of one row, prepared by every workgroup for itself, in
// one pass and with one barrier: norm or gate, then int8 in shared memory (-DF32: f32).
// Its first 4 T values are loaded before the weights. The bits are those of quantize.comp.
//
// Thread t of T has values 4 t ... 4 t + 3 of every 4 T.
#ifndef ROW_GLSL
#define ROW_GLSL

struct Four {
    vec4 x, norm, gate;
};

Four first_four;
float row_factor; // of PROLOGUE_NORM, which scales have to be multiplied with

// a / b of numbers below 2^14, in few instructions.
uint quotient(uint a, uint b) {
    return uint((float(a) + 0.5) / float(b));
}

// Values i ... i + 3 of the norm.
void load_norm(uint i, inout Four f) {
    if (!HAS_NORM)
        return;
    for (uint b = 0; b < 4; b += HAS_VECTORS != 0 ? 4 : 1) {
        uint at = min(i + b, p.k - 1);
        uint in_head = HAS_GATE ? at - quotient(at, p.head_width) * p.head_width : at;
        if (HAS_VECTORS != 0)
            f.norm = norm4[(p.norm_first + in_head) / 4];
        else
            f.norm[b] = norm[p.norm_first + in_head];
    }
}

// Values i ... i + 3, with gates; those after the row's end are 0.
void load_values(uint i, inout Four f) {
    for (uint b = 0; b < 4; b += HAS_VECTORS != 0 ? 4 : 1) {
        uint at = min(i + b, p.k - 1), h = HAS_GATE ? quotient(at, p.head_width) : 0;
        uint from = gate_at + h * p.gate_stride + at - h * p.head_width;
        if (HAS_VECTORS != 0) {
            f.x = x4[(row_at + at) / 4];
            if (HAS_GATE)
                f.gate = gate4[from / 4];
        } else {
            f.x[b] = i + b < p.k ? x[row_at + at] : 0;
            if (HAS_GATE)
                f.gate[b] = gate[from];
        }
    }
    f.x = i < p.k ? f.x : vec4(0);
}

void load_four(uint i, out Four f) {
    load_norm(i, f);
    load_values(i, f);
}

void load_row() {
    row_at = p.in_first;
    gate_at = p.gate_first;
    load_four(4 * thread(), first_four);
}

#ifdef F32
shared vec4 row_x[ROW_VECTORS]; // without row_factor

void share_four(uint i, vec4 v) {
    if (i / 4 < ROW_VECTORS)
        row_x[ROW_PLACE(i / 4)] = i < p.k ? v : vec4(0);
}
#else
// Where group g is in shared memory: its unit, and which one of it.
uvec2 place_of(uint g) {
    if (has_integers() && is_q6_k())
        return uvec2(g / 4 * 2 + (g & 1), g >> 1 & 1);
    return uvec2(g / 2, g & 1);
}

void share_four(uint i, vec4 v) {
    float scale;
    uint halves, q = quantized(v, GROUP, scale, halves), word = i / 4 % 8;
    uvec2 at = place_of(i / 32);
    if (i >= p.k)
        return;
    tile_x[at.x * 5 + at.y * 2 + word / 4][word % 4] = q;
    if (word != 0)
        return;
    tile_x[at.x * 5 + 4][2 * at.y] = floatBitsToUint(scale);
    tile_x[at.x * 5 + 4][2 * at.y + 1] = halves;
    if (i + 32 == p.k && i % 64 == 0) // the last unit has one group
        tile_x[at.x * 5 + 4].zw = uvec2(0);
}
#endif

// Values i ... i + 3, which are f.
void share_values(uint i, Four f) {
    float factor = 1;
    if (HAS_NORM) {
        float squares = run_sum(square(f.x));
        if (PROLOGUE == PROLOGUE_GATED_NORM)
            factor = norm_factor(squares, RUN);
        else if (i % RUN == 0 && i < p.k)
            run_squares[i / RUN / 4][i / RUN % 4] = squares;
    }
    vec4 v;
    [[unroll]] for (uint b = 0; b < 4; b++)
        v[b] = changed(f.x[b], f.norm[b], factor, f.gate[b]);
    share_four(i, v);
}

// All values are shared, or are on their way.
void end_row() {
    if (PROLOGUE == PROLOGUE_NORM)
        end_runs(p.k);
    barrier();
    row_factor = PROLOGUE == PROLOGUE_NORM ? norm_factor(sum_of_runs(p.k), p.k) : 1;
}

// The row after its prologue, to shared memory. A barrier of the subgroup keeps drivers from
// unrolling the loop.
void share_row() {
    Four f = first_four;
    for (uint j = 0; j < p.k; j += 4 * T) {
        uint i = j + 4 * thread();
        Four next;
        load_four(i + 4 * T, next); // comes while this one is quantized
        subgroupBarrier();
        share_values(i, f);
        f = next;
    }
    end_row();
}

#endif
