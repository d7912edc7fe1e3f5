// project_row.comp - products of one row, which every workgroup prepares for itself (row.glsl).
//
//   out[n] = epilogue(sum over k of w[n][k] x[k])
//
// A team of p.lanes threads has one weight row at a time; of SwiGLU every second team has a row of
// up. Units and the order of sums are those of product.glsl. A piece, the unit of a lane, is
// loaded while the one before it is multiplied.
//
// A step reads its instructions from memory like all else, and all of it runs between two uses of a
// pipeline. So the code is short, without copies of loops, and one pipeline serves all ops of a type:
// what differs between them are branches on push constants.
//
// Of weights in blocks, with int8 activations (units.glsl). -DF32: with f32 ones.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#define ROW
#include "product.glsl"

layout(constant_id = 9) const uint GROUP = 32;        // values that share a scale
layout(constant_id = 10) const uint UNITS = 1;        // p.units at most
layout(constant_id = 11) const uint HAS_VECTORS = 0;  // as in prologue.glsl
layout(constant_id = 12) const uint SUBGROUP = 0;     // threads of a subgroup

#define NORM_THREADS 256
#define ROW_VECTORS (16 * UNITS)
#ifdef F32
#define GRIDS 9
#include "types.glsl"
#else
#define SHARED_UNITS UNITS
#include "units.glsl"
#endif
#include "prologue.glsl"
#include "row.glsl"

uint team, weight_row; // its first byte
float total;

#ifdef F32
#define Piece uint

void load_piece(uint u, out Piece o) {
    o = 0;
}

void multiply_piece(Piece ignored, uint row, uint u) {
    precise float sum = total;
    [[dont_unroll]] for (uint g = 2 * u; g < min(2 * u + 2, p.k / 32); g++) {
        Group o;
        unpack_group(row, g, o);
        [[unroll]] for (uint k = 0; k < 32; k++)
            sum = fma(group_value(o, k), row_x[8 * g + k / 4][k % 4], sum);
    }
    total = sum;
}
#else
#define Piece Raw

void load_piece(uint u, out Piece o) {
    load_raw(weight_row, min(u, p.units - 1), o);
}

void multiply_piece(Piece raw, uint row, uint u) {
    Unit o;
    unpack_unit(raw, row, u, o);
    total = add_unit(o, get_acts(u * 5), total);
}
#endif

#define PAIR (EPILOGUE == SWIGLU ? 2u : 1u) // teams that have an output
shared float partial[2 * T]; // of two rounds
shared float of_team[T];

// The weight row of this team in the round whose first output is n.
void find_weights(uint n) {
    bool is_second = EPILOGUE == SWIGLU && (team & 1) == 1;
    weight_row = (is_second ? p.weight2_first : p.weight_first) +
                 min(n + (team >> PAIR - 1), p.n - 1) * p.row_bytes;
}

// Four lanes at a time: their loads do not wait for each other. All threads of a subgroup call it.
float lanes_sum(uint at) {
    precise float sum = 0;
    for (uint l = 0; l < p.lanes; l += 4) {
        float of[4];
        subgroupBarrier(); // or drivers unroll the loop
        [[unroll]] for (uint i = 0; i < 4; i++)
            of[i] = partial[at + min(l + i, p.lanes - 1)];
        [[unroll]] for (uint i = 0; i < 4; i++)
            sum = l + i == 0 ? of[i] : l + i < p.lanes ? sum + of[i] : sum;
    }
    return sum;
}

// A round's outputs, from n on.
void add_up(uint n, uint outputs, uint round) {
    uint tid = row_thread, at = round % 2 * T, teams = outputs * PAIR;
    partial[at + gl_LocalInvocationID.x] = total;
    barrier();
    float a = 0, b = 0;
    if (tid - gl_SubgroupInvocationID < teams)
        a = lanes_sum(at + min(tid, teams - 1) * p.lanes);
    if (EPILOGUE == SWIGLU) {
        of_team[tid] = a;
        barrier();
        a = of_team[min(2 * tid, T - 1)];
        b = of_team[min(2 * tid + 1, T - 1)];
    }
    if (tid < outputs && n + tid < p.n)
        store(n + tid, 0, a, b);
}

void main() {
    // The plan has one row, and so has every step; but its head may have none.
    if (IS_HEAD != 0 && io_n_outputs() == 0)
        return;
    team = quotient(gl_LocalInvocationID.x, p.lanes);
    lane = gl_LocalInvocationID.x - team * p.lanes;
    uint outputs = quotient(T, p.lanes) >> PAIR - 1, step = gl_NumWorkGroups.x * outputs;
    uint n = gl_WorkGroupID.x * outputs, first = 0; // unit of the piece
    Piece next;
    load_row();
    find_weights(n);
    load_piece(lane, next); // comes while the row is prepared
    share_row();
    total = 0;
    [[dont_unroll]] for (uint round = 0; n < p.n;) {
        uint row = weight_row, u = first + lane, of = n;
        Piece piece = next;
        first += p.lanes;
        bool is_last = first >= p.units;
        if (is_last) {
            first = 0;
            n += step;
            find_weights(n);
        }
        if (n < p.n)
            load_piece(first + lane, next);
        if (team < outputs * PAIR && u < p.units)
            multiply_piece(piece, row, u);
        if (is_last) {
            add_up(of, outputs, round++);
            total = 0;
        }
    }
}
