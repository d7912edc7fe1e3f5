// delta.glsl - what the shaders of DELTA share: head units, the window and the pointwise functions.
//
//   y     = silu(conv(window, qkv));  q, k, v = y, q and k normed, q / sqrt(dk)
//   decay = exp(a * softplus(alpha + dt)),  beta = sigmoid(beta)
//   d[j]  = beta * (v[j] - decay * (k . S[j]))
//   o[j]  = decay * (q . S[j]) + (q . k) * d[j]
//   S[j]  = decay * S[j] + d[j] * k            S[j]: a row of dk values, j over dv
//
// A dot product over dk has sixteen chains: chain c has every sixteenth vector of four values from
// the c-th on, component by component, then (x + y) + (z + w); chains are added as a tree, c and
// c + 8 first. LANES threads, 4 to 16, share a dot product, each with 16 / LANES chains.
// Everything is `precise`: a row has the same bits whatever LANES is.
#ifndef DELTA_GLSL
#define DELTA_GLSL

#define CHAINS 16

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint A = 1;  // key heads
layout(constant_id = 2) const uint B = 1;  // value heads
layout(constant_id = 3) const uint DK = 128;
layout(constant_id = 4) const uint DV = 128;
layout(constant_id = 5) const uint WIDTH = 4; // of the convolution
layout(constant_id = 6) const uint IS_TILED = 0;
layout(constant_id = 7) const uint IS_ONE = 0;  // a plan of one row
layout(constant_id = 8) const uint IS_VEC4 = 0; // rows of S are whole vectors
layout(constant_id = 9) const uint CELLS = 1;
layout(constant_id = 10) const uint LANES = 4;
layout(constant_id = 11) const uint COLUMNS = 32; // rows of S that a workgroup has

const uint THREADS = LANES * COLUMNS;
const uint CHANNELS = 2 * A * DK + B * DV;
const uint LINKS = (DK + 4 * CHAINS - 1) / (4 * CHAINS); // vectors of a chain
const uint DK4 = CHAINS * LINKS;                         // vectors of a padded key
const uint PER_LANE = CHAINS / LANES;                    // chains
const uint VECS = PER_LANE * LINKS;                      // vectors of a lane

layout(push_constant) uniform Push {
    IO_AT;
    uint in_first, in_stride, conv_first, a_first, dt_first, out_first, out_stride;
    uint beta_column, alpha_column;
    float q_scale;
} p;

layout(binding = 0) readonly buffer Io { uint io[]; };
layout(binding = 1) readonly coherent buffer In { float x_in[]; };
layout(binding = 2) readonly buffer Conv { float taps[]; }; // (C, WIDTH)
layout(binding = 2) readonly buffer Conv4 { vec4 taps4[]; };
layout(binding = 3) buffer Window { float window[]; };      // (cells, WIDTH, C)

float sum_of_four(vec4 x) {
    precise float sum = (x.x + x.y) + (x.z + x.w);
    return sum;
}

uint window_at(uint cell, uint position, uint channel) {
    return (cell * WIDTH + position % WIDTH) * CHANNELS + channel;
}

// The raw value of a channel, `back` rows before row `row` of the step, whose position is known.
float raw_value(uint row, uint segment, uint position, uint back, uint channel) {
    uint in_segment = position - io_segment_first_position(segment);
    if (back <= in_segment)
        return x_in[p.in_first + (row - back) * p.in_stride + channel];
    return window[window_at(io_segment_cell(segment), position - back, channel)];
}

float silu(float x) {
    precise float y = x * (1.0 / (1.0 + exp(-x)));
    return y;
}

// silu of the convolution, oldest position first; those before position 0 are left out. Nothing is
// loaded under a condition that memory decides: all loads are in flight together.
float convolved(uint row, uint segment, uint position, uint channel) {
    precise float sum = 0;
    uint in_segment = position - io_segment_first_position(segment);
    uint cell = io_segment_cell(segment);
    [[unroll]] for (uint t = 0; t < WIDTH; t++) {
        uint back = WIDTH - 1 - t;
        float tap = taps[p.conv_first + channel * WIDTH + t];
        float from_in = x_in[p.in_first + (row - min(back, in_segment)) * p.in_stride + channel];
        float from_window = 0;
        if (back > 0) // WIDTH more: it may be before position 0
            from_window = window[window_at(cell, position + WIDTH - back, channel)];
        float x = back <= in_segment ? from_in : from_window;
        sum = back <= position ? fma(tap, x, sum) : sum;
    }
    return silu(sum);
}

// The same of four consecutive rows of a segment, of which each value is loaded once.
vec4 convolved_four(uint row, uint segment, uint position, uint channel) {
    const uint ALL = WIDTH + 3;
    float x[ALL], tap[WIDTH];
    uint first_position = io_segment_first_position(segment), cell = io_segment_cell(segment);
    [[unroll]] for (uint i = 0; i < ALL; i++) {
        uint at = position + i; // WIDTH - 1 positions later than the value's
        bool is_in = at >= first_position + WIDTH - 1;
        x[i] = 0;
        if (is_in)
            x[i] = x_in[p.in_first + (row + i + 1 - WIDTH) * p.in_stride + channel];
        else if (at >= WIDTH - 1)
            x[i] = window[window_at(cell, at + 1 - WIDTH, channel)];
    }
    [[unroll]] for (uint t = 0; t < WIDTH; t++)
        tap[t] = taps[p.conv_first + channel * WIDTH + t];
    vec4 y;
    [[unroll]] for (uint r = 0; r < 4; r++) {
        precise float sum = 0;
        [[unroll]] for (uint t = 0; t < WIDTH; t++)
            sum = WIDTH - 1 - t <= position + r ? fma(tap[t], x[r + t], sum) : sum;
        y[r] = silu(sum);
    }
    return y;
}

float key_factor(float squares) {
    precise float sum = squares + 1e-6;
    return 1.0 / sqrt(sum);
}

float query_factor(float squares) {
    precise float factor = p.q_scale * key_factor(squares);
    return factor;
}

// q . k from those of q and k as they were convolved: q . q, k . k and q . k.
float scaled_qk(vec3 dots) {
    precise float y = dots.z * query_factor(dots.x) * key_factor(dots.y);
    return y;
}

#endif
