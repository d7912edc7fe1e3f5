// product.glsl - products of weight rows and activation rows: the frame of project.comp,
// project_tile.comp and project_plain.comp.
//
//   out[r][n] = epilogue(sum over k of w[n][k] x[r][k])
//
// A team of p.lanes threads takes WEIGHTS weight rows and ROWS activation rows. K is cut into units;
// lane l sums units l, l + lanes, ... in order, and then the sums of all lanes are added in order.
// lanes follows from K alone, so a row's bits are the same in every shape.
//
// -DROW: project_row.comp and project_plain_row.comp, of one row, with frames of their own; the
// epilogue is a push constant there.
// -DTILE: many rows, of which a workgroup has a tile (find_tile).
// IS_EXPERTS: workgroup y is a pair (row, place), and the matrix that of the expert chosen there; of
// tiles, pairs of one expert (experts_sort.comp).
// The shader that includes this defines `multiply`.
#include "io.glsl"

layout(local_size_x_id = 0) in;
#ifndef TYPE // a module for one type alone: pipelines of it are made in a fraction of the time
layout(constant_id = 1) const uint TYPE = 0; // enum dtype
#endif
layout(constant_id = 2) const uint ROWS = 1;
layout(constant_id = 3) const uint WEIGHTS = 1; // SwiGLU: half of them gate, half up
#ifdef ROW
layout(constant_id = 4) const uint PROLOGUE = 0; // enum prologue
#ifndef EPILOGUE
#define EPILOGUE p.epilogue
#endif
#define IS_HEAD p.is_head
#else
layout(constant_id = 4) const uint EPILOGUE = 0;
layout(constant_id = 5) const uint IS_HEAD = 0;
#endif
layout(constant_id = 6) const uint IS_EXPERTS = 0;
layout(constant_id = 7) const uint IS_WIDE = 0; // 128 activations share a scale; plain: 16-aligned
layout(constant_id = 8) const uint HAS_BIAS = 0;

#define STORE 0
#define ADD 1    // out += result
#define SWIGLU 2 // out = silu(first) * second
#define GATED 3  // out = silu(out) * result

layout(push_constant) uniform Push {
    IO_AT;
#ifdef ROW
    uint share, k, n, row_bytes, in_first, norm_first, gate_first, head_width, gate_stride;
    float eps;
    uint epilogue, is_head;
    // Of four segments: row i is at weight_base + i * row_bytes, its result at out_base + i. Of one
    // segment and of SwiGLU out_base[2] and [3] are where biases begin.
    uint ends[3], weight_base[4], out_base[4];
#else
    uint units, lanes, k, n, row_bytes, bias_first, bias2_first;
    uint out_first, out_stride, act_stride, plane_bytes, places, choice_first, choice_stride;
    uint first_expert, n_experts, act_place, out_place;
#endif
} p;
layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly buffer Weight { uint w[]; };
layout(binding = 1) readonly buffer Weight4 { uvec4 w4[]; };
#ifdef ROW
layout(binding = 2) coherent buffer Counters { uint counters[]; };
#else
layout(binding = 2) readonly buffer Weight2 { uint v[]; };
layout(binding = 2) readonly buffer Weight24 { uvec4 v4[]; };
#endif
layout(binding = 3) readonly buffer Bias { float bias[]; };
layout(binding = 4) readonly buffer Bias2 { float bias2[]; };
#ifdef ROW
layout(binding = 5) readonly coherent buffer Gate { float gate[]; };
layout(binding = 5) readonly coherent buffer Gate4 { vec4 gate4[]; };
layout(binding = 6) coherent buffer Out { float to[]; };
layout(binding = 7) readonly coherent buffer In { float x[]; };
layout(binding = 7) readonly coherent buffer In4 { vec4 x4[]; };
layout(binding = 8) readonly buffer Norm { float norm[]; };
layout(binding = 8) readonly buffer Norm4 { vec4 norm4[]; };
#else
layout(binding = 5) readonly buffer Choice { uint choice[]; };
layout(binding = 6) buffer Out { float to[]; };
#endif

const uint T = gl_WorkGroupSize.x;
#ifdef ROW
#include "stage.glsl"
#define WORD(i) w[i] // both matrices of SwiGLU are in one buffer
#define WORD4(i) w4[i]
#else
const uint OUTPUTS = EPILOGUE == SWIGLU ? WEIGHTS / 2 : WEIGHTS; // columns of out, of a team
bool is_second; // the running weight row is one of SwiGLU's up
#define WORD(i) (EPILOGUE == SWIGLU && is_second ? v[i] : w[i])
#define WORD4(i) (EPILOGUE == SWIGLU && is_second ? v4[i] : w4[i])
#endif
#if !defined(TILE) && !defined(ROW)
shared float partial[WEIGHTS * ROWS * T];
#endif

uint n_rows, first_row, place, expert, first_n, lane;

#ifndef ROW
// Byte of weight row i of the team.
uint weight_at(uint i) {
    uint n = min(first_n + (i < OUTPUTS ? i : i - OUTPUTS), p.n - 1);
    return n * p.row_bytes + expert * p.plane_bytes;
}

// Where activation row r of the team begins, in what act_stride counts.
#ifndef TILE
uint act_at(uint r) {
    return min(first_row + r, n_rows - 1) * p.act_stride + place * p.act_place;
}
#endif

#endif

// Of weight row i and activation row r: sum[i * ROWS + r]. Sizes of arrays in registers are numbers,
// of which a pipeline keeps what its constants use.
#define MAX_WEIGHTS 4
#define MAX_SUMS 16
float sum[MAX_SUMS];

float silu(float x) {
    return x / (1 + exp(-x));
}

#ifdef ROW
// Of up to four matrices, one after the other, the one that has row n.
uint segment_of(uint n) {
    return (n >= p.ends[0] ? 1 : 0) + (n >= p.ends[1] ? 1 : 0) + (n >= p.ends[2] ? 1 : 0);
}

#define BIAS_FIRST p.out_base[2]
#define BIAS2_FIRST p.out_base[3]
#else
#define BIAS_FIRST p.bias_first
#define BIAS2_FIRST p.bias2_first
#endif

// Of sum a and, of SwiGLU, b; old: what out had.
float result_of(uint n, float a, float b, float old) {
    precise float y = a;
    if (HAS_BIAS != 0)
        y = y + bias[BIAS_FIRST + n];
    if (EPILOGUE == ADD)
        y = old + y;
    if (EPILOGUE == GATED)
        y = silu(old) * y;
    if (EPILOGUE == SWIGLU) {
        precise float up = b;
        if (HAS_BIAS != 0)
            up = up + bias2[BIAS2_FIRST + n];
        y = silu(y) * up;
    }
    return y;
}

#define HAS_OLD (EPILOGUE == ADD || EPILOGUE == GATED)

#ifndef ROW
void store(uint n, uint row, float a, float b) {
    uint at = p.out_first + n;
    at += row * p.out_stride + place * p.out_place;
    to[at] = result_of(n, a, b, HAS_OLD ? to[at] : 0);
}
#endif

#if !defined(TILE) && !defined(ROW)
// All loads first: one after the other they would wait for each other.
#define MAX_LANES 32
float lanes_sum(uint i, uint r, uint team) {
    uint at = (i * ROWS + r) * T + team * p.lanes;
    float of[MAX_LANES];
    [[unroll]] for (uint l = 0; l < MAX_LANES; l++)
        of[l] = partial[at + min(l, p.lanes - 1)];
    precise float total = of[0];
    [[unroll]] for (uint l = 1; l < MAX_LANES; l++)
        total = l < p.lanes ? total + of[l] : total;
    return total;
}

// Adds this lane's units to the sums.
void multiply();
// Loads the first of its weights, for the next call of multiply.
void load_first();

// The rows of this workgroup; false: there are none.
bool find_rows() {
    n_rows = IS_HEAD != 0 ? io_n_outputs() : io_n_rows();
    first_row = gl_WorkGroupID.y * ROWS;
    place = expert = 0;
    if (IS_EXPERTS != 0) {
        first_row = gl_WorkGroupID.y / p.places;
        place = gl_WorkGroupID.y - first_row * p.places;
        if (first_row >= n_rows)
            return false;
        expert = choice[p.choice_first + first_row * p.choice_stride + place] - p.first_expert;
        return expert < p.n_experts;
    }
    return first_row < n_rows;
}

uint outputs_of_group() {
    return T / p.lanes * OUTPUTS;
}

// This thread's team, of those that have the outputs from `first` on.
uint find_team(uint first) {
    uint team = gl_LocalInvocationID.x / p.lanes;
    lane = gl_LocalInvocationID.x - team * p.lanes;
    first_n = first + team * OUTPUTS;
    return team;
}

// Outputs from `first` on; those from `next` on come after them.
void product_at(uint first, uint next) {
    uint tid = gl_LocalInvocationID.x, teams = T / p.lanes, team = find_team(first);
    for (uint i = 0; i < WEIGHTS * ROWS; i++)
        sum[i] = 0;
    if (team < teams && first_n < p.n)
        multiply();
    if (next < p.n) {
        find_team(next);
        load_first(); // come while sums are added
    }
    for (uint i = 0; i < WEIGHTS * ROWS; i++)
        partial[i * T + tid] = sum[i];
    barrier();
    for (uint o = tid; o < teams * OUTPUTS * ROWS; o += T) {
        uint r = o / (teams * OUTPUTS), column = o - r * (teams * OUTPUTS);
        uint i = column % OUTPUTS, its_team = column / OUTPUTS, n = first + column;
        if (n >= p.n || (IS_EXPERTS == 0 && first_row + r >= n_rows))
            continue;
        float a = lanes_sum(i, r, its_team);
        float b = EPILOGUE == SWIGLU ? lanes_sum(i + OUTPUTS, r, its_team) : 0;
        store(n, first_row + r, a, b);
    }
}

void product() {
    uint outputs = outputs_of_group();
    uint step = gl_NumWorkGroups.x * outputs;
    for (uint n = gl_WorkGroupID.x * outputs; n < p.n; n += step) {
        product_at(n, n + step);
        barrier();
    }
}
#elif defined(TILE)
uint first_pair;

// False: there are no rows.
bool find_tile(uint rows) {
    n_rows = IS_HEAD != 0 ? io_n_outputs() : io_n_rows();
    first_row = gl_WorkGroupID.y * rows;
    place = expert = 0;
    if (IS_EXPERTS == 0)
        return first_row < n_rows;
    first_pair = p.choice_first + gl_WorkGroupID.y * (rows + 1) + 1;
    expert = choice[first_pair - 1] - p.first_expert;
    return expert < p.n_experts;
}

// Row r of the tile, and its place; ~0: there is none.
uint row_of(uint r) {
    if (IS_EXPERTS == 0)
        return first_row + r < n_rows ? first_row + r : ~0u;
    uint pair = choice[first_pair + r], row = pair / p.places;
    place = pair == ~0u ? 0 : pair - row * p.places;
    return pair == ~0u ? pair : row;
}

// Where group 0 of it is; the next one is ACT_STEP after it (IS_TILED of quantize.comp).
#define ACT_STEP 64
uint act_at(uint r) {
    uint row = row_of(r);
    row = row == ~0u ? 0 : row;
    return (row / 64 * p.act_stride + place * p.act_place) * 64 + row % 64;
}

// The unit after u, lane by lane.
uint after(uint u) {
    u += p.lanes;
    return u < p.units ? u : u % p.lanes + 1;
}
#endif
