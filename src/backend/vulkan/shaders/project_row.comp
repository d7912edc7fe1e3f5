// project_row.comp - products of one row, which every workgroup prepares for itself (row.glsl).
//
//   out[n] = epilogue(sum over k of w[n][k] x[k])
//
// A team of LANES threads has one weight row at a time; of SwiGLU every second one is a row of up.
// Units and the order of sums are those of product.glsl; a unit with f32 activations is a group of
// 32 values. The next piece, a lane's unit, is loaded while sums are added, the first one while the
// row is prepared.
//
// Up to four matrices of one type are one list of p.n rows. -DF32: with f32 activations.
//
// A step reads its instructions from memory like all else, and all of it runs between two uses of a
// pipeline. So the code is short, without copies of loops, and few pipelines serve all ops of a type.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#define ROW
#include "product.glsl"

layout(constant_id = 9) const uint GROUP = 32;        // values that share a scale
layout(constant_id = 10) const uint UNITS = 1;        // of p.k at most
layout(constant_id = 11) const uint HAS_VECTORS = 0;  // as in prologue.glsl
layout(constant_id = 12) const uint SUBGROUP = 0;     // threads of a subgroup
layout(constant_id = 13) const uint LOADS_AHEAD = 0;

#define LANES (1u << p.lane_bits)
#ifdef F32
#define UNIT 32u // values of a unit
#else
#define UNIT 64u
#endif
#define ROW_VECTORS (16 * UNITS)
#define ROW_PLACE(i) (i)
#ifdef F32
#define GRIDS 9
#include "types.glsl"
#else
#define SHARED_UNITS UNITS
#include "units.glsl"
#endif
#include "prologue.glsl"
#include "row.glsl"

float total;

// A place in the team's rows: the row n, where it begins, the first of its lanes' units.
struct Cursor {
    uint n, row, turn;
};

uint weights_of(uint n) {
    bool is_pair = EPILOGUE == SWIGLU;
    return p.weight_base[is_pair ? n & 1 : segment_of(n)] + (is_pair ? n >> 1 : n) * p.row_bytes;
}

uint units() {
    return (p.k + UNIT - 1) / UNIT;
}

bool is_inside(Cursor c) {
    return c.n < p.n && c.turn + lane < units();
}

void advance(inout Cursor c) {
    c.turn += LANES;
    if (c.turn >= units()) {
        c.turn = 0;
        c.n += gl_NumWorkGroups.x * (T >> p.lane_bits);
        c.row = weights_of(c.n);
    }
}

#ifdef F32
#define Raw uint

void load_raw(uint row, uint unit, out Raw o) {
    o = 0;
}

void multiply_piece(Raw ignored, Cursor c) {
    uint g = c.turn + lane;
    Group o;
    unpack_group(c.row, g, o);
    precise float sum = total;
    [[unroll]] for (uint k = 0; k < 32; k++) {
        precise float v = row_x[8 * g + k / 4][k % 4] * row_factor;
        sum = fma(group_value(o, k), v, sum);
    }
    total = sum;
}
#else
void multiply_piece(Raw raw, Cursor c) {
    uint unit = c.turn + lane;
    Unit o;
    unpack_unit(raw, c.row, unit, o);
    Acts a = get_acts(unit * 5);
    precise vec2 scale = a.scale * row_factor;
    a.scale = scale;
    total = add_unit(o, a, total);
}
#endif

shared vec4 partial[2 * T / 4]; // of two rounds

// All threads of a subgroup call it.
float lanes_sum(uint at) {
    precise float sum = 0;
    for (uint l = 0; l < LANES; l += 4) {
        subgroupBarrier(); // or drivers unroll the loop
        vec4 v = partial[(at + l) / 4];
        sum = sum + v.x;
        sum = sum + v.y;
        sum = sum + v.z;
        sum = sum + v.w;
    }
    return sum;
}

// A row's sum, or SwiGLU's pair of them, which neighbours have.
void add_up(uint n, uint round) {
    uint pair = EPILOGUE == SWIGLU ? 2 : 1, span = LANES * pair, t = round % 2 * T + thread();
    partial[t / 4][t % 4] = total;
    if (SUBGROUP >= span) {
        subgroupMemoryBarrierShared();
        subgroupBarrier();
    } else {
        barrier();
    }
    uint first = t & ~(span - 1);
    float a = lanes_sum(first), b = EPILOGUE == SWIGLU ? lanes_sum(first + LANES) : 0;
    if (t == first && n < p.n)
        store(n / pair, 0, a, b);
}

Cursor use, ahead; // of the piece to be multiplied, and of the next to be loaded
uint round;

void load_piece(inout Raw piece) {
    if (is_inside(ahead))
        load_raw(ahead.row, ahead.turn + lane, piece);
    advance(ahead);
}

// Multiplies the piece and loads another one. Before that, where registers are enough for all threads
// that are to run at once: the head, and workgroups of which a core has one.
void take_turn(inout Raw piece) {
    Cursor c = use;
    Raw now = piece;
    advance(use);
    if (LOADS_AHEAD != 0)
        load_piece(piece);
    if (is_inside(c))
        multiply_piece(now, c);
    if (LOADS_AHEAD == 0)
        load_piece(piece);
    if (use.turn == 0) {
        add_up(c.n, round++);
        total = 0;
    }
}

void main() {
    // The plan has one row, and so has every step; but its head may have none.
    if (IS_HEAD != 0 && io_n_outputs() == 0) {
        end_stage();
        return;
    }
    lane = thread() & (LANES - 1);
    use.turn = 0;
    use.n = gl_WorkGroupID.x * (T >> p.lane_bits) + (thread() >> p.lane_bits);
    use.row = weights_of(use.n);
    ahead = use;
    total = 0;
    round = 0;
    Raw piece;
    load_piece(piece);
    wait_for_stage();
    load_row();
    share_row();
    while (use.n - (thread() >> p.lane_bits) < p.n)
        take_turn(piece);
    end_stage();
}
