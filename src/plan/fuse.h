/* fuse.h - PROJECT's prologue and epilogue: what is done to its input before the product, and to
 * its result after; for C and CUDA. */
#ifndef PLAN_FUSE_H
#define PLAN_FUSE_H

enum prologue {
    PROLOGUE_NONE,
    PROLOGUE_NORM,         /* rms norm of the row, times a weight (K) */
    PROLOGUE_GATED_NORM,   /* rms norm of each head, times a weight (d), times silu(gate) */
    PROLOGUE_SIGMOID_GATE, /* times sigmoid(gate) */
};

enum epilogue {
    EPILOGUE_STORE,
    EPILOGUE_ADD,    /* out += result: the residual, in place */
    EPILOGUE_SWIGLU, /* two segments: out = silu(first) * second */
};

#endif
