// hidden.glsl - RMS norms of whole rows, for JOIN and HIDDEN: y = x / sqrt(mean(x^2) + eps) * weight.
//
// JOIN takes the hidden state one position earlier from STATE, where HIDDEN stored it, or makes it
// from the row before: both have the same bits, as all is `precise` and the order of sums is one.
//
// A workgroup has a row, and a thread every THREADS-th value of it, EACH in all: they are in its
// registers, so that all loads are in flight together. A thread adds its squares, and a tree the
// threads' sums. The shader has p.eps.
#ifndef HIDDEN_GLSL
#define HIDDEN_GLSL
#include "common.glsl"

layout(constant_id = 1) const uint WIDTH = 1;
layout(constant_id = 2) const uint THREADS = 128; // as constant 0; a power of two

const uint EACH = (WIDTH + THREADS - 1) / THREADS;

#define EACH_VALUE(k) [[unroll]] for (uint k = 0; k < EACH; k++)

uint column(uint k) {
    return gl_LocalInvocationID.x + k * THREADS;
}

// Value k of this thread of the row that begins at `at`; 0 after the row's end.
#define VALUE(row, at, k) (column(k) < WIDTH ? row[(at) + column(k)] : 0)

// Of the row of which this thread's squares are added.
float norm_factor(float squares) {
    precise float mean = group_sum(squares) / float(WIDTH);
    mean = mean + p.eps;
    precise float factor = 1 / sqrt(mean);
    return factor;
}

float normed(float x, float factor, float weight) {
    precise float y = x * factor;
    y = y * weight;
    return y;
}

#endif
