#version 450
// delta.comp - the gated delta rule: COLUMNS rows of a value head's S a workgroup, LANES threads
// each, in registers from a segment's first row to its last. A segment of one row is convolved here,
// too; of longer ones delta_conv.comp has left q, k and v, which are loaded while the rows before
// them are computed.
//
// A plan of one row has sixteen lanes: the more threads, the shorter the code, which comes from
// memory at every layer. All that such a row loads is in flight together.
//
// Of the workgroups that share a key head, the owner alone writes its channels' window, and each
// the window of its own columns of v. A segment of one row loads the window beside that: the entry
// that is written, the row's own, is the one that is not used.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "io.glsl"
#include "delta.glsl"

layout(binding = 4) readonly buffer Y { float y[]; };
layout(binding = 5) readonly buffer Qk { float qk[]; };
layout(binding = 6) buffer State { float state[]; }; // (cells, B, DV, DK)
layout(binding = 6) buffer State4 { vec4 state4[]; };
layout(binding = 7) readonly buffer GateA { float gate_a[]; };
layout(binding = 8) readonly buffer GateDt { float gate_dt[]; };
layout(binding = 9) writeonly coherent buffer Out { float result[]; };
layout(binding = 10) coherent buffer Counters { uint counters[]; };
#include "stage.glsl"

const uint ROWS = DK > 128 ? 4 : 8; // that are staged at once
const uint STRIDE = 2 * A * 4 * DK4 + B * DV;

shared vec4 keys[ROWS * 2 * DK4]; // q, then k, of each row
shared float values[ROWS * COLUMNS];
shared vec3 gates[ROWS];  // decay, beta, q . k
shared uint cells[ROWS];  // that the rows store to

uint head, key_head, first_column;
bool is_key_owner;

// ---- the window -------------------------------------------------------------------------------

// Channel i of this workgroup's: q, k, then its columns of v. CHANNELS: not one of its own.
uint own_channel(uint i) {
    if (i < 2 * DK)
        return !is_key_owner ? CHANNELS : (i / DK * A + key_head) * DK + i % DK;
    uint column = first_column + i - 2 * DK;
    return column < DV ? 2 * A * DK + head * DV + column : CHANNELS;
}

// The cell's window holds the raw values up to the row. In place, what came before the segment is
// there already. A channel's values are all moved by one thread.
void store_window(uint t, uint row, uint segment, uint cell) {
    uint position = io_row_position(row), from = io_segment_cell(segment);
    uint kept = cell == from ? position - io_segment_first_position(segment) : position;
    for (uint i = t; i < 2 * DK + COLUMNS; i += THREADS) {
        uint channel = own_channel(i);
        if (channel == CHANNELS)
            continue;
        for (uint back = 0; back <= min(kept, WIDTH - 1); back++)
            window[window_at(cell, position - back, channel)] =
                raw_value(row, segment, position, back, channel);
    }
}

// ---- staging rows -----------------------------------------------------------------------------

// log(1 + e^x). The driver's log is too coarse near 1: a series in z = e / (2 + e), at most 1 / 3.
float softplus(float x) {
    float e = exp(-abs(x)), z = e / (2.0 + e), z2 = z * z, sum = 1.0 / 13.0;
    for (uint i = 0; i < 6; i++)
        sum = fma(sum, z2, 1.0 / float(11 - 2 * i));
    return max(x, 0.0) + 2.0 * z * sum;
}

// What a gate is made of, as it is loaded.
struct Gate {
    float alpha, beta, a, dt, dot;
};

Gate load_gate(uint row) {
    uint at = p.in_first + row * p.in_stride;
    return Gate(x_in[at + p.alpha_column + head], x_in[at + p.beta_column + head],
                gate_a[p.a_first + head], gate_dt[p.dt_first + head], 0);
}

vec3 gate_of(Gate g) {
    precise float x = g.alpha + g.dt;
    precise float exponent = g.a * softplus(x);
    return vec3(exp(exponent), 1.0 / (1.0 + exp(-g.beta)), g.dot);
}

// A channel of the only row of a segment: silu of the convolution, oldest position first. Where in
// the window a position is follows from IO, which the loads do not wait for.
float convolve_channel(uint row, uint cell, uint position, uint channel, uint to, bool is_own) {
    float x = x_in[p.in_first + row * p.in_stride + channel], before[WIDTH], tap[WIDTH];
    vec4 four = vec4(0);
    if (WIDTH == 4)
        four = taps4[p.conv_first / 4 + channel]; // weights begin at whole vectors
    [[unroll]] for (uint i = 0; i < WIDTH; i++) {
        before[i] = window[window_at(cell, i, channel)];
        tap[i] = WIDTH == 4 ? four[i % 4] : taps[p.conv_first + channel * WIDTH + i];
    }
    precise float sum = 0;
    [[unroll]] for (uint back = WIDTH - 1; back > 0; back--) {
        float past = before[0];
        [[unroll]] for (uint i = 1; i < WIDTH; i++)
            past = (position - back) % WIDTH == i ? before[i] : past;
        sum = back <= position ? fma(tap[WIDTH - 1 - back], past, sum) : sum;
    }
    sum = fma(tap[WIDTH - 1], x, sum);
    if (is_own && to != IO_NO_CELL)
        [[unroll]] for (uint i = 0; i < WIDTH; i++)
            if (position % WIDTH == i)
                window[window_at(to, i, channel)] = x;
            else if (to != cell)
                window[window_at(to, i, channel)] = before[i];
    return silu(sum);
}

// The only row of a segment: q and k as they are convolved, its columns of v, and its gates.
void convolve_row(uint t, uint row, uint cell, uint position, uint to) {
    const uint ALL = 8 * DK4 + COLUMNS;
    if (t == THREADS - 1) // where threads are many it convolves nothing
        gates[0] = gate_of(load_gate(row));
    [[unroll]] for (uint first = 0; first < ALL; first += THREADS) {
        uint i = first + t, at = i % (4 * DK4), column = first_column + i - 8 * DK4;
        bool is_key = i < 8 * DK4, is_in = is_key ? at < DK : i < ALL && column < DV;
        uint channel = is_key ? (i / (4 * DK4) * A + key_head) * DK + at
                              : 2 * A * DK + head * DV + column;
        float y = 0;
        if (is_in)
            y = convolve_channel(row, cell, position, channel, to, !is_key || is_key_owner);
        if (is_key)
            keys[i / 4][i % 4] = y;
        else if (i < ALL)
            values[i - 8 * DK4] = y;
    }
}

// What a thread has loaded of the next ROWS rows. Nothing is computed of it before it is staged: a
// thread that waits for its loads keeps the others waiting.
const uint OF_KEYS = (ROWS * 8 * DK4 + THREADS - 1) / THREADS;
const uint OF_VALUES = ROWS * COLUMNS > THREADS ? ROWS * COLUMNS / THREADS : 1;
struct Next {
    float key[OF_KEYS], value[OF_VALUES];
    Gate gate;
    uint cell;
};
Next next;

void load_rows(uint t, uint first, uint n) {
    [[unroll]] for (uint e = 0; e < OF_KEYS; e++) {
        uint i = e * THREADS + t;
        next.key[e] =
            i < n * 8 * DK4
                ? y[(first + i / (8 * DK4)) * STRIDE + key_head * 8 * DK4 + i % (8 * DK4)]
                : 0;
    }
    [[unroll]] for (uint e = 0; e < OF_VALUES; e++) {
        uint i = e * THREADS + t, row = i / COLUMNS;
        uint column = first_column + i % COLUMNS;
        next.value[e] = row < n && column < DV
                            ? y[(first + row) * STRIDE + 2 * A * 4 * DK4 + head * DV + column]
                            : 0;
    }
    if (t < n) {
        next.gate = load_gate(first + t);
        next.gate.dot = qk[(first + t) * A + key_head];
        next.cell = io_to_cell(first + t);
    }
}

void stage_rows(uint t, uint n) {
    [[unroll]] for (uint e = 0; e < OF_KEYS; e++) {
        uint i = e * THREADS + t;
        if (i < n * 8 * DK4)
            keys[i / 4][i % 4] = next.key[e];
    }
    [[unroll]] for (uint e = 0; e < OF_VALUES; e++)
        values[e * THREADS + t] = next.value[e];
    if (t < n) {
        gates[t] = gate_of(next.gate);
        cells[t] = next.cell;
    }
}

// ---- the rule ---------------------------------------------------------------------------------

vec4 s[VECS];

// The sum of all chains: every lane has it.
float sum_over_lanes(vec4 chain[PER_LANE]) {
    precise float sum[PER_LANE];
    [[unroll]] for (uint c = 0; c < PER_LANE; c++)
        sum[c] = sum_of_four(chain[c]);
    [[unroll]] for (uint apart = PER_LANE / 2; apart > 0; apart /= 2)
        [[unroll]] for (uint c = 0; c < apart; c++)
            sum[c] += sum[c + apart];
    [[unroll]] for (uint apart = LANES / 2; apart > 0; apart /= 2)
        sum[0] += subgroupShuffleXor(sum[0], apart);
    return sum[0];
}

void load_state(uint at, uint lane, bool is_in) {
    [[unroll]] for (uint i = 0; i < VECS; i++) {
        uint k = LANES * i + lane;
        s[i] = vec4(0);
        if (!is_in)
            continue;
        if (IS_VEC4 != 0) {
            if (4 * k < DK)
                s[i] = state4[at / 4 + k];
        } else {
            for (uint c = 0; c < 4; c++)
                if (4 * k + c < DK)
                    s[i][c] = state[at + 4 * k + c];
        }
    }
}

void store_state(uint at, uint lane, bool is_in) {
    [[unroll]] for (uint i = 0; i < VECS; i++) {
        uint k = LANES * i + lane;
        if (!is_in)
            continue;
        if (IS_VEC4 != 0) {
            if (4 * k < DK)
                state4[at / 4 + k] = s[i];
        } else {
            for (uint c = 0; c < 4; c++)
                if (4 * k + c < DK)
                    state[at + 4 * k + c] = s[i][c];
        }
    }
}

// One row of the step: q and k are normed, gate as in `gates`.
float step_row(vec4 q[VECS], vec4 k[VECS], vec3 gate, float value) {
    precise vec4 ks[PER_LANE], qs[PER_LANE];
    [[unroll]] for (uint m = 0; m < VECS; m++) {
        ks[m % PER_LANE] = m < PER_LANE ? s[m] * k[m] : fma(s[m], k[m], ks[m % PER_LANE]);
        qs[m % PER_LANE] = m < PER_LANE ? s[m] * q[m] : fma(s[m], q[m], qs[m % PER_LANE]);
    }
    float k_sum = sum_over_lanes(ks), q_sum = sum_over_lanes(qs);
    precise float d = gate.y * fma(-gate.x, k_sum, value);
    [[unroll]] for (uint m = 0; m < VECS; m++) {
        precise vec4 kept = s[m] * gate.x;
        s[m] = fma(vec4(d), k[m], kept);
    }
    precise float o = fma(gate.x, q_sum, gate.z * d);
    return o;
}

// Row `i` of those that are staged.
float staged_row(uint i, uint lane, uint column) {
    vec4 q[VECS], k[VECS];
    [[unroll]] for (uint m = 0; m < VECS; m++) {
        q[m] = keys[i * 2 * DK4 + LANES * m + lane];
        k[m] = keys[(i * 2 + 1) * DK4 + LANES * m + lane];
    }
    return step_row(q, k, gates[i], values[i * COLUMNS + column]);
}

// The only row, whose q and k are as they were convolved.
float only_row(uint lane, uint column) {
    vec4 q[VECS], k[VECS];
    precise vec4 q2[PER_LANE], k2[PER_LANE], both[PER_LANE];
    [[unroll]] for (uint m = 0; m < VECS; m++) {
        uint c = m % PER_LANE;
        q[m] = keys[LANES * m + lane];
        k[m] = keys[DK4 + LANES * m + lane];
        q2[c] = m < PER_LANE ? q[m] * q[m] : fma(q[m], q[m], q2[c]);
        k2[c] = m < PER_LANE ? k[m] * k[m] : fma(k[m], k[m], k2[c]);
        both[c] = m < PER_LANE ? q[m] * k[m] : fma(q[m], k[m], both[c]);
    }
    vec3 dots = vec3(sum_over_lanes(q2), sum_over_lanes(k2), sum_over_lanes(both));
    float q_factor = query_factor(dots.x), k_factor = key_factor(dots.y);
    [[unroll]] for (uint m = 0; m < VECS; m++) {
        precise vec4 normed_q = q[m] * q_factor, normed_k = k[m] * k_factor;
        q[m] = normed_q;
        k[m] = normed_k;
    }
    return step_row(q, k, vec3(gates[0].xy, scaled_qk(dots)), values[column]);
}

void run_rows(uint t, uint segment, uint lane, uint column, uint at, bool is_in) {
    uint first = io_segment_first_row(segment), n_rows = io_segment_n_rows(segment);
    uint out_at = p.out_first + head * DV + first_column + column;
    load_rows(t, first, min(n_rows, ROWS));
    for (uint begin = 0; begin < n_rows; begin += ROWS) {
        uint n = min(n_rows - begin, ROWS);
        barrier();
        stage_rows(t, n);
        barrier();
        if (begin + ROWS < n_rows)
            load_rows(t, first + begin + ROWS, min(n_rows - begin - ROWS, ROWS));
        for (uint i = 0; i < n; i++) {
            uint row = first + begin + i;
            float o = staged_row(i, lane, column);
            if (lane == 0 && is_in)
                result[out_at + row * p.out_stride] = o;
            if (cells[i] != IO_NO_CELL) {
                store_state(cells[i] * (B * DV * DK) + at, lane, is_in);
                store_window(t, row, segment, cells[i]);
            }
        }
    }
}

void run_only_row(uint t, uint segment, uint row, uint cell, uint lane, uint column, uint at,
                  bool is_in) {
    uint to = io_to_cell(row);
    if (IS_ONE != 0)
        to = io_n_segments() == 0 ? IO_NO_CELL : to;
    wait_for_stage();
    convolve_row(t, row, cell, io_segment_first_position(segment), to);
    barrier();
    float o = only_row(lane, column);
    if (lane == 0 && is_in)
        result[p.out_first + head * DV + first_column + column + row * p.out_stride] = o;
    if (to != IO_NO_CELL)
        store_state(to * (B * DV * DK) + at, lane, is_in);
}

void run_segment(uint t, uint segment) {
    uint id = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint lane = id % LANES, column = id / LANES;
    bool is_in = first_column + column < DV;
    uint at = (head * DV + first_column + column) * DK;
    uint cell = CELLS == 1 ? 0 : io_segment_cell(segment);
    load_state(cell * (B * DV * DK) + at, lane, is_in);
    if (IS_ONE == 0)
        barrier(); // the last segment's
    uint first = IS_ONE != 0 ? 0 : io_segment_first_row(segment);
    if (IS_ONE != 0 || io_segment_n_rows(segment) == 1)
        run_only_row(t, segment, first, cell, lane, column, at, is_in);
    else
        run_rows(t, segment, lane, column, at, is_in);
}

void main() {
    const uint TILES = (DV + COLUMNS - 1) / COLUMNS;
    uint t = gl_LocalInvocationIndex, per_key = B / A;
    head = gl_WorkGroupID.x / TILES;
    first_column = gl_WorkGroupID.x % TILES * COLUMNS;
    key_head = IS_TILED != 0 ? head % A : head / per_key;
    is_key_owner = first_column == 0 && (IS_TILED != 0 ? head < A : head % per_key == 0);
    if (IS_ONE != 0) { // its loads do not wait for IO to say that there is one
        run_segment(t, 0);
        end_stage();
        return;
    }
    for (uint i = gl_WorkGroupID.y; i < io_n_segments(); i += gl_NumWorkGroups.y)
        run_segment(t, i);
}
