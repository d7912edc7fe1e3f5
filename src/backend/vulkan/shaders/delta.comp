#version 450
// delta.comp - the gated delta rule: DELTA_COLUMNS rows of a value head's S a workgroup, four lanes
// each, in registers from a segment's first row to its last. A segment of one row is convolved here,
// too; of longer ones delta_conv.comp has left q, k and v, which are loaded while the rows before
// them are computed.
//
// Of the workgroups that share a key head, the owner alone writes its channels' window, and each
// the window of its own columns of v. A segment of one row reads the window beside that: the entry
// that is written, the row's own, is the one that nobody reads.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
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
layout(binding = 9) writeonly buffer Out { float result[]; };

const uint ROWS = DK > 128 ? 4 : 8; // that are staged at once
const uint STRIDE = 2 * A * 4 * DK4 + B * DV;

shared vec4 keys[ROWS * 2 * DK4]; // q, then k, of each row
shared float values[ROWS * DELTA_COLUMNS];
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
    for (uint i = t; i < 2 * DK + DELTA_COLUMNS; i += DELTA_THREADS) {
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

// The only row of a segment: all loads of a thread are in flight together.
void convolve_row(uint t, uint row, uint cell, uint position) {
    const uint ALL = 8 * DK4 + DELTA_COLUMNS, EACH = (ALL + DELTA_THREADS - 1) / DELTA_THREADS;
    float y_of[EACH];
    [[unroll]] for (uint e = 0; e < EACH; e++) {
        uint i = e * DELTA_THREADS + t, at = i % (4 * DK4), column = first_column + i - 8 * DK4;
        bool is_key = i < 8 * DK4, is_in = is_key ? at < DK : i < ALL && column < DV;
        uint channel = is_key ? (i / (4 * DK4) * A + key_head) * DK + at
                              : 2 * A * DK + head * DV + column;
        y_of[e] = is_in ? convolved_one(row, cell, position, channel) : 0;
    }
    if (t == DELTA_THREADS - 1) // it convolves the fewest
        gates[0] = gate_of(load_gate(row));
    [[unroll]] for (uint e = 0; e < EACH; e++) {
        uint i = e * DELTA_THREADS + t;
        if (i < 8 * DK4)
            keys[i / 4][i % 4] = y_of[e];
        else if (i < ALL)
            values[i - 8 * DK4] = y_of[e];
    }
}

// What a thread has loaded of the next ROWS rows. Nothing is computed of it before it is staged: a
// thread that waits for its loads keeps the others waiting.
const uint OF_KEYS = (ROWS * 8 * DK4 + DELTA_THREADS - 1) / DELTA_THREADS;
const uint OF_VALUES = ROWS * DELTA_COLUMNS / DELTA_THREADS;
struct Next {
    float key[OF_KEYS], value[OF_VALUES];
    Gate gate;
    uint cell;
};
Next next;

void load_rows(uint t, uint first, uint n) {
    [[unroll]] for (uint e = 0; e < OF_KEYS; e++) {
        uint i = e * DELTA_THREADS + t;
        next.key[e] =
            i < n * 8 * DK4
                ? y[(first + i / (8 * DK4)) * STRIDE + key_head * 8 * DK4 + i % (8 * DK4)]
                : 0;
    }
    [[unroll]] for (uint e = 0; e < OF_VALUES; e++) {
        uint i = e * DELTA_THREADS + t, row = i / DELTA_COLUMNS;
        uint column = first_column + i % DELTA_COLUMNS;
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
        uint i = e * DELTA_THREADS + t;
        if (i < n * 8 * DK4)
            keys[i / 4][i % 4] = next.key[e];
    }
    [[unroll]] for (uint e = 0; e < OF_VALUES; e++)
        values[e * DELTA_THREADS + t] = next.value[e];
    if (t < n) {
        gates[t] = gate_of(next.gate);
        cells[t] = next.cell;
    }
}

// ---- the rule ---------------------------------------------------------------------------------

vec4 s[VECS];

float lanes_sum(vec4 x) {
    precise float sum = row_dot4(x);
    sum += subgroupShuffleXor(sum, 1);
    sum += subgroupShuffleXor(sum, 2);
    return sum;
}

void load_state(uint at, uint lane, bool is_in) {
    [[unroll]] for (uint i = 0; i < VECS; i++) {
        uint k = 4 * i + lane;
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
        uint k = 4 * i + lane;
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

// Norms q and k of the only row, which convolve_row left as they came. In a loop: instructions that
// run once take longer to fetch than to execute.
void norm_row(uint t, uint lane) {
    precise vec4 q2 = vec4(0), k2 = vec4(0), both = vec4(0);
    [[dont_unroll]] for (uint m = 0; m < VECS; m++) {
        vec4 q = keys[4 * m + lane], k = keys[DK4 + 4 * m + lane];
        q2 = fma(q, q, q2);
        k2 = fma(k, k, k2);
        both = fma(q, k, both);
    }
    float q_factor = query_factor(lanes_sum(q2)), k_factor = key_factor(lanes_sum(k2));
    float dot = scaled_qk(lanes_sum(both), q_factor, k_factor);
    barrier();
    for (uint i = t; i < 8 * DK4; i += DELTA_THREADS) {
        precise float value = keys[i / 4][i % 4] * (i < 4 * DK4 ? q_factor : k_factor);
        keys[i / 4][i % 4] = value;
    }
    if (t == 0)
        gates[0].z = dot;
    barrier();
}

// One row of the step, staged as number `i`.
float step_row(uint i, uint lane, uint column) {
    vec3 gate = gates[i];
    precise vec4 ks = vec4(0), qs = vec4(0);
    [[unroll]] for (uint m = 0; m < VECS; m++) {
        ks = fma(s[m], keys[(i * 2 + 1) * DK4 + 4 * m + lane], ks);
        qs = fma(s[m], keys[i * 2 * DK4 + 4 * m + lane], qs);
    }
    float k_sum = lanes_sum(ks), q_sum = lanes_sum(qs);
    precise float d = gate.y * fma(-gate.x, k_sum, values[i * DELTA_COLUMNS + column]);
    [[unroll]] for (uint m = 0; m < VECS; m++) {
        precise vec4 kept = s[m] * gate.x;
        s[m] = fma(vec4(d), keys[(i * 2 + 1) * DK4 + 4 * m + lane], kept);
    }
    precise float o = fma(gate.x, q_sum, gate.z * d);
    return o;
}

void store_row(uint t, uint segment, uint row, uint cell, uint at, uint lane, bool is_in) {
    if (cell != IO_NO_CELL) {
        store_state(cell * (B * DV * DK) + at, lane, is_in);
        store_window(t, row, segment, cell);
    }
}

void run_segment(uint t, uint segment) {
    uint id = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint lane = id % 4, column = id / 4;
    bool is_in = first_column + column < DV;
    uint at = (head * DV + first_column + column) * DK, cell = CELLS == 1 ? 0 : io_segment_cell(segment);
    uint out_at = p.out_first + head * DV + first_column + column;
    load_state(cell * (B * DV * DK) + at, lane, is_in);
    uint first = IS_ONE != 0 ? 0 : io_segment_first_row(segment);
    uint n_rows = IS_ONE != 0 ? 1 : io_segment_n_rows(segment);
    barrier();
    if (n_rows == 1) {
        convolve_row(t, first, cell, io_segment_first_position(segment));
        barrier();
        norm_row(t, lane);
        float o = step_row(0, lane, column);
        if (lane == 0 && is_in)
            result[out_at + first * p.out_stride] = o;
        uint to = IS_ONE != 0 && io_n_segments() == 0 ? IO_NO_CELL : io_to_cell(first);
        store_row(t, segment, first, to, at, lane, is_in);
        return;
    }
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
            float o = step_row(i, lane, column);
            if (lane == 0 && is_in)
                result[out_at + row * p.out_stride] = o;
            store_row(t, segment, row, cells[i], at, lane, is_in);
        }
    }
}

void main() {
    const uint TILES = (DV + DELTA_COLUMNS - 1) / DELTA_COLUMNS;
    uint t = gl_LocalInvocationIndex, per_key = B / A;
    head = gl_WorkGroupID.x / TILES;
    first_column = gl_WorkGroupID.x % TILES * DELTA_COLUMNS;
    key_head = IS_TILED != 0 ? head % A : head / per_key;
    is_key_owner = first_column == 0 && (IS_TILED != 0 ? head < A : head % per_key == 0);
    if (IS_ONE != 0) { // its loads do not wait for IO to say that there is one
        run_segment(t, 0);
        return;
    }
    for (uint i = gl_WorkGroupID.y; i < io_n_segments(); i += gl_NumWorkGroups.y)
        run_segment(t, i);
}
