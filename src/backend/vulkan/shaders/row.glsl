// row.glsl - the activation row of a product of one row, prepared by every workgroup for itself, in
// one pass and with one barrier: norm or gate, then int8 in shared memory (-DF32: f32). The norm's
// first weights are loaded before the wait for what writes the row (stage.glsl). The bits are those of
// quantize.comp.
//
// Thread t of T has values 4 t ... 4 t + 3 of every 4 T.
#ifndef ROW_GLSL
#define ROW_GLSL

#ifndef K_VALUES // a pipeline does not know it
#define K_VALUES p.k
#define ROW_IS_EVEN false // it is a multiple of 4 T
#define LOADS_TWO false   // 8 T values are loaded before they are needed
#define HEAD_OF(i) quotient(i, p.head_width)
#define IN_HEAD(i, h) ((i) - (h)*p.head_width)
#define HAS_VALUES(i) true // or threads after its end, a whole subgroup of them, have nothing to do
#endif

struct Four {
    vec4 x, norm, gate;
};

Four first_four, second_four;
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
        uint at = ROW_IS_EVEN ? i + b : min(i + b, K_VALUES - 1);
        uint in_head = HAS_GATE ? IN_HEAD(at, HEAD_OF(at)) : at;
        if (HAS_VECTORS != 0)
            f.norm = norm4[(p.norm_first + in_head) / 4];
        else
            f.norm[b] = norm[p.norm_first + in_head];
    }
}

// Values i ... i + 3, with gates; those after the row's end are 0.
void load_values(uint i, inout Four f) {
    for (uint b = 0; b < 4; b += HAS_VECTORS != 0 ? 4 : 1) {
        uint at = ROW_IS_EVEN ? i + b : min(i + b, K_VALUES - 1);
        uint h = HAS_GATE ? HEAD_OF(at) : 0;
        uint from = gate_at + h * p.gate_stride + (HAS_GATE ? IN_HEAD(at, h) : at);
        if (HAS_VECTORS != 0) {
            f.x = x4[(row_at + at) / 4];
            if (HAS_GATE)
                f.gate = gate4[from / 4];
        } else {
            f.x[b] = i + b < K_VALUES ? x[row_at + at] : 0;
            if (HAS_GATE)
                f.gate[b] = gate[from];
        }
    }
    f.x = ROW_IS_EVEN || i < K_VALUES ? f.x : vec4(0);
}

void load_four(uint i, out Four f) {
    load_norm(i, f);
    load_values(i, f);
}

// Of the values that load_row loads, before what writes them is done. Without a condition drivers
// load them where they are used.
void load_row_norms() {
    if (4 * thread() < K_VALUES)
        load_norm(4 * thread(), first_four);
    if (LOADS_TWO && 4 * (T + thread()) < K_VALUES)
        load_norm(4 * (T + thread()), second_four);
}

void load_row() {
    row_at = p.in_first;
    gate_at = p.gate_first;
    load_values(4 * thread(), first_four);
    if (LOADS_TWO)
        load_values(4 * (T + thread()), second_four);
}

#ifdef F32
shared vec4 row_x[ROW_VECTORS]; // without row_factor

void share_four(uint i, vec4 v) {
    if (i / 4 < ROW_VECTORS)
        row_x[ROW_PLACE(i / 4)] = i < K_VALUES ? v : vec4(0);
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
    if (!ROW_IS_EVEN && i >= K_VALUES)
        return;
    tile_x[at.x * 5 + at.y * 2 + word / 4][word % 4] = q;
    if (word != 0)
        return;
    tile_x[at.x * 5 + 4][2 * at.y] = floatBitsToUint(scale);
    tile_x[at.x * 5 + 4][2 * at.y + 1] = halves;
    if (i + 32 == K_VALUES && i % 64 == 0) // the last unit has one group
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
        else if (i % RUN == 0 && (ROW_IS_EVEN || i < K_VALUES))
            run_squares[i / RUN / 4][i / RUN % 4] = squares;
    }
    vec4 v;
    [[unroll]] for (uint b = 0; b < 4; b++)
        v[b] = changed(f.x[b], f.norm[b], factor, f.gate[b]);
    share_four(i, v);
}

// After all values of this thread: waits for those of all others.
void end_row() {
    if (PROLOGUE == PROLOGUE_NORM)
        end_runs(K_VALUES);
    barrier();
    row_factor = PROLOGUE == PROLOGUE_NORM ? norm_factor(sum_of_runs(K_VALUES), K_VALUES) : 1;
}

// The row after its prologue, to shared memory.
void share_row() {
    Four f = first_four, next = second_four;
    for (uint j = 0; j < K_VALUES; j += 4 * T) {
        uint i = j + 4 * thread();
        if (!LOADS_TWO && j + 4 * T < K_VALUES)
            load_four(i + 4 * T, next); // comes while this one is quantized
        KEEP_LOOP((K_VALUES + 4 * T - 1) / (4 * T));
        if (HAS_VALUES(i))
            share_values(i, f);
        f = next;
        if (LOADS_TWO && j + 8 * T < K_VALUES)
            load_four(i + 8 * T, next);
    }
    end_row();
}

#endif
