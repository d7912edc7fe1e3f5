// project_row.comp - products of one row, which every workgroup prepares for itself (row.glsl).
//
//   out[n] = epilogue(sum over k of w[n][k] x[k])
//
// A workgroup has p.share outputs, one after the other. A team of LANES threads has one weight row
// at a time; of SwiGLU every second one is a row of up. Units and the order of sums are those of
// product.glsl; a unit with f32 activations is a group of 32 values. The first DEPTH pieces of a
// team, units of its lanes, are loaded before the stage before is done (stage.glsl).
//
// Up to four matrices of one type are one list of p.n rows. -DF32: with f32 activations.
//
// Instructions come from memory like all else, and all of a step runs between two uses of a
// pipeline. So the code is short, without copies of loops, and what a pipeline can know is a
// constant. Loops are the same for all threads: where a driver does not see that, it gathers them
// again at every barrier of a subgroup.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_vote : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif

layout(constant_id = 9) const uint GROUP = 32;       // values that share a scale
layout(constant_id = 11) const uint HAS_VECTORS = 0; // as in prologue.glsl
layout(constant_id = 12) const uint SUBGROUP = 0;    // threads of a subgroup
layout(constant_id = 13) const uint DEPTH = 1;       // 1 or 2
layout(constant_id = 14) const uint K = 64;
layout(constant_id = 15) const uint LANES = 4;
layout(constant_id = 16) const uint EPILOGUE = 0;
layout(constant_id = 17) const uint SEGMENTS = 1;
layout(constant_id = 18) const uint HEAD_WIDTH = 4;  // of gates
layout(constant_id = 19) const uint IS_ONE_ROUND = 0; // a team has one output at most
layout(constant_id = 20) const uint HAS_MORE = 1;    // pieces than the first DEPTH
layout(constant_id = 21) const uint SUMS = 1;        // rounds whose sums are added together
#define EPILOGUE EPILOGUE
#define ROW
#define K_VALUES K
#define HEAD_OF(i) ((i) / HEAD_WIDTH)
#define IN_HEAD(i, h) ((i) % HEAD_WIDTH)
// A vote: drivers then know that threads which shuffle go the same way.
#define HAS_VALUES(i) (ROW_IS_EVEN || !SHUFFLES || subgroupAny((i) < K))
#define KEEP_LOOP(iterations)                                                                           \
    if ((iterations) > 2)                                                                               \
    subgroupBarrier()
#include "product.glsl"

const bool ROW_IS_EVEN = K % (4 * T) == 0, LOADS_TWO = K > 4 * T;
#ifdef F32
#define UNIT 32u // values of a unit
#else
#define UNIT 64u
#endif
const uint UNITS = (K + UNIT - 1) / UNIT, UNITS_PER_LANE = (UNITS + LANES - 1) / LANES;
const uint PAIR = EPILOGUE == SWIGLU ? 2 : 1;
const uint OUTPUTS = T / LANES / PAIR; // of a round
#define ROW_VECTORS ((K + 7) / 8 * 2)
#define ROW_PLACE(i) (i)
#ifdef F32
#define GRIDS 9
#include "types.glsl"
#else
#define SHARED_UNITS ((K + 63) / 64)
#include "units.glsl"
#endif
#include "prologue.glsl"
#include "row.glsl"

uint team, end; // of the workgroup's outputs
float total;

// ---- pieces -------------------------------------------------------------------------------------

// The round's first output, where this team's row begins, the first of its lanes' units.
struct Cursor {
    uint first, row, unit;
};

Cursor use, ahead; // of the piece to be multiplied, and of the next to be loaded

uint output_of(uint first) {
    return first + team / PAIR;
}

// Of SwiGLU all outputs are one segment's, and weights are of two.
uint segment(uint n) {
    return SEGMENTS > 1 && EPILOGUE != SWIGLU ? segment_of(n) : 0;
}

uint weights_of(uint first) {
    uint n = output_of(first), base = p.weight_base[segment(n)];
    if (EPILOGUE == SWIGLU)
        base = (team & 1) != 0 ? p.weight_base[1] : base;
    return base + n * p.row_bytes;
}

bool is_unit(uint unit) {
    return UNITS % LANES == 0 || unit < UNITS;
}

void advance(inout Cursor c) {
    c.unit += LANES;
    if (UNITS_PER_LANE == 1 || c.unit >= UNITS) {
        c.unit = 0;
        c.first += OUTPUTS;
        if (IS_ONE_ROUND == 0)
            c.row = weights_of(c.first);
    }
}

#ifdef F32
#define Raw uint

void load_raw(uint row, uint unit, out Raw o) {
    o = 0;
}

void multiply_piece(Raw ignored, Cursor c) {
    uint g = c.unit + lane;
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
    uint unit = c.unit + lane;
    Unit o;
    unpack_unit(raw, c.row, unit, o);
    Acts a = get_acts(unit * 5);
    precise vec2 scale = a.scale * row_factor;
    a.scale = scale;
    total = add_unit(o, a, total);
}
#endif

void load_piece(inout Raw piece) {
    uint unit = ahead.unit + lane;
    if (output_of(ahead.first) < end && is_unit(unit))
        load_raw(ahead.row, unit, piece);
    advance(ahead);
}

// ---- sums ---------------------------------------------------------------------------------------

// Of SUMS rounds, each of which begins at another bank; or of two in turn.
const uint STRIDE = SUMS > 1 ? T + 4 : T;
shared vec4 partial[(SUMS > 1 ? SUMS : 2) * STRIDE / 4];

float lanes_sum(uint at) {
    precise float sum = 0;
    for (uint l = 0; l < LANES; l += 4) {
        vec4 v = partial[(at + l) / 4];
        sum = sum + v.x;
        sum = sum + v.y;
        sum = sum + v.z;
        sum = sum + v.w;
    }
    return sum;
}

void sync_team() {
    if (SUBGROUP >= LANES * PAIR) {
        subgroupMemoryBarrierShared();
        subgroupBarrier();
    } else {
        barrier();
    }
}

// What an output has before, where it is needed and a team has no other one.
float load_old() {
    uint n = output_of(use.first);
    if (HAS_OLD && IS_ONE_ROUND != 0 && lane == 0 && n < end)
        return to[p.out_base[segment(n)] + n];
    return 0;
}

void put(uint n, float a, float b, float old) {
    uint at = p.out_base[segment(n)] + n;
    to[at] = result_of(n, a, b, HAS_OLD && IS_ONE_ROUND == 0 ? to[at] : old);
}

// The sum of a row, or SwiGLU's pair of them, which neighbours have.
void add_up(uint first, uint round, float old) {
    uint n = output_of(first), t = round % 2 * STRIDE + thread(), at = t & ~(LANES - 1);
    partial[t / 4][t % 4] = total;
    sync_team();
    float a = lanes_sum(at), b = 0;
    if (EPILOGUE == SWIGLU)
        b = SUBGROUP >= LANES * PAIR ? subgroupShuffleXor(a, LANES) : lanes_sum(at ^ LANES);
    if ((t & (LANES * PAIR - 1)) == 0 && n < end)
        put(n, a, b, old);
}

// The sums of up to SUMS rounds, of which lane i of a team adds up those of the i-th: with that many
// times fewer instructions. A team is inside a subgroup.
void add_up_many(uint first, uint round, bool is_last) {
    uint slot = round % SUMS, t = slot * STRIDE + thread();
    partial[t / 4][t % 4] = total;
    if (slot + 1 != SUMS && !is_last)
        return;
    sync_team();
    float a = lanes_sum(min(lane, SUMS - 1) * STRIDE + thread() - lane);
    uint n = output_of(first - (slot - lane) * OUTPUTS);
    if (lane <= slot && n < end)
        put(n, a, 0, 0);
    sync_team(); // before the next sums are stored
}

// ---- all of it ----------------------------------------------------------------------------------

// With the first pieces.
void multiply_rows(Raw piece, Raw second, float old) {
    uint round = 0;
    total = 0;
    for (;;) {
        Cursor c = use;
        Raw now = piece;
        advance(use);
        if (DEPTH == 2)
            piece = second;
        if (HAS_MORE != 0) {
            if (DEPTH == 2)
                load_piece(second);
            else
                load_piece(piece);
        }
        if (is_unit(c.unit + lane))
            multiply_piece(now, c);
        bool is_row = UNITS_PER_LANE == 1 || use.unit == 0;
        bool is_last = is_row && (IS_ONE_ROUND != 0 || use.first >= end);
        if (is_row) {
            if (SUMS > 1)
                add_up_many(c.first, round, is_last);
            else
                add_up(c.first, round, old);
            round++;
            total = 0;
        }
        if (is_last)
            break;
        subgroupBarrier(); // or drivers unroll the loop
    }
}

void main() {
    // The plan has one row, and so has every step; but its head may have none.
    if (IS_HEAD != 0 && io_n_outputs() == 0) {
        end_stage();
        return;
    }
    lane = thread() & (LANES - 1);
    team = thread() / LANES;
    use.unit = 0;
    use.first = gl_WorkGroupID.x * p.share;
    use.row = weights_of(use.first);
    end = min(use.first + p.share, p.n / PAIR);
    ahead = use;
    Raw piece, second;
    load_row_norms();
    load_piece(piece);
    if (DEPTH == 2)
        load_piece(second);
    wait_for_stage();
    load_row();
    float old = load_old();
    share_row();
    if (use.first < end)
        multiply_rows(piece, second, old);
    end_stage();
}
